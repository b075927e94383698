"""View model of a trial's page: outcome, steps, costs, and differences found on recomputation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from markupsafe import Markup

from court.checks import in_words
from court.display import word
from court.events import (
    CheckableClaim,
    CheckFailed,
    ClaimSettled,
    DocumentWeighed,
    Event,
    EvidenceSearched,
    Flips,
    ModelCall,
    ReviewOutcome,
    RoundEvent,
    Side,
    SteeringFound,
    VerdictReviewed,
)
from court.expert.findings import ClaimRecord
from court.flips import flips_of
from court.record import TrialRecord, TrialState
from court.transcript import Transcript, transcript
from court.verdict import Label, ReviewReason
from serving.views.charts import Point, bar, curve
from serving.views.event_text import chosen_settings
from serving.views.recheck import Difference, differences


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim, with everything that is on record about it.

    Attributes:
        documents: Documents that were read or could not be, each once, as they were weighed last.
    """

    claim: CheckableClaim
    searches: Sequence[EvidenceSearched]
    documents: Sequence[DocumentWeighed]
    settled: ClaimSettled | None


def claims_of(record: TrialRecord) -> tuple[ClaimView, ...]:
    """The claims of a trial, in the order in which they were found."""
    found = record.claims_found
    settled = {event.claim: event for event in record.all(ClaimSettled)}
    views = []
    for claim in found.claims if found else ():
        known = ClaimRecord.of(record.events, claim.number)
        documents = {event.document: event for event in known.weighed}
        views.append(ClaimView(claim, known.searches, tuple(documents.values()), settled.get(claim.number)))
    return tuple(views)


_TELLS: Mapping[Label, str] = {Label.HARMFUL: "Harmful", Label.NOT_HARMFUL: "Not harmful", Label.UNDECIDED: "Undecided"}

