"""Turns the judges' rulings into the recorded verdict: the label by the rule, and every reason for human review.

For a panel the rule is applied to the median strengths, computed per side. Of two middle values, the one worse for the
meme is used: the stronger harmful and the weaker harmless evidence, because in doubt a meme is harmful.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from court.audition import Weighed
from court.checks import in_words, is_mistrial
from court.display import word
from court.events import (
    AnyEvent,
    CheckFailed,
    GuardHeard,
    JudgeRuled,
    MemeIdentity,
    NearDuplicatesFound,
    OddsGiven,
    PrecedentsCited,
    QuestioningEnd,
    Ruling,
    SteeringFound,
    TextRead,
    TrialOpened,
    VerdictGiven,
)
from court.events import PrecedentReading as Reading
from court.examination import SideCase
from court.expert.findings import Testimony, review_of
from court.injection.detector import find_injection_signals
from court.meme import Frame
from court.messages import Exhibit, file_sha256
from court.policy import DEFAULT_POLICY
from court.precedents import STARTER, Findings, Relation, VerifiedCopy, Vote, sigmoid
from court.recorder import Drafted, EventDraft, Recorder
from court.replies import RulingReply
from court.settings import TrialSettings
from court.summary import above_cutoff, no_similar_precedent, unsure_text, weigh
from court.verdict import (
    Decision,
    Finding,
    Label,
    Review,
    ReviewReason,
    ScoreMeaning,
    Strength,
    Strengths,
    Verdict,
    rule,
)

_NONE = "none"
_SUREST = 1e-6
"""Probabilities are clipped to this distance from 0 and 1 before they are converted to log-odds."""


_UNSEEN = Review(
    reason=ReviewReason.PICTURE_NOT_WEIGHED,
    detail="This court judges the texts of memes (trial.input): no model saw the picture.",
)


@dataclass(frozen=True, slots=True)
class Opinion:
    """The opinion of one judge."""

    ruling: RulingReply
    odds: OddsGiven | None = None

    @property
    def strengths(self) -> Strengths:
        """Strengths of the two sides."""
        return Strengths(harmful=self.ruling.harmful_strength, benign=self.ruling.harmless_strength)

    @property
    def label(self) -> Label:
        """Label that follows from its strengths."""
        return rule(self.ruling.harmful_strength, self.ruling.harmless_strength)


def median_strengths(opinions: Sequence[Opinion]) -> Strengths:
    """Returns the median strength of each side; of two middle values, the one worse for the meme."""
    by_level = {strength.level: strength for strength in Strength}
    harmful = sorted(opinion.ruling.harmful_strength.level for opinion in opinions)
    benign = sorted(opinion.ruling.harmless_strength.level for opinion in opinions)
    return Strengths(harmful=by_level[harmful[len(harmful) // 2]], benign=by_level[benign[(len(benign) - 1) // 2]])


def spokesman_of(opinions: Sequence[Opinion]) -> int:
    """Returns the index of the judge who explains the panel's label: of those that agree, the nearest to the median."""
    # At least one judge agrees: if the median benign evidence is strong and the median harmful evidence is not, more
    # than half of the judges have the first and at least half the second.
    median = median_strengths(opinions)
    label = rule(median.harmful, median.benign)

    def distance(index: int) -> tuple[bool, int, int]:
        own = opinions[index].strengths
        apart = abs(own.harmful.level - median.harmful.level) + abs(own.benign.level - median.benign.level)
        # False sorts first, so judges with the panel's label come first; the index breaks ties, for a deterministic
        # choice.
        return opinions[index].label is not label, apart, index

    return min(range(len(opinions)), key=distance)


def disagreement(opinions: Sequence[Opinion]) -> tuple[Review, ...]:
    """A reason for review if the judges of a panel give different labels; empty if they agree."""
    harmful = sum(opinion.label is Label.HARMFUL for opinion in opinions)
    if harmful in (0, len(opinions)):
        return ()
    detail = f"Of {len(opinions)} judges {harmful} found the meme harmful and {len(opinions) - harmful} did not."
    return (Review(reason=ReviewReason.JUDGES_DISAGREE, detail=detail),)


