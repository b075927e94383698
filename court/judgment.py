"""From what the Judge says to the recorded verdict: the label by the rule, and every reason to have a person look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from court.display import word
from court.events import (
    AnswerGiven,
    AnyEvent,
    Described,
    GuardHeard,
    MemeIdentity,
    NearDuplicatesFound,
    OddsGiven,
    PrecedentsCited,
    RestReason,
    SteeringFound,
    TextRead,
    TrialOpened,
    VerdictGiven,
)
from court.events import PrecedentReading as Reading
from court.events import Ruling as RulingOnRecord
from court.examination import SideCase
from court.injection.detector import find_injection_signals
from court.meme import Frame
from court.messages import Exhibit, file_sha256
from court.precedents import Findings, Vote
from court.recorder import Drafted, EventDraft, Recorder
from court.replies import Ruling
from court.settings import TrialSettings
from court.summary import no_similar_precedent, unsure_text
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strengths, Verdict, rule

_NONE = "none"


def verdict_of(
    ruling: Ruling,
    *,
    text: TextRead,
    settings: TrialSettings,
    sides: Sequence[SideCase] = (),
    vote: Vote | None = None,
    findings: Findings | None = None,
    odds: OddsGiven | None = None,
    guard: GuardHeard | None = None,
) -> Verdict:
    """The verdict.

    Args:
        ruling: Ruling of the Judge.
        text: The meme's text, and how sure its reading is.
        settings: Settings of the trial.
        sides: Cases of the two sides.
        vote: The precedents' vote, where there was one.
        findings: Precedents that were found; None where none were looked for.
        odds: Probability that the Judge's model gives each label, where it is known.
        guard: Opinion of a guard model, or that it gave none; None where none was to be heard.
    """
    strengths = Strengths(harmful=ruling.harmful_strength, benign=ruling.harmless_strength)
    label = rule(strengths.harmful, strengths.benign)
    score = score_of(odds, settings.least_label_mass)
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
            *_of_guard(guard, label),
            *_cut_short(sides),
            *unsure_text(text, settings),
        ),
        signals=(
            *(no_similar_precedent(findings) if findings is not None else ()),
            *(_no_score(odds) if score is None else ()),
        ),
    )


def score_of(odds: OddsGiven | None, least_mass: float) -> float | None:
    """P(harmful) from the masses of the two options, each order by itself and then averaged.

    Within an order the mass that went to other words is left out; averaging over the orders cancels a preference for
    the first letter.

    Args:
        odds: Masses of the options in both orders; None where they are not known.
        least_mass: Least mass of the two options together in each order: the ratio of two masses that are nearly
            nothing is chance.

    Returns:
        The probability in [0, 1]; None where there are no odds, or the options have too little mass.
    """
    if odds is None:
        return None
    pairs = list(zip(odds.harmful, odds.not_harmful, strict=True))
    if any(sum(pair) <= 0 or sum(pair) < least_mass for pair in pairs):
        return None
    return sum(harmful / (harmful + benign) for harmful, benign in pairs) / len(pairs)


def _no_score(odds: OddsGiven | None) -> tuple[Review, ...]:
    """A signal where the model was asked for its odds, and the labels had next to none."""
    if odds is None:
        return ()
    least = min(map(sum, zip(odds.harmful, odds.not_harmful, strict=True)))
    detail = f"The Judge's model gave the two labels {least:.2g} of its probability: there is no harm score."
    return (Review(reason=ReviewReason.SCORE_UNKNOWN, detail=detail),)


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


def _of_guard(guard: GuardHeard | None, label: Label) -> list[Review]:
    if guard is None:
        return []
    if guard.harmful is None:
        detail = f"The guard model ({guard.adapter}) gave no opinion: {guard.failure}."
        return [Review(reason=ReviewReason.GUARD_FAILED, detail=detail)]
    if not guard.harmful or label is Label.HARMFUL:
        return []
    named = f" ({', '.join(guard.categories)})" if guard.categories else ""
    detail = f"The guard model ({guard.adapter}) holds the meme for harmful{named}, the Judge says {label}."
    return [Review(reason=ReviewReason.GUARD_DISAGREES, detail=detail)]


def _cut_short(sides: Sequence[SideCase]) -> list[Review]:
    if not any(side.reason is RestReason.TIME for side in sides):
        return []
    detail = "The deadline ended an examination before it had converged."
    return [Review(reason=ReviewReason.CUT_SHORT, detail=detail)]


def with_harmful_duplicates(verdict: Verdict, found: NearDuplicatesFound | None) -> Verdict:
    """Adds a reason for review to a verdict that is not harmful where a near-duplicate was found harmful."""
    if found is None or verdict.label is Label.HARMFUL:
        return verdict
    harmful = [duplicate for duplicate in found.duplicates if duplicate.label is Label.HARMFUL]
    if not harmful:
        return verdict
    nearest = min(harmful, key=lambda duplicate: (not duplicate.same_text, duplicate.distance))
    words = "the same text" if nearest.same_text else "another text"
    detail = (
        f"A meme that is nearly this one was found harmful in trial {nearest.trial_id}: {words}, its picture "
        f"{nearest.distance} of 256 bits away"
    )
    more = len(harmful) - 1
    detail += f"; so {'was' if more == 1 else 'were'} {more} more." if more else "."
    review = Review(reason=ReviewReason.NEAR_DUPLICATE_HARMFUL, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


def with_parts_not_judged(verdict: Verdict, meme: MemeIdentity | None) -> Verdict:
    """Adds reasons for review to a verdict that is not harmful where frames or a part of the picture were not seen."""
    if meme is None or verdict.label is Label.HARMFUL:
        return verdict
    reviews = []
    if meme.frames_unlike:
        detail = f"{len(meme.frames_used)} of {meme.frame_count} frames were judged; {meme.frames_unlike} others look "
        reviews.append(Review(reason=ReviewReason.FRAMES_NOT_JUDGED, detail=f"{detail}unlike all of them."))
    if meme.incomplete:
        detail = "The file of the picture was cut short: what is missing of it could not be judged."
        reviews.append(Review(reason=ReviewReason.PICTURE_INCOMPLETE, detail=detail))
    return verdict.model_copy(update={"review": (*verdict.review, *reviews)})


async def give_verdict(clerk: Recorder, *before: Drafted, verdict: Verdict, **values: Any) -> None:
    """Keeps a verdict, and with it the signs of steering in all that strangers and the picture said in the trial.

    Args:
        clerk: Recorder of the trial.
        before: Last events, stored together with the verdict.
        verdict: Verdict of the procedure. A reason for review is added where there are signs of steering, and where it
            is not harmful and a near-duplicate was, or a part was not judged; its label, strengths and score stay.
        values: Further values of its event.
    """

    def given(events: Sequence[AnyEvent]) -> EventDraft:
        found = steering_in(events)
        near = next((event for event in events if isinstance(event, NearDuplicatesFound)), None)
        seen = with_harmful_duplicates(with_review(verdict, found), near)
        opened = next((event for event in events if isinstance(event, TrialOpened)), None)
        seen = with_parts_not_judged(seen, opened.meme if opened else None)
        return EventDraft(VerdictGiven, {"verdict": seen, "steering": found, **values})

    await clerk.note_all(*before, given)


def steering_in(events: Iterable[AnyEvent]) -> tuple[SteeringFound, ...]:
    """The signs in the meme's text, in what the Proposer said of the picture, and in the precedents that were shown."""
    return tuple(
        SteeringFound(event=event.seq, precedent=precedent, **signal.model_dump())
        for event in events
        for precedent, text in _untrusted_texts(event)
        for signal in find_injection_signals(text)
    )


def with_review(verdict: Verdict, found: Sequence[SteeringFound]) -> Verdict:
    """Adds a reason for review to a verdict where there are signs of steering."""
    if not found:
        return verdict
    kinds = ", ".join(sorted({word(sign.kind) for sign in found}))
    detail = f"What was said in this trial reads in {len(found)} {'place' if len(found) == 1 else 'places'} like an "
    detail += f"attempt to steer the court ({kinds}); the record says where."
    review = Review(reason=ReviewReason.STEERING_SUSPECTED, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


def _untrusted_texts(event: AnyEvent) -> Iterator[tuple[str, str]]:
    """Id of a precedent, or nothing, and a text that somebody else than the court's own sides wrote."""
    match event:
        case TextRead():
            yield "", event.text
        case Described():
            yield "", event.description
        case AnswerGiven():
            yield "", event.answer
        case GuardHeard():
            yield "", event.reason
        case PrecedentsCited():
            yield from ((precedent.id, precedent.text) for precedent in event.findings.exhibits)
