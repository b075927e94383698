"""The summary procedure's sides and Judge. No model is asked: the sides cite precedents, the Judge weighs them.

The label and the call for a person are two questions. The label is the likelier one by all that the library knows.
A person is called where something makes the comparison itself doubtful, and where the label is likelier to be wrong
than the operator lets pass (:class:`court.precedents.RiskCurve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from court.events import Side, TextRead, TextSource
from court.injection.disguise import disguises_in
from court.precedents import Findings, Precedent, RiskPoint, Vote
from court.precedents import vote as vote_by
from court.reading_confidence import reading_confidence, stacked_letters
from court.settings import TrialSettings
from court.verdict import Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict, rule

_LABEL_OF = {Side.ACCUSER: Label.HARMFUL, Side.DEFENDER: Label.NOT_HARMFUL}
_WORDS = {Label.HARMFUL: "harmful", Label.NOT_HARMFUL: "not harmful", Label.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True)
class Statement:
    """Statement of a side.

    Attributes:
        summary: Finding of the side.
        justification: Why that speaks for its side.
        cites: Ids of the precedents that it rests on.
    """

    summary: str
    justification: str
    cites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Similarity of the nearest precedents, and the halves of the meme that they can speak about.

    Attributes:
        text: Highest text similarity among the precedents at hand, or None if texts could not be compared.
        picture: The same for pictures.
        text_weighed: True if the text similarity is high enough to count as evidence.
        picture_weighed: True if the picture similarity is high enough to count as evidence.
        enough: True if the halves above their minimum similarity carry at least half of the weight. A half below it
            still takes part in the ranking, as noise; if it outweighs the rest, the nearest precedents are near by
            chance.
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
        # A half without weight took no part in the ranking: its similarity, however high, brought nothing about.
        text_weighed = text is not None and alpha > 0 and text >= findings.floors.text
        picture_weighed = picture is not None and alpha < 1 and picture >= findings.floors.picture
        weight = alpha * text_weighed + (1 - alpha) * picture_weighed
        return cls(text, picture, text_weighed, picture_weighed, enough=weight >= 0.5)


def vote_of(findings: Findings) -> Vote | None:
    """The vote of the precedents, however near; None where nothing of the meme could be compared."""
    return vote_by(findings.tally, findings.vote_settings, findings.regression) if findings.tally else None


def vote_if_close(findings: Findings) -> Vote | None:
    """The vote of the precedents, or None where none is near enough to have one."""
    return vote_of(findings) if Coverage.of(findings).enough else None


def is_conclusive(findings: Findings, vote: Vote | None) -> bool:
    """True if the vote is sure enough to spare the full trial, by what the library's own held-out memes have shown."""
    settles = findings.settles
    # A library that was never measured settles nothing: then every trial goes on to the models.
    if vote is None or settles is None:
        return False
    return vote.probability <= settles.below or vote.probability >= settles.above


def argue(side: Side, findings: Findings, precedent_vote: Vote | None) -> Statement:
    """Builds a side's statement from the precedents that were decided its way, and adds nothing."""
    label = _LABEL_OF[side]
    # By label alone: either side cites the best that it has, also where that is farther away than the other's.
    own = [p for p in _at_hand(findings) if p.label is label][:3]
    if precedent_vote is None or not own:
        return Statement(
            summary=f"No precedent that was found {_WORDS[label]} is near enough to cite.", justification="", cites=()
        )
    votes = precedent_vote.harmful if side is Side.ACCUSER else precedent_vote.voters - precedent_vote.harmful
    summary = (
        f"{votes} of the {precedent_vote.voters} nearest precedents were found {_WORDS[label]}; "
        f"the nearest of them is {own[0].id} ({_similarities(own[0])})."
    )
    justification = "This meme resembles " + "; ".join(
        f"{p.id} ({_similarities(p)}{', ' + ', '.join(p.categories) if p.categories else ''})" for p in own
    )
    return Statement(summary=summary, justification=justification + ".", cites=tuple(p.id for p in own))


