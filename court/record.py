"""The record of a trial: its events in order, and what can be read off them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from court.errors import CourtError
from court.events import (
    AFTERWARDS,
    AnyEvent,
    Event,
    PrecedentsCited,
    QuestionRuled,
    TextRead,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.verdict import Label, Verdict


class TrialState(StrEnum):
    """State of a trial."""

    OPEN = "OPEN"
    """It is running, or was cut off: neither a verdict nor a failure has been recorded."""
    DECIDED = "DECIDED"
    FAILED = "FAILED"


E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """The events of one trial, from the first on without gaps."""

    events: tuple[AnyEvent, ...]

    def __post_init__(self) -> None:
        if not self.events or not isinstance(self.events[0], TrialOpened):
            raise ValueError("a record begins with TrialOpened")
        # Checked with each record, wherever it comes from: all that reads one relies on its order.
        ended: AnyEvent | None = None
        for place, event in enumerate(self.events):
            if event.trial_id != self.events[0].trial_id:
                raise ValueError(f"event {place} belongs to trial {event.trial_id}, not {self.events[0].trial_id}")
            if event.seq != place:
                raise ValueError(f"event {event.seq} stands at place {place}: an event is missing or doubled")
            if place and isinstance(event, TrialOpened):
                raise ValueError(f"event {place} opens the trial again")
            # A failure can be followed by a resumption; a verdict is final.
            if isinstance(event, TrialResumed) and not isinstance(ended, VerdictGiven):
                ended = None
            elif ended and not isinstance(event, AFTERWARDS):
                raise ValueError(f"event {place} ({event.kind}) stands after the end of the trial")
            # It rests on the whole trial: one that ended without a verdict may yet be resumed, and go on.
            if isinstance(event, QuestionRuled) and not isinstance(ended, VerdictGiven):
                raise ValueError(f"event {place} rules on a question before there is a verdict")
            if isinstance(event, VerdictGiven | TrialFailed):
                ended = event

    @classmethod
    def of(cls, events: Iterable[AnyEvent]) -> TrialRecord:
        """A record of these events. Raises ValueError if they are not the beginning of one trial."""
        return cls(tuple(events))

    @property
    def opened(self) -> TrialOpened:
        """The first event."""
        first = self.events[0]
        assert isinstance(first, TrialOpened)
        return first

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        return self.opened.trial_id

    @property
    def state(self) -> TrialState:
        """State of the trial."""
        if self.last(VerdictGiven):
            return TrialState.DECIDED
        # The later of the two counts: a trial may fail, be resumed, and fail again.
        failed, resumed = self.last(TrialFailed), self.last(TrialResumed)
        return TrialState.FAILED if failed and (resumed is None or resumed.seq < failed.seq) else TrialState.OPEN

    @property
    def verdict(self) -> Verdict | None:
        """The Judge's verdict, or None if there is none (yet)."""
        event = self.last(VerdictGiven)
        return event.verdict if event else None

    @property
    def label_in_force(self) -> Label:
        """The label that holds: the last reviewer's, else the court's; UNDECIDED where there is no verdict."""
        review, verdict = self.last(VerdictReviewed), self.verdict
        # An appeal or a wish for a second opinion changes nothing by itself: only a review does.
        if review is not None:
            return review.label
        return verdict.label if verdict else Label.UNDECIDED

    @property
    def text(self) -> TextRead | None:
        """The text of the meme, once read."""
        return self.last(TextRead)

    @property
    def precedents(self) -> PrecedentsCited | None:
        """The precedents, once found."""
        return self.last(PrecedentsCited)

    @property
    def seconds(self) -> float:
        """From the first event to the last of the trial itself (what follows its end is none), in seconds."""
        end = next(e for e in reversed(self.events) if not isinstance(e, AFTERWARDS))
        return (end.at - self.opened.at).total_seconds()

    def ruling_on(self, question: str) -> QuestionRuled | None:
        """The last ruling on the question of this id, or None."""
        return next((event for event in reversed(self.all(QuestionRuled)) if event.question.id == question), None)

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """All events of a kind, in order."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[E]) -> E | None:
        """The last event of a kind, or None."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


class TrialAborted(CourtError):
    """A trial began and ended without a verdict.

    Attributes:
        record: Record up to the failure; its last event is the ``TrialFailed``.
        cause: The error that ended it.
    """

    default_reason = "TRIAL_ABORTED"

    def __init__(self, cause: CourtError, record: TrialRecord) -> None:
        super().__init__(cause.message, reason=cause.reason, field=cause.field)
        self.cause = cause
        self.record = record
