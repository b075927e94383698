"""State of a running trial, from which its events are counted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from court.events import (
    AnyEvent,
    JudgeRuled,
    ModelCall,
    Side,
    Summarised,
    SummarisedAhead,
    TrialOpened,
    VerdictGiven,
    calls_in,
)
from court.record import TrialRecord


@dataclass(frozen=True, slots=True)
class ObservedModelCall:
    """A call of a model that an event tells of.

    Attributes:
        call: Its figures.
        task: Task of the call: the last part of the prompt's id, or ``odds``.
        calls: Number of requests: two where a reply was requested again, or where odds were.
    """

    call: ModelCall
    task: str
    calls: int


@dataclass(slots=True)
class ObservedTrial:
    """A trial that is being followed.

    Attributes:
        trial_id: Its own.
        procedure: Procedure of the trial; UNKNOWN if its beginning was not observed.
        request_id: The caller's name for it.
        trace_id: Trace id of its record, 32 hex digits or empty.
        models: Model per role, as they are asked for.
        began: Start of the observed part: the trial's opening, or its being resumed.
        ahead: Summaries that were told of before their turn, by side and round: their calls are counted.
        span: Its span, where it is traced.
        events: Observed events, if traces include contents.
    """

    trial_id: str
    procedure: str
    request_id: str
    trace_id: str
    models: Mapping[str, str] = field(default_factory=dict)
    began: datetime | None = None
    ahead: set[tuple[Side, int]] = field(default_factory=set)
    span: Any = None
    events: list[AnyEvent] = field(default_factory=list)

    @classmethod
    def opened(cls, event: TrialOpened) -> ObservedTrial:
        """A trial that begins."""
        return cls(
            trial_id=event.trial_id,
            procedure=event.procedure.value,
            request_id=event.request_id,
            trace_id=event.trace_id,
            models=event.versions.models,
            began=event.at,
        )

    @classmethod
    def of(cls, record: TrialRecord) -> ObservedTrial:
        """A trial that is taken up again."""
        trial = cls.opened(record.opened)
        trial.began = None  # when it is resumed
        trial.events = list(record.events)
        for event in record.events:
            # For what it remembers: calls of summaries run ahead that were counted before must not count again.
            trial.calls(event)
        return trial

    @classmethod
    def unknown(cls, event: AnyEvent) -> ObservedTrial:
        """A trial of which nothing is known but this event."""
        return cls(event.trial_id, "UNKNOWN", "", "")

    def calls(self, event: AnyEvent) -> Sequence[ObservedModelCall]:
        """The calls of models that this event is the first to tell of."""
        found: list[ObservedModelCall] = []
        calls = calls_in(event)
        if isinstance(event, SummarisedAhead):
            self.ahead.add((event.side, event.round))
        # The same call, reported a second time once its round counts.
        elif isinstance(event, Summarised) and (event.side, event.round) in self.ahead:
            calls = ()
        for call in calls:
            found.append(ObservedModelCall(call, call.prompt_id.rpartition("/")[2], 2 if call.fault else 1))
        # Each order of the options was a request of its own.
        if isinstance(event, VerdictGiven | JudgeRuled) and event.odds is not None:
            found.append(ObservedModelCall(event.odds.call, "odds", len(event.odds.harmful)))
        return found

    def log(self, log: logging.Logger, event: AnyEvent) -> None:
        """One line an event; nothing of the meme itself, nor of whose content it is."""
        if log.isEnabledFor(logging.INFO):
            # By hand: who logs it is not told of our own lines, and would be looked for on the stack each time.
            identity = (event.trial_id, self.request_id, event.seq, event.kind)
            log.handle(log.makeRecord(log.name, logging.INFO, fn="", lno=0, msg=_LINE, args=identity, exc_info=None))


_LINE = "trial=%s request=%s seq=%d event=%s"
