"""The verdict and the rule that gives it. The rule is code: no model and no vote can write a label past it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Label(StrEnum):
    """Label of a meme. ``UNDECIDED`` is no verdict: a person must look."""

    HARMFUL = "HARMFUL"
    NOT_HARMFUL = "NOT_HARMFUL"
    UNDECIDED = "UNDECIDED"


def decision(label: Label, *, needs_review: bool) -> str:
    """Returns the decision for those who know no labels: ``allow``, ``block`` or ``review``.

    Nothing is allowed that a person should look at, and what is undecided is never allowed.
    """
    # First: a harmful meme that a person should look at is not blocked unseen either.
    if needs_review or label is Label.UNDECIDED:
        return "review"
    return "block" if label is Label.HARMFUL else "allow"


class Strength(StrEnum):
    """Strength of the evidence for one side."""

    WEAK = "WEAK"
    MODERATE = "MODERATE"
    STRONG = "STRONG"

    @property
    def level(self) -> int:
        """1 for weak, 2 for moderate, 3 for strong."""
        return _LEVELS[self]


# The members are strings, which would compare by their letters.
_LEVELS = {Strength.WEAK: 1, Strength.MODERATE: 2, Strength.STRONG: 3}

RULE = "strengths/1"
"""Name and version of the rule below, kept with every verdict."""


def rule(harmful: Strength, benign: Strength) -> Label:
    """The label that two strengths give.

    Not harmful only where the benign evidence is strong and at least one level above the harmful; ties and doubt are
    harmful.
    """
    if benign is Strength.STRONG and benign.level > harmful.level:
        return Label.NOT_HARMFUL
    return Label.HARMFUL


class Strengths(BaseModel):
    """The strength of the evidence on either side."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    harmful: Strength
    benign: Strength


class ScoreMeaning(StrEnum):
    """Meaning of a harm score."""

    PRECEDENT_VOTE = "PRECEDENT_VOTE"
    """Calibrated share of harmful precedents near the meme: an estimate of P(harmful)."""
    LABEL_PROBABILITY = "LABEL_PROBABILITY"
    """Probability that the Judge's model gives the harmful label; of a panel of judges, the mean."""
    JUDGE_AND_VOTE = "JUDGE_AND_VOTE"
    """The Judge's probability and the precedents' vote together, in a cascade."""


class ReviewReason(StrEnum):
    """Why a person should look at a verdict."""

    NO_SIMILAR_PRECEDENT = "NO_SIMILAR_PRECEDENT"
    """Nothing in the library is near enough to speak about this meme."""
    PRECEDENTS_DISAGREE = "PRECEDENTS_DISAGREE"
    """The nearest precedents speak for the other label."""
    PICTURE_NOT_WEIGHED = "PICTURE_NOT_WEIGHED"
    """The verdict rests on the text alone."""
    TEXT_NOT_WEIGHED = "TEXT_NOT_WEIGHED"
    """The verdict rests on the picture alone."""
    TEXT_CUT = "TEXT_CUT"
    """The text is longer than the encoder reads; its end was not compared."""
    TEXT_UNSURE = "TEXT_UNSURE"
    """The text was read off the picture with little confidence."""
    JUDGE_CONTRADICTS_ITSELF = "JUDGE_CONTRADICTS_ITSELF"
    """The Judge's own label does not follow from its strengths, also when asked again; the rule's label stands."""
    JUDGES_DISAGREE = "JUDGES_DISAGREE"
    """The judges of a panel come to different labels."""
    VOTE_DISAGREES = "VOTE_DISAGREES"
    """The Judge and a clear vote of the precedents disagree."""
    SCORE_DISAGREES = "SCORE_DISAGREES"
    """The Judge's probability lies on the other side of its label."""
    SCORE_UNKNOWN = "SCORE_UNKNOWN"
    """The Judge's model was about to say something else than a label, so that there is no score. A signal."""
    CUT_SHORT = "CUT_SHORT"
    """The caller's deadline ended an examination before it had converged."""
    STEERING_SUSPECTED = "STEERING_SUSPECTED"
    """Something in the trial reads like an attempt to steer the court."""
    NEAR_DUPLICATE_HARMFUL = "NEAR_DUPLICATE_HARMFUL"
    """The meme was not found harmful, and one that is nearly the same was."""
    TEXT_NOT_UNDERSTOOD = "TEXT_NOT_UNDERSTOOD"
    """The encoder can't read the text's script or signs; the text was compared with no precedent."""
    RISK_ABOVE_CUTOFF = "RISK_ABOVE_CUTOFF"
    """The label is likelier to be wrong than the operator lets pass without a person."""
    RESTS_ON_ONE_PRECEDENT = "RESTS_ON_ONE_PRECEDENT"
    """The meme was not found harmful, and would have been without a single precedent."""
    FRAMES_NOT_JUDGED = "FRAMES_NOT_JUDGED"
    """The meme was not found harmful, and frames of its animation look unlike all that were judged."""
    GUARD_DISAGREES = "GUARD_DISAGREES"
    """The meme was not found harmful, and a guard model holds it for harmful."""
    GUARD_FAILED = "GUARD_FAILED"
    """A guard model was to be heard, and gave no opinion."""
    PICTURE_INCOMPLETE = "PICTURE_INCOMPLETE"
    """The meme was not found harmful, and its file was cut short, so that a part of the picture is missing."""
    PICTURE_NOT_SENT = "PICTURE_NOT_SENT"
    """The caller sent a text and no picture: the verdict is on the text alone. A signal."""
    CLAIM_REFUTED = "CLAIM_REFUTED"
    """The meme was not found harmful, and evidence refutes a claim of fact that it puts forward."""
    CLAIM_UNCHECKED = "CLAIM_UNCHECKED"
    """The policy has a clause about facts, and a claim of the meme could be compared with no evidence."""


