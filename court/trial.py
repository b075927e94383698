"""Runs trials: takes a meme, stores every event through an event sink as it happens, and returns the record.

A trial is a function that calls a sink, not a generator that yields events: a generator that is closed early may not
yield, so an abandoned trial could not record its own end.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from court import summary
from court.audition import CALIBRATION, Audition, Bound, Calibration
from court.deadline import Deadline, run_within
from court.digests import digest
from court.errors import BadRequest, CantResume, CourtError, NotLoaded, Unavailable
from court.events import (
    MemeIdentity,
    PolicyReference,
    Procedure,
    QuestioningEnd,
    Side,
    SideRested,
    Summarised,
    TextRead,
    TextSource,
    TrialOpened,
    TrialResumed,
    Versions,
)
from court.evidence import Evidence, search_late, text_reader_off
from court.examination import entropy
from court.full import FullTrial
from court.judgment import give_verdict
from court.meme import Meme, Picture, is_text_digest
from court.messages import file_sha256
from court.policy import DEFAULT_POLICY, Policy
from court.ports import BindingFinder, DuplicateFinder, EventSink, EvidenceSource, PrecedentFinder, TextReader
from court.precedents import VerifiedCopy
from court.prompts import Fence, PromptSet
from court.prompts.sets import packaged
from court.record import TrialAborted, TrialRecord, TrialState
from court.recorder import EventDraft, Recorder
from court.roles import RoleModels
from court.settings import TrialSettings
from court.verdict import Label

_log = logging.getLogger("memecourt.trial")

_MOST_COPIES = 3
"""Maximum number of binding precedents of a label that a record names."""

STOPPED = "SERVER_STOPPED"
"""Message of ``task.cancel`` when the server stops the trial, as opposed to its caller: ``task.cancel(STOPPED)``."""


@dataclass(frozen=True, slots=True)
class TrialCase:
    """One meme to be tried.

    Attributes:
        within_s: Seconds until the caller's deadline, or None. When time runs short, the sides stop asking early.
        batch: True for a trial of a batch, whose single results nobody waits for: model servers serve other trials
            first.
    """

    trial_id: str
    meme: Meme
    procedure: Procedure = Procedure.SUMMARY
    request_id: str = ""
    namespace: str = ""
    content_id: str = ""
    trace_id: str = ""
    within_s: float | None = None
    batch: bool = False
    of_trial: str = ""


@dataclass(frozen=True, slots=True)
class Court:
    """Everything that trials are run with.

    Attributes:
        audition: Audition of the models, which counts while it fits; a replay has the calibration of its record.
        fence_mark: Mark of the fences around untrusted text; None for a fresh mark in each trial. Set it only to
            compare messages.
    """

    finder: PrecedentFinder
    text_reader: TextReader | None
    software: str
    settings: TrialSettings = field(default_factory=TrialSettings)
    policy: Policy = DEFAULT_POLICY
    prompts: PromptSet = field(default_factory=packaged)
    role_models: RoleModels | None = None
    fence_mark: str | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    duplicates: DuplicateFinder | None = None
    evidence_source: EvidenceSource | None = None
    bindings: BindingFinder | None = None
    audition: Audition | Calibration | None = None

    @property
    def call_s(self) -> float:
        """Seconds that a model call may take: as set, or longer where the measured speed of the models needs it."""
        if self.role_models is None or "call_s" in self.settings.model_fields_set:
            return self.settings.call_s
        return max(self.settings.call_s, self.role_models.longest_call_s(self.settings.reply_chars))

    @property
    def procedures(self) -> frozenset[Procedure]:
        """Procedures that this court can run; only the summary without chat models."""
        return frozenset({Procedure.SUMMARY} if self.role_models is None else Procedure)

    def require(self, procedure: Procedure, *, text_given: bool = True, picture_given: bool = False) -> None:
        """Raises NotLoaded if it can't run that procedure or read the text, BadRequest for a picture too many."""
        if picture_given and self.settings.input == "texts":
            raise BadRequest(
                "This court judges texts alone, and a picture was sent. Send its text without it.",
                reason="PICTURE_NOT_WANTED",
                field="image",
            )
        if procedure not in self.procedures:
            raise NotLoaded(
                f"The procedure {procedure} needs chat models, and this court has none. "
                f"Ask for {', '.join(sorted(self.procedures))}.",
                reason="PROCEDURE_NOT_LOADED",
                field="procedure",
            )
        if self.settings.expert != "off" and self.evidence_source is None:
            raise NotLoaded(
                f"The expert witness is on (trial.expert = {self.settings.expert}) without a source of evidence. "
                "Name one: expert.corpus for a folder of documents, or expert.url for a search of your own; or set "
                "trial.expert to off.",
                reason="EVIDENCE_SOURCE_MISSING",
                field="trial.expert",
            )
        if self.settings.expert != "off" and procedure is not Procedure.SUMMARY and self.role_models is not None:
            # A wiring bug: when the witness is on, its model is connected along with those of the other roles.
            assert self.role_models.expert is not None, "the expert witness is on, and has no model"
        if not text_given and self.text_reader is None:
            raise text_reader_off()

    async def run(self, case: TrialCase, keep: EventSink) -> TrialRecord:
        """Tries a meme, and returns the record, which ends in a verdict.

        Raises:
            NotLoaded: This court can't run that procedure; nothing was recorded.
            TrialAborted: The trial began and failed; its record says at which step and why.
            asyncio.CancelledError: The caller gave up; this is recorded and raised again.
        """
        # Checked before anything is recorded: a request that this court can't serve leaves no trial behind.
        self.require(case.procedure, text_given=case.meme.text is not None, picture_given=case.meme.picture is not None)
        recorder = Recorder(case.trial_id, keep, self.now)
        fence = Fence(self.fence_mark)
        # The opening and the caller's text are stored in one write: a trial with only the opening on record could not
        # be resumed.
        first_events = [EventDraft(TrialOpened, self._opening(case, fence))]
        if case.meme.text is not None:
            source = TextSource.CALLER if case.meme.text.strip() else TextSource.NONE
            values = {"text": case.meme.text, "source": source, "language": case.meme.language or ""}
            first_events.append(EventDraft(TextRead, values))
        return await self._run_to_end(case, recorder, fence, *first_events)

    async def resume(
        self,
        record: TrialRecord,
        picture: Picture | None,
        keep: EventSink,
        *,
        within_s: float | None = None,
        batch: bool = False,
    ) -> TrialRecord:
        """Resumes a trial where it was cut off; replies on record are not requested again.

        Raises:
            CantResume: The trial has a verdict, failed for good, or was begun with other settings, prompts, models or
                precedents than are loaded now: the result would mix the two. As :meth:`run`.
        """
        opened, text = record.opened, record.text
        self.require(opened.procedure)
        self._require_resumable(record, "" if picture is None else picture.pixels_sha256)
        case = TrialCase(
            trial_id=record.trial_id,
            meme=Meme(picture, text=text.text if text and opened.meme.text_given else None),
            procedure=opened.procedure,
            namespace=opened.meme.namespace,
            within_s=within_s,
            batch=batch,
        )
        recorder = Recorder(record.trial_id, keep, self.now, record.events)
        fence = Fence(self.fence_mark)
        # The new mark is recorded, so that messages sent from here on can be rebuilt from the record.
        values = {"software": self.software}
        if opened.procedure is not Procedure.SUMMARY:
            values["fence_mark"] = fence.mark
        return await self._run_to_end(case, recorder, fence, EventDraft(TrialResumed, values))

    async def _run_to_end(
        self, case: TrialCase, recorder: Recorder, fence: Fence, *first_events: EventDraft
    ) -> TrialRecord:
        # `begun` tells a failed first write, which leaves the record unchanged, from a failure of the trial itself.
        deadline, begun = Deadline(case.within_s, self.call_s, recorder.usage), False
        try:
            with recorder.usage.counting():
                await recorder.record_all(*first_events)
                begun = True
                await self._run_procedure(case, recorder, fence, deadline)
        except asyncio.CancelledError as error:
            # The recorder finishes this write although the task is cancelled: an abandoned trial does not stay open.
            await recorder.fail(_cancellation_error(error))
            raise
        except CourtError as error:
            if not begun:
                raise  # nothing was stored: the trial can be started or resumed later
            _drop_traceback(error)
            await _abort(recorder, deadline.blame(error))
            raise
        except Exception as error:
            # A bug of ours. Its message may contain the meme's text or a path, so only its type and traceback are
            # logged.
            where = "".join(traceback.format_tb(error.__traceback__))
            fault = f"{type(error).__qualname__} at step {recorder.step}"
            _log.error("trial %s: %s\n%s", case.trial_id, fault, where)
            _drop_traceback(error)
            await _abort(recorder, _internal_error())
            raise _internal_error() from error
        return recorder.trial

    async def _run_procedure(self, case: TrialCase, recorder: Recorder, fence: Fence, deadline: Deadline) -> None:
        evidence = Evidence(
            meme=case.meme,
            namespace=case.namespace,
            settings=self.settings,
            text_reader=self.text_reader,
            finder=self.finder,
            duplicates=self.duplicates,
            recorder=recorder,
            deadline=deadline,
        )
        recorder.step = "precedents"
        # Before any model is asked, in every procedure.
        if copies := await self._binding_copies(evidence):
            await give_verdict(recorder, verdict=summary.settled_by(copies), copies=copies)
            return
        if case.procedure is Procedure.FULL:
            await self._full(evidence, fence, case).run()
            return
        recorder.step = "text"
        text = await evidence.text()
        recorder.step = "duplicates"
        duplicates = await evidence.near_duplicates(text)
        recorder.step = "precedents"
        findings, vote, cited = await evidence.search(text.text)
        unrecorded = [*duplicates, *cited]
        if case.procedure is Procedure.CASCADE and not summary.is_conclusive(findings, vote):
            # The full trial reads these from the record, so they are stored before it begins.
            await recorder.record_all(*unrecorded)
            await self._full(evidence, fence, case).run(text)
            return
        recorder.step = "sides"
        # No model is asked, so all events after the text can be stored in one write.
        for side in Side:
            if recorder.find(Summarised, side=side) is None:
                argued = summary.argue(side, findings, vote)
                argued |= {"side": side, "round": 0, "entropy": entropy(argued["summary"])}
                unrecorded.append(EventDraft(Summarised, argued))
            if recorder.find(SideRested, side=side) is None:
                rested = {"side": side, "rounds": 0, "reason": QuestioningEnd.NO_EXAMINATION}
                unrecorded.append(EventDraft(SideRested, rested))
        recorder.step = "verdict"
        verdict = summary.weigh(findings, vote, text, self.settings, policy=self.policy)
        await give_verdict(recorder, *unrecorded, verdict=verdict)

    async def copies(self, meme_digest: str, text: str | None, namespace: str) -> Sequence[VerifiedCopy]:
        """Returns the binding precedents that are a meme, a few of either label; ``text`` is None for any.

        Raises:
            Unavailable: The library can't be read now.
        """
        if self.bindings is None:
            return ()
        pixels = "" if is_text_digest(meme_digest) else meme_digest
        found = await self.bindings.copies(pixels_sha256=pixels, text=text)
        here = [copy for copy in found if copy.namespace in ("", namespace) and copy.policy in ("", self.policy.id)]
        by_label = [[copy for copy in here if copy.label is label] for label in (Label.HARMFUL, Label.NOT_HARMFUL)]
        return tuple(copy for copies in by_label for copy in copies[:_MOST_COPIES])

    async def _binding_copies(self, evidence: Evidence) -> Sequence[VerifiedCopy]:
        meme = evidence.meme

        async def copies(text: str | None) -> Sequence[VerifiedCopy]:
            finding = self.copies(meme.digest, text, evidence.namespace)
            return await run_within(finding, evidence.deadline.at_most(self.settings.find_s), search_late)

        found = await copies(meme.text)
        # Read only if it may matter here, so that the steps of other trials keep their order.
        return await copies((await evidence.text()).text) if found and meme.text is None else found

    def _full(self, evidence: Evidence, fence: Fence, case: TrialCase) -> FullTrial:
        assert self.role_models is not None, "checked by require()"
        return FullTrial(
            evidence=evidence,
            # Keyed by the meme, so that a picture goes to a server that already has it in its caches.
            models=self.role_models.pinned(evidence.meme.digest),
            policy=self.policy,
            fence=fence,
            prompts=self.prompts,
            batch=case.batch,
            source=self.evidence_source,
            # As recorded: the library may have changed since the trial was opened.
            calibration=calibration_of(evidence.recorder.trial),
        )

    def _require_resumable(self, record: TrialRecord, pixels_sha256: str) -> None:
        opened, failed = record.opened, record.failure
        require_undecided(record)
        # CANCELLED is not retryable by itself, but a trial whose caller left can still be resumed.
        if record.state is TrialState.FAILED and failed and not failed.retryable and failed.reason != "CANCELLED":
            raise CantResume(f"The trial failed for good: {failed.message}", reason="TRIAL_FAILED")
        if pixels_sha256 != opened.meme.pixels_sha256:
            raise CantResume("The picture is not the one that was on trial.", reason="PICTURE_DIFFERS")
        if opened.meme.text_given and record.text is None:
            raise CantResume("It was cut off before the caller's text was kept. Ask for a new trial.")
        self.require_same_versions(record)

    def require_same_versions(self, record: TrialRecord) -> None:
        """Raises CantResume if the trial was begun with other versions than are loaded now."""
        opened = record.opened
        now = self.versions(opened.procedure)
        differ = [
            name
            # `software` may differ: TrialResumed records the version that continues.
            for name in ("settings", "prompts", "models", "library", "encoder")
            if getattr(now, name) != getattr(opened.versions, name)
        ]
        if self.policy.digest != opened.policy.digest:
            differ.append("policy")
        if differ:
            raise CantResume(
                f"The trial was begun with other {', '.join(differ)} than are loaded now. Load those, or ask for a new "
                "trial.",
                reason="VERSIONS_DIFFER",
            )

    def versions(self, procedure: Procedure) -> Versions:
        """Returns the versions that a trial starting now would use."""
        # A summary calls no model, so a change of prompts or models must not prevent it from being resumed.
        role_models = None if procedure is Procedure.SUMMARY else self.role_models
        return Versions(
            software=self.software,
            settings=digest(self._settings(procedure)),
            prompts="" if procedure is Procedure.SUMMARY else self.prompts.digest,
            models={} if role_models is None else role_models.models,
            encoder=self.finder.library.encoder,
            library=self.finder.library.digest,
            text_reader=self.text_reader.identity if self.text_reader else "",
        )

    def _settings(self, procedure: Procedure) -> dict[str, Any]:
        calibration = self._calibration(procedure)
        # Its digest does for the reuse of verdicts, its weights for a replay.
        own = {CALIBRATION: calibration.model_dump(mode="json")} if calibration else {}
        return self._evidence_settings(procedure) | own

    def _evidence_settings(self, procedure: Procedure) -> dict[str, Any]:
        # Only the folder's name: the path is private, and the prompts are identified by their digest.
        settings = self.settings.model_dump(mode="json") | {"prompts": self.prompts.name}
        if procedure is not Procedure.SUMMARY and self.role_models is not None:
            settings |= self.role_models.settings(self.settings.reply_chars)
        if procedure is not Procedure.SUMMARY and self.settings.expert != "off" and self.evidence_source is not None:
            # Another source finds other evidence, and a resumed trial or a cached verdict must rest on the same source.
            settings["evidence_source"] = self.evidence_source.identity
            settings["clauses_on_facts"] = list(self.policy.clauses_on_facts)
        return settings

    def bound(self, procedure: Procedure) -> Bound:
        """Returns what an audition of trials of a procedure is bound to."""
        return Bound.to(
            models=self.role_models.models if self.role_models else {},
            weights=self.role_models.weights if self.role_models else {},
            prompts=self.prompts.digest,
            library=self.finder.library.digest,
            policy=self.policy.digest,
            procedure=procedure,
            settings=self._evidence_settings(procedure),
        )

    def _calibration(self, procedure: Procedure) -> Calibration | None:
        """Returns the calibration of full verdicts; None without an audition that fits."""
        if self.audition is None or procedure is Procedure.SUMMARY or not self.settings.audition:
            return None
        if isinstance(self.audition, Calibration):
            return self.audition
        fits = self.audition.bound == self.bound(procedure)
        return self.audition.calibration(self.settings) if fits else None

    def _opening(self, case: TrialCase, fence: Fence) -> dict[str, Any]:
        is_summary = case.procedure is Procedure.SUMMARY
        return {
            "procedure": case.procedure,
            "meme": _identity(case, shown_to_models=self.settings.pictures_shown and not is_summary),
            "request_id": case.request_id,
            "trace_id": case.trace_id,
            "policy": PolicyReference(
                id=self.policy.id,
                version=self.policy.version,
                digest=self.policy.digest,
                content=None if is_summary else self.policy,
            ),
            "settings": self._settings(case.procedure),
            "versions": self.versions(case.procedure),
            # Pinned, so that they are listed in this trial's order of preference.
            "servers": {}
            if is_summary or self.role_models is None
            else self.role_models.pinned(case.meme.digest).servers,
            "prefix_cache": {} if is_summary or self.role_models is None else self.role_models.prefix_cache,
            "weights": {} if is_summary or self.role_models is None else self.role_models.weights,
            "fence_mark": "" if is_summary else fence.mark,
            "of_trial": case.of_trial,
        }


