"""The summary procedure's sides and Judge. No model is asked: the sides cite precedents, the Judge weighs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from court.events import Side, TextRead, TextSource
from court.precedents import Findings, Precedent, Vote, vote
from court.settings import TrialSettings
from court.verdict import Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict, rule

_LABEL_OF = {Side.ACCUSER: Label.HARMFUL, Side.DEFENDER: Label.NOT_HARMFUL}
_WORDS = {Label.HARMFUL: "harmful", Label.NOT_HARMFUL: "not harmful", Label.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True)
class Statement:
    """What a side says.

    Attributes:
        summary: What it has found.
        justification: Why that speaks for its side.
        cites: Ids of the precedents that it rests on.
    """

    summary: str
    justification: str
    cites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How near the nearest precedents come, and which halves of the meme they can speak about.

    Attributes:
        text: Highest text similarity among the precedents at hand, or None if texts could not be compared.
        picture: The same for pictures.
        text_weighed: Whether a text is near enough to count as evidence.
        picture_weighed: Whether a picture is.
        enough: Whether what is near enough carries at least half of the weight. What is too far still takes part in
            the ranking, as noise; where it outweighs the rest, the nearest precedents are near by chance.
    """

    text: float | None
    picture: float | None
    text_weighed: bool
    picture_weighed: bool
    enough: bool

    @classmethod
    def of(cls, findings: Findings) -> Coverage:
        """The reach of what was found."""
        at_hand, alpha = _at_hand(findings), findings.search.alpha
        text = max((p.text_similarity for p in at_hand if p.text_similarity is not None), default=None)
        picture = max((p.picture_similarity for p in at_hand if p.picture_similarity is not None), default=None)
        text_weighed = text is not None and alpha > 0 and text >= findings.floors.text
        picture_weighed = picture is not None and alpha < 1 and picture >= findings.floors.picture
        weight = alpha * text_weighed + (1 - alpha) * picture_weighed
        return cls(text, picture, text_weighed, picture_weighed, enough=weight >= 0.5)


def vote_if_close(findings: Findings) -> Vote | None:
    """The vote of the precedents, or None where none is near enough to have one."""
    return vote(findings.tally, findings.vote_settings) if findings.tally and Coverage.of(findings).enough else None


def is_conclusive(findings: Findings, held: Vote | None) -> bool:
    """Whether the vote is sure enough to spare the full trial: by what the library's own held-out memes have shown."""
    settles = findings.settles
    if held is None or settles is None:
        return False
    return held.probability <= settles.below or held.probability >= settles.above


def argue(side: Side, findings: Findings, held: Vote | None) -> Statement:
    """What a side makes of the precedents: it cites those that were decided its way, and adds nothing."""
    label = _LABEL_OF[side]
    own = [p for p in _at_hand(findings) if p.label is label][:3]
    if held is None or not own:
        return Statement(
            summary=f"No precedent that was found {_WORDS[label]} is near enough to cite.", justification="", cites=()
        )
    votes = held.harmful if side is Side.ACCUSER else held.voters - held.harmful
    summary = (
        f"{votes} of the {held.voters} nearest precedents were found {_WORDS[label]}; "
        f"the nearest of them is {own[0].id} ({_similarities(own[0])})."
    )
    justification = "This meme resembles " + "; ".join(
        f"{p.id} ({_similarities(p)}{', ' + ', '.join(p.categories) if p.categories else ''})" for p in own
    )
    return Statement(summary=summary, justification=justification + ".", cites=tuple(p.id for p in own))


def weigh(findings: Findings, held: Vote | None, text: TextRead, settings: TrialSettings) -> Verdict:
    """The Judge of the summary procedure: strengths from the precedents' vote, the label from the strengths."""
    reach = Coverage.of(findings)
    if held is None:
        return Verdict(
            label=Label.UNDECIDED,
            rationale=(
                f"No verdict. {_distance(findings, reach)} Precedents are all that the summary procedure has to go by, "
                "so a person must look."
            ),
            review=(
                Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail=_distance(findings, reach)),
                *_text_reasons(findings, text, settings),
            ),
        )
    strengths = _strengths(held)
    label = rule(strengths.harmful, strengths.benign)
    review = (
        *_vote_reasons(held, settings),
        *(_half_reasons(findings, reach, settings) if label is Label.NOT_HARMFUL else ()),
        *_text_reasons(findings, text, settings),
    )
    return Verdict(
        label=label,
        strengths=strengths,
        harm_score=held.probability,
        harm_score_meaning=ScoreMeaning.PRECEDENT_VOTE,
        rationale=_rationale(label, strengths, findings, held),
        review=review,
    )


def _at_hand(findings: Findings) -> Sequence[Precedent]:
    """Exhibits and the nearest of either label, each once, nearest first."""
    extra = [p for p in (findings.nearest_harmful, findings.nearest_benign) if p is not None]
    unique = {p.id: p for p in (*findings.exhibits, *extra)}
    return sorted(unique.values(), key=lambda p: -p.similarity)