def verdict_of(
    opinions: Sequence[Opinion],
    *,
    text: TextRead,
    settings: TrialSettings,
    sides: Sequence[SideCase] = (),
    vote: Vote | None = None,
    findings: Findings | None = None,
    prior: Vote | None = None,
    guard: GuardHeard | None = None,
    testimony: Testimony | None = None,
    facts: bool = False,
    unseen: bool = False,
    failed: Sequence[CheckFailed] = (),
    weighed: Weighed | None = None,
) -> Verdict:
    """Returns the verdict of a full trial; ``unseen`` if there is a picture that no model was shown."""
    strengths = median_strengths(opinions)
    label = rule(strengths.harmful, strengths.benign)
    # From a judge who gave the panel's label: a rationale for the other label would contradict the verdict.
    ruling = opinions[spokesman_of(opinions)].ruling
    # The score does not decide: the rule alone gives the label, and a contradicting score asks for review.
    score = mean_score(opinions, settings.least_label_mass)
    # An audition has measured what the score is worth.
    likely = score if weighed is None else weighed.probability
    # A Judge may name a category and still give strengths for "not harmful"; the label decides, so there is no finding.
    found = label is Label.HARMFUL and ruling.category != _NONE
    # Any policy will do, since only label and doubts are read.
    by_precedents = weigh(findings, vote, text, settings, policy=DEFAULT_POLICY) if findings is not None else None
    missing = [each for each in failed if each.check is ReviewReason.DESCRIPTION_MISSING]
    reasons = (
        *_contradictions(opinions, label, vote=vote, score=likely, settings=settings),
        *_guard_reasons(guard, label),
        *(review_of(testimony, label, facts=facts) if testimony else ()),
        *_cut_short(sides),
        *unsure_text(text),
        *_mistrial(failed, settings),
        # The picture may be what harms, so nobody is acquitted without a description of it.
        *(_check_reasons(missing) if label is not Label.HARMFUL else ()),
    )
    return Verdict(
        label=label,
        strengths=strengths,
        **(
            _estimate(score, label, prior, settings.vote_weight, doubts=len(failed))
            if weighed is None
            else {"harm_score": likely, "harm_score_meaning": ScoreMeaning.JUDGE_AND_VOTE, "risk": weighed.risk(label)}
        ),
        rationale=ruling.rationale,
        finding=Finding(
            category=ruling.category,
            clause="" if ruling.clause == _NONE else ruling.clause,
            target="" if ruling.target == _NONE else ruling.target,
        )
        if found
        else None,
        # One's own doubts say more than that the model is not known.
        review=reasons or _not_sure(label, by_precedents, weighed, settings),
        signals=(
            *(no_similar_precedent(findings) if findings is not None else ()),
            *(_no_score(opinions) if score is None else ()),
            *((_UNSEEN,) if unseen else ()),
            *_check_reasons([each for each in failed if label is Label.HARMFUL or each not in missing]),
        ),
        precedents_block=_blocks(label, by_precedents, weighed),
        claims=testimony.findings if testimony else (),
    )


def _mistrial(failed: Sequence[CheckFailed], settings: TrialSettings) -> tuple[Review, ...]:
    if not is_mistrial(failed, settings):
        return ()
    why = "; ".join(in_words(each) for each in failed if is_mistrial([each], settings))
    detail = f"The debate went wrong, so that a person must look: {why}."
    return (Review(reason=ReviewReason.MISTRIAL, detail=detail),)


def _blocks(label: Label, by_precedents: Verdict | None, weighed: Weighed | None) -> bool:
    """True if calibrated evidence blocks: the precedents alone, or what an audition makes of a harmful label."""
    by_audition = weighed is not None and label is Label.HARMFUL and weighed.decides(label)
    return by_audition or (by_precedents is not None and by_precedents.decision is Decision.BLOCK)


def _not_sure(
    label: Label, by_precedents: Verdict | None, weighed: Weighed | None, settings: TrialSettings
) -> tuple[Review, ...]:
    """A reason for review unless an audition has shown that such a label may be decided without."""
    # A block of the precedents alone needs no audition; without one, nor does their acquittal.
    agreed = by_precedents is not None and by_precedents.label is label and not by_precedents.needs_human_review
    if not settings.audition or (agreed and (weighed is None or label is Label.HARMFUL)):
        return ()
    if weighed is not None:
        return () if weighed.decides(label) else above_cutoff(weighed.risk(label), weighed.cutoff, settings)
    detail = (
        "No audition on labelled memes holds for the Judge's model, and no sure vote of the precedents agrees with it."
    )
    return (Review(reason=ReviewReason.MODEL_NOT_AUDITIONED, detail=detail),)


