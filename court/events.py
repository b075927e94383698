"""Trial events, as a closed union of immutable values. A record is an ordered list of events.

All three procedures emit the same kinds of event; :class:`TrialOpened` names the procedure that ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

from pydantic import AwareDatetime, Field, JsonValue, TypeAdapter, model_validator
from typing_extensions import override

from court.audition import Weighed
from court.injection.detector import Signal
from court.policy import Policy
from court.precedents import Findings, VerifiedCopy, Vote
from court.question import CourtQuestion, OptionStrengths
from court.values import Value
from court.verdict import ClaimBasis, ClaimLabel, Label, QuotedPassage, ReviewReason, Strengths, Verdict


class Procedure(StrEnum):
    """Procedure by which a meme is tried."""

    SUMMARY = "SUMMARY"
    """Precedents alone; no model is asked."""
    FULL = "FULL"
    """Description, examination by both sides, precedents, judgment."""
    CASCADE = "CASCADE"
    """Summary first; a full trial only if the precedents are not conclusive."""


class TrialState(StrEnum):
    """State of a trial."""

    OPEN = "OPEN"
    """Running or interrupted: neither a verdict nor a failure has been recorded."""
    DECIDED = "DECIDED"
    FAILED = "FAILED"


class Side(StrEnum):
    """The two sides of a trial."""

    ACCUSER = "ACCUSER"
    DEFENDER = "DEFENDER"

    @property
    def other(self) -> Side:
        """The opposing side."""
        return Side.DEFENDER if self is Side.ACCUSER else Side.ACCUSER


class Role(StrEnum):
    """Role of the model that spoke."""

    PROPOSER = "PROPOSER"
    ACCUSER = "ACCUSER"
    DEFENDER = "DEFENDER"
    JUDGE = "JUDGE"
    GUARD = "GUARD"
    """A guard model, consulted as an additional witness."""
    EXPERT = "EXPERT"
    """A witness for claims of fact, which sees only claims and documents."""


class TextSource(StrEnum):
    """Source of a meme's text."""

    CALLER = "CALLER"
    OCR = "OCR"
    NONE = "NONE"
    """No text: the caller said so, or none was found on the picture."""


class QuestioningEnd(StrEnum):
    """Reason why a side stopped asking."""

    CONVERGED = "CONVERGED"
    """Its summaries stopped changing."""
    ROUND_LIMIT = "ROUND_LIMIT"
    TIME = "TIME"
    """The caller's deadline left no room."""
    NO_EXAMINATION = "NO_EXAMINATION"
    """No examination: the side argued from precedents, from the description alone, or from a text without a picture."""


class FinishReason(StrEnum):
    """Reason why a model's reply ended."""

    STOP = "STOP"
    LENGTH = "LENGTH"
    """It reached ``max_tokens``; the reply is cut off."""
    REPETITION = "REPETITION"
    """The server stopped a reply that repeated itself, or its thought repeated itself until ``max_tokens``."""
    REFUSAL = "REFUSAL"
    """The server reports that the model or a filter declined."""


class RawReply(Value):
    """A model's raw reply, before parsing."""

    text: str
    """Lone surrogates, which a record can't hold, are replaced by their JSON escapes."""
    finish: FinishReason = FinishReason.STOP
    thought: bool = False
    """True if a thought preceded it."""


