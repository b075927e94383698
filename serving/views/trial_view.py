"""A record as a page tells it: what the trial came to, step by step, what each call cost, and what is amiss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from markupsafe import Markup

from court.events import (
    AnswerGiven,
    AnyEvent,
    ClaimSettled,
    ClaimsFound,
    Described,
    DocumentWeighed,
    EvidenceSearched,
    GuardHeard,
    JudgeRuled,
    ModelCall,
    NearDuplicatesFound,
    PrecedentsCited,
    QueriesPlanned,
    QuestionAsked,
    QuestionRuled,
    ReviewOutcome,
    Side,
    SideRested,
    SteeringFound,
    Summarised,
    SummarisedAhead,
    TextRead,
    TrialResumed,
    VerdictGiven,
    VerdictReviewed,
)
from court.record import TrialRecord, TrialState
from court.transcript import Transcript, transcript
from court.verdict import Label
from serving.views.charts import Point, bar, curve
from serving.views.claims_view import ClaimView, claims_of
from serving.views.recheck import Difference, differences

_TELLS: Mapping[Label, str] = {
    Label.HARMFUL: "Harmful",
    Label.NOT_HARMFUL: "Not harmful",
    Label.UNDECIDED: "Undecided",
}


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Outcome of a trial.

    Attributes:
        title: In words.
        kind: ``harmful``, ``benign``, ``doubt`` or ``open``: a class of the page.
        overruled: True if a person decided otherwise than the court.
        review: The last one, or None.
    """

    title: str
    kind: str
    overruled: bool
    review: VerdictReviewed | None


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the waterfall.

    Attributes:
        seq: Number of the event that the step led to.
        name: Name of the step.
        kind: Owner of the step, a class of the page.
        begin: Seconds from the trial's beginning.
        seconds: Duration in seconds.
        call: Model call of the step; None if there was none.
        counts: True if the verdict rests on it; a round that was run ahead may turn out superfluous.
        bar: Drawn.
    """

    seq: int
    name: str
    kind: str
    begin: float
    seconds: float
    call: ModelCall | None
    counts: bool
    bar: Markup


@dataclass(frozen=True, slots=True)
class Costs:
    """Total cost of a trial's calls, without those that no other event reports."""

    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float

    @property
    def cached_share(self) -> float:
        """Share of the prompts' tokens that model servers had in their caches."""
        return self.tokens_cached / self.tokens_in if self.tokens_in else 0.0


@dataclass(frozen=True, slots=True)
class SideEvidence:
    """Evidence that speaks for one of the labels.

    Attributes:
        words: One or more pieces, in the order in which they were given.
        source: ``judge`` for what the Judge named, ``side`` for an advocate's justification, ``precedent`` for the text
            of the nearest precedent.
    """

    words: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial as its page tells it.

    Attributes:
        record: Stored record.
        transcript: The record laid out by steps.
        outcome: Outcome of the trial.
        curves: Entropy by round, per side that was examined.
        steps: In order of time.
        costs: All of them.
        differences: Values that come out otherwise than recorded, by event.
        readings: The Judge's reading of each precedent, by its id.
        steering: Signs of steering, by the event that they stand in.
        claims: Claims of fact that an expert witness checked.
        live: True if the trial may still go on.
    """

    record: TrialRecord
    transcript: Transcript
    outcome: TrialOutcome
    curves: Mapping[Side, Markup]
    steps: Sequence[Step]
    costs: Costs
    differences: Mapping[int, Sequence[Difference]]
    readings: Mapping[str, str]
    steering: Mapping[int, Sequence[SteeringFound]]
    claims: Sequence[ClaimView]
    live: bool

    @property
    def verdict_event(self) -> VerdictGiven | None:
        """The verdict's event."""
        return self.record.last(VerdictGiven)

    @property
    def questions(self) -> Sequence[QuestionRuled]:
        """Rulings on further questions, in order."""
        return self.record.all(QuestionRuled)

    @property
    def rested(self) -> Mapping[Side, SideRested]:
        """Why each side asked no more."""
        return {event.side: event for event in self.record.all(SideRested)}

    @property
    def evidence(self) -> Mapping[Side, SideEvidence | None]:
        """Evidence of harm (the Accuser's side) and benign evidence (the Defender's); None where there is none."""
        return {side: _evidence(self.record, self.transcript, side) for side in Side}

    @property
    def examined(self) -> bool:
        """True if any side asked a question."""
        return bool(self.transcript.rounds)


