"""Sides and Judge of the summary procedure. No model is asked: the sides cite precedents, the Judge weighs them.

The label and the need for human review are separate questions. The label is the more likely one given the library.
Review is requested if something makes the comparison itself doubtful, or if the risk of a wrong label exceeds what the
operator accepts (:class:`court.precedents.RiskCurve`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from court.display import CLOSE_CALL
from court.events import Side, TextLine, TextRead, TextSource
from court.policy import Policy
from court.precedents import Findings, Precedent, VerifiedCopy, Vote
from court.precedents import vote as vote_by
from court.settings import TrialSettings
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict, rule

_LABEL_OF = {Side.ACCUSER: Label.HARMFUL, Side.DEFENDER: Label.NOT_HARMFUL}
_WORDS = {Label.HARMFUL: "harmful", Label.NOT_HARMFUL: "not harmful", Label.UNDECIDED: "undecided"}
_UNSURE = 0.7
"""Mean confidence of a text read off the picture, below which the reading counts as unsure."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Similarity of the nearest precedents; ``enough`` if halves near enough to count carry half of the weight."""

    text: float | None
    picture: float | None
    text_weighed: bool
    picture_weighed: bool
    enough: bool

    @classmethod
    def of(cls, findings: Findings) -> Coverage:
        """Computes the coverage of a search result."""
        at_hand, alpha = _at_hand(findings), findings.search.alpha
        text = max((p.text_similarity for p in at_hand if p.text_similarity is not None), default=None)
        picture = max((p.picture_similarity for p in at_hand if p.picture_similarity is not None), default=None)
        # A half with zero weight did not take part in the ranking, so its similarity doesn't count, however high.
        text_weighed = text is not None and alpha > 0 and text >= findings.floors.text
        picture_weighed = picture is not None and alpha < 1 and picture >= findings.floors.picture
        weight = alpha * text_weighed + (1 - alpha) * picture_weighed
        return cls(text, picture, text_weighed, picture_weighed, enough=weight >= 0.5)


def vote_of(findings: Findings) -> Vote | None:
    """Returns the vote of the precedents at any distance; None if neither half of the meme could be compared."""
    return vote_by(findings.tally, findings.vote_settings, findings.regression) if findings.tally else None


def vote_if_close(findings: Findings) -> Vote | None:
    """Returns the vote of the precedents; None if they are too far away to count."""
    return vote_of(findings) if Coverage.of(findings).enough else None


def is_conclusive(findings: Findings, vote: Vote | None) -> bool:
    """True if the vote is sure enough to skip the full trial, as measured on the library's own held-out memes."""
    settles = findings.settles
    # Without a measured range, no vote is conclusive and every trial goes on to the models.
    if vote is None or settles is None:
        return False
    return vote.probability <= settles.below or vote.probability >= settles.above


def argue(side: Side, findings: Findings, precedent_vote: Vote | None) -> dict[str, Any]:
    """Returns what a side says in ``Summarised``, solely from the precedents that have its label."""
    label = _LABEL_OF[side]
    # Selected by label alone: each side cites its nearest precedents, even if the other side's are nearer.
    own = [p for p in _at_hand(findings) if p.label is label][:3]
    if precedent_vote is None or not own:
        summary = f"No precedent that was found {_WORDS[label]} is near enough to cite."
        return {"summary": summary, "justification": "", "cites": ()}
    votes = precedent_vote.harmful if side is Side.ACCUSER else precedent_vote.voters - precedent_vote.harmful
    summary = (
        f"{votes} of the {precedent_vote.voters} nearest precedents were found {_WORDS[label]}; "
        f"the nearest of them is {own[0].id} ({_similarities(own[0])})."
    )
    justification = "This meme resembles " + "; ".join(
        f"{p.id} ({_similarities(p)}{', ' + ', '.join(p.categories) if p.categories else ''})" for p in own
    )
    return {"summary": summary, "justification": f"{justification}.", "cites": tuple(p.id for p in own)}


def precedents_for(side: Side, findings: Findings, settings: TrialSettings) -> tuple[Precedent, ...]:
    """Returns the precedents shown to an advocate, nearest first; at most as many as the Judge is shown."""
    if settings.advocates_see == "none":
        return ()
    label = _LABEL_OF[side]
    shown = [p for p in _at_hand(findings) if p.label is label or settings.advocates_see == "all"]
    return tuple(shown[: settings.exhibits])