class ModelCall(Value):
    """One call of a model."""

    role: Role
    model: str
    prompt_id: str
    prompt_digest: str
    tokens_in: int = Field(ge=0)
    tokens_out: int = Field(ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    """Number of ``tokens_in`` found in the server's prefix cache."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)
    server: str = ""
    """Address of the server that answered, without a key; empty if unknown."""
    fault: str = ""
    """Reason why a first reply was unusable; empty if it was usable. The figures then cover both calls."""
    quoted: str = ""
    """Part of that first reply that was quoted in the repair request."""
    messages_digest: str = ""
    """SHA-256 of all messages sent (:func:`court.messages.messages_digest`), which can be rebuilt from the record."""
    schema_in_words: bool = False
    """True if the reply schema was described in the message because the server does not enforce schemas."""
    unknown: tuple[str, ...] = ()
    """Names of figures that the server omitted or gave as invalid values; they are recorded as 0 or empty."""
    thought: str = ""
    """Thought before the reply, if the server separates it; truncated if long. It is shown to no role and is part of no
    summary."""
    replies: tuple[RawReply, ...] = ()
    """Raw replies: the usable one last, after an unusable first one, if any. They allow comparing today's parsing with
    that of the time. Empty for a call for odds."""


class UnusableReplies(Value):
    """The replies of a call that ended a trial because none of them could be used."""

    role: Role
    task: str
    side: Side | None = None
    """Side whose examination it was; None outside of an examination."""
    round: int = Field(default=0, ge=0)
    judge: int = Field(default=1, ge=1)
    """Number of the judge on a panel."""
    prompt_digest: str
    replies: tuple[RawReply, ...]


class Unused(Value):
    """Cost of model calls that no other event reports."""

    calls: int = Field(default=0, ge=0)
    """Number of calls that were answered."""
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    tokens_cached: int = Field(default=0, ge=0)
    unanswered: int = Field(default=0, ge=0)
    """Number of calls that were cancelled or failed, whose cost is unknown."""


class MemeIdentity(Value):
    """Identity of the meme on trial; without a picture, fields that describe one are empty or 0."""

    bytes_sha256: str
    pixels_sha256: str
    format: str
    width: int
    height: int
    frame_count: int
    frames_used: tuple[int, ...]
    """Indices of the representative frames in the file."""
    frames_unlike: int = Field(default=0, ge=0)
    """Number of other frames that differ visibly from all representative ones."""
    incomplete: bool = False
    """True if the file was truncated, so that a part of the picture is missing."""
    shown_otherwise: bool = False
    """True if only some viewers show the picture as it was judged, because of unusual colour instructions."""
    frames: tuple[str, ...] = ()
    """SHA-256 of each representative frame as shown to models, in hex; empty if no model is asked."""
    text_given: bool = False
    """True if the caller gave the text, which is recorded in ``TextRead``."""
    picture_given: bool = True
    """True if the caller sent a picture; otherwise the meme is its text alone."""
    text_digest: str = ""
    """Digest of the text (:func:`court.meme.text_digest`) if it was sent alone; otherwise empty."""
    namespace: str = ""
    content_id: str = ""

    @property
    def digest(self) -> str:
        """Digest that trials of the same meme share: that of the pixels, or of the text where no picture was sent."""
        return self.pixels_sha256 if self.picture_given else self.text_digest


class PolicyReference(Value):
    """Reference to the policy that was applied."""

    id: str
    version: str
    digest: str
    content: Policy | None = None
    """The policy itself, as shown to models; None if no model is asked."""


class Versions(Value):
    """Versions of everything that must be equal for a trial to be repeated."""

    software: str
    settings: str
    """Digest of the settings."""
    prompts: str = ""
    """Digest of the prompt set; empty if no model is asked."""
    models: dict[str, str] = Field(default_factory=dict)
    """Model per role; empty if no model is asked."""
    encoder: str = ""
    library: str = ""
    text_reader: str = ""


class TextLine(Value):
    """One line of text read off a picture."""

    text: str
    confidence: float = Field(ge=0, le=1)
    box: tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]
    """Corners (x, y) in pixels of the normalised frame, clockwise from the upper left in reading direction."""
    frame: int = Field(ge=0)
    """Index of the frame in the file."""


class ReportedCall(NamedTuple):
    """A model call that an event reports; two requests if the first reply was unusable, or for odds."""

    call: ModelCall
    task: str
    requests: int


class Event(Value):
    """Common fields of all events, and what readers need to know about a kind.

    Attributes:
        after_end: True if the event may follow the end of a trial.
        by_person: True if a person said it about the content, so that the finding in force may change with it.
        for_reviewers: True if platforms that only ask for verdicts are not sent the event.
        listed: True if a docket's list of trials is derived from it, among others.
        metric: Metric that times the step, if it asks no model; empty if none does.
        parts: Parts of a trial's page that the event changes, apart from those that every event changes.
        step_name: The step that the event ends, in words, with its fields in braces; empty if it took no time.
        state: State of the trial from the event on; None if it stays as it was.
        step_owner: Owner of that step: the court, a role, or the ``side`` of the event.
        untrusted: Name of the field with a text other than the court's own sides'; empty without one.
    """

    state: ClassVar[TrialState | None] = None
    after_end: ClassVar[bool] = False
    by_person: ClassVar[bool] = False
    for_reviewers: ClassVar[bool] = False
    listed: ClassVar[bool] = False
    metric: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()
    step_name: ClassVar[str] = ""
    step_owner: ClassVar[str] = "court"
    untrusted: ClassVar[str] = ""

    trial_id: str = Field(min_length=1)
    seq: int = Field(ge=0)
    at: AwareDatetime
    kind: str

    @property
    def reported_calls(self) -> tuple[ReportedCall, ...]:
        """Model calls that the event reports, those for odds last."""
        calls: list[ModelCall] = list(getattr(self, "calls", ()))
        if (call := getattr(self, "call", None)) is not None:
            calls.append(call)
        reported = [ReportedCall(each, each.prompt_id.rpartition("/")[2], 2 if each.fault else 1) for each in calls]
        odds: OddsGiven | None = getattr(self, "odds", None)
        if odds is not None:
            reported.append(ReportedCall(odds.call, "odds", len(odds.harmful)))
        return tuple(reported)

    @property
    def took_s(self) -> float | None:
        """Seconds that a step without a model call took; None if there was none."""
        return getattr(self, "latency_s", None)

    @property
    def sent_text(self) -> str | None:
        """Text of the meme if the event says that it came with the request; None otherwise."""
        return None

    def untrusted_texts(self) -> Iterator[tuple[Mapping[str, str], str]]:
        """Yields texts other than those of the court's own sides, each with its precedent or document."""
        if self.untrusted:
            yield {}, getattr(self, self.untrusted)


class CheckFailed(Value):
    """A check of a full trial that failed, also after a repair."""

    check: ReviewReason
    side: Side | None = None
    """Side that it concerns; None for both, for the Judge, and for the Proposer."""
    about_picture: bool = False
    """True if it concerns the description."""
    share: float | None = Field(default=None, ge=0, le=1)
    """Measured share of words, or of runs of three words, or probability; None if the check measures none."""


class SideEvent(Event):
    """An event of one side."""

    side: Side


class RoundEvent(SideEvent):
    """An event of one round of a side."""

    round: int = Field(ge=1)
    step_owner = "side"


class ClaimEvent(Event):
    """An event about one of the meme's claims of fact."""

    claim: int = Field(ge=1)
    parts = ("expert",)
    step_owner = "expert"


class TrialOpened(Event):
    """A meme was accepted for trial."""

    listed = True
    state = TrialState.OPEN
    kind: Literal["TrialOpened"] = "TrialOpened"
    procedure: Procedure
    meme: MemeIdentity
    request_id: str = ""
    trace_id: str = ""
    policy: PolicyReference
    settings: dict[str, JsonValue]
    versions: Versions
    servers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Addresses of the model servers per role, without keys; the first is the trial's own. Not part of the settings'
    digest: a server that has moved is the same."""
    prefix_cache: dict[str, bool] = Field(default_factory=dict)
    """True per role if prefix caching worked at its servers when probed at start; roles where it is unknown are absent.
    Not part of the settings' digest: replies are the same."""
    weights: dict[str, str] = Field(default_factory=dict)
    """Digest per role of what its servers list about the weights, such as their place and size; roles whose servers
    list nothing are absent. Not part of the settings' digest."""
    fence_mark: str = ""
    """Mark of the fences around untrusted text; empty if no model is asked."""
    of_trial: str = ""
    """Id of the earlier trial whose meme is tried again by other means; empty if there is none."""


class TextRead(Event):
    """The text of the meme is known."""

    listed = True
    metric = "text_read"
    parts = ("meme",)
    step_name = "text read off the picture"
    untrusted = "text"
    kind: Literal["TextRead"] = "TextRead"
    text: str
    source: TextSource
    language: str = ""
    lines: tuple[TextLine, ...] = ()
    reader: str = ""
    latency_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    @override
    def took_s(self) -> float | None:
        return self.latency_s if self.reader else None

    @property
    @override
    def sent_text(self) -> str | None:
        return None if self.reader else self.text


class Described(Event):
    """The Proposer described the picture."""

    parts = ("description",)
    step_name = "description"
    step_owner = "proposer"
    untrusted = "description"
    kind: Literal["Described"] = "Described"
    description: str
    call: ModelCall


class QuestionAsked(RoundEvent):
    """A side asked the Proposer."""

    parts = ("rounds",)
    step_name = "{Side} asks, round {round}"
    kind: Literal["QuestionAsked"] = "QuestionAsked"
    question: str
    call: ModelCall


class AnswerGiven(RoundEvent):
    """The Proposer answered."""

    parts = ("rounds",)
    step_name = "Answer to the {Side}, {round}"
    step_owner = "proposer"
    untrusted = "answer"
    kind: Literal["AnswerGiven"] = "AnswerGiven"
    answer: str
    call: ModelCall


class SummaryEvent(RoundEvent):
    """A side's summary of what it has so far."""

    step_name = "{Side} sums up, round {round}"
    summary: str
    justification: str
    claim: str = ""
    """Claim of fact on which its case rests; empty if there is none or sides are not asked for one."""
    dropped: tuple[str, ...] = ()
    """Quotes that stand nowhere in what the side was shown, and were left out of its argument."""


class Summarised(SummaryEvent):
    """A side summarised what it has so far."""

    parts = ("rounds", "cases")
    kind: Literal["Summarised"] = "Summarised"
    round: int = Field(ge=0)
    """0 if there was no examination."""
    entropy: float = Field(ge=0, allow_inf_nan=False)
    """Entropy of the summary's characters, in bits."""
    entropy_change: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Absolute difference to the previous summary's, in bits."""
    cites: tuple[str, ...] = ()
    """Ids of the precedents that the side cites."""
    call: ModelCall | None = None

    @property
    def argument(self) -> str:
        """Words of the side before the Judge: without an examination, the justification may be empty."""
        return self.justification or self.summary


class SummarisedAhead(SummaryEvent):
    """A side summarised a round speculatively, before it is known whether the round counts.

    If it counts, a ``Summarised`` event repeats it in turn; both events report the same call.
    """

    kind: Literal["SummarisedAhead"] = "SummarisedAhead"
    call: ModelCall


class SideRested(SideEvent):
    """A side stopped asking."""

    parts = ("cases",)
    kind: Literal["SideRested"] = "SideRested"
    rounds: int = Field(ge=0)
    reason: QuestioningEnd


class PrecedentsCited(Event):
    """The library was searched."""

    metric = "precedents"
    parts = ("precedents",)
    step_name = "precedents found"
    kind: Literal["PrecedentsCited"] = "PrecedentsCited"
    findings: Findings
    vote: Vote | None
    """``None`` if no precedent is near enough to vote."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)

    @override
    def untrusted_texts(self) -> Iterator[tuple[Mapping[str, str], str]]:
        yield from (({"precedent": precedent.id}, precedent.text) for precedent in self.findings.exhibits)


class GuardHeard(Event):
    """A guard model gave its opinion, or failed to. No label follows from it."""

    parts = ("judge",)
    step_name = "guard’s opinion"
    kind: Literal["GuardHeard"] = "GuardHeard"
    adapter: str = Field(min_length=1)
    """Family of the guard, which determines how it is asked and how its answer is parsed."""
    pictures: int = Field(default=0, ge=0)
    """Number of the meme's pictures shown to it."""
    harmful: bool | None = None
    """True if it considers the meme harmful; ``None`` if it gave no opinion."""
    categories: tuple[str, ...] = ()
    """Categories of harm that it names, in its own words."""
    reason: str = ""
    """Reason that it gives."""
    reply: str = ""
    """Its raw answer without any thought before it; truncated if long."""
    failure: str = ""
    """Code of the reason why there is no opinion."""
    call: ModelCall | None = None

    @override
    def untrusted_texts(self) -> Iterator[tuple[Mapping[str, str], str]]:
        # All of the guard's own words that the Judge is shown; the reason comes first, so that offsets in it are right.
        yield {}, "\n".join((self.reason, *self.categories))


class CheckableClaim(Value):
    """A claim of fact that the meme makes."""

    number: int = Field(ge=1)
    text: str = Field(min_length=1)
    """The claim as a self-contained sentence."""
    span: str = ""
    """Words of the meme's text or description that it comes from; empty if they are not found there."""


class ClaimsFound(Event):
    """The meme's claims of fact are known; there may be none."""

    parts = ("expert",)
    step_name = "claims of fact found"
    step_owner = "expert"
    kind: Literal["ClaimsFound"] = "ClaimsFound"
    claims: tuple[CheckableClaim, ...] = ()
    left_out: int = Field(default=0, ge=0)
    """Number of statements found that are not claims of fact: opinions, jokes, wishes."""
    failure: str = ""
    """Code of the reason why the claims are unknown: a model's failure, or TIME if the Judge could not wait longer."""
    call: ModelCall | None = None
    """``None`` if no model was asked or none gave a usable reply."""


class QueriesPlanned(ClaimEvent):
    """The witness decided what to search for first."""

    step_name = "queries about claim {claim}"
    kind: Literal["QueriesPlanned"] = "QueriesPlanned"
    queries: tuple[str, ...]
    failure: str = ""
    """Code of the failure to plan queries, in which case the only query is the claim itself."""
    call: ModelCall | None = None


class RankedHit(Value):
    """A document that a search found."""

    id: str
    title: str = ""
    source: str = ""
    snippet: str = ""
    date: str = ""
    rank_given: int = Field(ge=1)
    """Rank in the source's own order."""

    @property
    def scanned(self) -> str:
        """Text that is scanned for signs of steering."""
        # The snippet first, so that offsets in it are right.
        return "\n".join((self.snippet, self.title, self.source))


class EvidenceSearched(ClaimEvent):
    """A source of evidence was searched for a claim, or the search failed."""

    step_name = "search about claim {claim}"
    kind: Literal["EvidenceSearched"] = "EvidenceSearched"
    number: int = Field(ge=1)
    """Number of the search for this claim."""
    query: str
    """Query as it was sent."""
    held_back: int = Field(default=0, ge=0)
    """Number of names and contact data removed from the query because the source is remote."""
    hits: tuple[RankedHit, ...] = ()
    """Results ranked by relevance and by the credibility of their sources."""
    source_identity: str
    latency_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Duration of the search without the ranking, in seconds."""
    failure: str = ""
    """Code of the reason why the source gave no answer."""
    rank_failure: str = ""
    """Code of the failure to rank the hits, which are then in the source's own order."""
    call: ModelCall | None = None
    """Call for the ranking; ``None`` if there was nothing to rank."""

    @override
    def untrusted_texts(self) -> Iterator[tuple[Mapping[str, str], str]]:
        yield from (({"document": hit.id}, hit.scanned) for hit in self.hits)


class DocumentWeighed(ClaimEvent):
    """A document was read and weighed against a claim, or this failed."""

    step_name = "document about claim {claim}"
    kind: Literal["DocumentWeighed"] = "DocumentWeighed"
    number: int = Field(ge=1)
    """Number of the weighing for this claim."""
    document: str
    """Id of the document within its source."""
    title: str = ""
    source: str = ""
    date: str = ""
    sha256: str = ""
    """SHA-256 of the text in UTF-8, in hex; empty if it could not be read."""
    text: str = ""
    """Text as read, truncated if long. A docket stores it outside the event, so that it can be erased."""
    second_look: bool = False
    """True if it had been deferred before."""
    comprehensible: bool = False
    """True if it can be understood by itself or with the evidence so far."""
    helpful: bool = False
    """True if it says something new and useful about the claim, and so counts as evidence from here on."""
    sufficient: bool | None = None
    """True if the evidence is now sufficient; ``None`` if that was not asked."""
    aside: bool = False
    """True if it is deferred, to be weighed again later."""
    leaning: ClaimLabel | None = None
    """Label by the evidence so far; ``None`` if the document is not evidence."""
    quotes: tuple[str, ...] = ()
    """Passages of the document about the claim; each was verified to occur in it."""
    quotes_dropped: int = Field(default=0, ge=0)
    """Number of quoted passages that do not occur in the document."""
    queries: tuple[str, ...] = ()
    """Further queries."""
    failure: str = ""
    """Code of the reason why it could not be read or weighed."""
    calls: tuple[ModelCall, ...] = ()

    @override
    def untrusted_texts(self) -> Iterator[tuple[Mapping[str, str], str]]:
        yield {"document": self.document}, self.text


class ClaimSettled(ClaimEvent):
    """The witness gave its finding about a claim. No label of the meme follows from it."""

    step_name = "finding about claim {claim}"
    kind: Literal["ClaimSettled"] = "ClaimSettled"
    label: ClaimLabel
    because: ClaimBasis
    evidence: tuple[QuotedPassage, ...] = ()
    documents: int = Field(default=0, ge=0)
    """Number of documents read about it."""
    checked: bool = True
    """False if no source answered, or nothing that was found could be read or weighed."""
    quotes_dropped: int = Field(default=0, ge=0)
    """Number of quoted passages that do not occur in their documents. A label without a single verified passage counts
    as NOT_ENOUGH."""
    failure: str = ""
    """Code of the failure to get a final label, in which case it is that of the last document weighed."""
    call: ModelCall | None = None
    """``None`` if there was no evidence or no time to classify."""


class NearDuplicate(Value):
    """A meme tried before that is a near-duplicate of the one on trial."""

    trial_id: str = Field(min_length=1)
    """Id of its trial."""
    label: Label
    """Label in force: the reviewer's if the verdict was overruled."""
    distance: int = Field(ge=0, le=256)
    """Hamming distance of the perceptual hashes (PDQ) of the pictures, in bits."""
    same_text: bool
    """True if the texts are equal, apart from a few letters if one was read off a picture."""
    same_picture: bool
    """True if the pictures were compared tile by tile and no tile differs. Only the nearest are compared so."""
    text_alone: bool = False
    """True if neither meme has a picture, so that only their texts were compared; ``distance`` is then 0."""


class NearDuplicatesFound(Event):
    """Near-duplicates were found among memes tried before. Evidence for reviewers; it does not affect the label."""

    metric = "near_duplicates"
    parts = ("precedents",)
    step_name = "near duplicates found"
    kind: Literal["NearDuplicatesFound"] = "NearDuplicatesFound"
    duplicates: tuple[NearDuplicate, ...] = Field(min_length=1)
    """Nearest first."""
    latency_s: float = Field(ge=0, allow_inf_nan=False)


class PrecedentReading(Value):
    """The Judge's reading of a precedent."""

    id: str
    supports: Literal["harmful", "harmless", "neither"]
    picture: str = ""
    """SHA-256 of its picture as shown to the Judge, in hex; empty if none was shown."""


class Ruling(Value):
    """The Judge's statement, before the rule is applied."""

    harmful_evidence: tuple[str, ...]
    harmless_evidence: tuple[str, ...]
    precedents: tuple[PrecedentReading, ...]
    label: Label
    """Label named by the Judge; the verdict's label follows from the strengths."""


class OddsGiven(Value):
    """Probabilities that the Judge's model gives the two labels, requested once for each order of the options."""

    harmful: tuple[float, ...]
    """Probability of the harmful option among all tokens, per order."""
    not_harmful: tuple[float, ...]
    """Probability of the other option, per order."""
    call: ModelCall


PROBES: Mapping[Side | None, str] = {
    None: "odds unheard",
    Side.ACCUSER: "odds of the accuser",
    Side.DEFENDER: "odds of the defender",
}
"""Tasks of the calls that probe the Judge's model."""


class TrialChecked(Event):
    """Checks of a full trial failed, or the Judge's model was probed. It affects no label; see :mod:`court.checks`."""

    parts = ("judge",)
    step_name = "Judge's model probed"
    step_owner = "judge"
    kind: Literal["TrialChecked"] = "TrialChecked"
    failed: tuple[CheckFailed, ...] = ()
    unheard: OddsGiven | None = None
    """Odds before the sides were heard; ``None`` if not asked for or not given."""
    supports: dict[Side, OddsGiven] = Field(default_factory=dict)
    """Odds of the label that each side's argument supports."""
    mistrial: bool = False
    """True if an essential part went wrong, so that a person must look."""

    @property
    def probed(self) -> Mapping[Side | None, OddsGiven]:
        """Odds by the side that they concern; None for those of the unheard case."""
        unheard = [(None, self.unheard)] if self.unheard else []
        return dict[Side | None, OddsGiven]([*unheard, *self.supports.items()])

    @property
    @override
    def reported_calls(self) -> tuple[ReportedCall, ...]:
        return tuple(ReportedCall(odds.call, PROBES[side], len(odds.harmful)) for side, odds in self.probed.items())


class JudgeRuled(Event):
    """One judge of a panel ruled; the verdict follows from all rulings."""

    step_name = "Judge {judge} rules"
    step_owner = "judge"
    kind: Literal["JudgeRuled"] = "JudgeRuled"
    judge: int = Field(ge=1)
    """Number of the judge on the panel."""
    strengths: Strengths
    ruling: Ruling
    category: str
    clause: str
    target: str
    rationale: str
    odds: OddsGiven | None = None
    """``None`` if the server gives no probabilities, or none were requested."""
    call: ModelCall


class SteeringFound(Signal):
    """A sign of an attempt to steer the court, and its location in the trial."""

    event: int = Field(ge=0)
    """Sequence number of the event whose text contains it."""
    precedent: str = ""
    """Id of the precedent whose text contains it; empty if none."""
    document: str = ""
    """Id of the document whose text contains it; empty if none."""


class VerdictGiven(Event):
    """The verdict. The last event of a trial, apart from further questions and reviews."""

    listed = True
    state = TrialState.DECIDED
    parts = ("precedents", "expert", "judge", "flips", "review")
    step_name = "Judge rules"
    step_owner = "judge"
    kind: Literal["VerdictGiven"] = "VerdictGiven"
    verdict: Verdict
    ruling: Ruling | None = None
    odds: OddsGiven | None = None
    """``None`` if no model is asked or the server gives no probabilities; those of a panel are in ``JudgeRuled``."""
    call: ModelCall | None = None
    """``None`` if no model was asked, and for a panel, whose calls are in ``JudgeRuled``."""
    judge: int = Field(default=0, ge=0)
    """Number of the panel's judge whose ruling this is; 0 without a panel."""
    steering: tuple[SteeringFound, ...] = ()
    """Evidence for reviewers; it does not affect the label."""
    unused: Unused | None = None
    """Usage since the trial was opened or last resumed; ``None`` if no model was asked."""
    weighed: Weighed | None = None
    """Evidence as the audition of the Judge's model weighs it; ``None`` where none holds."""
    copies: tuple[VerifiedCopy, ...] = ()
    """Binding precedents that are the same meme, and settled the trial before any model was asked."""

    @property
    def binding(self) -> VerifiedCopy | None:
        """Precedent whose label the verdict follows; None without one, and where binding precedents contradict."""
        return next((copy for copy in self.copies if copy.label is self.verdict.label), None)

    @property
    def precedent(self) -> str:
        """Id of the binding precedent; empty without one."""
        return self.binding.id if self.binding else ""

    @property
    def since(self) -> datetime:
        """Time of the label: of the binding precedent's, or of the verdict."""
        return self.binding.at if self.binding else self.at


class QuestionRuled(Event):
    """The Judge ruled on a further question about the meme, or failed to. The verdict on harm stays as it is."""

    after_end = True
    parts = ("questions",)
    step_name = "Judge answers: {question.id}"
    step_owner = "judge"
    kind: Literal["QuestionRuled"] = "QuestionRuled"
    question: CourtQuestion
    precedent_labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Options that people gave to precedents of the trial, by id, as shown to the Judge; precedents without known
    options are absent."""
    vote: dict[str, float] = Field(default_factory=dict)
    """Calibrated vote of labelled memes on each option, as shown to the Judge; empty if none was shown."""
    chosen: tuple[str, ...] | None = None
    """Options that apply, in the question's order, possibly none if several may apply; ``None`` without an answer."""
    strengths: dict[str, OptionStrengths] = Field(default_factory=dict)
    """Evidence for and against each option, from which the answer follows; empty if the Judge named one option."""
    rule: str = ""
    """Name and version of the rule by which the answer follows; empty if the Judge named one option."""
    rationale: str = ""
    failure: str = ""
    """Code of the reason why there is no answer; empty if there is one."""
    retryable: bool = False
    """True if the failure is transient."""
    unusable: UnusableReplies | None = None
    """Unusable replies that left it without an answer; None if there were none."""
    fence_mark: str = ""
    """Mark of the fences around untrusted text in this call."""
    call: ModelCall | None = None
    unused: Unused | None = None
    """As in ``VerdictGiven``, for this question alone."""

    @model_validator(mode="after")
    def _answer_or_failure(self) -> Self:
        # An empty answer means that none of several options applies; this check keeps a failure from passing for one.
        if (self.chosen is None) != bool(self.failure):
            raise ValueError("a ruling on a question has an answer or a failure, and not both")
        if self.chosen is not None and not set(self.chosen) <= set(self.question.options):
            raise ValueError("the answer is none of the question's options")
        if self.chosen is not None and not self.question.several and len(self.chosen) != 1:
            raise ValueError("one option answers this question")
        return self


class PieceKind(StrEnum):
    """Kind of a piece of a case."""

    PRECEDENT = "PRECEDENT"
    ACCUSER = "ACCUSER"
    """The argument that the Judge was shown as the accuser's."""
    DEFENDER = "DEFENDER"
    EXPERT = "EXPERT"
    DESCRIPTION = "DESCRIPTION"
    TEXT = "TEXT"
    PICTURE = "PICTURE"
    CLAUSE = "CLAUSE"


class Piece(Value):
    """A piece of a case that can be left out."""

    kind: PieceKind
    id: str = ""
    """Id of the precedent, or number of the clause."""

    @property
    def in_words(self) -> str:
        """The piece, for people."""
        match self.kind:
            case PieceKind.PRECEDENT | PieceKind.CLAUSE:
                return f"{self.kind.lower()} {self.id}"
            case PieceKind.ACCUSER | PieceKind.DEFENDER:
                return f"the {self.kind.lower()}'s argument"
            case PieceKind.EXPERT:
                return "the expert's findings"
        return f"the {self.kind.lower()}"


class TriedWithout(Value):
    """The label that a case gets without some of its pieces."""

    without: tuple[Piece, ...] = Field(min_length=1)
    label: Label | None = None
    """``None`` if the model gave no usable answer."""
    score: float | None = Field(default=None, ge=0, le=1)
    """Probability of harm; ``None`` if the basis gives none."""
    call: ModelCall | None = None
    """``None`` if no model was asked."""


class FlipBasis(StrEnum):
    """Means by which a case is decided without some of its pieces."""

    VOTE = "VOTE"
    ODDS = "ODDS"
    """One token of the Judge's model, in one order of the options."""
    RULING = "RULING"
    """A whole ruling, where the odds are unknown or contradict the label."""


class Flips(Value):
    """The label without each piece of a case, and without the smallest set whose loss changes it."""

    basis: FlipBasis
    label: Label
    """Label with every piece."""
    score: float | None = Field(default=None, ge=0, le=1)
    """Probability of harm with every piece, by the same means."""
    harmful_first: bool = True
    """Order of the options, for odds."""
    tried: tuple[TriedWithout, ...]

    def flips(self, tried: TriedWithout) -> bool:
        """True if the label is another one without those pieces."""
        return tried.label is not None and tried.label is not self.label

    @property
    def smallest(self) -> TriedWithout | None:
        """The smallest set whose loss changes the label; None if none was found."""
        # min() keeps the first of several, so that the order in which pieces were tried decides.
        return min(filter(self.flips, self.tried), key=lambda each: len(each.without), default=None)

    @property
    def singles(self) -> tuple[TriedWithout, ...]:
        """Outcomes without a single piece."""
        return tuple(each for each in self.tried if len(each.without) == 1)

    @property
    def risk(self) -> float | None:
        """Least probability that the label is wrong, if a single piece decides it; None if none does."""
        # As for a sole precedent in a summary: whoever brought that piece in would otherwise decide alone.
        scores = [0.5 if each.score is None else each.score for each in self.singles if self.flips(each)]
        return max((s if self.label is Label.NOT_HARMFUL else 1 - s for s in scores), default=None)

    @property
    def in_words(self) -> str:
        """The smallest set in a sentence, for reviewers."""
        found = self.smallest
        if found is None:
            return "No piece and no set of pieces that was tried changes the verdict by its loss."
        pieces = [each.in_words for each in found.without]
        named = ", ".join(pieces[:-1]) + " and " + pieces[-1] if pieces[1:] else pieces[0]
        would = {Label.HARMFUL: "found harmful", Label.NOT_HARMFUL: "allowed"}.get(
            found.label or self.label, "undecided"
        )
        return f"Without {named} it would have been {would}."

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that the model's server had in its cache; 0 without calls."""
        calls = [each.call for each in self.tried if each.call]
        read = sum(call.tokens_in for call in calls)
        return sum(call.tokens_cached for call in calls) / read if read else 0.0


class FlipsSought(Event):
    """The label without pieces of the case was sought, after the verdict, which stays as it is."""

    after_end = True
    for_reviewers = True
    parts = ("flips",)
    step_name = "Judge asked again, pieces left out"
    step_owner = "judge"
    kind: Literal["FlipsSought"] = "FlipsSought"
    flips: Flips
    failure: str = ""
    """Code of the reason why the search ended early; empty if it did not."""
    fence_mark: str = ""
    """Mark of the fences around untrusted text in these calls."""
    unused: Unused | None = None
    """As in ``VerdictGiven``, for this search alone."""

    @property
    @override
    def reported_calls(self) -> tuple[ReportedCall, ...]:
        return tuple(ReportedCall(each.call, "without", 1) for each in self.flips.tried if each.call)


class TrialFailed(Event):
    """The trial ended without a verdict."""

    listed = True
    state = TrialState.FAILED
    parts = ("judge",)
    kind: Literal["TrialFailed"] = "TrialFailed"
    step: str
    reason: str
    message: str
    retryable: bool
    unused: Unused | None = None
    """As in ``VerdictGiven``."""
    unusable: UnusableReplies | None = None
    """Unusable replies that ended the trial; ``None`` if it ended otherwise, or by a reply that leaked instructions."""
    broke_off: int = Field(default=0, ge=0)
    """Number of times a model server disconnected while processing a call that remained unanswered, which may have
    crashed it; since the trial was opened or last resumed."""


class TrialResumed(Event):
    """A trial that was interrupted, or that failed for a transient reason, continues from its record."""

    listed = True
    state = TrialState.OPEN
    kind: Literal["TrialResumed"] = "TrialResumed"
    software: str
    fence_mark: str = ""
    """Fence mark from here on; new with each resumption."""


class PersonEvent(Event):
    """An event by which a person says something about the content of a trial, at any time."""

    after_end = True
    by_person = True
    listed = True


class ReviewOutcome(StrEnum):
    """Outcome of a review of a verdict."""

    UPHELD = "UPHELD"
    OVERRULED = "OVERRULED"


class Look(StrEnum):
    """Views of a meme by its reviewer before they decided."""

    SHOWN = "SHOWN"
    """Picture and text, whichever exist, were shown to the reviewer, and the log has it."""
    GONE = "GONE"
    """The picture was erased or can't be decoded; what else exists was shown."""
    UNKNOWN = "UNKNOWN"
    """The review came from elsewhere than the console."""


class VerdictReviewed(PersonEvent):
    """A person upheld or overruled the verdict."""

    kind: Literal["VerdictReviewed"] = "VerdictReviewed"
    outcome: ReviewOutcome
    label: Label
    reason: str = Field(min_length=1)
    clause: str = ""
    reviewer: str = Field(min_length=1)
    blind: bool = False
    """True if the reviewer decided before the verdict was shown to them."""
    look: Look = Look.UNKNOWN
    look_s: float | None = Field(default=None, ge=0)
    """Seconds from the look to the decision; None if unknown."""
    precedent: bool = False
    """True if the reviewer wants an overruling to become a precedent."""


class ReviewWithdrawn(PersonEvent):
    """A reviewer withdrew their review right after it; what was found before it holds again."""

    kind: Literal["ReviewWithdrawn"] = "ReviewWithdrawn"
    by: str = Field(min_length=1)
    of: int = Field(ge=0)
    """``seq`` of the review."""


class NoteLeft(PersonEvent):
    """A reviewer left a note to colleagues, who read it once they have decided."""

    kind: Literal["NoteLeft"] = "NoteLeft"
    by: str = Field(min_length=1)
    note: str = Field(min_length=1)
    second_opinion: bool = False
    """True if another person is to decide: the case is open again. A note alone changes nothing else."""


class AppealOpened(PersonEvent):
    """A verdict is contested by somebody it concerns: a person who has not reviewed it must look at it."""

    kind: Literal["AppealOpened"] = "AppealOpened"
    by: str = Field(min_length=1)
    """Submitter: a platform, or a person at it."""
    statement: str = Field(min_length=1)
    """Statement of the person who contests the verdict."""
    reference: str = ""
    """Platform's id of the appeal: the idempotency key of opening it."""
    by_link: bool = False
    """True if it came by the link of a notice, from somebody without an account."""


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
    | TrialChecked
    | VerdictGiven
    | QuestionRuled
    | FlipsSought
    | TrialFailed
    | TrialResumed
    | VerdictReviewed
    | ReviewWithdrawn
    | NoteLeft
    | AppealOpened,
    # Selected by kind alone: otherwise an event would be parsed as the first type that fits.
    Field(discriminator="kind"),
]

EVENT_KINDS: tuple[type[Event], ...] = get_args(get_args(AnyEvent)[0])

_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def parse_event(stored: str | bytes) -> AnyEvent:
    """Parses an event from its stored form (JSON). Raises pydantic.ValidationError if it is invalid."""
    return _ADAPTER.validate_json(stored)
