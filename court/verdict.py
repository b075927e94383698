"""The verdict and the rule that decides its label. The rule is code: no model and no vote can bypass it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from court.display import CLOSE_CALL, shown_score, word
from court.values import Value


class Label(StrEnum):
    """Label of a meme. ``UNDECIDED`` is not a decision: a person must review the meme."""

    HARMFUL = "HARMFUL"
    NOT_HARMFUL = "NOT_HARMFUL"
    UNDECIDED = "UNDECIDED"


class Decision(StrEnum):
    """Decision on content, for callers that don't use labels. Every way out of the court carries it."""

    ALLOW = "allow"
    BLOCK = "block"
    REVIEW = "review"


def decision(
    label: Label | None, *, needs_review: bool, reviewed: Label | None = None, on_hold: bool = False
) -> Decision:
    """Returns the decision on content; ``on_hold`` bars an allowance, and never undoes a block."""
    if reviewed is not None:
        label, needs_review = reviewed, False
    # Checked first: a harmful meme that needs review is not blocked unseen either.
    if needs_review or label not in (Label.HARMFUL, Label.NOT_HARMFUL):
        return Decision.REVIEW
    if label is Label.HARMFUL:
        return Decision.BLOCK
    return Decision.REVIEW if on_hold else Decision.ALLOW


class Strength(StrEnum):
    """Strength of the evidence for one side."""

    WEAK = "WEAK"
    MODERATE = "MODERATE"
    STRONG = "STRONG"

    @property
    def level(self) -> int:
        """1 for weak, 2 for moderate, 3 for strong."""
        return _LEVELS[self]


# The members are strings, which would compare alphabetically.
_LEVELS = {Strength.WEAK: 1, Strength.MODERATE: 2, Strength.STRONG: 3}

RULE = "strengths/1"
"""Name and version of the rule below, stored with every verdict."""


def rule(harmful: Strength, benign: Strength) -> Label:
    """Returns NOT_HARMFUL if the benign evidence is strong, and stronger than the harmful; otherwise HARMFUL."""
    if benign is Strength.STRONG and benign.level > harmful.level:
        return Label.NOT_HARMFUL
    return Label.HARMFUL


class Strengths(Value):
    """Strength of the evidence on each side."""

    harmful: Strength
    benign: Strength

    @property
    def in_words(self) -> str:
        """Both strengths, for people."""
        return f"harmful {word(self.harmful)}, benign {word(self.benign)}"


class ScoreMeaning(StrEnum):
    """Meaning of a harm score."""

    PRECEDENT_VOTE = "PRECEDENT_VOTE"
    """Calibrated share of harmful precedents near the meme, an estimate of P(harmful)."""
    LABEL_PROBABILITY = "LABEL_PROBABILITY"
    """Probability of the harmful label by the Judge's model; for a panel, the mean."""
    JUDGE_AND_VOTE = "JUDGE_AND_VOTE"
    """Combination of the Judge's probability and the precedents' vote: in a cascade, or by an audition."""


