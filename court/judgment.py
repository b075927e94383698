"""From what the Judge says to the verdict: the label by the rule, and every reason to have a person look."""

from __future__ import annotations

from collections.abc import Sequence

from court.events import OddsGiven, RestReason, TextRead
from court.events import PrecedentReading as Reading
from court.events import Ruling as RulingOnRecord
from court.examination import SideCase
from court.meme import Frame
from court.messages import Exhibit, file_sha256
from court.precedents import Vote
from court.replies import Ruling
from court.settings import TrialSettings
from court.summary import unsure_text
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strengths, Verdict, rule

_NONE = "none"


def verdict_of(
    ruling: Ruling,
    *,
    text: TextRead,
    settings: TrialSettings,
    sides: Sequence[SideCase] = (),
    vote: Vote | None = None,
    odds: OddsGiven | None = None,
) -> Verdict:
    """The verdict.

    Args:
        ruling: What the Judge said.
        text: The meme's text, and how sure its reading is.
        settings: Of the trial.
        sides: What the sides brought.
        vote: The precedents' vote, where there was one.
        odds: How likely the Judge's model holds either label, where that is known.
    """
    strengths = Strengths(harmful=ruling.harmful_strength, benign=ruling.harmless_strength)
    label = rule(strengths.harmful, strengths.benign)
    score = score_of(odds)
    found = label is Label.HARMFUL and ruling.category != _NONE
    return Verdict(
        label=label,
        strengths=strengths,
        harm_score=score,
        harm_score_meaning=None if score is None else ScoreMeaning.LABEL_PROBABILITY,
        rationale=ruling.rationale,
        finding=Finding(
            category=ruling.category,
            clause="" if ruling.clause == _NONE else ruling.clause,
            target="" if ruling.target == _NONE else ruling.target,
        )
        if found
        else None,
        review=(
            *_contradictions(ruling, label, vote=vote, score=score, settings=settings),
            *_cut_short(sides),
            *unsure_text(text, settings),
        ),
    )


def score_of(odds: OddsGiven | None) -> float | None:
    """P(harmful) from the masses of the two options, each order by itself and then averaged.

    Within an order the mass that went to other words is left out; averaging over the orders cancels a preference for
    the first letter. None where there are no odds, or neither option had any mass.
    """
    if odds is None:
        return None
    pairs = [pair for pair in zip(odds.harmful, odds.not_harmful, strict=True) if sum(pair) > 0]
    if len(pairs) < len(odds.harmful):
        return None
    return sum(harmful / (harmful + benign) for harmful, benign in pairs) / len(pairs)


def on_record(ruling: Ruling, exhibits: Sequence[Exhibit[Frame]]) -> RulingOnRecord:
    """The ruling as it is kept: precedents by their ids instead of their numbers."""
    return RulingOnRecord(
        harmful_evidence=ruling.harmful_evidence,
        harmless_evidence=ruling.harmless_evidence,
        precedents=tuple(
            Reading(
                id=exhibit.precedent.id,
                supports=ruling.precedents[str(number)],
                picture=file_sha256(exhibit.picture.png) if exhibit.picture else "",
            )
            for number, exhibit in enumerate(exhibits, 1)
        ),
        label=ruling.label,
    )


def _contradictions(
    ruling: Ruling, label: Label, *, vote: Vote | None, score: float | None, settings: TrialSettings
) -> list[Review]:
    reasons = []
    if ruling.label is not label:
        detail = (
            f"The Judge's own label is {ruling.label}, but its strengths (harmful {ruling.harmful_strength}, harmless "
            f"{ruling.harmless_strength}) make it {label}, also when it was asked again."
        )
        reasons.append(Review(reason=ReviewReason.JUDGE_CONTRADICTS_ITSELF, detail=detail))
    if vote is not None:
        distance = vote.probability - vote.settings.threshold
        if abs(distance) > settings.vote_disagreement and (distance > 0) != (label is Label.HARMFUL):
            detail = (
                f"The precedents' vote puts the probability of harm at {vote.probability:.2f}, the Judge says {label}."
            )
            reasons.append(Review(reason=ReviewReason.VOTE_DISAGREES, detail=detail))
    if score is not None and (score >= 0.5) != (label is Label.HARMFUL):
        detail = f"The Judge's model holds harm for {score:.0%} likely, its ruling says {label}."
        reasons.append(Review(reason=ReviewReason.SCORE_DISAGREES, detail=detail))
    return reasons


def _cut_short(sides: Sequence[SideCase]) -> list[Review]:
    if not any(side.reason is RestReason.TIME for side in sides):
        return []
    detail = "The deadline ended an examination before it had converged."
    return [Review(reason=ReviewReason.CUT_SHORT, detail=detail)]
