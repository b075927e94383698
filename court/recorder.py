"""Recorder of one trial: numbers its events and has each stored before anything acts on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from court.deadline import UsageMeter
from court.errors import CourtError, ReplyUnusable, Unavailable
from court.events import AnyEvent, Event, Summarised, SummarisedAhead, TrialFailed
from court.ports import EventSink
from court.record import TrialRecord, TrialState

E = TypeVar("E", bound=Event)

_log = logging.getLogger("memecourt.trial")


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event without number and time: its kind and its other fields."""

    kind: type[Event]
    values: dict[str, Any]


Drafted = EventDraft | Callable[[Sequence[AnyEvent]], EventDraft]
"""A draft, or a function that builds one from all events before it."""


class Recorder:
    """Builds and stores the record of one trial."""

    def __init__(
        self, trial_id: str, keep: EventSink, now: Callable[[], datetime], before: Sequence[AnyEvent] = ()
    ) -> None:
        self._trial_id = trial_id
        self._keep = keep
        self._now = now
        self._events: list[AnyEvent] = list(before)
        # Both sides write concurrently. Numbering and storing happen under one lock, so that there are no gaps or
        # duplicates, which TrialRecord rejects.
        self._writing = asyncio.Lock()
        self.step = "opening"
        self.usage = UsageMeter()

    @property
    def trial(self) -> TrialRecord:
        """The events stored so far."""
        return TrialRecord.of(self._events)

    @property
    def events(self) -> Sequence[AnyEvent]:
        """The events stored so far."""
        return tuple(self._events)

    @property
    def opened(self) -> bool:
        """True if any event is stored."""
        return bool(self._events)

    def find(self, kind: type[E], **values: Any) -> E | None:
        """Returns the recorded event of that kind with those field values, or None."""
        # A resumed trial uses it instead of repeating a call that was made before the interruption.
        for event in self._events:
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in values.items()):
                return event
        return None

    async def record(self, kind: type[E], /, **values: Any) -> E:
        """Stores an event, one after the other. Raises whatever the sink raises."""
        (event,) = await self.record_all(EventDraft(kind, values))
        assert isinstance(event, kind)
        return event

    async def record_all(self, *drafts: Drafted) -> Sequence[AnyEvent]:
        """Stores several events in order, all or none. Raises whatever the sink raises."""
        async with self._writing:
            events: list[AnyEvent] = []
            for draft in drafts:
                events.append(self._numbered(draft, events))
            if events:
                await self._store(events)
            return events

    def _numbered(self, draft: Drafted, written: Sequence[AnyEvent]) -> AnyEvent:
        """Builds the event of a draft; ``written`` are the events of the same write before it."""
        before = [*self._events, *written]
        if not isinstance(draft, EventDraft):
            draft = draft(before)
        values = draft.values | {"trial_id": self._trial_id, "seq": len(before), "at": self._now()}
        if "unused" in draft.kind.model_fields:
            # Events of this write are not counted yet, including this one: it is first built without `unused`, so
            # that its own call does not count as unused.
            unreported = [event for event in written if not self._reported_before(event)]
            values["unused"] = self.usage.unused(*unreported, draft.kind(**values))
        return draft.kind(**values)  # type: ignore[return-value]  # each Event is in the union

    async def _store(self, events: Sequence[AnyEvent]) -> None:
        # A trial may be cancelled at any moment, but not between storing an event and counting it: the next event would
        # reuse its number. A separate task, because a cancelled await would cancel the sink in the middle of its write.
        storing = asyncio.ensure_future(self._keep(*events))
        cancelled: asyncio.CancelledError | None = None
        while not storing.done():  # may be cancelled repeatedly: when the other side fails, and then by the caller
            try:
                await asyncio.wait([storing])
            except asyncio.CancelledError as error:
                cancelled = error
        # Only stored events consume a number: after a failed write the next event gets the same one.
        if not storing.cancelled() and storing.exception() is None:
            for event in events:
                if not self._reported_before(event):
                    self.usage.count_stored(event)
                self._events.append(event)
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # breaks the reference cycle between error and frame, which would keep the trial alive
        storing.result()

    def _reported_before(self, event: Event) -> bool:
        """True if another event already reports the call."""
        if not isinstance(event, Summarised):
            return False
        return self.find(SummarisedAhead, side=event.side, round=event.round) is not None

    async def fail(self, cause: CourtError) -> None:
        """Records that the trial ended without a verdict, if it is open and the failure can be stored."""
        if isinstance(cause, Unavailable):  # for the caller, in case it can't be recorded here
            cause.broke_off = max(cause.broke_off, self.usage.broke_off)
        # A recorded verdict stands: an error after it is not a failure of the trial.
        if not self.opened or self.trial.state is not TrialState.OPEN:
            return
        try:
            await self.record(
                TrialFailed,
                step=self.step,
                reason=cause.reason,
                message=cause.message,
                # Decides whether the trial can be resumed: Court.resume accepts transient failures only.
                retryable=isinstance(cause, Unavailable),
                unusable=cause.replies if isinstance(cause, ReplyUnusable) else None,
                broke_off=cause.broke_off if isinstance(cause, Unavailable) else self.usage.broke_off,
            )
        except Exception as error:
            # The error that ended the trial takes precedence; the record stays open, which shows that this write
            # failed.
            _log.error("trial %s: its failure could not be recorded: %s", self._trial_id, type(error).__qualname__)