def precedents_for(side: Side, findings: Findings, settings: TrialSettings) -> tuple[Precedent, ...]:
    """The precedents that an advocate is shown, nearest first: as many as the Judge is, of its own side or of both."""
    if settings.advocates_see == "none":
        return ()
    label = _LABEL_OF[side]
    shown = [p for p in _at_hand(findings) if p.label is label or settings.advocates_see == "all"]
    return tuple(shown[: settings.exhibits])


def weigh(findings: Findings, vote: Vote | None, text: TextRead, settings: TrialSettings) -> Verdict:
    """The Judge of the summary procedure: the likelier label, how sure it is, and whether a person must look."""
    reach = Coverage.of(findings)
    # Without words, and with a picture like no other, there is nothing to go by but what is frequent.
    if vote is None or not (findings.search.has_text or reach.picture_weighed):
        return Verdict(
            label=Label.UNDECIDED,
            rationale=(
                f"No verdict. {_distance(findings, reach)} Precedents are all that the summary procedure has to go by, "
                "so a person must look."
            ),
            review=(
                Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail=_distance(findings, reach)),
                *_text_reasons(findings, text),
                *unsure_text(text, settings),
            ),
        )
    threshold = _threshold(vote, settings)
    strengths = _strengths(vote.probability, threshold)
    label = rule(strengths.harmful, strengths.benign)
    # Acquittals alone: whoever can add one precedent must not acquit with it unseen (docs/security.md).
    sole = _sole_precedent(findings, vote, threshold) if label is Label.NOT_HARMFUL else None
    # A reason to look or a signal, and never both: a person would read the same sentence twice.
    one_sided = _half_reasons(findings, reach)
    needs_review = one_sided if settings.review_one_sided and label is Label.NOT_HARMFUL else ()
    signals = (
        *no_similar_precedent(findings),
        *(() if needs_review else one_sided),
        *unsure_text(text, settings),
        *_sole_reason(sole),
    )
    confidence = reading_confidence(text) if unsure_text(text, settings) else 1.0
    risk = _risk(vote, label, threshold, close=reach.enough, sole=sole, confidence=confidence)
    # What was calibrated on memes with pictures says too much of a text alone: where nothing else is known, nothing is.
    measured = findings.search.has_picture or findings.risk is not None
    return Verdict(
        label=label,
        strengths=strengths,
        harm_score=vote.probability,
        harm_score_meaning=ScoreMeaning.PRECEDENT_VOTE,
        rationale=_rationale(label, strengths, findings=findings, vote=vote, threshold=threshold),
        review=(
            *_text_reasons(findings, text),
            *_contrary_precedents(vote, label, threshold, settings.review_margin),
            *needs_review,
            *_risk_reasons(findings, risk, settings),
        ),
        risk=risk if measured else None,
        signals=signals,
    )


def _threshold(vote: Vote, settings: TrialSettings) -> float:
    """Probability of harm from which on the label is harmful: where both kinds of error cost the same on average."""
    # With harm_cost 1 this stays the library's threshold; a threshold of 0.5 becomes 1 / (1 + harm_cost).
    threshold = vote.settings.threshold
    return threshold / (threshold + (1 - threshold) * settings.harm_cost)


def _risk(vote: Vote, label: Label, threshold: float, *, close: bool, sole: str | None, confidence: float) -> float:
    """Estimated probability that the label is wrong, in [0, 1].

    Where every precedent is far, the likelier label is a guess: it is as sure as its share in the library. Where the
    text may have been misread, the vote counts for as much as the reading is sure, and that share for the rest. A
    label that one precedent alone brings about is as sure as its threshold: whoever put that precedent there would
    decide.
    """
    p = confidence * vote.probability + (1 - confidence) * vote.settings.prior if close else vote.settings.prior
    if sole is not None:
        p = max(p, threshold)
    return 1 - p if label is Label.HARMFUL else p


def _sole_precedent(findings: Findings, vote: Vote, threshold: float) -> str | None:
    """Id of the precedent without which the label would not be "not harmful"; None where there is none.

    The nearest benign precedent weighs most, so that no other needs to be tried.
    """
    first = next((entry for entry in findings.tally if entry.label is Label.NOT_HARMFUL), None)
    if first is None:
        return None
    others = [entry for entry in findings.tally if entry is not first]
    # It is the only voter: without it there is no vote that could acquit.
    if not others:
        return first.id
    return first.id if vote_by(others, vote.settings, vote.regression).probability >= threshold else None


