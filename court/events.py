"""Trial events, as a closed union of plain values.

A record is their ordered list.

All three procedures tell the same events; which one ran stands in :class:`TrialOpened`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from court.injection.detector import Signal
from court.policy import Policy
from court.precedents import Findings, Vote
from court.question import CourtQuestion, OptionStrengths
from court.verdict import ClaimBasis, ClaimLabel, Label, QuotedPassage, Strengths, Verdict


class Procedure(StrEnum):
    """Procedure by which a meme is tried."""

    SUMMARY = "SUMMARY"
    """No model is asked: precedents alone."""
    FULL = "FULL"
    """Description, examination by both sides, precedents, judgment."""
    CASCADE = "CASCADE"
    """Summary first; the full trial only where the precedents do not settle it."""


class Side(StrEnum):
    """The two sides of a trial."""

    ACCUSER = "ACCUSER"
    DEFENDER = "DEFENDER"


class Role(StrEnum):
    """Role of the model that spoke."""

    PROPOSER = "PROPOSER"
    ACCUSER = "ACCUSER"
    DEFENDER = "DEFENDER"
    JUDGE = "JUDGE"
    GUARD = "GUARD"
    """A guard model, heard as a further witness."""
    EXPERT = "EXPERT"
    """A witness for claims of fact, which sees claims and documents alone."""


class TextSource(StrEnum):
    """Source of a meme's text."""

    CALLER = "CALLER"
    OCR = "OCR"
    NONE = "NONE"
    """There is none: the caller said so, or none was found on the picture."""


class QuestioningEnd(StrEnum):
    """Why a side asked no more."""

    CONVERGED = "CONVERGED"
    """Its summaries stopped gaining information."""
    ROUND_LIMIT = "ROUND_LIMIT"
    TIME = "TIME"
    """The caller's deadline left no room."""
    NO_EXAMINATION = "NO_EXAMINATION"
    """There is none: the side argued from precedents, from the description alone, or from a text without a picture."""


class FinishReason(StrEnum):
    """Why a model stopped speaking."""

    STOP = "STOP"
    LENGTH = "LENGTH"
    """It ran into ``max_tokens``: the reply is cut."""
    REPETITION = "REPETITION"
    """It said the same over and over, and the server ended it for that; or its thought did, up to ``max_tokens``."""
    REFUSAL = "REFUSAL"
    """The server says that the model declined, or that a filter did."""


class _Value(BaseModel):
    # Unknown fields are refused: a record that says more than this code knows must not be read as if it did not.
    model_config = ConfigDict(frozen=True, extra="forbid")


class RawReply(_Value):
    """A model's reply as it came, before anything was read out of it."""

    text: str
    """A lone surrogate, which no record can hold, stands as its escape in JSON."""
    finish: FinishReason = FinishReason.STOP
    thought: bool = False
    """Whether there was a thought before it."""