_CHECKS: Mapping[ReviewReason, tuple[str, bool]] = {
    ReviewReason.SIDE_CHANGED: ("sides kept their side", True),
    ReviewReason.SIDES_ALIKE: ("sides differ", True),
    ReviewReason.POLICY_ECHOED: ("arguments rest on the meme", True),
    ReviewReason.RATIONALE_COPIED: ("rationale is the Judge’s own", True),
    ReviewReason.RATIONALE_UNGROUNDED: ("rationale names evidence", False),
    ReviewReason.REPLY_CUT: ("no text cut off", False),
}
"""Checks of a full trial: words where it passed, and whether it is of the sides."""


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Outcome of a trial.

    Attributes:
        kind: CSS class: ``harmful``, ``benign``, ``doubt`` or ``open``.
    """

    title: str
    kind: str
    overruled: bool
    review: VerdictReviewed | None


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the waterfall.

    Attributes:
        kind: CSS class of the step's owner.
        begin: Start in seconds since the trial's opening.
        counts: True if the verdict uses it; a round that was run ahead may turn out superfluous.
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
    """Total cost of the trial's model calls that events report."""

    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    seconds: float

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that model servers had in their caches."""
        return self.tokens_cached / self.tokens_in if self.tokens_in else 0.0


@dataclass(frozen=True, slots=True)
class SideEvidence:
    """Evidence that speaks for one of the labels.

    Attributes:
        source: ``judge`` for what the Judge named, ``side`` for an advocate's justification, ``precedent`` for the text
            of the nearest precedent.
    """

    words: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True)
class TrialView:
    """View model of a trial."""

    record: TrialRecord
    transcript: Transcript
    outcome: TrialOutcome
    curves: Mapping[Side, Markup]
    steps: Sequence[Step]
    costs: Costs
    differences: Mapping[int, Sequence[Difference]]
    steering: Mapping[int, Sequence[SteeringFound]]
    claims: Sequence[ClaimView]
    live: bool

    @property
    def flips(self) -> Flips | None:
        """Pieces whose loss would have flipped the verdict, as far as they are known."""
        return flips_of(self.record)

    @property
    def evidence(self) -> Mapping[Side, SideEvidence | None]:
        """Returns evidence of harm (the Accuser's side) and benign evidence (the Defender's); None if there is none."""
        return {side: _evidence(self.record, self.transcript, side) for side in Side}

    @property
    def in_short(self) -> str:
        """The court's finding in one plain sentence; empty where neither a vote nor a Judge led to it."""
        verdict, cited = self.record.verdict, self.record.precedents
        if verdict is None:
            return ""
        vote, parts = cited.vote if cited else None, []
        if vote is not None:
            parts = [f"{vote.harmful} of the {vote.voters} nearest labelled memes {_were(vote.harmful)} harmful"]
        elif cited is not None and verdict.label is Label.UNDECIDED:
            parts = ["No labelled meme is near enough to compare it with"]
        if verdict.strengths is not None and self.transcript.ruling is not None:
            harm, benign = word(verdict.strengths.harmful), word(verdict.strengths.benign)
            parts.append(f"the Judge found the evidence of harm {harm} and the benign evidence {benign}")
        if not parts:
            return ""
        sentence = ", and ".join(parts)
        label = _TELLS[verdict.label].lower()
        ends = label if verdict.strengths is None else "a close call" if verdict.close_call else f"found {label}"
        return f"{sentence[0].upper()}{sentence[1:]}: {ends}."

    @property
    def checks(self) -> Sequence[tuple[str, bool]]:
        """Checks of a trial with a verdict, in words, and whether each passed; failed ones first."""
        if self.record.verdict_event is None:
            return ()
        same = "worked out again: the same" if not self.differences else "worked out again: not the same"
        failed: Sequence[CheckFailed] = ()
        passed: Sequence[str] = ()
        if self.transcript.ruling is not None:
            checked = self.record.checked
            failed = checked.failed if checked else ()
            wanting = {one.check for one in failed}
            debated = all(self.transcript.arguments.values())
            passed = [
                words
                for check, (words, of_sides) in _CHECKS.items()
                if check not in wanting and (debated or not of_sides)
            ]
        return [
            *((in_words(one), False) for one in failed),
            (same, not self.differences),
            *((words, True) for words in passed),
        ]

    @property
    def chosen_settings(self) -> Sequence[tuple[str, object, object]]:
        """Name, value and default of each setting that differs from its default."""
        return chosen_settings(self.record.opened)

    @property
    def examined(self) -> bool:
        """True if any side asked a question."""
        return bool(self.transcript.rounds)


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _evidence(record: TrialRecord, transcribed: Transcript, side: Side) -> SideEvidence | None:
    """Returns the evidence that the Judge named for a side, or else its justification, or the nearest precedent."""
    accuses = side is Side.ACCUSER
    ruling, argument, cited = transcribed.ruling, transcribed.arguments.get(side), record.precedents
    # The Judge's own evidence comes first, since the verdict is based on it.
    if ruling is not None and (named := ruling.harmful_evidence if accuses else ruling.harmless_evidence):
        return SideEvidence(named, "judge")
    if argument is not None and argument.argument:
        return SideEvidence((argument.argument,), "side")
    nearest = None if cited is None else cited.findings.nearest_harmful if accuses else cited.findings.nearest_benign
    return SideEvidence((nearest.text,), "precedent") if nearest is not None and nearest.text else None


def view_of(record: TrialRecord) -> TrialView:
    """Builds the view model of a record, finished or not."""
    transcribed = transcript(record)
    verdict_event = record.verdict_event
    # Recomputed for each view and never stored, so that later alterations of a record show too.
    amiss: dict[int, list[Difference]] = {}
    for difference in differences(record):
        amiss.setdefault(difference.seq, []).append(difference)
    steering: dict[int, list[SteeringFound]] = {}
    for sign in verdict_event.steering if verdict_event else ():
        steering.setdefault(sign.event, []).append(sign)
    return TrialView(
        record=record,
        transcript=transcribed,
        outcome=outcome_of(record),
        curves=_curves(transcribed),
        steps=_steps(record),
        costs=_costs(record),
        differences=amiss,
        steering=steering,
        claims=claims_of(record),
        live=record.state is TrialState.OPEN,
    )