def _strengths(held: Vote) -> Strengths:
    """Strengths such that the rule gives "not harmful" exactly below the vote's threshold.

    The benign evidence is strong exactly there; above it, the two are moderate until half of what is left to
    certainty, where harm is strong.
    """
    p, threshold = held.probability, held.settings.threshold
    sure = threshold + (1 - threshold) / 2
    harmful = Strength.STRONG if p >= sure else Strength.MODERATE if p >= threshold / 2 else Strength.WEAK
    benign = Strength.STRONG if p < threshold else Strength.MODERATE if p < sure else Strength.WEAK
    return Strengths(harmful=harmful, benign=benign)


def _rationale(label: Label, strengths: Strengths, findings: Findings, held: Vote) -> str:
    nearest, reach = findings.exhibits[0], Coverage.of(findings)
    halves = {
        (True, True): "Text and picture were both weighed",
        (True, False): "Only the text was weighed: no precedent's picture is near enough to compare with",
        (False, True): "Only the picture was weighed: no precedent's text is near enough to compare with",
    }[reach.text_weighed, reach.picture_weighed]
    sentences = [
        f"Found {_WORDS[label]} on precedents alone; no model looked at the meme.",
        f"Of the {held.voters} nearest precedents in {findings.library.name} ({findings.library.size:,} memes), "
        f"{held.harmful} were found harmful; weighed by nearness and calibrated, that puts the probability of harm "
        f"at {held.probability:.2f} (threshold {held.settings.threshold:.2f}).",
        f"The nearest is {nearest.id}, found {_WORDS[nearest.label]}, at {_similarities(nearest)}.",
        f"{halves} (weight of the text {findings.search.alpha:.2f}).",
        f"Evidence of harm {strengths.harmful.lower()}, benign evidence {strengths.benign.lower()}.",
        *(f"{note[0].upper()}{note[1:]}." for note in findings.notes),
    ]
    return " ".join(sentences)


def _vote_reasons(held: Vote, settings: TrialSettings) -> tuple[Review, ...]:
    distance = abs(held.probability - held.settings.threshold)
    if distance >= settings.review_margin:
        return ()
    return (
        Review(
            reason=ReviewReason.PRECEDENTS_DISAGREE,
            detail=f"The precedents' vote ({held.probability:.2f}) is within {settings.review_margin:.2f} of its "
            f"threshold ({held.settings.threshold:.2f}).",
        ),
    )


def _half_reasons(findings: Findings, reach: Coverage, settings: TrialSettings) -> tuple[Review, ...]:
    """A meme may be harmless in words and not in picture, or the other way round: half of it can't acquit unseen."""
    if not settings.review_one_sided:
        return ()
    if findings.search.has_picture and not reach.picture_weighed:
        return (
            Review(
                reason=ReviewReason.PICTURE_NOT_WEIGHED,
                detail="The verdict rests on the text alone: no precedent's picture is near enough to compare with.",
            ),
        )
    if findings.search.has_text and not reach.text_weighed:
        return (
            Review(
                reason=ReviewReason.TEXT_NOT_WEIGHED,
                detail="The verdict rests on the picture alone: no precedent's text is near enough to compare with.",
            ),
        )
    return ()


def unsure_text(text: TextRead, settings: TrialSettings) -> tuple[Review, ...]:
    """Why a person must look at a meme whose text was read with little confidence; nothing where it was not."""
    if text.source is not TextSource.OCR or not text.lines:
        return ()
    # By characters: a long line that was read badly matters more than a stray mark.
    characters = sum(len(line.text) for line in text.lines) or 1
    confidence = sum(line.confidence * len(line.text) for line in text.lines) / characters
    if confidence >= settings.review_confidence:
        return ()
    detail = f"The text was read off the picture with a mean confidence of only {confidence:.2f}."
    return (Review(reason=ReviewReason.TEXT_UNSURE, detail=detail),)


def _text_reasons(findings: Findings, text: TextRead, settings: TrialSettings) -> tuple[Review, ...]:
    reasons = []
    if findings.text_not_understood:
        detail = "The encoder can't read the text's script or signs, so that it was compared with no precedent."
        reasons.append(Review(reason=ReviewReason.TEXT_NOT_UNDERSTOOD, detail=detail))
    if findings.text_cut:
        detail = "The text is longer than the encoder reads; its end was not compared with any precedent."
        reasons.append(Review(reason=ReviewReason.TEXT_CUT, detail=detail))
    return (*reasons, *unsure_text(text, settings))


def _similarities(precedent: Precedent) -> str:
    parts = [
        f"{name} similarity {value:.2f}"
        for name, value in (("text", precedent.text_similarity), ("picture", precedent.picture_similarity))
        if value is not None
    ]
    return ", ".join(parts) or "no half in common"


def _distance(findings: Findings, reach: Coverage) -> str:
    parts = [
        f"{name} {value:.2f} (at least {floor:.2f} is needed, and it has {weight:.0%} of the weight)"
        for name, value, floor, weight in (
            ("text", reach.text, findings.floors.text, findings.search.alpha),
            ("picture", reach.picture, findings.floors.picture, 1 - findings.search.alpha),
        )
        if value is not None
    ]
    if not parts:
        return f"Nothing of this meme could be compared with the library {findings.library.name}."
    return f"Every precedent in {findings.library.name} is too far: highest similarity " + ", ".join(parts) + "."
