"""The trial: a meme goes in, a record comes out, and a keeper is told of every event as it happens.

A trial is a function with a keeper, not a generator: a generator that is closed early may not yield, so that an
abandoned trial could not record its own end.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from court import summary
from court.deadline import Deadline
from court.digests import digest
from court.errors import CantResume, CourtError, NotLoaded, Unavailable
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
    TrialFailed,
    TrialOpened,
    TrialResumed,
    Versions,
)
from court.evidence import Evidence, text_reader_off
from court.examination import entropy
from court.expert.embedded import SentenceWitness
from court.expert.findings import Testimony, with_testimony
from court.full import FullTrial
from court.judgment import give_verdict
from court.meme import Meme, Picture
from court.messages import file_sha256
from court.policy import DEFAULT_POLICY, Policy
from court.ports import DuplicateFinder, Entailment, EventSink, EvidenceSource, PrecedentFinder, TextReader
from court.prompts import PromptSet
from court.prompts.sets import packaged
from court.record import TrialAborted, TrialRecord, TrialState
from court.recorder import EventDraft, Recorder
from court.roles import RoleModels
from court.settings import TrialSettings
from court.untrusted import Fence

_log = logging.getLogger("memecourt.trial")

STOPPED = "SERVER_STOPPED"
"""What a trial is cancelled with where the server ends and not the caller: ``task.cancel(STOPPED)``."""


@dataclass(frozen=True, slots=True)
class TrialCase:
    """One meme to be tried.

    Attributes:
        trial_id: Unique; names the record.
        meme: Meme on trial.
        procedure: Procedure of the trial.
        request_id: The caller's own name for the request.
        namespace: Namespace of the content.
        content_id: Caller's id of the content.
        trace_id: W3C trace id, 32 hex digits, or empty.
        within_s: Seconds until the caller's deadline, or None. When they run short, the sides rest early.
        batch: True if it is one of many for which nobody waits singly: model servers work on others first.
        of_trial: Id of the trial whose meme is tried once more; empty for a trial of its own.
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
        finder: Finds precedents.
        text_reader: Reads the text where the caller gives none; None where callers have to.
        software: Version of MemeCourt.
        settings: Settings of every trial.
        policy: Policy that defines harm.
        prompts: Words in which models are asked.
        chairs: Chat models of a full trial; None for a court without chat models.
        fence_mark: Mark of the fences around untrusted text; None for a fresh mark a trial. Set it only to compare
            messages.
        now: The time, UTC.
        duplicates: Finds memes tried before that are nearly the one on trial; None for a court that looks for none.
        evidence_source: Finds documents for the expert witness; None for a court that calls none.
        entailment: Compares claims with sentences where no model is asked to write; None where claims are not settled
            there.
    """

    finder: PrecedentFinder
    text_reader: TextReader | None
    software: str
    settings: TrialSettings = field(default_factory=TrialSettings)
    policy: Policy = DEFAULT_POLICY
    prompts: PromptSet = field(default_factory=packaged)
    chairs: RoleModels | None = None
    fence_mark: str | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    duplicates: DuplicateFinder | None = None
    evidence_source: EvidenceSource | None = None
    entailment: Entailment | None = None

    @property
    def procedures(self) -> frozenset[Procedure]:
        """Procedures that this court can run; without chat models, the summary alone."""
        return frozenset({Procedure.SUMMARY} if self.chairs is None else Procedure)

    def require(self, procedure: Procedure, *, text_given: bool = True) -> None:
        """Raises NotLoaded if this court can't hold that procedure, or can't read a text that nobody gave."""
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
        if self.settings.expert != "off" and procedure is not Procedure.SUMMARY and self.chairs is not None:
            # A fault of wiring: with the witness on, its model is connected as those of the other roles are.
            assert self.chairs.expert is not None, "the expert witness is on, and has no model"
        if not text_given and self.text_reader is None:
            raise text_reader_off()

    async def hear(self, case: TrialCase, keep: EventSink) -> TrialRecord:
        """Tries a meme.

        Args:
            case: Case on trial, and its procedure.
            keep: Is told of every event; the trial goes on only once it has returned.

        Returns:
            The record; it ends in a verdict.

        Raises:
            NotLoaded: This court can't hold that procedure; nothing was recorded.
            TrialAborted: The trial began and failed; its record says at which step and why.
            asyncio.CancelledError: The caller gave up; recorded, and raised again.
        """
        # Before anything is recorded: what this court can't do leaves no trial behind.
        self.require(case.procedure, text_given=case.meme.text is not None)
        clerk = Recorder(case.trial_id, keep, self.now)
        fence = Fence(self.fence_mark)
        # The opening and the caller's text are one write: with the first alone on record, the trial could not be
        # resumed.
        beginning = [EventDraft(TrialOpened, self._opening(case, fence))]
        if case.meme.text is not None:
            beginning.append(_text_of_caller(case.meme, case.meme.text))
        return await self._to_its_end(case, clerk, fence, *beginning)

    async def resume(
        self,
        record: TrialRecord,
        picture: Picture | None,
        keep: EventSink,
        *,
        within_s: float | None = None,
        batch: bool = False,
    ) -> TrialRecord:
        """Takes a trial up where it was cut off; nobody is asked again for what was said.

        Args:
            record: Record of a trial that is open, or that failed for a reason that may have passed.
            picture: Picture of its meme, as decoded then; None where its text was sent alone.
            keep: Sink for new events, as for :meth:`hear`.
            within_s: Seconds until the caller's deadline; None where there is none.
            batch: True if nobody waits for it singly; as of a case.

        Raises:
            CantResume: The trial has a verdict, failed for good, or was begun with other settings, prompts, models or
                precedents than these: half of each would be neither.
            As :meth:`hear`.
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
        clerk = Recorder(record.trial_id, keep, self.now, record.events)
        fence = Fence(self.fence_mark)
        # The record names the new mark, so that messages sent from here on can be made again from it.
        values = {"software": self.software}
        if opened.procedure is not Procedure.SUMMARY:
            values["fence_mark"] = fence.mark
        return await self._to_its_end(case, clerk, fence, EventDraft(TrialResumed, values))

    async def _to_its_end(self, case: TrialCase, clerk: Recorder, fence: Fence, *beginning: EventDraft) -> TrialRecord:
        # `begun` separates a failed first write, which leaves the record as it was, from a failure of the trial itself.
        budget, begun = Deadline(case.within_s, self.settings.call_s, clerk.tally), False
        try:
            with clerk.tally.counting():
                await clerk.note_all(*beginning)
                begun = True
                await self._hold(case, clerk, fence, budget)
        except asyncio.CancelledError as error:
            # The recorder finishes this write although the task is cancelled: an abandoned trial does not stay open.
            await clerk.fail(_ended_by(error))
            raise
        except CourtError as error:
            if not begun:
                raise  # it is as it was, and may be begun when what is away is back
            _without_its_way(error)
            await _abort(clerk, budget.blame(error))
            raise
        except Exception as error:
            # A fault of ours. Its message may hold the meme's text or a path: only its kind and place are logged.
            where = "".join(traceback.format_tb(error.__traceback__))
            fault = f"{type(error).__qualname__} at step {clerk.step}"
            _log.error("trial %s: %s\n%s", case.trial_id, fault, where)
            _without_its_way(error)
            await _abort(clerk, _our_fault())
            raise _our_fault() from error
        return clerk.record

    async def _hold(self, case: TrialCase, clerk: Recorder, fence: Fence, budget: Deadline) -> None:
        evidence = Evidence(
            meme=case.meme,
            namespace=case.namespace,
            settings=self.settings,
            text_reader=self.text_reader,
            finder=self.finder,
            duplicates=self.duplicates,
            recorder=clerk,
            deadline=budget,
            # A summary has nothing but its precedents to go by; a Judge that looks at the meme has better.
            distant_vote=case.procedure is Procedure.SUMMARY,
        )
        if case.procedure is Procedure.FULL:
            await self._full(evidence, fence, case).run()
            return
        clerk.step = "text"
        text = await evidence.text()
        clerk.step = "duplicates"
        duplicates = await evidence.near_duplicates(text)
        clerk.step = "precedents"
        findings, vote, cited = await evidence.search(text.text)
        unrecorded = [*duplicates, *cited]
        if case.procedure is Procedure.CASCADE and not summary.is_conclusive(findings, vote):
            # The full trial recalls these from the record, so they are written before it begins.
            await clerk.note_all(*unrecorded)
            await self._full(evidence, fence, case).run(text)
            return
        # The witness records its steps as they come: these stand before them.
        if unrecorded and self.settings.expert == "always":
            await clerk.note_all(*unrecorded)
            unrecorded = []
        testimony = await self._testimony(text.text, clerk, budget)
        clerk.step = "sides"
        # Nobody is asked: all that there is to say since the text is kept at once.
        for side in Side:
            statement = summary.argue(side, findings, vote)
            if clerk.recall(Summarised, side=side) is None:
                fields = {
                    "summary": statement.summary,
                    "justification": statement.justification,
                    "entropy": entropy(statement.summary),
                    "cites": statement.cites,
                }
                unrecorded.append(EventDraft(Summarised, {"side": side, "round": 0, **fields}))
            if clerk.recall(SideRested, side=side) is None:
                resting = {"side": side, "rounds": 0, "reason": QuestioningEnd.NO_EXAMINATION}
                unrecorded.append(EventDraft(SideRested, resting))
        clerk.step = "verdict"
        verdict = summary.weigh(findings, vote, text, self.settings)
        if testimony is not None:
            verdict = with_testimony(verdict, testimony, facts=self.policy.turns_on_facts)
        await give_verdict(clerk, *unrecorded, verdict=verdict)

    async def _testimony(self, text: str, clerk: Recorder, budget: Deadline) -> Testimony | None:
        """Testimony of the expert witness of a summary, which no side can call; None where it is not called."""
        if self.settings.expert != "always" or self.evidence_source is None:
            return None
        clerk.step = "claims"
        witness = SentenceWitness(
            source=self.evidence_source,
            entailment=self.entailment,
            settings=self.settings,
            recorder=clerk,
            deadline=budget,
        )
        return await witness.testify(text)

    def _full(self, evidence: Evidence, fence: Fence, case: TrialCase) -> FullTrial:
        assert self.chairs is not None, "checked by require()"
        return FullTrial(
            evidence=evidence,
            # Keyed by the meme, so that a picture comes back to a server that has it in its caches.
            models=self.chairs.pinned(evidence.meme.digest),
            policy=self.policy,
            fence=fence,
            prompts=self.prompts,
            batch=case.batch,
            source=self.evidence_source,
        )

    def _require_resumable(self, record: TrialRecord, pixels_sha256: str) -> None:
        opened, failed = record.opened, record.last(TrialFailed)
        require_undecided(record)
        # A caller who leaves says nothing about the trial: CANCELLED is not retryable by itself, and can still be
        # resumed.
        if record.state is TrialState.FAILED and failed and not failed.retryable and failed.reason != "CANCELLED":
            raise CantResume(f"The trial failed for good: {failed.message}", reason="TRIAL_FAILED")
        if pixels_sha256 != opened.meme.pixels_sha256:
            raise CantResume("The picture is not the one that was on trial.", reason="PICTURE_DIFFERS")
        if opened.meme.text_given and record.text is None:
            raise CantResume("It was cut off before the caller's text was kept. Ask for a new trial.")
        self.require_same_versions(record)

    def require_same_versions(self, record: TrialRecord) -> None:
        """Raises CantResume where a trial was begun with other versions than are loaded now."""
        opened = record.opened
        now = self.versions(opened.procedure)
        differ = [
            name
            # `software` may differ: TrialResumed says which version goes on.
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
        """Returns the versions with which a trial that began now would be run."""
        # A summary calls no model: other prompts or models must not stop it from being resumed.
        chairs = None if procedure is Procedure.SUMMARY else self.chairs
        return Versions(
            software=self.software,
            settings=digest(self._settings(procedure)),
            prompts="" if procedure is Procedure.SUMMARY else self.prompts.digest,
            models={} if chairs is None else chairs.models,
            encoder=self.finder.library.encoder,
            library=self.finder.library.digest,
            text_reader=self.text_reader.identity if self.text_reader else "",
        )

    def _settings(self, procedure: Procedure) -> dict[str, Any]:
        # A path is nobody else's business, and the words are known by their digest.
        settings = self.settings.model_dump(mode="json") | {"prompts": self.prompts.name}
        if procedure is not Procedure.SUMMARY and self.chairs is not None:
            settings |= self.chairs.settings(self.settings.reply_chars)
        if self.settings.expert != "off" and self.evidence_source is not None:
            # Another source finds other evidence: a trial that is resumed, or a verdict given again, has to rest on the
            # same.
            settings["evidence_source"] = self.evidence_source.identity
            settings["clauses_on_facts"] = list(self.policy.clauses_on_facts)
            if self.entailment is not None and procedure is not Procedure.FULL:
                settings["entailment"] = self.entailment.identity
        return settings

    def _opening(self, case: TrialCase, fence: Fence) -> dict[str, Any]:
        asks_nobody = case.procedure is Procedure.SUMMARY
        return {
            "procedure": case.procedure,
            "meme": _identity(case, shown_to_models=not asks_nobody),
            "request_id": case.request_id,
            "trace_id": case.trace_id,
            "policy": PolicyReference(
                id=self.policy.id,
                version=self.policy.version,
                digest=self.policy.digest,
                content=None if asks_nobody else self.policy,
            ),
            "settings": self._settings(case.procedure),
            "versions": self.versions(case.procedure),
            # Pinned, so that they stand in the order in which this trial prefers them.
            "servers": {} if asks_nobody or self.chairs is None else self.chairs.pinned(case.meme.digest).servers,
            "prefix_cache": {} if asks_nobody or self.chairs is None else self.chairs.prefix_cache,
            "fence_mark": "" if asks_nobody else fence.mark,
            "of_trial": case.of_trial,
        }


def _identity(case: TrialCase, *, shown_to_models: bool) -> MemeIdentity:
    """Says which meme is on trial, and of one whose text was sent alone that there was no picture."""
    meme, picture = case.meme, case.meme.picture
    whose = {"namespace": case.namespace, "content_id": case.content_id, "text_given": meme.text is not None}
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
            **whose,
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
        frames=tuple(file_sha256(frame.png) for frame in picture.frames) if shown_to_models else (),
        **whose,
    )


