"""Checks one claim in one arm, with the witness used in trials, and records everything that figures need.

Arms of the evaluation: the full witness, the witness without one of its steps, and simpler ways to check a claim. A
step is ablated by answering in the model's place: the witness itself is the one used in trials.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from court import replies
from court.errors import CourtError, Unavailable
from court.events import AnyEvent, CheckableClaim, ClaimSettled, ClaimsFound, Role
from court.expert.documents import hits_of, readable, snippet_of
from court.expert.findings import ClaimRecord, document_of, passage_of
from court.expert.messages import ClaimBrief, document_text, quoted_source
from court.expert.replies import parse_classification, parse_queries, stands_in
from court.expert.witness import ExpertWitness
from court.ports import (
    ChatModel,
    ChatReply,
    ChatRequest,
    EvidenceDocument,
    EvidenceHit,
    EvidenceSource,
    FinishReason,
    Odds,
)
from court.prompts import Fence
from court.recorder import Recorder
from court.roles import RoleModel, Speaker
from court.settings import TrialSettings
from court.verdict import ClaimBasis, ClaimLabel, QuotedPassage
from eval.datasets.claims import Gold, GoldClaim
from eval.models.metered import Agent, BudgetSpent, load, speaker_without_deadline
from eval.session.engine import Later
from eval.solvers.calls import PROMPTS


class Arm(StrEnum):
    """A way to check a claim."""

    WITNESS = "witness"
    """As in a trial."""
    NO_RANK = "no-rank"
    """Search results are read in the order of the source."""
    NO_SELF_CONTAINED = "no-self-contained"
    """Each document passes for one that can be understood."""
    NO_SECOND_LOOK = "no-second-look"
    """Documents that were put aside are not looked at again."""
    ONE_SHOT = "one-shot"
    """One query, its first results, one finding."""
    CLOSED_BOOK = "closed-book"
    """No documents at all: what the model remembers."""
    FIRE = "fire"
    """After FIRE: an answer or the next query, by snippets alone, and a final check. At most the witness's calls."""


SOURCE_AWAY = frozenset({"EVIDENCE_UNAVAILABLE", "EVIDENCE_TOO_SLOW", "EVIDENCE_REFUSED"})
"""Reasons of searches that failed for want of the source, and not for the claim."""


class ArmModel:
    """A :class:`~court.ports.ChatModel` for one claim in one arm: answers ablated steps itself and counts other calls.

    Attributes:
        failure: First transient error of a call; the witness records it and continues, the evaluation must not.
    """

    def __init__(self, inner: ChatModel, arm: Arm) -> None:
        self._inner = inner
        self._arm = arm
        self._documents: set[str] = set()
        self.calls = self.tokens_in = self.tokens_out = 0
        self.failure: Unavailable | BudgetSpent | None = None

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the reply of the model or of the arm."""
        task = request.call_id.task if request.call_id else ""
        fixed = self._fixed(task, request)
        if fixed is not None:
            return ChatReply(
                text=json.dumps(fixed),
                finish=FinishReason.STOP,
                model=self.name,
                tokens_in=0,
                tokens_out=0,
                tokens_cached=0,
                latency_s=0.0,
            )
        try:
            reply = await self._inner.reply(request, within_s=within_s)
        except (Unavailable, BudgetSpent) as error:
            # The first one counts: the witness records an error and continues, so later ones may follow from it.
            self.failure = self.failure or error
            raise
        self.calls += 1
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        if self._arm is Arm.NO_SELF_CONTAINED and task == "weigh":
            return dataclasses.replace(reply, text=_comprehensible(reply.text))
        return reply

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the model's odds; the witness never requests them."""
        return await self._inner.odds(request, options, within_s=within_s)

    def _fixed(self, task: str, request: ChatRequest) -> Mapping[str, Any] | None:
        """Returns the arm's answer; None if the model is to be called."""
        if self._arm is Arm.NO_RANK and task == "rank":
            return {"order": []}  # results not listed stay in the source's order
        if self._arm is Arm.NO_SELF_CONTAINED and task == "comprehensible":
            return {"comprehensible": True}
        if self._arm is Arm.NO_SECOND_LOOK and task in ("weigh", "comprehensible"):
            # The document is the last part before the question; the evidence may have grown, but the fence is the same.
            document = request.parts[-2]
            attempt = request.call_id.attempt if request.call_id else 1
            # A call repeated because of an unusable reply is not a second look.
            if isinstance(document, str) and document in self._documents and attempt == 1:
                return _NOT_UNDERSTOOD if task == "weigh" else {"comprehensible": False}
            self._documents.add(str(document))
        return None