def _evidence(record: TrialRecord, transcribed: Transcript, side: Side) -> SideEvidence | None:
    """Returns what the Judge named for a side; else what the side itself argued; else the nearest precedent."""
    accuses = side is Side.ACCUSER
    ruling, argument, cited = transcribed.ruling, transcribed.arguments.get(side), record.precedents
    # The Judge's own words come first: they are what the verdict rests on.
    if ruling is not None and (named := ruling.harmful_evidence if accuses else ruling.harmless_evidence):
        return SideEvidence(named, "judge")
    if argument is not None and argument.justification:
        return SideEvidence((argument.justification,), "side")
    nearest = None if cited is None else cited.findings.nearest_harmful if accuses else cited.findings.nearest_benign
    return SideEvidence((nearest.text,), "precedent") if nearest is not None and nearest.text else None


def view_of(record: TrialRecord) -> TrialView:
    """A record, finished or not."""
    transcribed = transcript(record)
    verdict_event = record.last(VerdictGiven)
    # Worked out at each view and never stored: a record that is altered later shows it too.
    amiss: dict[int, list[Difference]] = {}
    for difference in differences(record):
        amiss.setdefault(difference.seq, []).append(difference)
    steering: dict[int, list[SteeringFound]] = {}
    for sign in verdict_event.steering if verdict_event else ():
        steering.setdefault(sign.event, []).append(sign)
    ruling = transcribed.ruling
    steps = _steps(record)
    return TrialView(
        record=record,
        transcript=transcribed,
        outcome=outcome_of(record),
        curves=_curves(transcribed),
        steps=steps,
        costs=_costs(record, steps),
        differences=amiss,
        readings={one.id: one.supports for one in ruling.precedents} if ruling else {},
        steering=steering,
        claims=claims_of(record),
        live=record.state is TrialState.OPEN,
    )


def outcome_of(record: TrialRecord) -> TrialOutcome:
    """Returns the outcome of a trial: the reviewer's word if there is one."""
    review = record.last(VerdictReviewed)
    verdict = record.verdict
    if verdict is None:
        if record.state is TrialState.FAILED:
            return TrialOutcome("No verdict: the trial failed", "doubt", overruled=False, review=None)
        return TrialOutcome("Being held", "open", overruled=False, review=None)
    overruled = review is not None and review.outcome is ReviewOutcome.OVERRULED
    # An upheld verdict keeps its own label, also where it is undecided.
    label = review.label if review is not None and overruled else verdict.label
    title = f"Overruled: {_TELLS[label].lower()}" if overruled else _TELLS[label]
    kind = {Label.HARMFUL: "harmful", Label.NOT_HARMFUL: "benign", Label.UNDECIDED: "doubt"}[label]
    return TrialOutcome(title, kind, overruled, review)


def _curves(transcribed: Transcript) -> Mapping[Side, Markup]:
    points: dict[Side, list[Point]] = {}
    for one in transcribed.rounds:
        for side, turn in one.turns.items():
            if turn is not None and turn.entropy is not None:
                points.setdefault(side, []).append(Point(one.number, turn.entropy, not turn.ahead))
    if not points:
        return {}
    # One scale for both sides, so that their curves can be compared.
    bits = [point.bits for each in points.values() for point in each]
    rounds = max(point.round for each in points.values() for point in each)
    return {
        side: curve(side, each, lowest=min(bits), highest=max(bits), rounds=rounds) for side, each in points.items()
    }


