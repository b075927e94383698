"""The clerk of one trial: numbers its events and has each taken note of before anything is done about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from court.errors import CourtError, ReplyUnusable, Unavailable
from court.events import AnyEvent, Event, QuestionRuled, Summarised, SummarisedAhead, TrialFailed, VerdictGiven
from court.ports import EventSink
from court.record import TrialRecord, TrialState
from court.usage import UsageMeter

E = TypeVar("E", bound=Event)

_log = logging.getLogger("memecourt.trial")


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event that has no number yet: its kind, and what it says."""

    kind: type[Event]
    values: dict[str, Any]


Drafted = EventDraft | Callable[[Sequence[AnyEvent]], EventDraft]
"""A draft, or what makes one of all the events before it."""


class Recorder:
    """Keeps the record of one trial.

    Attributes:
        step: Current step of the trial, for the record of a failure.
        tally: Counts the calls of models; what no event tells of stands in the last one.
    """

    def __init__(
        self, trial_id: str, keep: EventSink, now: Callable[[], datetime], before: Sequence[AnyEvent] = ()
    ) -> None:
        """Opens or takes up a record.

        Args:
            trial_id: Names it.
            keep: Keeps the events.
            now: The time, UTC.
            before: Events stored before the trial was interrupted.
        """
        self._trial_id = trial_id
        self._keep = keep
        self._now = now
        self._events: list[AnyEvent] = list(before)
        # Both sides write at once. Numbering and storing happen under one lock, so that no number is missing or
        # doubled, which TrialRecord refuses.
        self._writing = asyncio.Lock()
        self.step = "opening"
        self.tally = UsageMeter()

    @property
    def record(self) -> TrialRecord:
        """Record of the events stored so far."""
        return TrialRecord.of(self._events)

    @property
    def events(self) -> Sequence[AnyEvent]:
        """The events stored so far."""
        return tuple(self._events)

    @property
    def opened(self) -> bool:
        """True if any event is stored."""
        return bool(self._events)

    def recall(self, kind: type[E], **values: Any) -> E | None:
        """The event of that kind and with those values that is on record already, or None.

        A trial that is resumed asks nobody again for what was said before it was cut off.
        """
        for event in self._events:
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in values.items()):
                return event
        return None

    async def note(self, kind: type[E], /, **values: Any) -> E:
        """Keeps an event; both sides may speak at once, their events still come one after the other.

        Raises whatever keeps the keeper from taking note.
        """
        (event,) = await self.note_all(EventDraft(kind, values))
        assert isinstance(event, kind)
        return event

    async def note_all(self, *drafts: Drafted) -> Sequence[AnyEvent]:
        """Keeps events between which nothing is done, in this order, at the cost of one: all of them or none.

        Raises whatever keeps the keeper from taking note.
        """
        async with self._writing:
            events: list[AnyEvent] = []
            for draft in drafts:
                events.append(self._numbered(draft, events))
            if events:
                await self._note(events)
            return events

    def _numbered(self, draft: Drafted, beside: Sequence[AnyEvent]) -> AnyEvent:
        """The event of a draft; those beside it come right before it."""
        before = [*self._events, *beside]
        if not isinstance(draft, EventDraft):
            draft = draft(before)
        values = draft.values | {"trial_id": self._trial_id, "seq": len(before), "at": self._now()}
        if issubclass(draft.kind, VerdictGiven | TrialFailed | QuestionRuled):
            # Events of the same write are not in the tally yet, and neither is this one: it is built once without
            # `unused`, so that its own call does not count as unused.
            unreported = [event for event in beside if not self._reported_before(event)]
            values["unused"] = self.tally.unused(*unreported, draft.kind(**values))
        return draft.kind(**values)  # type: ignore[return-value]  # each Event is in the union

    async def _note(self, events: Sequence[AnyEvent]) -> None:
        # A trial may be cancelled at any moment, but not between an event's being kept and its being counted: the next
        # one would take its number.
        # A task of its own, because a cancelled await would cancel the sink in the middle of its write.
        storing = asyncio.ensure_future(self._keep(*events))
        cancelled: asyncio.CancelledError | None = None
        while not storing.done():  # more than once, too: when the other side fails, and then by the caller
            try:
                await asyncio.wait([storing])
            except asyncio.CancelledError as error:
                cancelled = error
        # Only what the sink has stored takes a number: after a failed write the next event has the same one.
        if not storing.cancelled() and storing.exception() is None:
            for event in events:
                if not self._reported_before(event):
                    self.tally.count_stored(event)
                self._events.append(event)
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # it remembers this frame: they would hold each other, and with that the trial
        storing.result()

    def _reported_before(self, event: Event) -> bool:
        """True if another event reports the call already."""
        if not isinstance(event, Summarised):
            return False
        return self.recall(SummarisedAhead, side=event.side, round=event.round) is not None

    async def fail(self, cause: CourtError) -> None:
        """Records that the trial ended without a verdict: if it had begun, had none, and that can still be recorded."""
        if isinstance(cause, Unavailable):  # for whoever records it where this can't
            cause.broke_off = max(cause.broke_off, self.tally.broke_off)
        # A verdict on record stands: what goes wrong after it is no failure of the trial.
        if not self.opened or self.record.state is not TrialState.OPEN:
            return
        try:
            await self.note(
                TrialFailed,
                step=self.step,
                reason=cause.reason,
                message=cause.message,
                # Decides whether the trial can be resumed: Court.resume takes up what failed for a reason that may
                # pass.
                retryable=isinstance(cause, Unavailable),
                unusable=cause.replies if isinstance(cause, ReplyUnusable) else None,
                broke_off=cause.broke_off if isinstance(cause, Unavailable) else self.tally.broke_off,
            )
        except Exception as error:
            # The error that ended the trial is the one to be reported; the record stays open and shows that.
            _log.error("trial %s: its failure could not be recorded: %s", self._trial_id, type(error).__qualname__)