def calibration_of(record: TrialRecord) -> Calibration | None:
    """Returns the calibration that a trial was opened with; None without one."""
    stored = record.opened.settings.get(CALIBRATION)
    return None if stored is None else Calibration.model_validate(stored)


def _identity(case: TrialCase, *, shown_to_models: bool) -> MemeIdentity:
    """Returns the identity of the meme on trial, with empty picture fields if only its text was sent."""
    meme, picture = case.meme, case.meme.picture
    caller_fields = {"namespace": case.namespace, "content_id": case.content_id, "text_given": meme.text is not None}
    if picture is None:
        return MemeIdentity(
            bytes_sha256="",
            pixels_sha256="",
            format="",
            width=0,
            height=0,
            frame_count=0,
            frames_used=(),
            picture_given=False,
            text_digest=meme.digest,
            **caller_fields,
        )
    return MemeIdentity(
        bytes_sha256=picture.bytes_sha256,
        pixels_sha256=picture.pixels_sha256,
        format=picture.format,
        width=picture.width,
        height=picture.height,
        frame_count=picture.frame_count,
        frames_used=tuple(frame.index for frame in picture.frames),
        frames_unlike=picture.frames_unlike,
        incomplete=picture.incomplete,
        shown_otherwise=picture.shown_otherwise,
        frames=tuple(file_sha256(frame.png) for frame in picture.frames) if shown_to_models else (),
        **caller_fields,
    )


def _cancellation_error(cancelled: asyncio.CancelledError) -> CourtError:
    """Returns the error for a cancelled trial: the caller left, unless the server stopped it."""
    if cancelled.args == (STOPPED,):
        # Unavailable makes the failure retryable, so that the next server resumes the trial (GR-5).
        return Unavailable("The server was stopped before there was a verdict.", reason=STOPPED)
    return CourtError("The caller gave up before there was a verdict.", reason="CANCELLED")


async def _abort(recorder: Recorder, cause: CourtError) -> None:
    """Records the cause and raises TrialAborted; returns only if the trial had not begun."""
    await recorder.fail(cause)
    # Without any recorded event there is no record to attach to the error.
    if recorder.opened:
        raise TrialAborted(cause, recorder.trial)


def _drop_traceback(error: Exception) -> None:
    """Clears an error's traceback and context, which reference the trial's pictures and are kept by waiting callers."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


def _internal_error() -> CourtError:
    return CourtError("The court made a mistake and could not finish the trial.", reason="INTERNAL")


def require_undecided(record: TrialRecord) -> None:
    """Raises CantResume if the trial already has a verdict."""
    if record.state is TrialState.DECIDED:
        raise CantResume("The trial has its verdict already.", reason="TRIAL_DECIDED")
