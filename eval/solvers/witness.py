"""Checks one claim in one arm, with the witness used in trials, and records everything that figures need.

Arms of the evaluation: the full witness, the witness without one of its steps, and simpler ways to check a claim. A
step is ablated by answering in the model's place: the witness itself is the one used in trials.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from court.errors import CourtError, Unavailable
from court.events import AnyEvent, CheckableClaim, ClaimSettled, ClaimsFound, RankedHit, Role
from court.expert.documents import hits_of, readable, snippet_of
from court.expert.findings import ClaimRecord, document_of, passage_of
from court.expert.messages import ClaimBrief, document_text, quoted_source
from court.expert.replies import parse_classification, parse_queries
from court.expert.witness import ExpertWitness
from court.ports import ChatModel, ChatReply, ChatRequest, EvidenceDocument, EvidenceSource, FinishReason, Odds
from court.prompts import Fence, Prompt
from court.recorder import Recorder
from court.replies import Reply, TextBounds, parse, schema_of
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


@dataclass(slots=True)
class ArmModel:
    """A :class:`~court.ports.ChatModel` for a claim in an arm: answers ablated steps itself and counts other calls."""

    inner: ChatModel
    arm: Arm
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    failure: Unavailable | BudgetSpent | None = None
    """First transient error of a call; the witness records it and continues, the evaluation must not."""
    _documents: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.inner.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the reply of the model or of the arm."""
        task = request.call_id.task if request.call_id else ""
        fixed = self._fixed(task, request)
        if fixed is not None:
            made = partial(ChatReply, tokens_in=0, tokens_out=0, tokens_cached=0, latency_s=0.0)
            return made(json.dumps(fixed), FinishReason.STOP, self.name)
        try:
            reply = await self.inner.reply(request, within_s=within_s)
        except (Unavailable, BudgetSpent) as error:
            # The first one counts: the witness records an error and continues, so later ones may follow from it.
            self.failure = self.failure or error
            raise
        self.calls += 1
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        if self.arm is Arm.NO_SELF_CONTAINED and task == "weigh":
            return dataclasses.replace(reply, text=_comprehensible(reply.text))
        return reply

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the model's odds; the witness never requests them."""
        return await self.inner.odds(request, options, within_s=within_s)

    def _fixed(self, task: str, request: ChatRequest) -> Mapping[str, Any] | None:
        """Returns the arm's answer; None if the model is to be called."""
        if self.arm is not Arm.NO_SECOND_LOOK or task not in _PUT_ASIDE:
            return _FIXED.get((self.arm, task))
        # The document is the last part before the question; the evidence may have grown, but the fence is the same.
        document, attempt = str(request.parts[-2]), request.call_id.attempt if request.call_id else 1
        # A call repeated because of an unusable reply is not a second look.
        if document in self._documents and attempt == 1:
            return _PUT_ASIDE[task]
        self._documents.add(document)
        return None


_FIXED: Mapping[tuple[Arm, str], Mapping[str, Any]] = {
    (Arm.NO_RANK, "rank"): {"order": []},  # results not listed stay in the source's order
    (Arm.NO_SELF_CONTAINED, "comprehensible"): {"comprehensible": True},
}
"""Answers of arms to the questions of a step that they leave out."""
_PUT_ASIDE: Mapping[str, Mapping[str, Any]] = {
    "comprehensible": {"comprehensible": False},
    "weigh": {
        **dict.fromkeys(("comprehensible", "new", "useful", "enough"), False),
        **{"quotes": [], "label": "not enough", "next": []},
    },
}
"""Answers about a document that was put aside, and is not looked at again."""