class ModelCall(_Value):
    """One call of a model."""

    role: Role
    model: str
    prompt_id: str
    prompt_digest: str
    tokens_in: int = Field(ge=0)
    tokens_out: int = Field(ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    """Of ``tokens_in``, those that the server had in its prefix cache."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)
    # Fields that were added later have defaults, so that earlier records can still be read.
    server: str = ""
    """Address of the server that answered, without a key; empty where it was not told."""
    fault: str = ""
    """Why a first reply could not be used, where there was one; figures are then those of both calls together."""
    quoted: str = ""
    """What of that first reply was shown when it was asked for again."""
    messages_digest: str = ""
    """SHA-256 of all messages as they were sent (:func:`court.messages.messages_digest`), which can be made again from
    the record; empty in records of before this was kept."""
    schema_in_words: bool = False
    """Whether the schema of the reply stood in the message, in words, because the server knows none."""
    unknown: tuple[str, ...] = ()
    """Names of figures that the server did not give, or gave as what they can't be; they stand as 0, or empty."""
    thought: str = ""
    """What the model thought before its reply, where the server told it apart; of a long thought, the beginning. It is
    shown to no agent, and is no part of any summary."""
    replies: tuple[RawReply, ...] = ()
    """The reply as it came; the one that could not be used before it, where there was one. What today's code makes of
    them can be compared with what was made of them then. None of a call for odds, and none in earlier records."""


class UnusableReplies(_Value):
    """The replies of a call that ended a trial because none of them could be used."""

    role: Role
    task: str
    side: Side | None = None
    """Whose examination it was, where it was one's."""
    round: int = Field(default=0, ge=0)
    judge: int = Field(default=1, ge=1)
    """Number of the judge on a panel."""
    prompt_digest: str
    replies: tuple[RawReply, ...]


class Unused(_Value):
    """Cost of model calls that no other event reports.

    These are replies that came after their step had ended, or were unusable where the trial then failed, and odds that
    were none.
    """

    calls: int = Field(default=0, ge=0)
    """That were answered."""
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    unanswered: int = Field(default=0, ge=0)
    """Calls that were cancelled, or failed: what those cost, no server says."""


class MemeIdentity(_Value):
    """Which meme is on trial; the picture itself is kept beside the record.

    Where the text was sent alone, ``picture_given`` says so, and what describes a picture is empty or 0.
    """

    bytes_sha256: str
    pixels_sha256: str
    format: str
    width: int
    height: int
    frame_count: int
    frames_used: tuple[int, ...]
    """Indices of the representative frames in the file."""
    frames_unlike: int = Field(default=0, ge=0)
    """Number of other frames that look unlike all representative ones."""
    incomplete: bool = False
    """Whether the file was cut short, so that a part of the picture is missing."""
    frames: tuple[str, ...] = ()
    """SHA-256 of each representative frame as models are shown it, in hex; none where none is asked."""
    text_given: bool = False
    """Whether the caller gave the text; what it is stands in ``TextRead``."""
    picture_given: bool = True
    """Whether the caller sent a picture; without one, the meme is its text alone."""
    text_digest: str = ""
    """Digest of the text (:func:`court.meme.text_digest`) where it was sent alone; else empty."""
    namespace: str = ""
    content_id: str = ""

    @property
    def digest(self) -> str:
        """Digest that trials of the same meme share: that of the pixels, or of the text where no picture was sent."""
        return self.pixels_sha256 if self.picture_given else self.text_digest


class PolicyReference(_Value):
    """Which policy was applied."""

    id: str
    version: str
    digest: str
    content: Policy | None = None
    """The policy itself, as models are shown it; None where none is asked."""


class Versions(_Value):
    """Everything that has to be the same for a trial to be repeated."""

    software: str
    settings: str
    """Digest of the settings."""
    prompts: str = ""
    """Digest of the prompt set; empty where no model is asked."""
    models: dict[str, str] = Field(default_factory=dict)
    """Model per role; empty where no model is asked."""
    encoder: str = ""
    library: str = ""
    text_reader: str = ""


class TextLine(_Value):
    """One line of text read off a picture."""

    text: str
    confidence: float = Field(ge=0, le=1)
    box: tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]
    """Corners (x, y) in pixels of the frame as it went on, clockwise from the upper left as the line is read."""
    frame: int = Field(ge=0)
    """Index of the frame in the file."""


class Event(_Value):
    """Common fields of all events.

    Attributes:
        trial_id: The trial it belongs to.
        seq: Its place in the record, counted from 0 without gaps.
        at: Time of the event, UTC.
    """

    trial_id: str = Field(min_length=1)
    seq: int = Field(ge=0)
    at: AwareDatetime


class TrialOpened(Event):
    """A meme was accepted for trial."""

    kind: Literal["TrialOpened"] = "TrialOpened"
    procedure: Procedure
    meme: MemeIdentity
    request_id: str = ""
    trace_id: str = ""
    policy: PolicyReference
    settings: dict[str, JsonValue]
    versions: Versions
    servers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Addresses of the model servers per role, without keys; the first is the one that the trial keeps to. No part of
    the settings' digest: a server that has moved is the same."""
    prefix_cache: dict[str, bool] = Field(default_factory=dict)
    """Whether the model servers of a role were found, at start, to find the beginning of a prompt again; of roles of
    which it is known. No part of the settings' digest: replies are the same."""
    fence_mark: str = ""
    """With what the posts around untrusted text were marked; empty where no model is asked."""
    of_trial: str = ""
    """Id of the trial whose meme is tried here once more, by other means; empty for a trial of its own."""