class ReviewReason(StrEnum):
    """Reason for human review of a verdict."""

    NO_SIMILAR_PRECEDENT = "NO_SIMILAR_PRECEDENT"
    """No precedent in the library is near enough to count."""
    PRECEDENTS_DISAGREE = "PRECEDENTS_DISAGREE"
    """The nearest precedents lead to another label than the whole library."""
    PICTURE_NOT_WEIGHED = "PICTURE_NOT_WEIGHED"
    """The verdict rests on the text alone."""
    TEXT_NOT_WEIGHED = "TEXT_NOT_WEIGHED"
    """The verdict rests on the picture alone."""
    TEXT_CUT = "TEXT_CUT"
    """The text is longer than the encoder reads; its end was not compared."""
    TEXT_UNSURE = "TEXT_UNSURE"
    """The text was read off the picture with low confidence."""
    JUDGE_CONTRADICTS_ITSELF = "JUDGE_CONTRADICTS_ITSELF"
    """The Judge's own label contradicts its strengths, even when asked again; the rule's label stands."""
    JUDGES_DISAGREE = "JUDGES_DISAGREE"
    """The judges of a panel come to different labels."""
    VOTE_DISAGREES = "VOTE_DISAGREES"
    """The Judge and a clear vote of the precedents disagree."""
    SCORE_DISAGREES = "SCORE_DISAGREES"
    """The Judge's probability contradicts its label."""
    SCORE_UNKNOWN = "SCORE_UNKNOWN"
    """The Judge's model gave the labels too little probability for a score. A signal."""
    CUT_SHORT = "CUT_SHORT"
    """The caller's deadline ended an examination before it had converged."""
    STEERING_SUSPECTED = "STEERING_SUSPECTED"
    """Something in the trial reads like an attempt to steer the court."""
    NEAR_DUPLICATE_HARMFUL = "NEAR_DUPLICATE_HARMFUL"
    """The meme was not found harmful, but a near-duplicate was."""
    TEXT_NOT_UNDERSTOOD = "TEXT_NOT_UNDERSTOOD"
    """The encoder can't read the text's script or signs; the text was compared with no precedent."""
    RISK_ABOVE_CUTOFF = "RISK_ABOVE_CUTOFF"
    """The risk of a wrong label exceeds what the operator accepts without review."""
    RESTS_ON_ONE_PRECEDENT = "RESTS_ON_ONE_PRECEDENT"
    """The meme was not found harmful, but would have been without one particular precedent."""
    FRAMES_NOT_JUDGED = "FRAMES_NOT_JUDGED"
    """The meme was not found harmful, but frames of its animation differ visibly from all that were judged."""
    GUARD_DISAGREES = "GUARD_DISAGREES"
    """The meme was not found harmful, but a guard model considers it harmful."""
    GUARD_FAILED = "GUARD_FAILED"
    """A guard model was consulted but gave no opinion."""
    PICTURE_INCOMPLETE = "PICTURE_INCOMPLETE"
    """The meme was not found harmful, but its file was truncated, so that a part of the picture is missing."""
    PICTURE_SHOWN_OTHERWISE = "PICTURE_SHOWN_OTHERWISE"
    """The meme was not found harmful, but some viewers show its picture with other colours than browsers."""
    PICTURE_NOT_SENT = "PICTURE_NOT_SENT"
    """The caller sent a text and no picture: the verdict is on the text alone. A signal."""
    CLAIM_REFUTED = "CLAIM_REFUTED"
    """The meme was not found harmful, but evidence refutes a claim of fact that it makes."""
    STARTER_LIBRARY = "STARTER_LIBRARY"
    """The precedents are those of the starter library, on which no decision may rest."""
    FINDING_OLDER_THAN_POLICY = "FINDING_OLDER_THAN_POLICY"
    """The finding in force was made under an older version of the policy. A signal of an answer, never of a verdict."""
    LABELS_CONFLICT = "LABELS_CONFLICT"
    """Binding precedents that are the same meme have different labels."""
    COPY_NOT_BINDING = "COPY_NOT_BINDING"
    """A precedent is the same meme, and its label does not bind the court, as nobody answers for it. A signal."""
    CLAIM_UNCHECKED = "CLAIM_UNCHECKED"
    """The policy has a clause about facts, but no evidence could be compared with a claim of the meme."""
    MISTRIAL = "MISTRIAL"
    """An essential part of the debate went wrong, also after a repair."""
    DESCRIPTION_MISSING = "DESCRIPTION_MISSING"
    """The Proposer gave no description of the picture, also when it was asked again."""
    MODEL_NOT_AUDITIONED = "MODEL_NOT_AUDITIONED"
    """No audition on labelled memes holds for the Judge's model, and no sure vote of the precedents agrees with it."""
    SIDE_CHANGED = "SIDE_CHANGED"
    """A side argued for the other one. A signal."""
    SIDES_ALIKE = "SIDES_ALIKE"
    """Both sides said nearly the same. A signal."""
    POLICY_ECHOED = "POLICY_ECHOED"
    """A side repeated the policy instead of speaking of the meme. A signal."""
    RATIONALE_COPIED = "RATIONALE_COPIED"
    """The rationale copies the argument of one side. A signal."""
    RATIONALE_UNGROUNDED = "RATIONALE_UNGROUNDED"
    """The rationale names nothing of the meme, the arguments or the precedents. A signal."""
    OTHER_LANGUAGE = "OTHER_LANGUAGE"
    """A side or the Judge replied in another language than that of the prompts. A signal."""
    REPLY_CUT = "REPLY_CUT"
    """A reply was cut off at its limit. A signal."""
    PRECEDENTS_IGNORED = "PRECEDENTS_IGNORED"
    """The Judge compared none of the precedents with the meme. A signal."""


DISAGREEMENTS = frozenset(
    {
        ReviewReason.JUDGES_DISAGREE,
        ReviewReason.VOTE_DISAGREES,
        ReviewReason.SCORE_DISAGREES,
        ReviewReason.GUARD_DISAGREES,
        ReviewReason.CLAIM_REFUTED,
        ReviewReason.PRECEDENTS_DISAGREE,
        ReviewReason.JUDGE_CONTRADICTS_ITSELF,
        ReviewReason.NEAR_DUPLICATE_HARMFUL,
    }
)
"""Reasons that say that witnesses of the trial disagree; the review queue puts them first."""
INCOMPLETE = frozenset({ReviewReason.CUT_SHORT, ReviewReason.GUARD_FAILED, ReviewReason.CLAIM_UNCHECKED})
"""Reasons of verdicts that were based on incomplete information, and are not reused."""


PROVOKED = frozenset({ReviewReason.MISTRIAL, ReviewReason.STEERING_SUSPECTED})
"""Reasons that the content of a meme can provoke."""


class Review(Value):
    """One reason for human review or one signal, as a code for machines and a sentence for people."""

    reason: ReviewReason
    detail: str


class Finding(Value):
    """Harm found under the policy, in the policy's terms."""

    category: str
    clause: str
    target: str = ""
    """Target of the harm; empty if it is aimed at nobody in particular."""

    @property
    def in_words(self) -> str:
        """The finding, for people; a dash for what it does not name."""
        return f"{self.category}, clause {self.clause or '–'}, aimed at {self.target or '–'}"


