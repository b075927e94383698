"""Chat models that replay recorded replies, to run today's code on past trials."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from court.errors import CourtError, Unavailable
from court.events import (
    ClaimEvent,
    ClaimSettled,
    ClaimsFound,
    DocumentWeighed,
    Event,
    EvidenceSearched,
    OddsGiven,
    QueriesPlanned,
    RawReply,
    Role,
)
from court.expert.witness import TIME, WitnessOutOfTime
from court.ports import CallId, ChatModel, ChatReply, ChatRequest, Odds
from court.record import TrialRecord, TrialState
from court.roles import PROBE_STEPS
from eval.models.metered import CallBudget

_FAILED_PATIENCE_S = 0.5
"""Seconds that a call of a failed trial waits where the record has no reply: the failure ends it before."""

_TASKS = {
    "describe": "the description",
    "answer": "the Proposer's answer",
    "ask": "a question",
    "summarise": "a summary",
    "judge": "the ruling",
}

_FAILURES: Mapping[type[Event], tuple[str, str]] = {
    ClaimsFound: ("claims", "failure"),
    QueriesPlanned: ("queries", "failure"),
    EvidenceSearched: ("rank", "rank_failure"),
    DocumentWeighed: ("document", "failure"),
    ClaimSettled: ("classify", "failure"),
}
"""Kind of a call of the witness, which may fail without failing the trial, and the field with its failure."""


class NotRecorded(CourtError):
    """Raised if today's code requests a reply that the record does not have."""

    default_reason = "REPLY_NOT_RECORDED"


class PromptChanged(CourtError):
    """Raised if a prompt differs from the recorded one, so that the reply to it is unknown."""

    default_reason = "PROMPT_CHANGED"


class RecordedModel:
    """A :class:`~court.ports.ChatModel` for all roles that answers from a record, by the id of a call in its trial."""

    def __init__(self, record: TrialRecord) -> None:
        """Reads the replies, the odds and the failures on record."""
        self.name = next(iter(record.opened.versions.models.values()), "recorded")
        # Keyed without the prompt's digest, which is stored with the reply: a changed prompt is a separate error
        # (PromptChanged) and not a missing reply.
        self._replies = dict(_replies(record))
        self._odds = dict(_odds(record))
        self._orders: Counter[tuple[int, int]] = Counter()
        self._failures = {
            (kind, *_claim_and_step(event)): getattr(event, field)
            for of, (kind, field) in _FAILURES.items()
            for event in record.all(of)
        }
        self._guard_failure = record.guard.failure if record.guard else ""
        # A decided trial has every reply on record: there is nothing that could end a wait for another.
        self._patience_s = 0.0 if record.state is TrialState.DECIDED else _FAILED_PATIENCE_S

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the recorded reply.

        Raises:
            NotRecorded, PromptChanged: There is none for this request.
            Unavailable: Guard or witness gave none then.
            WitnessOutOfTime: The time of the witness was up there.
        """
        call_id = _id_of(request)
        bare = replace(call_id, prompt_digest="", attempt=1)
        digest, recorded = self._replies.get(bare, (call_id.prompt_digest, ()))
        if digest != call_id.prompt_digest:
            raise PromptChanged(f"Today's code asks for {_words(call_id)} in other words than it was asked for.")
        if len(recorded) < call_id.attempt:
            await asyncio.sleep(self._patience_s)
            raise self._why_missing(call_id, asked_before=bool(recorded))
        reply = recorded[call_id.attempt - 1]
        return self._reply(reply.text, reply)

    def _why_missing(self, call_id: CallId, *, asked_before: bool) -> Exception:
        reason = ""
        if call_id.role is Role.GUARD:
            reason = self._guard_failure
        elif call_id.role is Role.EXPERT:
            # All tasks about one document fail as one.
            kind = call_id.task if call_id.task in dict(_FAILURES.values()) else "document"
            reason = self._failures.get((kind, call_id.claim, call_id.step), "")
            # Neither a reply nor a failure: the time was up there, so that it is up here at the same point.
            if reason in ("", TIME):
                return WitnessOutOfTime("The record goes no further.")
        if reason:
            return Unavailable("It gave no answer.", reason=reason)
        return NotRecorded(
            f"Today's code can't use {_words(call_id)}, and it was not asked for again."
            if asked_before
            else f"Today's code asks for {_words(call_id)}, and the record has none."
        )

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the recorded odds, order by order; None if the model gave none. Raises PromptChanged."""
        call_id = _id_of(request)
        # Both requests for odds have the same id and are distinguished by their order.
        key = (call_id.judge, call_id.step)
        stored, order = self._odds.get(key), self._orders[key]
        if stored is None or order >= len(stored.harmful):
            return None
        if call_id.prompt_digest != stored.call.prompt_digest:
            raise PromptChanged("The Judge's odds are asked for in other words than they were.")
        self._orders[key] += 1
        masses = stored.harmful[order], stored.not_harmful[order]
        # The second of the two requests has the options in the other order.
        return Odds(masses if order == 0 else masses[::-1], self._reply(options[0], RawReply(text=options[0])))

    def _reply(self, text: str, raw: RawReply) -> ChatReply:
        return ChatReply(
            text=text,
            finish=raw.finish,
            model=self.name,
            tokens_in=0,
            tokens_out=0,
            tokens_cached=0,
            latency_s=0.0,
            thought="a thought" if raw.thought else "",
        )


