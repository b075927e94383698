"""Chat models that replay recorded replies, to run today's code on past trials."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from typing_extensions import override

from court.errors import CourtError, Unavailable
from court.events import (
    ClaimEvent,
    ClaimSettled,
    ClaimsFound,
    DocumentWeighed,
    Event,
    EvidenceSearched,
    QueriesPlanned,
    RawReply,
    Role,
)
from court.expert.witness import TIME, WitnessOutOfTime
from court.ports import CallId, ChatModel, ChatReply, ChatRequest, Odds
from court.record import TrialRecord
from eval.models.metered import CallBudget


class NotRecorded(CourtError):
    """Raised if today's code requests a reply that the record does not have."""

    default_reason = "REPLY_NOT_RECORDED"


class PromptChanged(CourtError):
    """Raised if a prompt differs from the recorded one, so that the reply to it is unknown."""

    default_reason = "PROMPT_CHANGED"


@dataclass(frozen=True, slots=True)
class RecordedOdds:
    """Odds that the Judge's model gave."""

    prompt_digest: str
    masses: tuple[tuple[float, float], ...]
    """Probabilities of harmful and not harmful, for each order of the options."""


class RecordedModel:
    """A :class:`~court.ports.ChatModel` that answers from a record, looked up by the id of a call in its trial."""

    def __init__(
        self,
        name: str,
        replies: Mapping[CallId, Sequence[RawReply]],
        odds: Mapping[tuple[int, int], RecordedOdds] | None = None,
        *,
        patience_s: float = 0.0,
    ) -> None:
        """Sets the recorded replies.

        Args:
            replies: Replies of each call, a repaired one last; keyed by the id of the first attempt.
            odds: Odds by the number of the judge and the step; None for a model that gave none.
            patience_s: Seconds that a call without a recorded reply waits before it fails, as another call's failure
                may have ended the trial.
        """
        self._name = name
        # Keyed without the prompt's digest, which is stored with the reply: a changed prompt is a separate error
        # (PromptChanged) and not a missing reply.
        self._replies = {
            _bare(call_id): (call_id.prompt_digest, tuple(recorded)) for call_id, recorded in replies.items()
        }
        self._odds = odds or {}
        self._orders: Counter[tuple[int, int]] = Counter()
        self._patience_s = patience_s

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the recorded reply. Raises NotRecorded or PromptChanged if there is none for this request."""
        call_id = request.call_id
        assert call_id is not None, "a recorded model is asked within a trial alone"
        digest, recorded = self._replies.get(_bare(call_id), (call_id.prompt_digest, ()))
        if digest != call_id.prompt_digest:
            raise PromptChanged(f"{_capital(_words(call_id))} is asked for in other words than it was.")
        if len(recorded) < call_id.attempt:
            await asyncio.sleep(self._patience_s)
            raise NotRecorded(
                f"{_capital(_words(call_id))} can't be used by today's code, and was not asked for again."
                if recorded
                else f"Today's code asks for {_words(call_id)}, and the record has none."
            )
        reply = recorded[call_id.attempt - 1]
        return self._reply(reply.text, reply)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the recorded odds, order by order; None if the model gave none. Raises PromptChanged."""
        call_id = request.call_id
        assert call_id is not None, "a recorded model is asked within a trial alone"
        # Both requests for odds have the same id and are distinguished by their order.
        key = (call_id.judge, call_id.step)
        stored, order = self._odds.get(key), self._orders[key]
        if stored is None or order >= len(stored.masses):
            return None
        if call_id.prompt_digest != stored.prompt_digest:
            raise PromptChanged("The Judge's odds are asked for in other words than they were.")
        self._orders[key] += 1
        # The second of the two requests has the options in the other order.
        masses = stored.masses[order] if order == 0 else stored.masses[order][::-1]
        return Odds(masses, self._reply(options[0], RawReply(text=options[0])))

    def _reply(self, text: str, raw: RawReply) -> ChatReply:
        return ChatReply(
            text=text,
            finish=raw.finish,
            model=self._name,
            tokens_in=0,
            tokens_out=0,
            tokens_cached=0,
            latency_s=0.0,
            thought="a thought" if raw.thought else "",
        )


Sent = tuple[str, tuple[str, ...]]
"""System message and texts of a request."""