def settled_by(copies: Sequence[VerifiedCopy]) -> Verdict:
    """Returns the verdict that binding precedents give, at least one; undecided if their labels differ."""
    label, named = copies[0].label, "; ".join(copy.in_words for copy in copies)
    if any(copy.label is not label for copy in copies):
        conflict = f"Binding precedents that are this meme have different labels: {named}."
        return Verdict(
            label=Label.UNDECIDED,
            rationale=f"No verdict. {conflict} A person must decide which is right.",
            review=(Review(reason=ReviewReason.LABELS_CONFLICT, detail=conflict),),
        )
    harmful = label is Label.HARMFUL
    return Verdict(
        label=label,
        strengths=Strengths(
            harmful=Strength.STRONG if harmful else Strength.WEAK, benign=Strength.WEAK if harmful else Strength.STRONG
        ),
        rationale=f"This is the same meme as precedent {named}. That label binds the court; nothing else was weighed.",
    )


def weigh(findings: Findings, vote: Vote | None, text: TextRead, settings: TrialSettings, *, policy: Policy) -> Verdict:
    """Returns the verdict of the summary procedure: the more likely label, its risk, and reasons for review."""
    coverage = Coverage.of(findings)
    # With no precedent near enough, only the base rate of the labels is left, which is no verdict.
    if vote is None:
        return Verdict(
            label=Label.UNDECIDED,
            rationale=(
                f"No verdict. {_distance(findings, coverage)} Precedents are all that the summary procedure has to go "
                "by, so a person must look."
            ),
            review=(
                Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail=_distance(findings, coverage)),
                *_text_reasons(findings, text),
                *unsure_text(text),
            ),
        )
    threshold = threshold_of(vote, settings)
    strengths = _strengths(vote.probability, threshold)
    label = rule(strengths.harmful, strengths.benign)
    # Only for "not harmful": anyone able to add one precedent must not get memes acquitted unseen (docs/security.md).
    sole = _sole_precedent(findings, vote, threshold) if label is Label.NOT_HARMFUL else None
    confidence = reading_confidence(text) if unsure_text(text) else 1.0
    risk = _risk(vote, label, threshold, sole=sole, confidence=confidence)
    # A calibration on memes with pictures is overconfident for text-only memes; without another measurement, give no
    # risk.
    measured = findings.search.has_picture or findings.risk is not None
    finding = _likely_finding(findings, policy) if label is Label.HARMFUL else None
    evidence = f"Evidence of harm {strengths.harmful.lower()}, benign evidence {strengths.benign.lower()}."
    if measured and risk > CLOSE_CALL:
        evidence = f"A close call: the label is wrong with a probability of {risk:.2f}."
    if finding is not None:
        evidence += f" The harmful precedents suggest clause {finding.clause} ({finding.category})."
    return Verdict(
        label=label,
        strengths=strengths,
        harm_score=vote.probability,
        harm_score_meaning=ScoreMeaning.PRECEDENT_VOTE,
        rationale=_rationale(label, evidence, findings=findings, vote=vote, threshold=threshold),
        finding=finding,
        review=(
            *_text_reasons(findings, text),
            *_contrary_precedents(vote, label, threshold),
            *_risk_reasons(findings, risk, settings),
        ),
        risk=risk if measured else None,
        signals=(*_half_reasons(findings, coverage), *unsure_text(text), *_sole_reason(sole)),
    )


def threshold_of(vote: Vote, settings: TrialSettings) -> float:
    """Returns the probability of harm from which the label is harmful: where both errors have equal expected cost."""
    # With harm_cost 1 this stays the library's threshold; a threshold of 0.5 becomes 1 / (1 + harm_cost).
    threshold = vote.settings.threshold
    return threshold / (threshold + (1 - threshold) * settings.harm_cost)


def _risk(vote: Vote, label: Label, threshold: float, *, sole: str | None, confidence: float) -> float:
    """Estimated probability that the label is wrong, in [0, 1]."""
    # If the text may have been misread, the probability of harm is the mean of vote and base rate, weighted by the
    # confidence in the reading. If the label depends on one precedent, it is at least the threshold: whoever added that
    # precedent would otherwise decide alone.
    p = confidence * vote.probability + (1 - confidence) * vote.settings.prior
    if sole is not None:
        p = max(p, threshold)
    return 1 - p if label is Label.HARMFUL else p