Sent = tuple[str, tuple[str, ...]]
"""System message and texts of a request."""


@dataclass(frozen=True, slots=True)
class FallbackModel:
    """A :class:`~court.ports.ChatModel` that answers from a record, and asks a model where the request is another."""

    recorded: ChatModel
    model: ChatModel | None
    """Model that is asked; None to ask nobody."""
    sent: Collection[Sent]
    """All requests of the record."""
    budget: CallBudget

    @property
    def name(self) -> str:
        """The model's name."""
        return (self.model or self.recorded).name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Returns the recorded reply, else the model's. Raises PromptChanged if there is neither."""
        if self._was_sent(request):
            # The same words may have been sent at another point of the trial.
            with suppress(NotRecorded, PromptChanged):
                return await self.recorded.reply(request, within_s=within_s)
        return await self._fallback().reply(request, within_s=within_s)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Returns the recorded odds, else the model's; None if it gives none. Raises PromptChanged as for a reply."""
        if self._was_sent(request):
            with suppress(PromptChanged):
                return await self.recorded.odds(request, options, within_s=within_s)
        return await self._fallback().odds(request, options, within_s=within_s)

    def _was_sent(self, request: ChatRequest) -> bool:
        # Pictures are those of the meme and of its precedents in either trial.
        return (request.system, tuple(part for part in request.parts if isinstance(part, str))) in self.sent

    def _fallback(self) -> ChatModel:
        if self.model is None:
            raise PromptChanged("A model would be asked in other words than it was.")
        self.budget.spend()
        return self.model


def _id_of(request: ChatRequest) -> CallId:
    assert request.call_id is not None, "a recorded model is asked within a trial alone"
    return request.call_id


def _claim_and_step(event: Event) -> tuple[int, int]:
    """Number of a claim, and of the search or document for it; 0 where there is none."""
    claim: int = getattr(event, "claim", 0) if isinstance(event, ClaimEvent) else 0
    return claim, getattr(event, "number", 0) if claim else 0


def _replies(record: TrialRecord) -> Iterator[tuple[CallId, tuple[str, Sequence[RawReply]]]]:
    """Replies of all calls on record, each with the digest of its prompt, by the id of the first attempt."""
    for event in record.events:
        side, number = getattr(event, "side", None), getattr(event, "round", 0)
        judge = getattr(event, "judge", 0) or 1
        claim, step = _claim_and_step(event)
        for call, task, _ in event.reported_calls:
            place = CallId(call.role, task, "", side=side, round=number, judge=judge, claim=claim, step=step)
            if not task.startswith("odds"):
                yield place, (call.prompt_digest, call.replies)
    # These replies are in no event of a call: only the failure has them, and today's parser has to read them again.
    if record.state is not TrialState.DECIDED and record.failure and (last := record.failure.unusable):
        place = CallId(last.role, last.task, "", side=last.side, round=last.round, judge=last.judge)
        yield place, (last.prompt_digest, last.replies)


def _odds(record: TrialRecord) -> Iterator[tuple[tuple[int, int], OddsGiven]]:
    """Odds that the Judge's model gave, by the number of the judge and the step."""
    for event in record.events:
        # A judge who sits alone has odds with the verdict; those of a panel stand with each ruling.
        if (odds := getattr(event, "odds", None)) is not None:
            yield (getattr(event, "judge", 0) or 1, 0), odds
        for side, found in getattr(event, "probed", {}).items():
            yield (1, PROBE_STEPS[side]), found


def _words(call_id: CallId) -> str:
    words = [_TASKS.get(call_id.task, call_id.task)]
    if call_id.side is not None:
        words.append(f"{'to' if call_id.role is Role.PROPOSER else 'of'} the {call_id.side.lower()}")
    if call_id.judge > 1:
        words.append(f"of judge {call_id.judge}")
    if call_id.round:
        words.append(f"in round {call_id.round}")
    return " ".join(words)