def _steps(record: TrialRecord) -> Sequence[Step]:
    """Every step that took time. An event is kept when its step has ended; so it began as long before."""
    rested = {event.side: event.rounds for event in record.all(SideRested)}
    ahead = {(event.side, event.round): event for event in record.all(SummarisedAhead)}
    opened = record.opened.at
    steps: list[Step] = []

    def add(
        event: AnyEvent,
        name: str,
        kind: str,
        *,
        call: ModelCall | None = None,
        seconds: float = 0.0,
        counts: bool = True,
    ) -> None:
        seconds = call.latency_s if call is not None else seconds
        begin = (event.at - timedelta(seconds=seconds) - opened).total_seconds()
        steps.append(
            Step(
                seq=event.seq,
                name=name,
                kind=kind,
                begin=begin,
                seconds=seconds,
                call=call,
                counts=counts,
                bar=Markup(""),  # drawn below, when the whole length is known
            )
        )

    for event in record.events:
        match event:
            case TextRead(latency_s=seconds) if seconds > 0:
                add(event, "text read off the picture", "court", seconds=seconds)
            case Described(call=call):
                add(event, "description", "proposer", call=call)
            case QuestionAsked(side=side, round=number, call=call):
                # As long as a side has not rested, every round of it counts.
                counts = number <= rested.get(side, number)
                add(event, f"{_name(side)} asks, round {number}", side.lower(), call=call, counts=counts)
            case AnswerGiven(side=side, round=number, call=call):
                counts = number <= rested.get(side, number)
                add(event, f"Answer to the {_name(side)}, {number}", "proposer", call=call, counts=counts)
            case SummarisedAhead(side=side, round=number, call=call):
                counts = number <= rested.get(side, number)
                add(event, f"{_name(side)} sums up, round {number}", side.lower(), call=call, counts=counts)
            # A summary run ahead is drawn where it was run, and only once.
            case Summarised(side=side, round=number, call=ModelCall() as call) if (side, number) not in ahead:
                add(event, f"{_name(side)} sums up, round {number}", side.lower(), call=call)
            case PrecedentsCited(latency_s=seconds):
                add(event, "precedents found", "court", seconds=seconds)
            case NearDuplicatesFound(latency_s=seconds):
                add(event, "near duplicates found", "court", seconds=seconds)
            case JudgeRuled(judge=number, call=call, odds=odds):
                add(event, f"Judge {number} rules", "judge", call=call)
                if odds is not None:
                    add(event, f"Judge {number}’s odds, two calls", "judge", call=odds.call)
            case GuardHeard(call=ModelCall() as call):
                add(event, "guard’s opinion", "court", call=call)
            case ClaimsFound(call=ModelCall() as call):
                add(event, "claims of fact found", "expert", call=call)
            case QueriesPlanned(claim=number, call=ModelCall() as call):
                add(event, f"queries about claim {number}", "expert", call=call)
            case EvidenceSearched(claim=number):
                add(event, f"search about claim {number}", "expert", call=event.call, seconds=event.latency_s)
            case DocumentWeighed(claim=number):
                for call in event.calls:
                    add(event, f"document about claim {number}", "expert", call=call)
            case ClaimSettled(claim=number, call=ModelCall() as call):
                add(event, f"finding about claim {number}", "expert", call=call)
            case VerdictGiven(call=call, odds=odds):
                if call is not None:
                    add(event, "Judge rules", "judge", call=call)
                if odds is not None:
                    add(event, "Judge’s odds, two calls", "judge", call=odds.call)
            case QuestionRuled(question=question, call=ModelCall() as call):
                add(event, f"Judge answers: {question.id}", "judge", call=call)
            case _:
                pass
    # What began before the trial was opened (two odds in one row, clocks) begins the drawing.
    shift = max((-step.begin for step in steps if step.begin < 0), default=0.0)
    whole = max((step.begin + step.seconds for step in steps), default=0.0) + shift
    drawn = [replace(step, bar=_bar(step, shift=shift, whole=whole)) for step in steps]
    return sorted(drawn, key=lambda step: (step.begin, step.seq))


def _bar(step: Step, *, shift: float, whole: float) -> Markup:
    """A step's bar on a scale that begins so many seconds before the trial and is ``whole`` seconds long."""
    return bar(
        step.begin + shift,
        step.seconds,
        whole=whole,
        kind=step.kind if step.counts else "ahead",
        cached=step.call.tokens_cached / step.call.tokens_in if step.call and step.call.tokens_in else 0.0,
    )


def _costs(record: TrialRecord, steps: Sequence[Step]) -> Costs:
    calls = [step.call for step in steps if step.call is not None]
    odds = sum(1 for event in record.events if isinstance(event, VerdictGiven | JudgeRuled) and event.odds is not None)
    return Costs(
        # A reply that was asked for again is two calls, and the odds are asked for in two.
        calls=len(calls) + sum(1 for call in calls if call.fault) + odds,
        tokens_in=sum(call.tokens_in for call in calls),
        tokens_out=sum(call.tokens_out for call in calls),
        tokens_cached=sum(call.tokens_cached for call in calls),
        seconds=record.seconds,
    )


def _name(side: Side) -> str:
    return side.capitalize()


def interrupted(record: TrialRecord) -> bool:
    """True if the trial was interrupted and resumed: times between its steps then mean nothing."""
    return bool(record.all(TrialResumed))