def outcome_of(record: TrialRecord) -> TrialOutcome:
    """Returns the outcome of a trial, by the last review if there is one."""
    review, verdict = record.review, record.verdict
    if verdict is None:
        if record.state is TrialState.FAILED:
            return TrialOutcome("No verdict: the trial failed", "doubt", overruled=False, review=None)
        return TrialOutcome("Running", "open", overruled=False, review=None)
    overruled = review is not None and review.outcome is ReviewOutcome.OVERRULED
    # An upheld verdict keeps its own label, even if it is undecided.
    label = review.label if review is not None and overruled else verdict.label
    title = f"Overruled: {_TELLS[label].lower()}" if overruled else _TELLS[label]
    kind = {Label.HARMFUL: "harmful", Label.NOT_HARMFUL: "benign", Label.UNDECIDED: "doubt"}[label]
    return TrialOutcome(title, kind, overruled, review)


def _curves(transcribed: Transcript) -> Mapping[Side, Markup]:
    points: dict[Side, list[Point]] = {}
    for one in transcribed.rounds:
        for side, turn in one.turns.items():
            if turn is not None and turn.summed is not None:
                points.setdefault(side, []).append(Point(one.number, turn.summed.entropy, not turn.ahead))
    if not points:
        return {}
    # The same scale for both sides, so that their curves can be compared.
    bits = [point.bits for each in points.values() for point in each]
    rounds = max(point.round for each in points.values() for point in each)
    return {
        side: curve(side, each, lowest=min(bits), highest=max(bits), rounds=rounds) for side, each in points.items()
    }


def _steps(record: TrialRecord) -> Sequence[Step]:
    """Returns all steps that took time. Events are stored at the end of a step, so its start is computed."""
    rested = {side: event.rounds for side, event in record.rested.items()}
    opened = record.opened.at
    steps: list[Step] = []
    for event, calls in record.first_reports:
        if not event.step_name:
            continue
        # Until a side rests, all of its rounds count.
        counts = not isinstance(event, RoundEvent) or event.round <= rested.get(event.side, event.round)
        owner = str(getattr(event, "side", "")).lower() if event.step_owner == "side" else event.step_owner
        made: list[tuple[str, ModelCall | None, float]] = [
            (_step_name(event, each.task), each.call, each.call.latency_s) for each in calls
        ]
        if not calls and event.took_s is not None:
            made = [(_step_name(event), None, event.took_s)]
        for name, call, seconds in made:
            begin = (event.at - timedelta(seconds=seconds) - opened).total_seconds()
            # The bar is drawn below, once the total length is known.
            steps.append(
                Step(
                    seq=event.seq,
                    name=name,
                    kind=owner,
                    begin=begin,
                    seconds=seconds,
                    call=call,
                    counts=counts,
                    bar=Markup(""),
                )
            )
    # Steps that start before the opening (two odds requests in one row, clock skew) shift the drawing.
    shift = max((-step.begin for step in steps if step.begin < 0), default=0.0)
    whole = max((step.begin + step.seconds for step in steps), default=0.0) + shift
    drawn = [replace(step, bar=_bar(step, shift=shift, whole=whole)) for step in steps]
    return sorted(drawn, key=lambda step: (step.begin, step.seq))


def _bar(step: Step, *, shift: float, whole: float) -> Markup:
    """Draws a step's bar on a scale that starts ``shift`` seconds before the trial and is ``whole`` seconds long."""
    return bar(
        step.begin + shift,
        step.seconds,
        whole=whole,
        kind=step.kind if step.counts else "ahead",
        cached=step.call.tokens_cached / step.call.tokens_in if step.call and step.call.tokens_in else 0.0,
    )


def _step_name(event: Event, task: str = "") -> str:
    name = event.step_name.format(**vars(event), Side=str(getattr(event, "side", "")).capitalize())
    # A ruling and its odds are two steps of one event.
    return f"{name.removesuffix(' rules')}’s odds, two calls" if task == "odds" else name


def _costs(record: TrialRecord) -> Costs:
    calls = record.calls
    return Costs(
        calls=sum(each.requests for each in calls),
        tokens_in=sum(each.call.tokens_in for each in calls),
        tokens_out=sum(each.call.tokens_out for each in calls),
        tokens_cached=sum(each.call.tokens_cached for each in calls),
        seconds=record.seconds,
    )