class TextRead(Event):
    """The text of the meme is known."""

    kind: Literal["TextRead"] = "TextRead"
    text: str
    source: TextSource
    language: str = ""
    lines: tuple[TextLine, ...] = ()
    reader: str = ""
    latency_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Described(Event):
    """The Proposer described the picture."""

    kind: Literal["Described"] = "Described"
    description: str
    call: ModelCall


class QuestionAsked(Event):
    """A side asked the Proposer."""

    kind: Literal["QuestionAsked"] = "QuestionAsked"
    side: Side
    round: int = Field(ge=1)
    question: str
    call: ModelCall


class AnswerGiven(Event):
    """The Proposer answered."""

    kind: Literal["AnswerGiven"] = "AnswerGiven"
    side: Side
    round: int = Field(ge=1)
    answer: str
    call: ModelCall


class Summarised(Event):
    """A side said what it has so far."""

    kind: Literal["Summarised"] = "Summarised"
    side: Side
    round: int = Field(ge=0)
    """0 where there was no examination."""
    summary: str
    justification: str
    entropy: float = Field(ge=0, allow_inf_nan=False)
    """Of the characters of the summary, in bits."""
    entropy_change: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Absolute difference to the previous summary's, in bits."""
    cites: tuple[str, ...] = ()
    """Precedents that the side rests on."""
    claim: str = ""
    """Claim of fact on which its case rests; empty where there is none, and where sides are not asked for one."""
    call: ModelCall | None = None


class SummarisedAhead(Event):
    """A side summed up a round of which it is not known yet whether it counts.

    Where it does, the same stands in a ``Summarised`` once its turn has come, and the call in both is one.
    """

    kind: Literal["SummarisedAhead"] = "SummarisedAhead"
    side: Side
    round: int = Field(ge=1)
    summary: str
    justification: str
    claim: str = ""
    """As in a ``Summarised``."""
    call: ModelCall


class SideRested(Event):
    """A side is done."""

    kind: Literal["SideRested"] = "SideRested"
    side: Side
    rounds: int = Field(ge=0)
    reason: QuestioningEnd


class PrecedentsCited(Event):
    """The library was searched."""

    kind: Literal["PrecedentsCited"] = "PrecedentsCited"
    findings: Findings
    vote: Vote | None
    """``None`` where no precedent is near enough to have one."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)


class GuardHeard(Event):
    """A guard model gave its opinion, or could not. No label follows from it."""

    kind: Literal["GuardHeard"] = "GuardHeard"
    adapter: str = Field(min_length=1)
    """Family of the guard, which says how it is asked and how its answer is read."""
    pictures: int = Field(default=0, ge=0)
    """Number of the meme's pictures that it was shown."""
    harmful: bool | None = None
    """Whether it holds the meme for harmful; ``None`` where it gave no opinion."""
    categories: tuple[str, ...] = ()
    """Harm that it names, in its own words."""
    reason: str = ""
    """Reason that it gives."""
    reply: str = ""
    """Its answer as it came, without a thought before it; of a long one, the beginning."""
    failure: str = ""
    """Why there is no opinion, as a code."""
    call: ModelCall | None = None


class CheckableClaim(_Value):
    """A claim of fact that the meme puts forward."""

    number: int = Field(ge=1)
    text: str = Field(min_length=1)
    """The claim as a sentence that can be understood by itself."""
    span: str = ""
    """Words of the meme's text or description that it comes from; empty where they do not stand there."""


class ClaimsFound(Event):
    """The meme's claims of fact are known; there may be none."""

    kind: Literal["ClaimsFound"] = "ClaimsFound"
    claims: tuple[CheckableClaim, ...] = ()
    left_out: int = Field(default=0, ge=0)
    """Number of statements that were found and are no claims of fact: opinions, jokes, wishes."""
    failure: str = ""
    """Why the claims are not known, as a code: a model's failure, or TIME where the Judge was due."""
    call: ModelCall | None = None
    """``None`` where no model was asked, or gave no usable reply."""


class QueriesPlanned(Event):
    """The witness decided what to search for first."""

    kind: Literal["QueriesPlanned"] = "QueriesPlanned"
    claim: int = Field(ge=1)
    queries: tuple[str, ...]
    failure: str = ""
    """Why the query is the claim itself, as a code: no model gave others."""
    call: ModelCall | None = None


class RankedHit(_Value):
    """A document that a search found."""

    id: str
    title: str = ""
    source: str = ""
    snippet: str = ""
    date: str = ""
    rank_given: int = Field(ge=1)
    """Its place in the source's own order."""


