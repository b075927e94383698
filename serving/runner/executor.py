"""Runs a trial: decodes the picture, tries the meme and appends every event to the docket."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from court.errors import CantResume
from court.events import AnyEvent, PrecedentsCited, TextRead, TrialOpened, VerdictGiven
from court.meme import Meme, Picture, check_present, check_text
from court.ports import EventSink, PictureReader
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief, rule_on_question
from court.trial import Court, TrialCase
from serving.docket.open import Docket
from serving.docket.store.bodies import quotes_erased
from serving.docket.store.pictures import picture_of
from serving.runner.feed import EventFeed
from serving.runner.near_duplicates import NearDuplicateIndex
from serving.runner.request import TrialRequest


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial.

    Attributes:
        record: The whole trial.
        picture_seconds: Time that decoding the picture took; it comes before the trial.
        total_seconds: From the ask to the verdict.
    """

    record: TrialRecord
    picture_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class TrialExecutor:
    """A court with everything around it: asks go in, kept records come out.

    Attributes:
        court: Tries.
        pictures: Decodes.
        docket: Keeps.
        near: Learns what each meme that was tried looks like; None where nobody wants to know.
        feed: Is told of every event once the docket has stored it.
        courts: Courts of namespaces that have a policy or a library of their own.
    """

    court: Court
    pictures: PictureReader
    docket: Docket
    near: NearDuplicateIndex | None = None
    feed: EventFeed = field(default_factory=EventFeed)
    courts: Mapping[str, Court] = field(default_factory=dict)

    def court_of(self, namespace: str) -> Court:
        """The court that tries content of a namespace."""
        return self.courts.get(namespace, self.court)

    async def hear(
        self,
        ask: TrialRequest,
        *,
        within_s: float | None = None,
        trial_id: str | None = None,
        picture: Picture | None = None,
        batch: bool = False,
    ) -> TrialResult:
        """Decodes, tries and keeps.

        Args:
            ask: Request to try.
            within_s: Seconds until the caller's deadline; None where there is none.
            trial_id: Names the trial; None for a new name.
            picture: Decoded picture of the request, if it has one that has been decoded.
            batch: True if it is one of many for which nobody waits singly.

        Raises:
            BadInput: The picture or the text can't be tried, or there is neither; nothing is recorded.
            NotLoaded: The procedure, or what the ask is pinned to, is not available; nothing is recorded.
            Unavailable: Something needed is not there now; nothing is recorded.
            TrialAborted: The trial began and failed; its record is kept.
        """
        began = time.perf_counter()
        if ask.text is not None:
            check_text(ask.text)  # before the picture: it costs nothing
        check_present(ask.text, picture=not ask.text_alone)
        court = self.court_of(ask.namespace)
        court.require(ask.procedure, text_given=ask.text is not None)
        if picture is None and not ask.text_alone:
            picture = await self.pictures.read(ask.image)
        decoded = time.perf_counter()
        if picture is not None:
            # Before the trial is opened: one that the docket has can then be taken up with its picture after a crash.
            await self.docket.writer.keep_picture(picture)

        case = TrialCase(
            trial_id=trial_id or str(uuid.uuid4()),
            meme=Meme(picture=picture, text=ask.text, language=ask.language or None),
            procedure=ask.procedure,
            request_id=ask.request_id or str(uuid.uuid4()),
            namespace=ask.namespace,
            content_id=ask.content_id,
            trace_id=ask.trace_id or uuid.uuid4().hex,
            # The deadline runs from the request: what decoding has taken comes off.
            within_s=None if within_s is None else within_s - (time.perf_counter() - began),
            batch=batch,
            of_trial=ask.of_trial,
        )
        record = await court.hear(case, self._storing(picture, ask.namespace, ask=ask))
        return TrialResult(record, picture_seconds=decoded - began, total_seconds=time.perf_counter() - began)

    async def resume(
        self,
        trial_id: str,
        *,
        within_s: float | None = None,
        ask: TrialRequest | None = None,
        batch: bool = False,
    ) -> TrialRecord:
        """Takes a trial up where it was cut off.

        Args:
            trial_id: Which.
            within_s: Seconds until the caller's deadline; None where there is none.
            ask: Request that the trial answers, if there is one.
            batch: True if nobody waits for it singly.

        Raises:
            TrialUnknown: There is none of that id.
            CantResume: The trial is over, was begun with other versions than are loaded now, or quotes something that
                was erased since.
            TrialAborted: The trial failed again.
        """
        record = await self.docket.trials.record(trial_id)
        # Of one that is over, that is the reason to be told.
        if record.state is not TrialState.DECIDED:
            _require_unerased(record)
        picture = await self.picture_of_trial(record)
        storing = self._storing(picture, record.opened.meme.namespace, text=record.text, ask=ask, opened=record.opened)
        court = self.court_of(record.opened.meme.namespace)
        return await court.resume(record, picture, storing, within_s=within_s, batch=batch)

    async def rule_on(
        self,
        record: TrialRecord,
        picture: Picture | None,
        brief: QuestionBrief,
        *,
        within_s: float | None = None,
        batch: bool = False,
    ) -> TrialRecord:
        """Puts a further question to the Judge of a trial, and stores the ruling or why there is none.

        Args:
            record: Record of the trial, which has a verdict.
            picture: Its picture, by :meth:`picture_of_trial`.
            brief: The question.
            within_s: Seconds until the caller's deadline; None where there is none.
            batch: True if nobody waits for it singly.

        Returns:
            The record with the event.

        Raises:
            CantResume: The trial quotes something that was erased since; nothing is recorded.
            CourtError: The reasons of :func:`court.second_question.rule_on_question`.
        """
        _require_unerased(record)
        namespace = record.opened.meme.namespace
        # The sink of trials: the event is stored, and only then published.
        storing = self._storing(picture, namespace, text=record.text, opened=record.opened)
        # A namespace may have a policy or a library of its own, by which its trial was held.
        court = self.court_of(namespace)
        ruled = await rule_on_question(court, record, picture, brief, keep=storing, within_s=within_s, batch=batch)
        return TrialRecord.of((*record.events, ruled))

    async def picture_of_trial(self, record: TrialRecord) -> Picture | None:
        """The picture of a trial, as decoded then; None where its text was sent alone.

        Raises:
            CantResume: The picture is not in the docket.
        """
        if not record.opened.meme.picture_given:
            return None
        frames = await self.docket.trials.frames(record.opened.meme.pixels_sha256)
        if not frames:
            raise CantResume("The picture of that trial is not in the docket.", reason="PICTURE_MISSING")
        return picture_of(record.opened.meme, frames)

    def _storing(
        self,
        picture: Picture | None,
        namespace: str,
        *,
        text: TextRead | None = None,
        ask: TrialRequest | None = None,
        opened: TrialOpened | None = None,
    ) -> EventSink:
        """The trial's one way out: checks what was asked for, stores events in the docket, then publishes them."""

        async def store(*events: AnyEvent) -> None:
            nonlocal text, opened
            for event in events:
                # What is loaded may change at any time: what counts is what the trial is held with.
                if ask is not None and isinstance(event, TrialOpened):
                    ask.require(event.versions, event.policy)
                    opened = event
                elif ask is not None and opened is not None and isinstance(event, PrecedentsCited):
                    ask.require(opened.versions, opened.policy, event.findings.library.digest)
                if isinstance(event, TextRead):
                    text = event
                if isinstance(event, VerdictGiven) and self.near is not None and text is not None:
                    # Before the verdict: a look without one is passed over, a verdict without one would be lost in a
                    # crash.
                    await self.near.learn(
                        event.trial_id, picture, text=text.text, text_read=bool(text.reader), namespace=namespace
                    )
            await self.docket.writer.append(*events)
            if picture is not None and any(isinstance(event, TrialOpened) for event in events):
                # Once more: until this trial stood in the docket, the last other one of its picture could be erased.
                await self.docket.writer.keep_picture(picture)
            for event in events:
                # Only after the append: whoever this wakes reads the docket, and must find the event there.
                await self.feed.publish(event)

        return store


def _require_unerased(record: TrialRecord) -> None:
    # What stands in the place of an erased text would reach models as if it were the text.
    if quotes_erased(record.events):
        raise CantResume(
            "A precedent or a document that the trial quotes was erased since. Ask for a new trial.",
            reason="QUOTED_ERASED",
        )