def _at_hand(findings: Findings) -> Sequence[Precedent]:
    """Exhibits and the nearest of either label, each once, nearest first."""
    extra = [p for p in (findings.nearest_harmful, findings.nearest_benign) if p is not None]
    # The nearest of either label are often exhibits as well, and would be cited twice.
    unique = {p.id: p for p in (*findings.exhibits, *extra)}
    return sorted(unique.values(), key=lambda p: -p.similarity)


def _strengths(p: float, threshold: float) -> Strengths:
    """Strengths such that the rule gives "not harmful" exactly below the threshold.

    The benign evidence is strong exactly there; above it, the two are moderate until half of what is left to
    certainty, where harm is strong.
    """
    # Never below the threshold: harm is not strong where benign evidence is, so that rule() acquits exactly below it.
    sure = threshold + (1 - threshold) / 2
    harmful = Strength.STRONG if p >= sure else Strength.MODERATE if p >= threshold / 2 else Strength.WEAK
    benign = Strength.STRONG if p < threshold else Strength.MODERATE if p < sure else Strength.WEAK
    return Strengths(harmful=harmful, benign=benign)


def _rationale(label: Label, strengths: Strengths, *, findings: Findings, vote: Vote, threshold: float) -> str:
    reach = Coverage.of(findings)
    nearest = [
        f"the nearest {_WORDS[one.label]} precedent is {one.id}, at {_similarities(one)}"
        for one in sorted(
            filter(None, (findings.nearest_harmful, findings.nearest_benign)), key=lambda one: -one.similarity
        )
    ]
    sentences = [
        f"Found {_WORDS[label]} on precedents alone; no model looked at the meme.",
        f"Of the {vote.voters} nearest precedents in {findings.library.name} ({findings.library.size:,} memes), "
        f"{vote.harmful} were found harmful. {_probability(vote)} (threshold {threshold:.2f}).",
        f"{_capital('; '.join(nearest))}." if nearest else "",
        f"{_halves(findings, reach)} (weight of the text {findings.search.alpha:.2f}).",
        f"Evidence of harm {strengths.harmful.lower()}, benign evidence {strengths.benign.lower()}.",
        *(f"{_capital(note)}." for note in findings.notes),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


_HALVES = {
    (True, True): "Text and picture were both weighed",
    (True, False): "Only the text was weighed: no precedent's picture is near enough to compare with",
    (False, True): "Only the picture was weighed: no precedent's text is near enough to compare with",
    (False, False): "No precedent is near enough to compare with by itself",
}


def _halves(findings: Findings, reach: Coverage) -> str:
    """The words for which halves of the meme were weighed."""
    if reach.text_weighed and not findings.search.has_picture:
        return "Only the text was weighed: the meme has no picture to compare"
    return _HALVES[reach.text_weighed, reach.picture_weighed]


def _probability(vote: Vote) -> str:
    """The sentence on how the probability of harm comes about."""
    if vote.by_regression is None:
        return f"Weighed by nearness and calibrated, that puts the probability of harm at {vote.probability:.2f}"
    return (
        f"Weighed by nearness and calibrated, that puts the probability of harm at {vote.by_precedents:.2f}; a "
        f"regression over all precedents puts it at {vote.by_regression:.2f}; both together at {vote.probability:.2f}"
    )


def _capital(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}"


def _contrary_precedents(vote: Vote, label: Label, threshold: float, margin: float) -> tuple[Review, ...]:
    """A reason where the nearest precedents speak for one label, and the library as a whole for the other."""
    if (vote.by_precedents >= threshold) != (label is Label.HARMFUL):
        detail = (
            f"The nearest precedents put the probability of harm at {vote.by_precedents:.2f}, the whole library at "
            f"{vote.probability:.2f}: they lead to different labels."
        )
    # Around the threshold in force, which moves with harm_cost.
    elif abs(vote.probability - threshold) < margin:
        detail = f"The probability of harm ({vote.probability:.2f}) is within {margin:.2f} of {threshold:.2f}."
    else:
        return ()
    return (Review(reason=ReviewReason.PRECEDENTS_DISAGREE, detail=detail),)


def _risk_reasons(findings: Findings, risk: float, settings: TrialSettings) -> tuple[Review, ...]:
    """A reason where the label is likelier to be wrong than the operator lets pass."""
    # First: where the operator sends no meme to a person, a risk that was never measured is no reason to send one.
    if settings.review_rate == 0:
        return ()
    if findings.risk is None:
        on_texts = "" if findings.search.has_picture else " on memes without a picture"
        detail = (
            f"How often the verdicts of the library {findings.library.name} are wrong{on_texts} was not measured: that "
            "takes 50 memes of either label, and a library that this version built or added to."
        )
        return (Review(reason=ReviewReason.RISK_ABOVE_CUTOFF, detail=detail),)
    point = _cutoff(findings, settings)
    if risk <= point.cutoff:
        return ()
    wanted = (
        f"at most {settings.review_risk:.1%} wrong labels that nobody looked at"
        if settings.review_rate is None
        else f"sending {settings.review_rate:.0%} of the memes"
    )
    detail = (
        f"The label is wrong with a probability of {risk:.2f}; for {wanted}, a person looks from {point.cutoff:.2f} on."
    )
    return (Review(reason=ReviewReason.RISK_ABOVE_CUTOFF, detail=detail),)


def _cutoff(findings: Findings, settings: TrialSettings) -> RiskPoint:
    assert findings.risk is not None, "asked for where it was measured alone"
    if settings.review_rate is not None:
        return findings.risk.at_rate(settings.review_rate)
    return findings.risk.at_risk(settings.review_risk)


def no_similar_precedent(findings: Findings) -> tuple[Review, ...]:
    """A signal where no precedent is near enough to speak about the meme."""
    reach = Coverage.of(findings)
    if reach.enough:
        return ()
    return (Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail=_distance(findings, reach)),)