def _sole_precedent(findings: Findings, vote: Vote, threshold: float) -> str | None:
    """Returns the id of the one precedent that the label "not harmful" depends on; None if there is no such one."""
    # Only the nearest benign precedent needs to be tried, as it has the largest weight.
    first = next((entry for entry in findings.tally if entry.label is Label.NOT_HARMFUL), None)
    if first is None:
        return None
    others = [entry for entry in findings.tally if entry is not first]
    # The only voter: without it there is no vote that could give "not harmful".
    if not others:
        return first.id
    return first.id if vote_by(others, vote.settings, vote.regression).probability >= threshold else None


def _at_hand(findings: Findings) -> Sequence[Precedent]:
    """Returns the exhibits and the nearest precedent of each label, without duplicates, nearest first."""
    extra = [p for p in (findings.nearest_harmful, findings.nearest_benign) if p is not None]
    # The nearest of each label are often exhibits too, and would be cited twice.
    unique = {p.id: p for p in (*findings.exhibits, *extra)}
    return sorted(unique.values(), key=lambda p: -p.similarity)


def _strengths(p: float, threshold: float) -> Strengths:
    """Returns strengths for which the rule gives "not harmful" exactly below the threshold."""
    # Benign evidence is strong exactly below it. Above it, both are moderate up to the midpoint between threshold and
    # 1, from which harm is strong.
    # Never below the threshold, so harm is never strong where benign evidence is, and rule() acquits exactly below it.
    sure = threshold + (1 - threshold) / 2
    harmful = Strength.STRONG if p >= sure else Strength.MODERATE if p >= threshold / 2 else Strength.WEAK
    benign = Strength.STRONG if p < threshold else Strength.MODERATE if p < sure else Strength.WEAK
    return Strengths(harmful=harmful, benign=benign)


def _likely_finding(findings: Findings, policy: Policy) -> Finding | None:
    """Returns the clause of the category that most of the near harmful precedents carry; None if none has a clause."""
    # Of several clauses with one category the first is named.
    clauses = {clause.category: clause for clause in reversed(policy.clauses)}
    weights: Counter[str] = Counter()
    for precedent in _at_hand(findings):
        if precedent.label is Label.HARMFUL:
            weights.update(dict.fromkeys(clauses.keys() & set(precedent.categories), precedent.similarity))
    # By name on ties, as a set has no order of its own.
    likely = max(sorted(weights), key=weights.__getitem__, default=None)
    return None if likely is None else Finding(category=likely, clause=clauses[likely].number)


def _rationale(label: Label, evidence: str, *, findings: Findings, vote: Vote, threshold: float) -> str:
    coverage = Coverage.of(findings)
    nearest = [
        f"the nearest {_WORDS[precedent.label]} precedent is {precedent.id}, at {_similarities(precedent)}"
        for precedent in sorted(
            filter(None, (findings.nearest_harmful, findings.nearest_benign)),
            key=lambda precedent: -precedent.similarity,
        )
    ]
    sentences = [
        f"Found {_WORDS[label]} on precedents alone; no model looked at the meme.",
        f"Of the {vote.voters} nearest precedents in {findings.library.name} ({findings.library.size:,} memes), "
        f"{vote.harmful} were found harmful. {_probability(vote)} (threshold {threshold:.2f}).",
        f"{_capital('; '.join(nearest))}." if nearest else "",
        f"{_halves(findings, coverage)} (weight of the text {findings.search.alpha:.2f}).",
        evidence,
        *(f"{_capital(note)}." for note in findings.notes),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


_HALVES = {
    (True, True): "Text and picture were both weighed",
    (True, False): "Only the text was weighed: no precedent's picture is near enough to compare with",
    (False, True): "Only the picture was weighed: no precedent's text is near enough to compare with",
}


def _halves(findings: Findings, coverage: Coverage) -> str:
    if coverage.text_weighed and not findings.search.has_picture:
        return "Only the text was weighed: the meme has no picture to compare"
    return _HALVES[coverage.text_weighed, coverage.picture_weighed]


def _probability(vote: Vote) -> str:
    if vote.by_regression is None:
        return f"Weighed by nearness and calibrated, that puts the probability of harm at {vote.probability:.2f}"
    return (
        f"Weighed by nearness and calibrated, that puts the probability of harm at {vote.by_precedents:.2f}; a "
        f"regression over all precedents puts it at {vote.by_regression:.2f}; both together at {vote.probability:.2f}"
    )


def _capital(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}"


def _contrary_precedents(vote: Vote, label: Label, threshold: float) -> tuple[Review, ...]:
    """A reason for review if the nearest precedents and the whole library lead to different labels."""
    if (vote.by_precedents >= threshold) == (label is Label.HARMFUL):
        return ()
    detail = (
        f"The nearest precedents put the probability of harm at {vote.by_precedents:.2f}, the whole library at "
        f"{vote.probability:.2f}: they lead to different labels."
    )
    return (Review(reason=ReviewReason.PRECEDENTS_DISAGREE, detail=detail),)


def _risk_reasons(findings: Findings, risk: float, settings: TrialSettings) -> tuple[Review, ...]:
    """A reason for review if the risk of a wrong label exceeds what the operator accepts."""
    # Checked first: if the operator sends no memes to review, an unmeasured risk is no reason to send one.
    if settings.review_rate == 0:
        return ()
    if findings.risk is None:
        on_texts = "" if findings.search.has_picture else " on memes without a picture"
        detail = (
            f"How often the verdicts of the library {findings.library.name} are wrong{on_texts} was not measured: that "
            "takes 50 memes of either label, and a library that this version built or added to."
        )
        return (Review(reason=ReviewReason.RISK_ABOVE_CUTOFF, detail=detail),)
    cutoff = findings.risk.cutoff(risk=settings.review_risk, rate=settings.review_rate)
    return () if risk <= cutoff else above_cutoff(risk, cutoff, settings)


def above_cutoff(risk: float, cutoff: float, settings: TrialSettings) -> tuple[Review, ...]:
    """The reason for review of a label whose risk is above the cutoff."""
    wanted = (
        f"at most {settings.review_risk:.1%} wrong labels that nobody looked at"
        if settings.review_rate is None
        else f"sending {settings.review_rate:.0%} of the memes"
    )
    detail = f"The label is wrong with a probability of {risk:.2f}; for {wanted}, a person looks from {cutoff:.2f} on."
    return (Review(reason=ReviewReason.RISK_ABOVE_CUTOFF, detail=detail),)


def no_similar_precedent(findings: Findings) -> tuple[Review, ...]:
    """A signal if no precedent is near enough to count."""
    coverage = Coverage.of(findings)
    if coverage.enough:
        return ()
    return (Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail=_distance(findings, coverage)),)