class EvidenceSearched(Event):
    """A source of evidence was searched for a claim, or could not be."""

    kind: Literal["EvidenceSearched"] = "EvidenceSearched"
    claim: int = Field(ge=1)
    number: int = Field(ge=1)
    """Number of the search for this claim."""
    query: str
    """As it was sent."""
    held_back: int = Field(default=0, ge=0)
    """Names and contact data that were left out of it, for the source is elsewhere."""
    hits: tuple[RankedHit, ...] = ()
    """In the order in which they were ranked by relevance and by how credible their sources are."""
    source_identity: str
    latency_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Duration of the search, without the ranking."""
    failure: str = ""
    """Why the source gave no answer, as a code."""
    rank_failure: str = ""
    """Why the hits stand in the source's own order, as a code: no model ranked them."""
    call: ModelCall | None = None
    """The ranking; ``None`` where there was nothing to rank."""


class InferenceGiven(_Value):
    """Relation of a claim to a sentence, by a model of natural-language inference."""

    model: str
    entailment: float = Field(ge=0, le=1)
    neutral: float = Field(ge=0, le=1)
    contradiction: float = Field(ge=0, le=1)


class DocumentWeighed(Event):
    """A document was read and weighed against a claim, or could not be."""

    kind: Literal["DocumentWeighed"] = "DocumentWeighed"
    claim: int = Field(ge=1)
    number: int = Field(ge=1)
    """Number of the weighing for this claim."""
    document: str
    """Id of the document within its source."""
    title: str = ""
    source: str = ""
    date: str = ""
    sha256: str = ""
    """SHA-256 of the text in UTF-8, in hex; empty where it could not be read."""
    text: str = ""
    """The text as it was read: of a long one, the beginning. In a docket it stands beside the event and can be erased.
    """
    second_look: bool = False
    """Whether it had been put aside before."""
    comprehensible: bool = False
    """Whether it can be understood by itself or with the evidence before it."""
    helpful: bool = False
    """Whether it says something new and useful about the claim: it is evidence from here on."""
    sufficient: bool | None = None
    """Whether the evidence is now enough; ``None`` where that was not asked."""
    aside: bool = False
    """Whether it is put aside, to be looked at once more."""
    leaning: ClaimLabel | None = None
    """Label that the evidence up to here gives; ``None`` where the document is not evidence."""
    quotes: tuple[str, ...] = ()
    """Passages of the document that bear on the claim; code has found each of them in it."""
    quotes_dropped: int = Field(default=0, ge=0)
    """Number of passages that were named and do not stand in the document."""
    queries: tuple[str, ...] = ()
    """Further queries."""
    failure: str = ""
    """Why it could not be read or weighed, as a code."""
    inference: InferenceGiven | None = None
    """By what it was weighed where no model is asked to write; ``None`` elsewhere, and where there is no such model."""
    calls: tuple[ModelCall, ...] = ()


class ClaimSettled(Event):
    """The witness gave its finding about a claim. No label of the meme follows from it."""

    kind: Literal["ClaimSettled"] = "ClaimSettled"
    claim: int = Field(ge=1)
    label: ClaimLabel
    because: ClaimBasis
    evidence: tuple[QuotedPassage, ...] = ()
    documents: int = Field(default=0, ge=0)
    """Number of documents that were read about it."""
    checked: bool = True
    """False where no source answered, or none of what it found could be read or weighed."""
    quotes_dropped: int = Field(default=0, ge=0)
    """Number of passages that were named and do not stand in their documents. A label without any passage that does
    counts as NOT_ENOUGH."""
    failure: str = ""
    """Why the label is that of the last document that was weighed, as a code: no model gave a final one."""
    call: ModelCall | None = None
    """``None`` where there was no evidence or no time to classify."""


class NearDuplicate(_Value):
    """A meme tried before that is nearly the one on trial."""

    trial_id: str = Field(min_length=1)
    """Of that trial."""
    label: Label
    """What it was found to be: the reviewer's word where it was overruled."""
    distance: int = Field(ge=0, le=256)
    """Bits in which the perceptual hashes (PDQ) of the pictures differ."""
    same_text: bool
    """Whether the texts agree, a few letters aside where one was read off a picture."""
    same_picture: bool
    """Whether the pictures were laid over each other and no tile differs. Only the nearest are compared so."""
    text_alone: bool = False
    """Whether neither meme has a picture, so that their texts alone were compared; ``distance`` is then 0."""


