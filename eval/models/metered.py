"""A model called through the call cache, within a budget, with its usage recorded.

A call that was made once is not made again, by any caller: a resumed run goes through the same steps and finds its
replies in the cache (:mod:`eval.models.call_cache`). So a step must repeat its request exactly, and all its random
choices must come from generators seeded by the run.

An agent is data: a task of a prompt, and the form of its reply. It is asked as a role of a trial is
(:class:`court.roles.Speaker`): strictly parsed, with one repair request that names the fault. Cache and budget stand
behind the speaker's model. Prompts are files next to the code that uses them, as in :mod:`court.prompts`.
"""

import asyncio
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from court.deadline import Deadline, model_late, run_within
from court.errors import CourtError, ReplyUnusable
from court.events import Role
from court.meme import Frame
from court.messages import Messages, apart
from court.ports import BATCH_PRIORITY, ChatModel, ChatReply, ChatRequest, Odds
from court.prompts import Fence, Prompt
from court.replies import UnusableReply
from court.roles import RoleModel, RoleReply, Speaker
from eval.models.call_cache import CachedModel, CallCache
from serving.settings import Urls

T = TypeVar("T")
_PATIENCE_S = 86_400.0
"""Seconds that a call may take with its wait for a slot; the model's own time is limited where it is called."""