class Review(BaseModel):
    """One reason to have a person look, in a word for machines and a sentence for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: ReviewReason
    detail: str


class Finding(BaseModel):
    """Harm found under the policy, in the policy's words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: str
    clause: str
    target: str = ""
    """Empty where it is aimed at nobody in particular."""


class ClaimLabel(StrEnum):
    """Relation of the evidence to a claim of fact. It is evidence itself, and never the label of a meme."""

    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    NOT_ENOUGH = "NOT_ENOUGH"
    """The documents that were found do not settle it."""


class ClaimBasis(StrEnum):
    """Why no more evidence was looked for."""

    ENOUGH = "ENOUGH"
    """The evidence was enough."""
    QUERIES_USED = "QUERIES_USED"
    """All queries were used."""
    TIME = "TIME"
    """The Judge was due, or the witness's own time was over."""


class QuotedPassage(BaseModel):
    """A passage of a document, which stands in it letter for letter but for white space."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    document: str
    """Id of the document within its source."""
    title: str = ""
    source: str = ""
    date: str = ""
    sha256: str
    """SHA-256 of the document's text as it was read, in hex."""
    quote: str


class ClaimFinding(BaseModel):
    """A claim of fact that the meme puts forward, and the relation of the evidence to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claim: str
    span: str = ""
    """Words of the meme's text or description that it comes from; empty where they do not stand there."""
    label: ClaimLabel
    because: ClaimBasis
    documents: int = Field(default=0, ge=0)
    """Number of documents that were read about it."""
    evidence: tuple[QuotedPassage, ...] = ()
    checked: bool = True
    """False where no source answered, or none of what it found could be read or weighed."""


class Verdict(BaseModel):
    """Outcome of a trial. It can't be built in contradiction to the rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Label
    strengths: Strengths | None = None
    """What the label follows from; absent exactly when the label is UNDECIDED."""
    harm_score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    harm_score_meaning: ScoreMeaning | None = None
    rationale: str = Field(min_length=1)
    finding: Finding | None = None
    """``None`` where no harm was found, and where no model was asked."""
    review: tuple[Review, ...] = ()
    """Why a person should look; empty where nobody has to."""
    rule: str = RULE
    risk: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Estimated probability that the label is wrong; None where that is not known."""
    signals: tuple[Review, ...] = ()
    """What makes the label less sure. It raises the risk, and calls a person only through it."""
    claims: tuple[ClaimFinding, ...] = ()
    """Findings about the meme's claims of fact. The label is given by the rule, whatever they are."""

    @property
    def needs_human_review(self) -> bool:
        """True if there is any reason for a person to look."""
        return bool(self.review)

    @model_validator(mode="after")
    def _follows_the_rule(self) -> Self:
        # The same number means something else by each procedure: alone it would be compared with the wrong threshold.
        if (self.harm_score is None) != (self.harm_score_meaning is None):
            raise ValueError("a harm score and its meaning come together")
        if self.label is Label.UNDECIDED:
            if self.strengths is not None:
                raise ValueError("an undecided verdict has no strengths")
            # Otherwise a meme would be left without a verdict, and nobody would learn of it.
            if not self.review:
                raise ValueError("an undecided verdict says why a person must look")
        elif self.strengths is None:
            raise ValueError(f"{self.label} needs the strengths that it follows from")
        # Stored verdicts pass here as well: none can be read whose label is milder than its strengths.
        elif rule(self.strengths.harmful, self.strengths.benign) is not self.label:
            raise ValueError(f"{self.label} does not follow from {self.strengths} by rule {RULE}")
        return self