def _sole_reason(sole: str | None) -> tuple[Review, ...]:
    if sole is None:
        return ()
    detail = f"Without the precedent {sole}, the meme would be found harmful."
    return (Review(reason=ReviewReason.RESTS_ON_ONE_PRECEDENT, detail=detail),)


def _half_reasons(findings: Findings, coverage: Coverage) -> tuple[Review, ...]:
    """A signal if the meme has a half for which no precedent is near enough to count."""
    if findings.search.has_picture and coverage.text_weighed and not coverage.picture_weighed:
        detail = "The verdict rests on the text alone: no precedent's picture is near enough to compare with."
        return (Review(reason=ReviewReason.PICTURE_NOT_WEIGHED, detail=detail),)
    if findings.search.has_text and coverage.picture_weighed and not coverage.text_weighed:
        detail = "The verdict rests on the picture alone: no precedent's text is near enough to compare with."
        return (Review(reason=ReviewReason.TEXT_NOT_WEIGHED, detail=detail),)
    return ()


def unsure_text(text: TextRead) -> tuple[Review, ...]:
    """A reason for review if the text was read off the picture with low confidence; otherwise empty."""
    # A caller's text is taken as given; only OCR has a confidence.
    if text.source is not TextSource.OCR or not text.lines:
        return ()
    confidence = reading_confidence(text)
    if confidence >= _UNSURE:
        return ()
    detail = f"The text was read off the picture with a mean confidence of only {confidence:.2f}."
    if stacked := stacked_letters(text.lines):
        detail += f" {len(stacked)} lines are letters that stand one under another: the words they make are not known."
    return (Review(reason=ReviewReason.TEXT_UNSURE, detail=detail),)


def _text_reasons(findings: Findings, text: TextRead) -> tuple[Review, ...]:
    """Reasons that always call for review: text that was compared with no precedent, in whole or in part."""
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


def _distance(findings: Findings, coverage: Coverage) -> str:
    parts = [
        f"{name} {value:.2f} (at least {floor:.2f} is needed, and it has {weight:.0%} of the weight)"
        for name, value, floor, weight in (
            ("text", coverage.text, findings.floors.text, findings.search.alpha),
            ("picture", coverage.picture, findings.floors.picture, 1 - findings.search.alpha),
        )
        if value is not None
    ]
    if not parts:
        return f"Nothing of this meme could be compared with the library {findings.library.name}."
    return f"Every precedent in {findings.library.name} is too far: highest similarity " + ", ".join(parts) + "."