def _check_reasons(failed: Sequence[CheckFailed]) -> tuple[Review, ...]:
    """Returns one signal, or reason, for each check that failed, however many parts of the trial it concerns."""
    by_check: dict[ReviewReason, list[str]] = {}
    for each in failed:
        words = by_check.setdefault(each.check, [])
        # Found twice, by its wording and by the model's odds.
        if in_words(each) not in words:
            words.append(in_words(each))
    return tuple(Review(reason=check, detail=f"Check failed: {'; '.join(found)}.") for check, found in by_check.items())


def score_of(odds: OddsGiven | None, least_mass: float) -> float | None:
    """P(harmful) from the masses of the two options, computed per order and then averaged."""
    # Mass on other tokens is ignored; averaging over both orders cancels a preference for the first letter.
    if odds is None:
        return None
    pairs = list(zip(odds.harmful, odds.not_harmful, strict=True))
    # The first condition matters where least_mass is 0: the ratio would be 0 / 0.
    if any(sum(pair) <= 0 or sum(pair) < least_mass for pair in pairs):
        return None
    return sum(harmful / (harmful + benign) for harmful, benign in pairs) / len(pairs)


def mean_score(opinions: Sequence[Opinion], least_mass: float) -> float | None:
    """P(harmful) as the mean over the judges whose models gave one; None if none did."""
    scores = [score_of(opinion.odds, least_mass) for opinion in opinions]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def _estimate(
    score: float | None, label: Label, prior: Vote | None, weight: float, *, doubts: int = 0
) -> dict[str, Any]:
    """Returns the score and its meaning, and in a cascade a risk, from which each failed check (``doubts``) takes."""
    if prior is None or weight == 0:
        return {"harm_score": score, "harm_score_meaning": None if score is None else ScoreMeaning.LABEL_PROBABILITY}
    meaning = ScoreMeaning.PRECEDENT_VOTE if score is None else ScoreMeaning.JUDGE_AND_VOTE
    # Without a score, the vote that sent the cascade here is better than no estimate; the meaning says which it is.
    joint_score = prior.probability if score is None else joined_odds(score, prior.probability, weight)
    risk = 1 - joint_score if label is Label.HARMFUL else joint_score
    return {
        "harm_score": joint_score,
        "harm_score_meaning": meaning,
        "risk": risk if risk > 0.5 else 0.5 - (0.5 - risk) / 2**doubts,
    }


def joined_odds(score: float, vote: float, weight: float) -> float:
    """Combines the probabilities of Judge and vote by the weighted mean of their log-odds."""

    def log_odds(p: float) -> float:
        # A model may give exactly 0 or 1; clipping keeps the log-odds finite, so the other probability still counts.
        bounded = min(max(p, _SUREST), 1 - _SUREST)
        return math.log(bounded / (1 - bounded))

    return sigmoid((1 - weight) * log_odds(score) + weight * log_odds(vote))


def _no_score(opinions: Sequence[Opinion]) -> tuple[Review, ...]:
    """A signal if the models' odds gave the two labels too little probability."""
    with_odds = [opinion.odds for opinion in opinions if opinion.odds is not None]
    if not with_odds:
        return ()
    # The minimum over orders and judges, which is the one that fell below the bound.
    least = min(sum(pair) for odds in with_odds for pair in zip(odds.harmful, odds.not_harmful, strict=True))
    detail = f"The Judge's model gave the two labels {least:.2g} of its probability: there is no harm score."
    return (Review(reason=ReviewReason.SCORE_UNKNOWN, detail=detail),)


