"""The outcome of a trial, field by field, and the fields in which two outcomes of one trial differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from court.display import word
from court.events import (
    ClaimSettled,
    JudgeRuled,
    QuestionRuled,
    RoundEvent,
    Side,
    SideRested,
    VerdictGiven,
)
from court.record import TrialRecord
from court.verdict import Review
from serving.views.recheck import Difference

_NONE = "none"

_OF_A_ROUND = {
    "question": "question",
    "answer": "answer",
    "summary": "summary",
    "justification": "justification",
    "entropy": "entropy",
    "cites": "precedents cited",
}
"""Fields of the events of a round, with their names."""

_Fields = Iterator[tuple[str, int, str]]
"""Name of a field, number of the event that it stands in, and value."""


def outcome(record: TrialRecord) -> dict[str, tuple[int, str]]:
    """Returns every field of a trial whose value a replay could change, in reading order.

    Excludes statements in rounds that do not count, costs, times and the texts of precedents.

    Returns:
        Number of the event and value, by the field's name.
    """
    return {name: (seq, value) for name, seq, value in _fields(record)}


def changes(recorded: TrialRecord, replayed: TrialRecord) -> tuple[Difference, ...]:
    """The fields in which the outcome of a trial differs from the recorded one."""
    before, after = outcome(recorded), outcome(replayed)
    # A field that only the replay has stands in no recorded event; the end is where it is missing.
    last = recorded.events[-1].seq
    found = []
    # In order and each once: recorded fields first, then those that are new.
    for name in dict.fromkeys((*before, *after)):
        seq, earlier = before.get(name, (last, _NONE))
        _, now = after.get(name, (last, _NONE))
        if earlier != now:
            found.append(Difference(seq, name, earlier, now))
    return tuple(found)


def _fields(record: TrialRecord) -> _Fields:
    failed = record.failure
    verdict = record.verdict_event
    if verdict is not None:
        yield from _verdict(verdict)
    elif failed is not None:
        yield "end", failed.seq, f"failed at step {failed.step}: {failed.message}"
    if (text := record.text) is not None:
        yield "text", text.seq, text.text
    if (described := record.described) is not None:
        yield "description", described.seq, described.description
    if (cited := record.precedents) is not None:
        vote = cited.vote
        words = _NONE if vote is None else f"{vote.harmful} of {vote.voters}, {_figure(vote.probability)}"
        yield "precedents' vote", cited.seq, words
    if (opinion := record.guard) is not None:
        words = opinion.failure if opinion.harmful is None else "harmful" if opinion.harmful else "not harmful"
        yield "guard's opinion", opinion.seq, words
        yield "guard's categories", opinion.seq, ", ".join(opinion.categories) or _NONE
    if (found := record.claims_found) is not None:
        yield "claims of fact", found.seq, found.failure or _lines(claim.text for claim in found.claims)
    # Claims are settled side by side, in whatever order the calls return.
    for settled in sorted(record.all(ClaimSettled), key=lambda event: event.claim):
        yield f"claim {settled.claim}'s finding", settled.seq, f"{word(settled.label)}, {word(settled.because)}"
        quotes = (f"{passage.document}: {passage.quote}" for passage in settled.evidence)
        yield f"claim {settled.claim}'s evidence", settled.seq, _lines(quotes)
    for ruled in record.all(JudgeRuled):
        name = f"judge {ruled.judge}'s"
        yield f"{name} strengths", ruled.seq, ruled.strengths.in_words
        yield f"{name} own label", ruled.seq, str(ruled.ruling.label)
        yield f"{name} rationale", ruled.seq, ruled.rationale
    for side in Side:
        yield from _side(record, side)
    for answered in record.all(QuestionRuled):
        name = f"{answered.question.id}'s"
        words = answered.failure if answered.chosen is None else ", ".join(answered.chosen) or _NONE
        yield f"{name} answer", answered.seq, words
        yield f"{name} rationale", answered.seq, answered.rationale


def _verdict(event: VerdictGiven) -> _Fields:
    verdict, ruling, at = event.verdict, event.ruling, event.seq
    strengths = verdict.strengths
    values: Mapping[str, str] = {
        "label": str(verdict.label),
        "strengths": strengths.in_words if strengths else _NONE,
        "score": _NONE if verdict.harm_score is None else _figure(verdict.harm_score),
        "meaning of the score": _NONE if verdict.harm_score_meaning is None else str(verdict.harm_score_meaning),
        "risk": _NONE if verdict.risk is None else _figure(verdict.risk),
        "review reasons": _reasons(verdict.review),
        "signals": _reasons(verdict.signals),
        "rule": verdict.rule,
        # Kinds alone: where a sign stands moves with every word around it.
        "signs of steering": ", ".join(sorted(str(sign.kind) for sign in event.steering)) or _NONE,
    }
    if found := verdict.finding:
        values = {**values, "finding": f"{found.category}, clause {found.clause or '–'}, {found.target or '–'}"}
    if ruling is not None:
        readings = ", ".join(f"{one.id}: {one.supports}" for one in ruling.precedents)
        values = {
            **values,
            "the Judge's own label": str(ruling.label),
            "harmful evidence": _lines(ruling.harmful_evidence),
            "harmless evidence": _lines(ruling.harmless_evidence),
            "readings of precedents": readings or _NONE,
        }
    for name, value in {**values, "rationale": verdict.rationale}.items():
        yield name, at, value


def _side(record: TrialRecord, side: Side) -> _Fields:
    who = side.capitalize()
    rested = next((event for event in record.all(SideRested) if event.side is side), None)
    if rested is not None:
        yield f"{who}'s rounds", rested.seq, f"{rested.rounds}, {word(rested.reason)}"
    # Rounds run ahead beyond the stop depend on timing, and the verdict does not rest on them.
    counted = rested.rounds if rested else 0
    for event in record.all(RoundEvent):
        if "rounds" not in event.parts or event.side is not side or event.round > counted:
            continue
        for field, name in _OF_A_ROUND.items():
            if field in type(event).model_fields:
                place = f"{who}'s {name}, round {event.round}" if event.round else f"{who}'s {name}"
                yield place, event.seq, _value_in_words(getattr(event, field))


def _value_in_words(value: str | float | tuple[str, ...]) -> str:
    if isinstance(value, float):
        return f"{value:.4f} bit"
    return value if isinstance(value, str) else ", ".join(value) or _NONE


def _reasons(reviews: Iterable[Review]) -> str:
    return ", ".join(str(review.reason) for review in reviews) or _NONE


def _lines(evidence: Iterable[str]) -> str:
    return " / ".join(evidence) or _NONE


def _figure(value: float) -> str:
    # The last digits of a sum may differ between machines.
    return f"{value:.6f}"