_MOST_LETTERS = 2
"""Maximum letters of a line that may be part of a vertical stack; OCR joins two that stand close to one line."""
_FEWEST = 4
"""Minimum lines of a stack: three letters below each other may be a list, or initials."""
_MOST_COMPARED = 100
"""Maximum number of short lines that are compared; more of them, all over the picture, have no known order either."""

_Bounds = tuple[float, float, float, float]
"""Left, top, right and bottom of a line, in pixels."""


def reading_confidence(text: TextRead) -> float:
    """Mean confidence of the reading, in [0, 1]."""
    # Lines of stacked letters count as confidence 0: each letter may be certain, but in reading order they make no
    # words.
    # By identity: of two equal lines, only one may be in a stack.
    stacked = {id(line) for line in stacked_letters(text.lines)}
    # Weighted by characters: a misread long line matters more than a stray mark.
    characters = sum(len(line.text) for line in text.lines) or 1
    return sum(len(line.text) * line.confidence for line in text.lines if id(line) not in stacked) / characters


def stacked_letters(lines: Sequence[TextLine]) -> list[TextLine]:
    """Returns lines of one or two letters, close above or below another such line; empty if they are few."""
    short = [line for line in lines if sum(map(str.isalnum, line.text)) in range(1, _MOST_LETTERS + 1)]
    # The comparison is quadratic, which a picture full of single letters would make slow.
    if len(short) > _MOST_COMPARED:
        return short
    bounds = [(line.frame, _bounds(line)) for line in short]
    stacked = [
        line
        for line, (frame, place) in zip(short, bounds, strict=True)
        if any(frame == other_frame and _is_next_to(place, other) for other_frame, other in bounds)
    ]
    return stacked if len(stacked) >= _FEWEST else []


def _is_next_to(line: _Bounds, other: _Bounds) -> bool:
    """True if the other line stands under or over this one, closer than either is tall."""
    if other is line:
        return False
    (left, top, right, bottom), (left2, top2, right2, bottom2) = line, other
    overlap = min(right, right2) - max(left, left2)
    gap = max(top, top2) - min(bottom, bottom2)
    # Relative to the smaller of the two, so that a tall headline does not pull in lines near it.
    return 2 * overlap >= min(right - left, right2 - left2) and gap < min(bottom - top, bottom2 - top2)


def _bounds(line: TextLine) -> _Bounds:
    xs, ys = [x for x, _ in line.box], [y for _, y in line.box]
    return min(xs), min(ys), max(xs), max(ys)


_LOOKALIKES = "авекмнорстухіјѕԁԛԝьαβεικνορτυχγωАВЕКМНОРСТУХІЈЅ"
"""Cyrillic and Greek letters that look like Latin ones."""
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])(?=\w*[{_LOOKALIKES}])\w+\b")
_NO_SPACES = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff"
"""Scripts that mark the ends of words by a zero-width space, such as Thai, Lao, Tibetan, Burmese and Khmer."""
_INVISIBLE = re.compile(
    f"[\u00ad\u034f\u115f\u1160\u2060-\u2064\u3164\ufeff\uffa0]|(?<![{_NO_SPACES}])\u200b(?![{_NO_SPACES}])"
)
_DECORATION = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]")
"""Marks that belong to no script and can be put on any letter."""
_SYLLABLE_ENDS = str.maketrans("", "", "\u0f0b\u0f0c\u200b\u200c\u200d")
"""Signs within words: between syllables of Tibetan, and joiners."""
_APART = re.compile(r"(?<![^\W_])[^\W_](?:[\W_]{1,3}[^\W_](?![^\W_])){4,}")


def disguises_in(text: str) -> tuple[str, ...]:
    """Returns descriptions of a text's disguises; empty if there are none."""
    found = {
        "letters of another alphabet that look like Latin ones": _MIXED.search(text),
        "characters that are not seen": _INVISIBLE.search(text),
        "letters set apart from each other": _APART.search(_letters_of(text)),
    }
    return tuple(name for name, match in found.items() if match)


def _letters_of(text: str) -> str:
    """Returns the text with marks that write vowels as letters, as they are in the scripts that have them."""
    bare = _DECORATION.sub("", text).translate(_SYLLABLE_ENDS)
    return "".join("x" if unicodedata.category(letter)[0] == "M" else letter for letter in bare)