class ArmSource:
    """An :class:`~court.ports.EvidenceSource` for one claim in one arm, which records if it was unavailable.

    Attributes:
        failure: Error of the first search that failed because the source was unavailable; None if none did.
    """

    def __init__(self, inner: EvidenceSource) -> None:
        self._inner = inner
        self.failure: Unavailable | None = None

    @property
    def identity(self) -> str:
        """Identity of the source."""
        return self._inner.identity

    @property
    def sends_elsewhere(self) -> bool:
        """True if queries leave the machine."""
        return self._inner.sends_elsewhere

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """Returns the results of the source."""
        try:
            return await self._inner.search(query, most=most, within_s=within_s)
        except Unavailable as error:
            # The first: later searches for the claim fail for the same reason, or their results come too late.
            if error.reason in SOURCE_AWAY:
                self.failure = self.failure or error
            raise

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """Returns a document of the source; an unreadable one does not mean that the source is unavailable."""
        return await self._inner.read(document_id, within_s=within_s)


_NOT_UNDERSTOOD: Mapping[str, Any] = {
    "comprehensible": False,
    "new": False,
    "useful": False,
    "quotes": [],
    "label": "not enough",
    "enough": False,
    "next": [],
}


def _comprehensible(text: str) -> str:
    """Marks the document as comprehensible in a reply; returns an unparsable reply unchanged."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps({**fields, "comprehensible": True}) if isinstance(fields, dict) else text


_CALLS_S = 3600.0
_UNCHECKED = "UNCHECKED"


Relation = Literal["supports", "refutes", "neither"]
"""Relation of a passage to a claim."""


class CitedPassage(BaseModel):
    """A passage that a finding is based on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    document: str
    source: str = ""
    sha256: str
    quote: str
    stands: bool
    """Whether it stands in the document, looked for once more in the text that was read."""
    relation: Relation | Literal[""] = ""
    """Relation to the claim by itself; empty where nobody was asked."""