def _text_of_caller(meme: Meme, text: str) -> EventDraft:
    """Drafts the event about the caller's text."""
    source = TextSource.CALLER if text.strip() else TextSource.NONE
    return EventDraft(TextRead, {"text": text, "source": source, "language": meme.language or ""})


def _ended_by(cancelled: asyncio.CancelledError) -> CourtError:
    """Returns the error for a cancelled trial: the caller left, unless the server says that it stopped it."""
    if cancelled.args == (STOPPED,):
        # Unavailable makes the failure retryable, so that the next server takes the trial up (GR-5).
        return Unavailable("The server was stopped before there was a verdict.", reason=STOPPED)
    return CourtError("The caller gave up before there was a verdict.", reason="CANCELLED")


async def _abort(clerk: Recorder, cause: CourtError) -> None:
    """Records the cause and raises TrialAborted; only returns where the trial had not begun."""
    await clerk.fail(cause)
    # Where nothing was recorded, there is no record to go with the error.
    if clerk.opened:
        raise TrialAborted(cause, clerk.record)


def _without_its_way(error: Exception) -> None:
    """Has an error forget how it came about, which holds the trial's pictures: those who wait for the trial hold it."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


def _our_fault() -> CourtError:
    return CourtError("The court made a mistake and could not finish the trial.", reason="INTERNAL")


def require_undecided(record: TrialRecord) -> None:
    """Raises CantResume if the trial has its verdict."""
    if record.state is TrialState.DECIDED:
        raise CantResume("The trial has its verdict already.", reason="TRIAL_DECIDED")