class NearDuplicatesFound(Event):
    """Memes tried before are nearly this one. Evidence for whoever looks: the verdict's label is given without it."""

    kind: Literal["NearDuplicatesFound"] = "NearDuplicatesFound"
    duplicates: tuple[NearDuplicate, ...] = Field(min_length=1)
    """Nearest first."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)


class PrecedentReading(_Value):
    """The Judge's reading of a precedent."""

    id: str
    supports: Literal["harmful", "harmless", "neither"]
    picture: str = ""
    """SHA-256 of its picture as the Judge was shown it, in hex; empty where it was shown none."""


class Ruling(_Value):
    """The Judge's statement, before the rule is applied."""

    harmful_evidence: tuple[str, ...]
    harmless_evidence: tuple[str, ...]
    precedents: tuple[PrecedentReading, ...]
    label: Label
    """The Judge's own; the verdict's follows from the strengths."""


class OddsGiven(_Value):
    """The probabilities that the Judge's model gives the two labels, asked once with each order of the options."""

    harmful: tuple[float, ...]
    """Mass of the harmful option among all tokens, per order."""
    not_harmful: tuple[float, ...]
    """Mass of the other."""
    call: ModelCall


class JudgeRuled(Event):
    """One judge of a panel ruled; the verdict follows from all of them."""

    kind: Literal["JudgeRuled"] = "JudgeRuled"
    judge: int = Field(ge=1)
    """Its number."""
    strengths: Strengths
    ruling: Ruling
    category: str
    clause: str
    target: str
    rationale: str
    odds: OddsGiven | None = None
    """``None`` where the server gives no probabilities, or none were asked for."""
    call: ModelCall


class SteeringFound(Signal):
    """A sign that something said in the trial tries to steer the court, and where it stands."""

    event: int = Field(ge=0)
    """Sequence number of the event whose text it stands in."""
    precedent: str = ""
    """Id of the precedent whose text it stands in; empty where it is no precedent's."""
    document: str = ""
    """Id of the document whose text it stands in; empty where it is none's."""


class VerdictGiven(Event):
    """The Judge ruled. The last event of a trial, reviews aside."""

    kind: Literal["VerdictGiven"] = "VerdictGiven"
    verdict: Verdict
    ruling: Ruling | None = None
    odds: OddsGiven | None = None
    """``None`` where no model is asked, or the server gives no probabilities; of a panel they stand with its judges."""
    call: ModelCall | None = None
    """``None`` where no model was asked, and of a panel, whose calls stand with its judges."""
    judge: int = Field(default=0, ge=0)
    """Number of the judge of a panel whose words these are; 0 where there was no panel."""
    steering: tuple[SteeringFound, ...] = ()
    """Evidence for whoever looks; the verdict's label is given without it."""
    unused: Unused | None = None
    """Since the trial was opened or last resumed; ``None`` where no model was asked, and in records of before this was
    kept."""


class QuestionRuled(Event):
    """The Judge ruled on a further question about the meme, or could not. The verdict on harm stands as it is."""

    kind: Literal["QuestionRuled"] = "QuestionRuled"
    question: CourtQuestion
    precedent_labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Options that people gave the precedents of the trial, by id, as the Judge was told them; of a precedent that is
    absent nothing is known."""
    vote: dict[str, float] = Field(default_factory=dict)
    """Calibrated vote of labelled memes on each option, as the Judge was told it; empty where it was told none."""
    chosen: tuple[str, ...] | None = None
    """Options that fit, in the question's order, possibly none of several; ``None`` where there is no answer."""
    strengths: dict[str, OptionStrengths] = Field(default_factory=dict)
    """Evidence for and against each option, from which the answer follows; empty where the Judge named one option."""
    rule: str = ""
    """Name and version of the rule by which it follows; empty likewise."""
    rationale: str = ""
    failure: str = ""
    """Why there is no answer, as a code; empty where there is one."""
    retryable: bool = False
    """Whether that may pass."""
    unusable: UnusableReplies | None = None
    """The replies that left it without an answer, where there were some."""
    fence_mark: str = ""
    """With what the posts around untrusted text were marked in this call."""
    call: ModelCall | None = None
    unused: Unused | None = None
    """As in a ``VerdictGiven``, of this question alone."""

    @model_validator(mode="after")
    def _answer_or_failure(self) -> Self:
        # An empty answer means that none of several options fits; without this check a failure could pass for it.
        if (self.chosen is None) != bool(self.failure):
            raise ValueError("a ruling on a question has an answer or a failure, and not both")
        if self.chosen is not None and not set(self.chosen) <= set(self.question.options):
            raise ValueError("the answer is none of the question's options")
        if self.chosen is not None and not self.question.several and len(self.chosen) != 1:
            raise ValueError("one option answers this question")
        return self