def _comprehensible(text: str) -> str:
    """Marks the document as comprehensible in a reply; returns an unparsable reply unchanged."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps({**fields, "comprehensible": True}) if isinstance(fields, dict) else text


_CALLS_S = 3600.0
_R = TypeVar("_R", bound=Reply)
Relation = Literal["supports", "refutes", "neither"]
"""Relation of a passage to a claim."""


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
    evidence: tuple[QuotedPassage, ...] = ()
    """Passages that the finding is based on; code found each in its document."""
    relations: tuple[Relation, ...] = ()
    """Relation of each of these by itself to the claim, of those that a model could judge; empty if none was asked."""
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


_Found = tuple[dict[str, Any], Sequence[EvidenceDocument]]
"""Fields of a checked claim, and the documents that its finding rests on."""


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
        model = ArmModel(self.model, arm)
        speaker = self._speaker(model, claim, self.temperature)
        read: Sequence[EvidenceDocument] = ()
        found: dict[str, Any]
        try:
            match arm:
                case Arm.CLOSED_BOOK:
                    known = await _choose(speaker, claim, "closed_book", _Known)
                    found = {"label": _KNOWN[known.label]}
                # Arms that need no events are run directly; all others run the same witness as trials, whose calls the
                # arm's model intercepts.
                case Arm.ONE_SHOT:
                    found, read = await self._one_shot(claim, speaker)
                case Arm.FIRE:
                    found, read = await self._fire(claim, speaker, calls)
                case _:
                    found, read = await self._witness(claim, speaker, arm)
            # Only to match published figures: the witness of trials may abstain, so an evaluation that forces an
            # answer measures something else.
            if self.forced and found.get("label") is ClaimLabel.NOT_ENOUGH:
                choice = await _choose(speaker, claim, "forced", _Forced, shown=_shown(speaker, read))
                found["forced"] = choice.label == "true"
        except CourtError as error:
            if error.reason in SOURCE_AWAY and isinstance(error, Unavailable):
                raise _later(error) from None
            # Only permanent errors are failures of the model; transient ones are not.
            found = {"failure": error.reason}
        # The witness records such an error and continues, as in a trial; here, a claim checked that way would count as
        # a failure of the model, or as a claim without evidence.
        if model.failure is not None:
            raise _later(model.failure)
        used = {name: getattr(model, name) for name in ("calls", "tokens_in", "tokens_out")}
        checked = CheckedClaim(**{"id": claim.id, "arm": arm, "gold": claim.gold, "label": None} | found | used)
        # After the finding: the cost of judging citations counts for another model, not for this arm.
        return checked.model_copy(update={"relations": await self._relations(claim, checked)})

    async def _witness(self, claim: GoldClaim, speaker: Speaker, arm: Arm) -> _Found:
        async def keep_nothing(*_: AnyEvent) -> None:
            """Discards events: none is stored beyond the check."""

        recorder = Recorder(f"{arm}:{claim.id}", keep_nothing, lambda: datetime.now(UTC))
        # The claim is given: finding claims in memes is not measured here.
        await recorder.record(ClaimsFound, claims=(CheckableClaim(number=1, text=claim.text),))
        witness = ExpertWitness(speaker=speaker, source=self._source, settings=self.settings, recorder=recorder)
        # Called right away, as there is no trial to decide when.
        witness.called.set()
        async with witness.concurrently("", None) as due:
            await due()
        settled = next(event for event in recorder.events if isinstance(event, ClaimSettled))
        record = ClaimRecord.of(recorder.events, 1)
        if away := [search.failure for search in record.searches if search.failure in SOURCE_AWAY]:
            raise Unavailable("The source of evidence can't be reached, or refuses.", reason=away[0])
        # The event of an unchecked claim has no failure: the first failed search or document has it.
        others = (str(getattr(event, "failure", "")) for event in recorder.events if event is not settled)
        found = {
            "label": settled.label if settled.checked else None,
            "because": settled.because,
            "failure": settled.failure if settled.checked else next(filter(None, others), "UNCHECKED"),
            "documents": settled.documents,
            "searches": len(record.searches),
            "second_looks": sum(event.second_look for event in record.weighed),
            "evidence": settled.evidence,
            # Quotes dropped while weighing documents, and at the end.
            "quotes_dropped": settled.quotes_dropped + sum(event.quotes_dropped for event in record.weighed),
        }
        # A document may be weighed twice, with the same text each time.
        read = {event.document: document_of(event) for event in record.weighed if event.text}
        return found, list(read.values())

    async def _one_shot(self, claim: GoldClaim, speaker: Speaker) -> _Found:
        brief = ClaimBrief(fence=speaker.fence, claim=claim.text, chars=speaker.reply_chars)
        reply = await speaker.say(Role.EXPERT, brief.queries(1), lambda text, _: parse_queries(text, 1))
        documents, failure = [], ""
        # If the model proposes no query, the claim itself is searched for.
        for hit in await self._hits(reply.value[0] if reply.value else claim.text):
            try:
                documents.append(readable(await self._source.read(hit.id, within_s=_CALLS_S), hit))
            except CourtError as error:
                failure = error.reason
        searched = {"because": ClaimBasis.QUERIES_USED, "searches": 1}
        # Unreadable documents are a failure, not a lack of evidence.
        if failure and not documents:
            return searched | {"failure": failure}, documents
        return searched | await _by_documents(claim, speaker, documents), documents

    async def _fire(self, claim: GoldClaim, speaker: Speaker, calls: int) -> _Found:
        snippets, searches = dict[str, EvidenceDocument](), 0
        # The last call is the final check.
        for _ in range(max(1, calls - 1)):
            step = await _choose(speaker, claim, "fire", _FireStep, shown=_shown(speaker, snippets.values()))
            if step.label != "not yet" or not step.query:
                break
            searches += 1
            for hit in await self._hits(step.query):
                snippets[hit.id] = readable(snippet_of(hit), hit)
        read = list(snippets.values())
        searched = {"because": ClaimBasis.QUERIES_USED, "searches": searches}
        return searched | await _by_documents(claim, speaker, read), read

    async def _hits(self, query: str) -> Sequence[RankedHit]:
        return hits_of(await self._source.search(query, most=self.settings.expert_results, within_s=_CALLS_S))

    @property
    def _source(self) -> EvidenceSource:
        assert self.source is not None, "this arm reads documents"
        return self.source

    async def _relations(self, claim: GoldClaim, found: CheckedClaim) -> tuple[Relation, ...]:
        # An abstention is not based on any passage.
        if self.citations_by is None or found.label in (None, ClaimLabel.NOT_ENOUGH):
            return ()
        relations: list[Relation] = []
        for passage in found.evidence:
            model = ArmModel(self.citations_by, Arm.WITNESS)
            # At temperature 0, whatever the witness uses: this measures the witness.
            speaker = self._speaker(model, claim, 0.0)
            words = speaker.fence.around(f"{quoted_source(passage)}\n{passage.quote}")
            shown = [_prompt().task("passage", passage=words)]
            try:
                relations.append((await _choose(speaker, claim, "cited", _Cited, shown=shown)).relation)
            except CourtError:
                # Without a usable reply the relation is unknown.
                if model.failure is not None:
                    raise _later(model.failure) from None
        return tuple(relations)

    def _speaker(self, model: ArmModel, claim: GoldClaim, temperature: float) -> Speaker:
        # The same mark for the same claim, so that a call's text, and thus its key in the call cache, is the same in a
        # later session.
        fence = Fence(self.mark(claim.id))
        return speaker_without_deadline(RoleModel(model, temperature), fence, self.settings.reply_chars)


async def _by_documents(claim: GoldClaim, speaker: Speaker, documents: Sequence[EvidenceDocument]) -> dict[str, Any]:
    """Finds by documents in one call; without any they are not enough."""
    if not documents:
        return {"label": ClaimLabel.NOT_ENOUGH}
    brief = ClaimBrief(fence=speaker.fence, claim=claim.text, chars=speaker.reply_chars, evidence=tuple(documents))
    texts = [document.text for document in documents]
    reply = await speaker.say(
        Role.EXPERT, brief.classify(), lambda text, last: parse_classification(text, texts, last=last)
    )
    return {
        "label": reply.value.label,
        "documents": len(documents),
        "evidence": tuple(passage_of(documents[index], quote) for index, quote in reply.value.quotes),
        "quotes_dropped": reply.value.dropped,
    }


def _prompt() -> Prompt:
    return load(PROMPTS, "claim_label")


def _shown(speaker: Speaker, documents: Iterable[EvidenceDocument]) -> list[str]:
    return [
        _prompt().task("evidence", number=str(number), document=speaker.fence.around(document_text(document)))
        for number, document in enumerate(documents, 1)
    ]


class _Known(Reply):
    label: Literal["true", "false", "unknown"]


_KNOWN = {"true": ClaimLabel.SUPPORTED, "false": ClaimLabel.REFUTED, "unknown": ClaimLabel.NOT_ENOUGH}


class _Forced(Reply):
    label: Literal["true", "false"]


class _Cited(Reply):
    relation: Relation


class _FireStep(Reply):
    label: Literal["supported", "refuted", "not yet"]
    query: Annotated[str, TextBounds(most=300, least=0), Field(max_length=300)]


async def _choose(speaker: Speaker, claim: GoldClaim, task: str, kind: type[_R], shown: Sequence[str] = ()) -> _R:
    """Asks the model to choose a word about a claim."""
    prompt = _prompt()
    agent = Agent(prompt, task, partial(parse, kind), schema_of(kind, 0))
    parts = [prompt.task("claim", claim=speaker.fence.around(claim.text)), *shown, prompt.task(task)]
    return (await agent.ask(speaker, parts, Role.EXPERT)).value


def _later(failure: Unavailable | BudgetSpent) -> Exception:
    # A spent budget does not recover by itself: the error is raised unchanged.
    return Later(failure.reason, failure.message) if isinstance(failure, Unavailable) else failure