def on_record(ruling: RulingReply, exhibits: Sequence[Exhibit[Frame]]) -> Ruling:
    """Converts a ruling to its stored form: precedents by their ids instead of their numbers."""
    return Ruling(
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


def from_record(event: JudgeRuled) -> Opinion:
    """Restores the opinion of a panel's judge from its event: precedents by their numbers again."""
    ruling = event.ruling
    return Opinion(
        RulingReply(
            harmful_evidence=ruling.harmful_evidence,
            harmless_evidence=ruling.harmless_evidence,
            precedents={str(number): one.supports for number, one in enumerate(ruling.precedents, 1)},
            harmful_strength=event.strengths.harmful,
            harmless_strength=event.strengths.benign,
            # Narrows the type: a ruling's own label is never UNDECIDED.
            label=Label.HARMFUL if ruling.label is Label.HARMFUL else Label.NOT_HARMFUL,
            category=event.category,
            clause=event.clause,
            target=event.target,
            rationale=event.rationale,
        ),
        event.odds,
    )


def _contradictions(
    opinions: Sequence[Opinion], label: Label, *, vote: Vote | None, score: float | None, settings: TrialSettings
) -> list[Review]:
    reasons = []
    if inconsistent := next((opinion for opinion in opinions if opinion.ruling.label is not opinion.label), None):
        ruling = inconsistent.ruling
        detail = (
            f"The Judge's own label is {ruling.label}, but its strengths (harmful {ruling.harmful_strength}, harmless "
            f"{ruling.harmless_strength}) make it {inconsistent.label}, also when it was asked again."
        )
        reasons.append(Review(reason=ReviewReason.JUDGE_CONTRADICTS_ITSELF, detail=detail))
    reasons += disagreement(opinions)
    if vote is not None:
        # A vote near its threshold is inconclusive, so contradicting it is no reason for review.
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


def _guard_reasons(guard: GuardHeard | None, label: Label) -> list[Review]:
    if guard is None:
        return []
    if guard.harmful is None:
        detail = f"The guard model ({guard.adapter}) gave no opinion: {guard.failure}."
        return [Review(reason=ReviewReason.GUARD_FAILED, detail=detail)]
    # Only in one direction: a guard that sees no harm must not cast doubt on a harmful verdict.
    if not guard.harmful or label is Label.HARMFUL:
        return []
    named = f" ({', '.join(guard.categories)})" if guard.categories else ""
    detail = f"The guard model ({guard.adapter}) holds the meme for harmful{named}, the Judge says {label}."
    return [Review(reason=ReviewReason.GUARD_DISAGREES, detail=detail)]


def _cut_short(sides: Sequence[SideCase]) -> list[Review]:
    if not any(side.reason is QuestioningEnd.TIME for side in sides):
        return []
    detail = "The deadline ended an examination before it had converged."
    return [Review(reason=ReviewReason.CUT_SHORT, detail=detail)]


def with_harmful_duplicates(verdict: Verdict, found: NearDuplicatesFound | None) -> Verdict:
    """Adds a reason for review to a verdict that is not harmful if a near-duplicate was found harmful."""
    if found is None or verdict.label is Label.HARMFUL:
        return verdict
    harmful = [duplicate for duplicate in found.duplicates if duplicate.label is Label.HARMFUL]
    if not harmful:
        return verdict
    # Equal text counts more than a few bits of the picture hash.
    nearest = min(harmful, key=lambda duplicate: (not duplicate.same_text, duplicate.distance))
    words = "the same text" if nearest.same_text else "another text"
    picture = "neither has a picture" if nearest.text_alone else f"its picture {nearest.distance} of 256 bits away"
    detail = f"A meme that is nearly this one was found harmful in trial {nearest.trial_id}: {words}, {picture}"
    more = len(harmful) - 1
    detail += f"; so {'was' if more == 1 else 'were'} {more} more." if more else "."
    review = Review(reason=ReviewReason.NEAR_DUPLICATE_HARMFUL, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


def with_parts_not_judged(verdict: Verdict, meme: MemeIdentity | None) -> Verdict:
    """Adds the parts of a meme that were not judged to its verdict."""
    # A missing picture is a signal, as a verdict on the text alone may be right. Frames or parts of the picture that
    # were not judged are reasons for review of a verdict that is not harmful.
    if meme is not None and not meme.picture_given:
        detail = "No picture was sent: the verdict is on the text alone."
        signal = Review(reason=ReviewReason.PICTURE_NOT_SENT, detail=detail)
        return verdict.model_copy(update={"signals": (*verdict.signals, signal)})
    # A harmful verdict holds, whatever the unseen parts show.
    if meme is None or verdict.label is Label.HARMFUL:
        return verdict
    reviews = []
    if meme.frames_unlike:
        detail = f"{len(meme.frames_used)} of {meme.frame_count} frames were judged; {meme.frames_unlike} others look "
        reviews.append(Review(reason=ReviewReason.FRAMES_NOT_JUDGED, detail=f"{detail}unlike all of them."))
    if meme.incomplete:
        detail = "The file of the picture was cut short: what is missing of it could not be judged."
        reviews.append(Review(reason=ReviewReason.PICTURE_INCOMPLETE, detail=detail))
    if meme.shown_otherwise:
        detail = (
            "The file has unusual colour instructions: it was judged as browsers show it, other viewers may differ."
        )
        reviews.append(Review(reason=ReviewReason.PICTURE_SHOWN_OTHERWISE, detail=detail))
    return verdict.model_copy(update={"review": (*verdict.review, *reviews)})


def with_starter_library(verdict: Verdict, cited: PrecedentsCited | None) -> Verdict:
    """Adds a reason for review to a verdict that was reached with the starter library."""
    if cited is None or cited.findings.library.name != STARTER:
        return verdict
    detail = "The precedents are drawn memes of the starter library: no decision may rest on them."
    review = Review(reason=ReviewReason.STARTER_LIBRARY, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


def with_copies(verdict: Verdict, cited: PrecedentsCited | None) -> Verdict:
    """Adds a signal to a verdict if a cited precedent is the same meme, as its label did not bind the court."""
    if cited is None:
        return verdict
    # Without a picture, the text is the meme.
    same = {Relation.SAME_MEME} if cited.findings.search.has_picture else {Relation.SAME_MEME, Relation.SAME_TEXT}
    copies = [f"{each.id} ({word(each.label)})" for each in cited.findings.exhibits if each.relation in same]
    if not copies:
        return verdict
    detail = f"Precedents that are the same meme do not bind the court: {', '.join(copies)}."
    signal = Review(reason=ReviewReason.COPY_NOT_BINDING, detail=detail)
    return verdict.model_copy(update={"signals": (*verdict.signals, signal)})


async def give_verdict(
    recorder: Recorder, *before: Drafted, verdict: Verdict, copies: Sequence[VerifiedCopy] = (), **values: Any
) -> None:
    """Records a verdict, with the signs of steering found in all untrusted texts, the description included."""

    def draft(events: Sequence[AnyEvent]) -> EventDraft:
        # A callable draft: the recorder passes all earlier events, those of the same write included, so that signs of
        # steering in the last ones count too. A sign adds a reason for review and never changes the label, so that
        # authors of memes gain nothing by it.
        found = steering_in(events)
        duplicates = next((event for event in events if isinstance(event, NearDuplicatesFound)), None)
        outcome = verdict if copies else with_harmful_duplicates(with_review(verdict, found), duplicates)
        opened = next((event for event in events if isinstance(event, TrialOpened)), None)
        outcome = with_parts_not_judged(outcome, opened.meme if opened else None)
        cited = next((event for event in events if isinstance(event, PrecedentsCited)), None)
        outcome = with_copies(with_starter_library(outcome, cited), cited)
        return EventDraft(VerdictGiven, {"verdict": outcome, "steering": found, "copies": tuple(copies), **values})

    await recorder.record_all(*before, draft)


def steering_in(events: Iterable[AnyEvent]) -> tuple[SteeringFound, ...]:
    """Finds signs of steering in the meme's text, the Proposer's words, and the precedents and documents shown."""
    return tuple(
        SteeringFound(event=event.seq, **quoted, **signal.model_dump())
        for event in events
        for quoted, text in event.untrusted_texts()
        for signal in find_injection_signals(text)
    )


def with_review(verdict: Verdict, found: Sequence[SteeringFound]) -> Verdict:
    """Adds a reason for review to a verdict if there are signs of steering."""
    if not found:
        return verdict
    kinds = ", ".join(sorted({word(sign.kind) for sign in found}))
    detail = f"What was said in this trial reads in {len(found)} {'place' if len(found) == 1 else 'places'} like an "
    detail += f"attempt to steer the court ({kinds}); the record says where."
    review = Review(reason=ReviewReason.STEERING_SUSPECTED, detail=detail)
    # A verdict by precedents alone that blocked stays a block.
    by_precedents = verdict.harm_score_meaning is ScoreMeaning.PRECEDENT_VOTE and verdict.decision is Decision.BLOCK
    blocks = verdict.precedents_block or by_precedents
    return verdict.model_copy(update={"review": (*verdict.review, review), "precedents_block": blocks})