class FallbackModel:
    """A :class:`~court.ports.ChatModel` that answers from a record, and asks a model where the request is another."""

    def __init__(
        self, recorded: ChatModel, model: ChatModel | None, sent: Collection[Sent], budget: CallBudget
    ) -> None:
        """Sets record and model.

        Args:
            model: Model that is asked; None to ask nobody.
            sent: All requests of the record.
        """
        self._recorded, self._model, self._sent, self._budget = recorded, model, sent, budget

    @property
    def name(self) -> str:
        """The model's name."""
        return (self._model or self._recorded).name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the recorded reply, else the model's. Raises PromptChanged if there is neither."""
        if self._was_sent(request):
            try:
                return await self._recorded.reply(request, within_s=within_s)
            except (NotRecorded, PromptChanged):
                pass  # the same words at another point of the trial
        return await self._fallback().reply(request, within_s=within_s)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the recorded odds, else the model's; None if it gives none. Raises PromptChanged as for a reply."""
        if self._was_sent(request):
            with suppress(PromptChanged):
                return await self._recorded.odds(request, options, within_s=within_s)
        return await self._fallback().odds(request, options, within_s=within_s)

    def _was_sent(self, request: ChatRequest) -> bool:
        # Pictures are those of the meme and of its precedents in either trial.
        return (request.system, tuple(part for part in request.parts if isinstance(part, str))) in self._sent

    def _fallback(self) -> ChatModel:
        if self._model is None:
            raise PromptChanged("A model would be asked in other words than it was.")
        self._budget.spend()
        return self._model


def _bare(call_id: CallId) -> CallId:
    """Returns the id of the first attempt, without the prompt's digest."""
    return replace(call_id, prompt_digest="", attempt=1)


def _words(call_id: CallId) -> str:
    reply_name = {
        "describe": "the description",
        "answer": "the Proposer's answer",
        "ask": "a question",
        "summarise": "a summary",
        "judge": "the ruling",
    }.get(call_id.task, call_id.task)
    owner = (
        "" if call_id.side is None else f" {'to' if call_id.role is Role.PROPOSER else 'of'} the {call_id.side.lower()}"
    )
    if call_id.judge > 1:
        owner = f" of judge {call_id.judge}"
    return f"{reply_name}{owner}{f' in round {call_id.round}' if call_id.round else ''}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


Place = tuple[int, int]
"""Number of a claim, and of the search or document for it; 0 where there is none."""

_WITHOUT_DOCUMENT = ("claims", "queries", "rank", "classify")


def place_of(event: Event) -> Place:
    """The id of an event's calls among those of the expert witness; zeros for events of others."""
    return (event.claim, getattr(event, "number", 0)) if isinstance(event, ClaimEvent) else (0, 0)


class RecordedExpert(ChatModel):
    """Plays back the replies and failures of the witness's model, and stops where the record stops."""

    def __init__(self, recorded: RecordedModel, record: TrialRecord) -> None:
        """Takes the model with the replies on record, and the record for the failures."""
        self._recorded = recorded
        self._failures = {(kind, call_id): reason for kind, call_id, reason in _failures(record) if reason}

    @property
    @override
    def name(self) -> str:
        return self._recorded.name

    @override
    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        try:
            # Replies first: what was answered then is on record, and what was not has failed or was never asked.
            return await self._recorded.reply(request, within_s=within_s)
        except NotRecorded:
            call_id = request.call_id
            assert call_id is not None, "a recorded model is asked within a trial alone"
            kind = call_id.task if call_id.task in _WITHOUT_DOCUMENT else "document"
            reason = self._failures.get((kind, (call_id.claim, call_id.step)))
            # Neither a reply nor a failure: the time was up there, so that it is up here at the same point.
            if reason is None:
                raise WitnessOutOfTime("The record goes no further.") from None
            raise Unavailable("The witness gave no answer.", reason=reason) from None

    @override
    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        return None


def _failures(record: TrialRecord) -> list[tuple[str, Place, str]]:
    found: list[tuple[str, Place, str]] = []
    for event in record.events:
        match event:
            # TIME is no answer of the model: in a replay, the work ends there by itself.
            case ClaimsFound() if event.failure != TIME:
                found.append(("claims", (0, 0), event.failure))
            case QueriesPlanned():
                found.append(("queries", place_of(event), event.failure))
            case EvidenceSearched():
                found.append(("rank", place_of(event), event.rank_failure))
            case DocumentWeighed() if event.sha256:  # without a text, nobody was asked about it
                found.append(("document", place_of(event), event.failure))
            case ClaimSettled():
                found.append(("classify", place_of(event), event.failure))
            case _:
                pass
    return found
