"""The record of a trial: its events in order, and properties derived from them."""

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
from court.verdict import Decision, Label, Verdict, decision


class TrialState(StrEnum):
    """State of a trial."""

    OPEN = "OPEN"
    """Running or interrupted: neither a verdict nor a failure has been recorded."""
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
        # Checked for every record, whatever its source: all readers rely on the order.
        ended: AnyEvent | None = None
        for position, event in enumerate(self.events):
            if event.trial_id != self.events[0].trial_id:
                raise ValueError(f"event {position} belongs to trial {event.trial_id}, not {self.events[0].trial_id}")
            if event.seq != position:
                raise ValueError(f"event {event.seq} stands at place {position}: an event is missing or doubled")
            if position and isinstance(event, TrialOpened):
                raise ValueError(f"event {position} opens the trial again")
            # A failure can be followed by a resumption; a verdict is final.
            if isinstance(event, TrialResumed) and not isinstance(ended, VerdictGiven):
                ended = None
            elif ended and not isinstance(event, AFTERWARDS):
                raise ValueError(f"event {position} ({event.kind}) stands after the end of the trial")
            # Such a ruling rests on the whole trial, and a trial without a verdict may still be resumed.
            if isinstance(event, QuestionRuled) and not isinstance(ended, VerdictGiven):
                raise ValueError(f"event {position} rules on a question before there is a verdict")
            if isinstance(event, VerdictGiven | TrialFailed):
                ended = event

    @classmethod
    def of(cls, events: Iterable[AnyEvent]) -> TrialRecord:
        """Creates a record of events. Raises ValueError if they are not the beginning of one trial."""
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
        # The later event counts: a trial may fail, be resumed, and fail again.
        failed, resumed = self.last(TrialFailed), self.last(TrialResumed)
        return TrialState.FAILED if failed and (resumed is None or resumed.seq < failed.seq) else TrialState.OPEN

    @property
    def verdict(self) -> Verdict | None:
        """The Judge's verdict, or None if there is none (yet)."""
        event = self.last(VerdictGiven)
        return event.verdict if event else None

    @property
    def label_in_force(self) -> Label:
        """Label in force: the last reviewer's, otherwise the court's; UNDECIDED without a verdict."""
        review, verdict = self.last(VerdictReviewed), self.verdict
        # Only a review changes the label; an appeal or a request for a second opinion does not.
        if review is not None:
            return review.label
        return verdict.label if verdict else Label.UNDECIDED

    @property
    def decision(self) -> Decision | None:
        """Decision in force: the last reviewer's, otherwise the court's; None while the trial is open."""
        review, verdict = self.last(VerdictReviewed), self.verdict
        if self.state is TrialState.OPEN:
            return None
        return decision(
            verdict.label if verdict else None,
            needs_review=verdict.needs_human_review if verdict else True,
            reviewed=review.label if review else None,
        )

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
        """Seconds from the first to the last event of the trial itself, without events after its end."""
        end = next(e for e in reversed(self.events) if not isinstance(e, AFTERWARDS))
        return (end.at - self.opened.at).total_seconds()

    def ruling_on(self, question: str) -> QuestionRuled | None:
        """Returns the last ruling on the question with this id, or None."""
        return next((event for event in reversed(self.all(QuestionRuled)) if event.question.id == question), None)

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """Returns all events of a kind, in order."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[E]) -> E | None:
        """Returns the last event of a kind, or None."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


class TrialAborted(CourtError):
    """A trial began and ended without a verdict.

    Attributes:
        record: Record up to the failure; its last event is the ``TrialFailed``.
    """

    default_reason = "TRIAL_ABORTED"

    def __init__(self, cause: CourtError, record: TrialRecord) -> None:
        super().__init__(cause.message, reason=cause.reason, field=cause.field)
        self.cause = cause
        self.record = record