def _sole_reason(sole: str | None) -> tuple[Review, ...]:
    if sole is None:
        return ()
    detail = f"Without the precedent {sole}, the meme would be found harmful."
    return (Review(reason=ReviewReason.RESTS_ON_ONE_PRECEDENT, detail=detail),)


def _half_reasons(findings: Findings, reach: Coverage) -> tuple[Review, ...]:
    """A signal where the meme has a half that no precedent is near enough to speak about."""
    if findings.search.has_picture and reach.text_weighed and not reach.picture_weighed:
        detail = "The verdict rests on the text alone: no precedent's picture is near enough to compare with."
        return (Review(reason=ReviewReason.PICTURE_NOT_WEIGHED, detail=detail),)
    if findings.search.has_text and reach.picture_weighed and not reach.text_weighed:
        detail = "The verdict rests on the picture alone: no precedent's text is near enough to compare with."
        return (Review(reason=ReviewReason.TEXT_NOT_WEIGHED, detail=detail),)
    return ()


def unsure_text(text: TextRead, settings: TrialSettings) -> tuple[Review, ...]:
    """A reason where the text was read off the picture with little confidence; nothing where it was not."""
    # What a caller gave is what the meme says; only a reader can be unsure.
    if text.source is not TextSource.OCR or not text.lines:
        return ()
    confidence = reading_confidence(text)
    if confidence >= settings.review_confidence:
        return ()
    detail = f"The text was read off the picture with a mean confidence of only {confidence:.2f}."
    if stacked := stacked_letters(text.lines):
        detail += f" {len(stacked)} lines are letters that stand one under another: the words they make are not known."
    return (Review(reason=ReviewReason.TEXT_UNSURE, detail=detail),)


def _text_reasons(findings: Findings, text: TextRead) -> tuple[Review, ...]:
    """Reasons that always call a person: words that were compared with nothing."""
    reasons = []
    if findings.text_not_understood:
        detail = "The encoder can't read the text's script or signs, so that it was compared with no precedent."
        if disguises := disguises_in(text.text):
            detail += f" The text looks disguised: {', '.join(disguises)}."
        reasons.append(Review(reason=ReviewReason.TEXT_NOT_UNDERSTOOD, detail=detail))
    if findings.text_cut:
        detail = "The text is longer than the encoder reads; its end was not compared with any precedent."
        reasons.append(Review(reason=ReviewReason.TEXT_CUT, detail=detail))
    return tuple(reasons)


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