@cache
def load(package: str, name: str, version: int = 1) -> Prompt:
    """Loads the prompt ``<name>.<version>.toml`` of a package. Raises FileNotFoundError if there is none."""
    return Prompt(tomllib.loads((files(package) / f"{name}.{version}.toml").read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class Agent(Generic[T]):
    """One task of a prompt."""

    prompt: Prompt
    task: str
    parse: Callable[[str], T]
    """Parses a reply; raises UnusableReply."""
    schema: dict[str, Any] | None = None
    """JSON schema of the reply; None for free text."""
    system: str = ""
    """System message; that of the prompt if empty. It contains trusted text only, nothing from a meme."""

    def messages(self, parts: Sequence[str | Frame]) -> Messages[Frame]:
        """Returns the messages of a call; ``parts`` include the task itself, and untrusted text in a fence."""
        system = self.system or self.prompt.system()
        return Messages(prompt=self.prompt, task=self.task, system=system, parts=apart(parts), schema=self.schema)

    async def ask(self, speaker: Speaker, parts: Sequence[str | Frame], role: Role = Role.JUDGE) -> RoleReply[T]:
        """Asks a model, and once more if its reply is unusable. Raises as :meth:`court.roles.Speaker.say`."""

        def read(text: str, _: bool) -> T:
            if not text.strip():
                raise UnusableReply("REPLY_EMPTY", "it was empty")
            return self.parse(text)

        return await speaker.say(role, self.messages(parts), read)


def speaker_without_deadline(model: RoleModel, fence: Fence, reply_chars: int = 0) -> Speaker:
    """Returns a speaker whose calls nobody waits for; see :class:`court.roles.Speaker`."""
    return Speaker(model=model, fence=fence, deadline=Deadline(None, _PATIENCE_S), reply_chars=reply_chars, batch=True)


_GRACE_S = 0.1


class BudgetSpent(CourtError):
    """The budget of a model is spent, so it may not be called any more. Replies so far are stored."""

    default_reason = "BUDGET_SPENT"


@dataclass(slots=True)
class CallBudget:
    """Calls that may be made of one model, or of all models of a command together; stored replies cost nothing."""

    most: int | None = None
    name: str = "--most-calls"
    """Setting that bounds them."""
    made: int = 0
    spent: bool = False
    """True if a call was refused."""

    @property
    def in_words(self) -> str:
        """The bound as a sentence after another one; empty without a bound."""
        return "" if self.most is None else f" At most {self.most:,} are made."

    def spend(self) -> None:
        """Counts a call that is about to be made. Raises BudgetSpent if it may not be."""
        self.spent = self.made == self.most
        if self.spent:
            raise BudgetSpent(
                f"The {self.made:,} calls of {self.name} are made. Replies are kept: raise it, and go on."
            )
        self.made += 1


@dataclass(slots=True)
class Account:
    """Totals of calls, tokens and cost."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, answer: object) -> None:
        """Adds the call that a reply or odds took; nothing for odds that there are none of."""
        reply = answer.reply if isinstance(answer, Odds) else answer
        if isinstance(reply, ChatReply):
            self.calls += 1
            self.tokens_in += reply.tokens_in
            self.tokens_out += reply.tokens_out


class ModelSpec(BaseModel):
    """Entry of one model in the models file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Urls | None = None
    """Address of its server, …/v1; a list for several with the same model. None for a vLLM that is started for it."""
    model: str = Field(min_length=1)
    """Model name at the server; for a vLLM that is started, its name on the hub, a folder, or a preset."""
    family: str = ""
    """Maker of the model: a panel of judges should have several makers."""
    api_key_env: str = ""
    """Environment variable that holds the API key, if the server requires one."""
    server: str = ""
    """Name of the server in the call cache, so that its entries stay valid if its address changes."""
    concurrency: int = Field(default=8, ge=1, le=10_000)
    """Maximum number of calls in flight."""
    max_tokens: int = Field(default=1024, ge=16, le=1_000_000)
    """Maximum number of tokens of a reply."""
    within_s: float = Field(default=300.0, gt=0, le=86_400)
    """Timeout of a call in seconds, retries included."""
    usd_in: float = Field(default=0.0, ge=0)
    """Price per million prompt tokens, in US dollars."""
    usd_out: float = Field(default=0.0, ge=0)
    """Price per million reply tokens."""
    most_calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls in one session: replies from the call cache do not count, and resuming a run resets
    the count."""

    def usd(self, account: Account) -> float:
        """Computes the cost of calls in US dollars; cached tokens count in full."""
        return (account.tokens_in * self.usd_in + account.tokens_out * self.usd_out) / 1e6


@dataclass(slots=True)
class Usage:
    """Usage of one model in one run."""

    all: Account = field(default_factory=Account)
    """All calls of the run, including those from the cache: its cost from scratch."""
    made: Account = field(default_factory=Account)
    repaired: int = 0
    unusable: int = 0
    """Number of replies that were unusable the second time too."""
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeteredCalls(CachedModel):
    """A model behind the cache that counts its calls, and those that are really made, and paid for.

    ``within_s`` of a call limits the wait for a slot; the timeout of the model itself is set here.
    """

    spec: ModelSpec
    usage: Usage
    budget: CallBudget
    turn: asyncio.Semaphore
    served: Callable[[], AbstractAsyncContextManager[object]]

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        self.usage.repaired += request.call_id is not None and request.call_id.attempt > 1
        try:
            return await CachedModel.reply(self, request, within_s=within_s)
        except CourtError as error:
            # A call that was not made for lack of budget is not a failure of the model.
            self.usage.failed += not isinstance(error, BudgetSpent)
            raise

    async def _once(self, key: str, ask: Callable[..., Awaitable[T]], within_s: float, kind: TypeAdapter[T]) -> T:
        async def made(*, within_s: float) -> T:
            # The limit is checked inside: the calls that this one waited for have spent part of it.
            async with self.turn, self.served():
                self.budget.spend()
                # A model keeps its own timeout; a moment later it is cancelled.
                call = ask(within_s=self.spec.within_s)
                answer = await run_within(call, self.spec.within_s + _GRACE_S, model_late)
                self.usage.made.add(answer)
                return answer

        answer = await CachedModel._once(self, key, made, within_s=within_s, kind=kind)
        self.usage.all.add(answer)
        return answer


class MeteredModel:
    """One model as called by the arena and the probe; safe to use concurrently, within one event loop."""

    def __init__(
        self,
        name: str,
        model: ChatModel,
        *,
        store: CallCache,
        spec: ModelSpec | None = None,
        server: Mapping[str, Any] | None = None,
        run_seed: int = 0,
        served: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """Makes no call yet. Another ``run_seed`` gives other replies if the temperature makes them random."""
        self.name = name
        self.spec = spec or ModelSpec(model=name)
        self.usage = Usage()
        self.store = store
        self._server = dict(server or {})
        self._inner, self._served, self._run_seed = model, served, run_seed
        self._turn = asyncio.Semaphore(self.spec.concurrency)
        self._budget = CallBudget(self.spec.most_calls, f"most_calls of {name}")

    @property
    def model(self) -> str:
        """The model's own name."""
        return self._inner.name

    def counts(self, account: Account | None = None) -> dict[str, Any]:
        """Returns the figures of an account, or of the calls that were made, and those of all replies."""
        one, usage = account or self.usage.made, self.usage
        of_replies = {"repaired": usage.repaired, "unusable": usage.unusable, "failed": usage.failed}
        tokens = {"tokens_in": one.tokens_in, "tokens_out": one.tokens_out}
        return {"calls": one.calls, **tokens, "usd": self.spec.usd(one), **of_replies}

    def fence(self, *names: str) -> Fence:
        """Returns marks for text from strangers and models; the same for the same names wherever this cache is used."""
        return Fence(self.store.fence_mark(*names))

    async def ask(
        self, system: str, parts: Sequence[str | Frame], *, temperature: float = 0.0, seed: int = 0
    ) -> ChatReply:
        """Returns one reply in free text, from the cache if the same call was made before.

        Args:
            system: System message; must contain trusted text only, nothing from a meme or a model.
            parts: Parts of the user message; untrusted text must be in a fence.
            seed: Number of the draw, if the same call is repeated at a temperature above 0.

        Raises:
            BudgetSpent: The model's budget is spent, and the cache has no reply.
            CallsError: The cache cannot be used.
            Overrun, Unavailable, ModelRefused: There is no reply.
        """
        request = ChatRequest(
            system=system,
            parts=apart(parts),
            reply_schema=None,
            max_tokens=self.spec.max_tokens,
            temperature=temperature,
            # Trials with a waiting user go first.
            priority=BATCH_PRIORITY,
        )
        # A call may have to wait for a slot: only the model's own time is limited, by _MeteredCalls.
        return await self.as_chat_model(seed).reply(request, within_s=_PATIENCE_S)

    def as_chat_model(self, seed: int = 0) -> ChatModel:
        """Returns the model in the form that trials use, with the same cache, budget and usage."""
        # Combined into one number so that the draws of a run differ from those of the run with the next seed.
        draw = self._run_seed * 1_000_003 + seed
        return _MeteredCalls(
            inner=self._inner,
            store=self.store,
            server=self._server,
            seed=draw,
            spec=self.spec,
            usage=self.usage,
            budget=self._budget,
            turn=self._turn,
            served=self._served,
        )

    async def say(
        self,
        agent: Agent[T],
        parts: Sequence[str | Frame],
        *,
        fence: Fence,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> RoleReply[T]:
        """Returns an agent's strictly parsed reply; an unusable one is requested once more, with the fault named.

        Raises:
            ReplyUnusable: Neither reply was usable, the model declined, or it gave its instructions away.
            CourtError: See :meth:`ask`.
        """
        model = RoleModel(self.as_chat_model(seed), temperature, max_tokens or self.spec.max_tokens)
        speaker = speaker_without_deadline(model, fence)
        try:
            return await agent.ask(speaker, parts)
        except ReplyUnusable as error:
            self.usage.unusable += 1
            raise ReplyUnusable(self.name, agent.task, error.reason, error.what) from None
