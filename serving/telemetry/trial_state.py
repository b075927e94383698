"""Tracked state of a running trial, needed to count its events."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from court.events import AnyEvent, ReportedCall, Side, Summarised, SummarisedAhead, TrialOpened
from court.record import TrialRecord


@dataclass(slots=True)
class ObservedTrial:
    """A tracked trial.

    Attributes:
        procedure: Procedure of the trial; UNKNOWN if its beginning was not observed.
        trace_id: Trace id of its record, 32 hex digits or empty.
        began: Start of the observed part: the trial's opening or resumption.
        ahead: Summaries run ahead of their round, by side and round, whose calls are already counted.
    """

    trial_id: str
    procedure: str
    request_id: str
    trace_id: str
    models: Mapping[str, str] = field(default_factory=dict)
    began: datetime | None = None
    ahead: set[tuple[Side, int]] = field(default_factory=set)
    span: Any = None

    @classmethod
    def opened(cls, event: TrialOpened) -> ObservedTrial:
        """Starts tracking a new trial."""
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
        """Starts tracking a resumed trial."""
        trial = cls.opened(record.opened)
        trial.began = None  # when it is resumed
        for event in record.events:
            # Rebuilds `ahead`: calls of summaries run ahead must not be counted twice.
            trial.calls(event)
        return trial

    @classmethod
    def unknown(cls, event: AnyEvent) -> ObservedTrial:
        """Starts tracking a trial of which only this event is known."""
        return cls(event.trial_id, "UNKNOWN", "", "")

    def calls(self, event: AnyEvent) -> Sequence[ReportedCall]:
        """Returns the model calls that this event is the first to report."""
        if isinstance(event, SummarisedAhead):
            self.ahead.add((event.side, event.round))
        # The same call, reported again once its round counts.
        elif isinstance(event, Summarised) and (event.side, event.round) in self.ahead:
            return ()
        return event.reported_calls

    def log(self, log: logging.Logger, event: AnyEvent) -> None:
        """Logs one line per event, without anything of the meme or its namespace."""
        if log.isEnabledFor(logging.INFO):
            # Built by hand: the caller is not shown in our lines, and logging would search the stack for it each time.
            identity = (event.trial_id, self.request_id, event.seq, event.kind)
            log.handle(log.makeRecord(log.name, logging.INFO, fn="", lno=0, msg=_LINE, args=identity, exc_info=None))


_LINE = "trial=%s request=%s seq=%d event=%s"
