"""The record of a trial: its events in order, and properties derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from court.errors import CourtError
from court.events import (
    AnyEvent,
    ClaimsFound,
    Described,
    Event,
    FlipsSought,
    GuardHeard,
    JudgeRuled,
    NearDuplicatesFound,
    PrecedentReading,
    PrecedentsCited,
    QuestionRuled,
    ReportedCall,
    ReviewWithdrawn,
    Side,
    SideRested,
    Summarised,
    SummarisedAhead,
    TextRead,
    TrialChecked,
    TrialFailed,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.events import TrialState as TrialState
from court.in_force import (
    DEFAULT_RULES,
    ContentKey,
    FindingRules,
    InForce,
    PersonFinding,
    content_key,
    finding_of,
    in_force,
    standing,
)
from court.verdict import Decision, Label, Verdict

E = TypeVar("E", bound=Event)


class _Last(Generic[E]):
    """The last event of a kind, as an attribute of a record; None if there is none (yet)."""

    def __init__(self, kind: type[E]) -> None:
        self.kind = kind

    def __get__(self, record: TrialRecord, owner: type[TrialRecord]) -> E | None:
        return record.last(self.kind)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """The events of one trial, from the first on without gaps.

    Attributes:
        found: Finding of people about its content, from whichever trial, as the docket has it; None for what the events
            tell themselves.
    """

    events: tuple[AnyEvent, ...]
    found: PersonFinding | None = field(default=None, compare=False, kw_only=True)
    rules: FindingRules = field(default=DEFAULT_RULES, compare=False, kw_only=True)

    text = _Last(TextRead)
    described = _Last(Described)
    precedents = _Last(PrecedentsCited)
    duplicates = _Last(NearDuplicatesFound)
    guard = _Last(GuardHeard)
    claims_found = _Last(ClaimsFound)
    verdict_event = _Last(VerdictGiven)
    failure = _Last(TrialFailed)
    checked = _Last(TrialChecked)

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
            elif ended and not event.after_end:
                raise ValueError(f"event {position} ({event.kind}) stands after the end of the trial")
            # Both rest on the whole trial, and a trial without a verdict may still be resumed.
            if isinstance(event, QuestionRuled | FlipsSought) and not isinstance(ended, VerdictGiven):
                raise ValueError(f"event {position} ({event.kind}) stands before there is a verdict")
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
        # The latest counts: a trial may fail, be resumed, and fail again. The first event opens it.
        return next(state for event in reversed(self.events) if (state := event.state))

    @property
    def verdict(self) -> Verdict | None:
        """The Judge's verdict, or None if there is none (yet)."""
        event = self.verdict_event
        return event.verdict if event else None

    @property
    def reviews(self) -> tuple[VerdictReviewed, ...]:
        """Reviews that were not withdrawn, in order."""
        remaining = standing(event for event in self.events if isinstance(event, VerdictReviewed | ReviewWithdrawn))
        return tuple(event for event in remaining if isinstance(event, VerdictReviewed))

    @property
    def review(self) -> VerdictReviewed | None:
        """The last review that was not withdrawn, or None."""
        return next(iter(self.reviews[-1:]), None)

    @property
    def in_force(self) -> InForce | None:
        """Finding in force on the content; None without a verdict."""
        if self.verdict_event is None:
            return None
        return self.in_force_under(self.opened.policy.digest, self.found or finding_of(self.events), self.rules)

    def in_force_under(self, policy: str, found: PersonFinding | None, rules: FindingRules) -> InForce:
        """Returns the finding in force on content under a policy, for which the trial's verdict stands."""
        ruled = self.verdict_event
        assert ruled is not None, "the trial is decided"
        return in_force(
            ruled.verdict.label,
            needs_review=ruled.verdict.awaits_review,
            at=ruled.since,
            trial_id=self.trial_id,
            policy=policy,
            precedent=ruled.precedent,
            found=found,
            rules=rules,
        )

    @property
    def content(self) -> ContentKey:
        """Key of the content."""
        opened, text = self.opened, self.text
        sent = text.sent_text if text is not None else None
        return content_key(opened.meme.namespace, opened.policy.id, opened.meme.digest, sent)

    @property
    def label_in_force(self) -> Label:
        """Label in force; UNDECIDED without a verdict."""
        finding = self.in_force
        return finding.label if finding else Label.UNDECIDED

    @property
    def decision(self) -> Decision | None:
        """Decision in force; None while the trial is open."""
        if self.state is TrialState.OPEN:
            return None
        finding = self.in_force
        return finding.decision if finding else Decision.REVIEW

    @property
    def first_reports(self) -> Iterator[tuple[AnyEvent, tuple[ReportedCall, ...]]]:
        """Yields each event with the model calls that it is the first to report."""
        ahead = {(event.side, event.round) for event in self.all(SummarisedAhead)}
        for event in self.events:
            # A round that was summarised ahead is reported again once it counts.
            repeated = isinstance(event, Summarised) and (event.side, event.round) in ahead
            yield event, () if repeated else event.reported_calls

    @property
    def calls(self) -> tuple[ReportedCall, ...]:
        """Model calls of the trial, each once."""
        return tuple(call for _, calls in self.first_reports for call in calls)

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last event of the trial itself, without events after its end."""
        end = next(e for e in reversed(self.events) if not e.after_end)
        return (end.at - self.opened.at).total_seconds()

    @property
    def rested(self) -> Mapping[Side, SideRested]:
        """End of each side's questioning."""
        return {event.side: event for event in self.all(SideRested)}

    @property
    def readings(self) -> Mapping[str, PrecedentReading]:
        """Reading of each precedent by the Judge, or by one judge of a panel that has not ruled, by its id."""
        # All judges of a panel were shown the same.
        ruled = self.verdict_event or self.last(JudgeRuled)
        return {one.id: one for one in ruled.ruling.precedents} if ruled and ruled.ruling else {}

    @property
    def questions(self) -> Sequence[QuestionRuled]:
        """Rulings on further questions, in order."""
        return self.all(QuestionRuled)

    def ruling_on(self, question: str) -> QuestionRuled | None:
        """Returns the last ruling on the question with this id, or None."""
        return next((event for event in reversed(self.questions) if event.question.id == question), None)

    def all(self, kind: type[E]) -> tuple[E, ...]:
        """Returns all events of a kind, in order."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[E]) -> E | None:
        """Returns the last event of a kind, or None."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


class TrialAborted(CourtError):
    """A trial began and ended without a verdict."""

    default_reason = "TRIAL_ABORTED"

    def __init__(self, cause: CourtError, record: TrialRecord) -> None:
        super().__init__(cause.message, reason=cause.reason, field=cause.field)
        self.cause = cause
        self.record = record