class CheckedClaim(BaseModel):
    """Result of one claim in one arm; one line of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    arm: Arm
    gold: Gold
    label: ClaimLabel | None
    """The finding; None where there is none."""
    forced: bool | None = None
    """Answer of the second call where the finding is NOT_ENOUGH, as published; None where it was not made."""
    because: ClaimBasis | None = None
    failure: str = ""
    """Why there is no finding, or why it is that of the last document, as a code."""
    documents: int = 0
    searches: int = 0
    second_looks: int = 0
    """Number of documents that were put aside and looked at again."""
    evidence: tuple[CitedPassage, ...] = ()
    quotes_dropped: int = 0
    """Quotations that were named and stand in no document."""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def answer(self) -> bool | None:
        """True or False as counted in figures; None for an abstention or without a finding."""
        if self.label is ClaimLabel.NOT_ENOUGH:
            return self.forced
        return None if self.label is None else self.label is ClaimLabel.SUPPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessSolver:
    """Checks claims with the witness of trials, or one of its arms."""

    model: ChatModel
    source: EvidenceSource | None
    """Source of documents; None if no arm needs any."""
    settings: TrialSettings
    temperature: float = 0.0
    forced: bool = False
    """True to ask for true or false if a finding is NOT_ENOUGH."""
    citations_by: ChatModel | None = None
    """Model that judges if a passage supports a finding; None to skip this judgement."""
    mark: Callable[[str], str]
    """Function that returns the fence mark of a claim, always the same for the same claim."""

    async def solve(self, claim: GoldClaim, arm: Arm, calls: int = 0) -> CheckedClaim:
        """Checks a claim in an arm, where it is :attr:`Arm.FIRE` with at most that many calls.

        Raises:
            Later: The model or the source is unavailable.
            BudgetSpent: The model's budget is exhausted; replies so far are stored.
        """
        model, source = ArmModel(self.model, arm), None if self.source is None else ArmSource(self.source)
        watched = replace(self, source=source)
        speaker = self._speaker(model, claim, self.temperature)
        try:
            if arm is Arm.CLOSED_BOOK:
                found = await _closed_book(claim, speaker)
            # Arms that need no events are run directly; all others run the same witness as trials, whose calls the
            # arm's model intercepts.
            elif arm is Arm.ONE_SHOT:
                found = await watched._one_shot(claim, speaker)
            elif arm is Arm.FIRE:
                found = await watched._fire(claim, speaker, calls)
            else:
                found = await watched._witness(claim, arm, speaker)
            # Only to match published figures: the witness of trials may abstain, so an evaluation that forces an
            # answer measures something else.
            if self.forced and found.label is ClaimLabel.NOT_ENOUGH:
                found = replace(found, forced=await _forced(claim, speaker, found.read))
        except CourtError as error:
            # Only permanent errors are failures of the model; transient ones are not.
            found = _Found(None, failure=error.reason)
        # The witness records such an error and continues, as in a trial; here, a claim checked that way would count as
        # a failure of the model, or as a claim without evidence.
        if (failure := model.failure or (source.failure if source else None)) is not None:
            raise _later(failure)
        return CheckedClaim(
            id=claim.id,
            arm=arm,
            gold=claim.gold,
            label=found.label,
            forced=found.forced,
            because=found.because,
            failure=found.failure,
            documents=found.documents,
            searches=found.searches,
            second_looks=found.second_looks,
            # After the finding: the cost of judging citations counts for another model, not for this arm.
            evidence=await self._cited(claim, found),
            quotes_dropped=found.dropped,
            calls=model.calls,
            tokens_in=model.tokens_in,
            tokens_out=model.tokens_out,
        )

    async def _witness(self, claim: GoldClaim, arm: Arm, speaker: Speaker) -> _Found:
        recorder = Recorder(f"{arm}:{claim.id}", _keep_nothing, lambda: datetime.now(UTC))
        # The claim is given: finding claims in memes is not measured here.
        await recorder.record(ClaimsFound, claims=(CheckableClaim(number=1, text=claim.text),))
        assert self.source is not None, "this arm reads documents"
        witness = ExpertWitness(speaker=speaker, source=self.source, settings=self.settings, recorder=recorder)
        # Called right away, as there is no trial to decide when.
        witness.called.set()
        async with witness.concurrently("", None) as due:
            await due()
        events = recorder.events
        settled = next(event for event in events if isinstance(event, ClaimSettled))
        record = ClaimRecord.of(events, 1)
        return _Found(
            settled.label if settled.checked else None,
            because=settled.because,
            # The event of an unchecked claim has no failure: the first failed search or document has it.
            failure=settled.failure if settled.checked else _failure_in(events),
            documents=settled.documents,
            searches=len(record.searches),
            second_looks=sum(event.second_look for event in record.weighed),
            evidence=settled.evidence,
            # Quotes dropped while weighing documents, and at the end.
            dropped=settled.quotes_dropped + sum(event.quotes_dropped for event in record.weighed),
            # A document may be weighed twice, with the same text each time.
            read={event.document: document_of(event) for event in record.weighed if event.text},
        )

    async def _one_shot(self, claim: GoldClaim, speaker: Speaker) -> _Found:
        assert self.source is not None, "this arm reads documents"
        brief = ClaimBrief(fence=speaker.fence, claim=claim.text, chars=speaker.reply_chars)
        reply = await speaker.say(Role.EXPERT, brief.queries(1), lambda text, _: parse_queries(text, 1))
        # If the model proposes no query, the claim itself is searched for.
        query = reply.value[0] if reply.value else claim.text
        hits = hits_of(await self.source.search(query, most=self.settings.expert_results, within_s=_CALLS_S))
        documents, failure = [], ""
        for hit in hits:
            try:
                documents.append(readable(await self.source.read(hit.id, within_s=_CALLS_S), hit))
            except CourtError as error:
                failure = error.reason
        # Unreadable documents are a failure, not a lack of evidence.
        failed = _Found(None, because=ClaimBasis.QUERIES_USED, failure=failure, searches=1)
        return failed if failure and not documents else await _by_documents(claim, speaker, documents, searches=1)

    async def _fire(self, claim: GoldClaim, speaker: Speaker, calls: int) -> _Found:
        assert self.source is not None, "this arm searches"
        prompt, snippets, searches = load(PROMPTS, "claim_label"), dict[str, EvidenceDocument](), 0
        agent = Agent(prompt, "fire", partial(replies.parse, _FireStep), replies.object_schema(_STEP))
        # The last call is the final check.
        for _ in range(max(1, calls - 1)):
            shown = [prompt.task("claim", claim=speaker.fence.around(claim.text)), *_shown(speaker, snippets.values())]
            step = (await agent.ask(speaker, [*shown, prompt.task("fire")], Role.EXPERT)).value
            if step.label != "not yet" or not step.query:
                break
            searches += 1
            for hit in hits_of(
                await self.source.search(step.query, most=self.settings.expert_results, within_s=_CALLS_S)
            ):
                snippets[hit.id] = readable(snippet_of(hit), hit)
        return await _by_documents(claim, speaker, list(snippets.values()), searches)

    async def _cited(self, claim: GoldClaim, found: _Found) -> tuple[CitedPassage, ...]:
        cited = []
        for passage in found.evidence:
            document = found.read.get(passage.document)
            # Searched in the text that was read, not in the passage's own: a finding must not vouch for its own quotes.
            stands = document is not None and stands_in(passage.quote, document.text)
            relation: Relation | Literal[""] = ""
            # An abstention is not based on any passage.
            if self.citations_by is not None and found.label not in (None, ClaimLabel.NOT_ENOUGH):
                relation = await self._relation(claim, passage)
            quoted = passage.model_dump(include={"document", "source", "sha256", "quote"})
            cited.append(CitedPassage(**quoted, stands=stands, relation=relation))
        return tuple(cited)

    async def _relation(self, claim: GoldClaim, passage: QuotedPassage) -> Relation | Literal[""]:
        assert self.citations_by is not None
        model = ArmModel(self.citations_by, Arm.WITNESS)
        # At temperature 0, whatever the witness uses: this measures the witness.
        speaker = self._speaker(model, claim, 0.0)
        shown = load(PROMPTS, "claim_label").task(
            "passage", passage=speaker.fence.around(f"{quoted_source(passage)}\n{passage.quote}")
        )
        # Taken from the type, so that schema and type can't diverge.
        words = get_args(Relation)
        try:
            return cast(Relation, await _choose(speaker, claim, "cited", name="relation", options=words, shown=[shown]))
        except CourtError:
            if model.failure is not None:
                raise _later(model.failure) from None
            return ""  # no usable reply, so the relation is unknown

    def _speaker(self, model: ArmModel, claim: GoldClaim, temperature: float) -> Speaker:
        # The same mark for the same claim, so that a call's text, and thus its key in the call cache, is the same in a
        # later session.
        fence = Fence(self.mark(claim.id))
        return speaker_without_deadline(RoleModel(model, temperature), fence, self.settings.reply_chars)


@dataclass(frozen=True, slots=True)
class _Found:
    label: ClaimLabel | None
    forced: bool | None = None
    because: ClaimBasis | None = None
    failure: str = ""
    documents: int = 0
    searches: int = 0
    second_looks: int = 0
    evidence: tuple[QuotedPassage, ...] = ()
    dropped: int = 0
    read: Mapping[str, EvidenceDocument] = field(default_factory=dict)


async def _by_documents(
    claim: GoldClaim, speaker: Speaker, documents: Sequence[EvidenceDocument], searches: int
) -> _Found:
    """Finds by documents in one call; without any they are not enough."""
    basis = ClaimBasis.QUERIES_USED
    if not documents:
        return _Found(ClaimLabel.NOT_ENOUGH, because=basis, searches=searches)
    brief = ClaimBrief(fence=speaker.fence, claim=claim.text, chars=speaker.reply_chars, evidence=tuple(documents))
    texts = [document.text for document in documents]
    found = (
        await speaker.say(
            Role.EXPERT, brief.classify(), lambda text, last: parse_classification(text, texts, last=last)
        )
    ).value
    return _Found(
        found.label,
        because=basis,
        documents=len(documents),
        searches=searches,
        evidence=tuple(passage_of(documents[index], quote) for index, quote in found.quotes),
        dropped=found.dropped,
        read={document.id: document for document in documents},
    )


def _shown(speaker: Speaker, documents: Iterable[EvidenceDocument]) -> list[str]:
    prompt = load(PROMPTS, "claim_label")
    return [
        prompt.task("evidence", number=str(number), document=speaker.fence.around(document_text(document)))
        for number, document in enumerate(documents, 1)
    ]


async def _closed_book(claim: GoldClaim, speaker: Speaker) -> _Found:
    labels = {"true": ClaimLabel.SUPPORTED, "false": ClaimLabel.REFUTED, "unknown": ClaimLabel.NOT_ENOUGH}
    return _Found(labels[await _choose(speaker, claim, "closed_book", name="label", options=tuple(labels))])


async def _forced(claim: GoldClaim, speaker: Speaker, read: Mapping[str, EvidenceDocument]) -> bool:
    shown = _shown(speaker, read.values())
    return await _choose(speaker, claim, "forced", name="label", options=("true", "false"), shown=shown) == "true"


async def _choose(
    speaker: Speaker, claim: GoldClaim, task: str, *, name: str, options: tuple[str, ...], shown: Sequence[str] = ()
) -> str:
    """Asks the model to choose one of some words about a claim."""
    prompt = load(PROMPTS, "claim_label")

    def parse(text: str) -> str:
        chosen = replies.parse(_Chosen[name], text).model_dump()[name]
        if chosen not in options:
            raise replies.UnusableReply("REPLY_MALFORMED", f"{name} must be one of {', '.join(options)}")
        return str(chosen)

    agent = Agent(prompt, task, parse, replies.object_schema({name: {"type": "string", "enum": [*options]}}))
    parts = [prompt.task("claim", claim=speaker.fence.around(claim.text)), *shown, prompt.task(task)]
    return (await agent.ask(speaker, parts, Role.EXPERT)).value


class _FireStep(replies.Reply):
    label: Literal["supported", "refuted", "not yet"]
    query: str = Field(max_length=300)


_STEP: dict[str, Any] = {
    "label": {"type": "string", "enum": ["supported", "refuted", "not yet"]},
    "query": {"type": "string", "maxLength": 300},
}


class _ChosenLabel(replies.Reply):
    label: str


class _Relation(replies.Reply):
    relation: str


_Chosen: Mapping[str, type[replies.Reply]] = {"label": _ChosenLabel, "relation": _Relation}


def _failure_in(events: Sequence[AnyEvent]) -> str:
    """Returns the reason code of the first failed search or document, which left a claim without evidence."""
    failures = [str(getattr(event, "failure", "")) for event in events if not isinstance(event, ClaimSettled)]
    return next(filter(None, failures), _UNCHECKED)


def _later(failure: Unavailable | BudgetSpent) -> Exception:
    # A spent budget does not recover by itself: the error is raised unchanged.
    return Later(failure.reason, failure.message) if isinstance(failure, Unavailable) else failure


async def _keep_nothing(*events: AnyEvent) -> None:
    """Discards events: none is stored beyond the check."""