class TrialFailed(Event):
    """The trial ended without a verdict."""

    kind: Literal["TrialFailed"] = "TrialFailed"
    step: str
    reason: str
    message: str
    retryable: bool
    unused: Unused | None = None
    """As in a ``VerdictGiven``."""
    unusable: UnusableReplies | None = None
    """The replies that ended it; ``None`` where it ended otherwise, where a reply gave the model's instructions away,
    and in records of before they were kept."""
    broke_off: int = Field(default=0, ge=0)
    """How many times a model server broke off while it worked on a call that it then left unanswered: it may have died
    of it. Since the trial was opened or last resumed."""


class TrialResumed(Event):
    """A trial that was cut off, or that failed for a passing reason, goes on from its record."""

    kind: Literal["TrialResumed"] = "TrialResumed"
    software: str
    fence_mark: str = ""
    """That from here on; a new one each time."""


class ReviewOutcome(StrEnum):
    """Outcome of a review of a verdict."""

    UPHELD = "UPHELD"
    OVERRULED = "OVERRULED"


class VerdictReviewed(Event):
    """A person upheld or overruled the verdict."""

    kind: Literal["VerdictReviewed"] = "VerdictReviewed"
    outcome: ReviewOutcome
    label: Label
    reason: str = Field(min_length=1)
    clause: str = ""
    reviewer: str = Field(min_length=1)
    blind: bool = False
    """Whether the reviewer found what the meme is before the verdict was shown to them."""


class SecondOpinionAsked(Event):
    """A person asked that another person looks at the verdict."""

    kind: Literal["SecondOpinionAsked"] = "SecondOpinionAsked"
    by: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class AppealOpened(Event):
    """Somebody whom a verdict concerns contests it: a person who has not reviewed it is to look."""

    kind: Literal["AppealOpened"] = "AppealOpened"
    by: str = Field(min_length=1)
    """Who hands it in: a platform, or a person at it."""
    statement: str = Field(min_length=1)
    """What they say who contest it."""
    reference: str = ""
    """What the platform calls the appeal; opened again under the same, it is the same."""


AnyEvent: TypeAlias = Annotated[
    TrialOpened
    | TextRead
    | Described
    | QuestionAsked
    | AnswerGiven
    | Summarised
    | SummarisedAhead
    | SideRested
    | NearDuplicatesFound
    | PrecedentsCited
    | GuardHeard
    | ClaimsFound
    | QueriesPlanned
    | EvidenceSearched
    | DocumentWeighed
    | ClaimSettled
    | JudgeRuled
    | VerdictGiven
    | QuestionRuled
    | TrialFailed
    | TrialResumed
    | VerdictReviewed
    | SecondOpinionAsked
    | AppealOpened,
    # By its name alone: otherwise an event would be read as the first type that fits.
    Field(discriminator="kind"),
]

AFTERWARDS: tuple[type[Event], ...] = (QuestionRuled, VerdictReviewed, SecondOpinionAsked, AppealOpened)
"""What may follow the end of a trial: rulings on further questions, and what people do."""

EVENT_KINDS: tuple[type[Event], ...] = get_args(get_args(AnyEvent)[0])
"""Every kind there is."""

_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def calls_in(event: Event) -> tuple[ModelCall, ...]:
    """The calls that an event tells of, but for those for odds."""
    if isinstance(event, DocumentWeighed):
        return event.calls
    call: ModelCall | None = getattr(event, "call", None)
    return () if call is None else (call,)


def parse_event(stored: str | bytes) -> AnyEvent:
    """The event in its stored form (JSON). Raises pydantic.ValidationError if it is none."""
    return _ADAPTER.validate_json(stored)