class ClaimLabel(StrEnum):
    """Relation of the evidence to a claim of fact. It is itself evidence, never the label of a meme."""

    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    NOT_ENOUGH = "NOT_ENOUGH"
    """The documents found do not settle the claim."""


class ClaimBasis(StrEnum):
    """Reason why the search for evidence ended."""

    ENOUGH = "ENOUGH"
    """The evidence was enough."""
    QUERIES_USED = "QUERIES_USED"
    """All queries were used."""
    TIME = "TIME"
    """The Judge could not wait longer, or the witness's own time was over."""


class QuotedPassage(Value):
    """A verbatim passage of a document, apart from white space."""

    document: str
    title: str = ""
    source: str = ""
    date: str = ""
    sha256: str
    """SHA-256 of the document's text as it was read, in hex."""
    quote: str


class ClaimFinding(Value):
    """A claim of fact that the meme makes, and the relation of the evidence to it."""

    claim: str
    span: str = ""
    """Words of the meme's text or description that it comes from; empty if they are not found there."""
    label: ClaimLabel
    because: ClaimBasis
    documents: int = Field(default=0, ge=0)
    evidence: tuple[QuotedPassage, ...] = ()
    checked: bool = True
    """False if no source answered, or nothing that was found could be read or weighed."""


class Verdict(Value):
    """Outcome of a trial. A verdict that contradicts the rule can't be constructed."""

    label: Label
    strengths: Strengths | None = None
    """Strengths from which the label follows; None exactly if the label is UNDECIDED."""
    harm_score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    harm_score_meaning: ScoreMeaning | None = None
    rationale: str = Field(min_length=1)
    finding: Finding | None = None
    """``None`` if no harm was found, or no model and no precedent named any."""
    review: tuple[Review, ...] = ()
    """Reasons for human review; empty if none is needed."""
    rule: str = RULE
    risk: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Estimated probability that the label is wrong; None if unknown."""
    signals: tuple[Review, ...] = ()
    """Circumstances that make the label less certain. They cause human review only by raising the risk."""
    claims: tuple[ClaimFinding, ...] = ()
    """Findings about the meme's claims of fact, which do not affect the label."""
    precedents_block: bool = False
    """True if calibrated evidence alone would block, the vote of the precedents or an audition's: what a meme can
    provoke does not undo that."""

    @property
    def shown_score(self) -> float | None:
        """Probability of harm to show people; None without a score."""
        return shown_score(self.harm_score, self.risk, harmful=self.label is Label.HARMFUL)

    @property
    def close_call(self) -> bool:
        """True if the label is little likelier than the other one."""
        return self.risk is not None and self.risk > CLOSE_CALL

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields name and value of each fact of the verdict for people; those that it lacks are left out."""
        yield "decision", self.decision
        if self.finding is not None:
            yield "finding", self.finding.in_words
        if self.shown_score is not None:
            yield "harm score", f"{self.shown_score:.3f} ({word(self.harm_score_meaning)})"
        if self.risk is not None:
            yield "risk", f"{self.risk:.3f} that the label is wrong"
        if self.strengths is not None:
            yield "strengths", "close call" if self.close_call else self.strengths.in_words
        yield "rule", self.rule

    @property
    def needs_human_review(self) -> bool:
        """True if there is any reason for human review."""
        return bool(self.review)

    @property
    def decision(self) -> Decision:
        """Decision by the verdict itself; a review may have changed it (``TrialRecord.decision``)."""
        return decision(self.label, needs_review=self.awaits_review)

    @property
    def awaits_review(self) -> bool:
        """True if nothing is decided before a person has looked."""
        return self.needs_human_review and not self.block_stands

    @property
    def block_stands(self) -> bool:
        """True if the verdict blocks although a person is to look: nobody gains by provoking a reason for review."""
        provoked = all(review.reason in PROVOKED for review in self.review)
        return self.precedents_block and self.label is Label.HARMFUL and bool(self.review) and provoked

    @model_validator(mode="after")
    def _follows_the_rule(self) -> Self:
        # The meaning of a score depends on the procedure; without it, callers would compare it with the wrong
        # threshold.
        if (self.harm_score is None) != (self.harm_score_meaning is None):
            raise ValueError("a harm score and its meaning come together")
        if self.label is Label.UNDECIDED:
            if self.strengths is not None:
                raise ValueError("an undecided verdict has no strengths")
            # Otherwise a meme could be left without a decision and without review.
            if not self.review:
                raise ValueError("an undecided verdict says why a person must look")
        elif self.strengths is None:
            raise ValueError(f"{self.label} needs the strengths that it follows from")
        # Stored verdicts are validated here too: none whose label is milder than its strengths can be loaded.
        elif rule(self.strengths.harmful, self.strengths.benign) is not self.label:
            raise ValueError(f"{self.label} does not follow from {self.strengths} by rule {RULE}")
        return self
