"""Chat models behind any server that speaks OpenAI's chat completions: vLLM, SGLang, llama.cpp, Ollama and others.

Time is kept and failures are tried again in one place, :meth:`ChatCompletions._within`; the SDK does neither. Its own
defaults (600 s, two retries) would run a generation three times. Where several servers have the model, that is also the
place where a call goes on to the next one.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import httpx2
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from court import usage as tally
from court.backends.chat import wire
from court.backends.chat.failures import Again, Failure, overrun
from court.backends.chat.features import Capabilities, LogProbs, Thinking, weakest
from court.backends.chat.server import ChatServer, Replicas
from court.backends.http import Load
from court.backends.http import http_client as http_client  # offered here too: what a model is made with
from court.errors import ModelRefused, Unavailable
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, Odds

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ChatCompletions:
    """A :class:`~court.ports.ReplicatedModel`; safe to call concurrently, within one event loop.

    Attributes:
        capabilities: Capabilities of the server. Set them, or have
            :func:`~court.backends.chat.capabilities.probe` find them.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None = None,
        capabilities: Capabilities | None = None,
        attempts: int = 4,
        pause_s: float = 0.25,
        pause_max_s: float = 8.0,
        http: httpx2.AsyncClient | None = None,
        load: Load | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            base_url: Address of the API, usually ending in ``/v1``.
            model: Its name at the server.
            api_key: Key of the API, if the server wants one. The environment is not searched for it.
            capabilities: Capabilities of the server.
            attempts: Largest number of attempts per call.
            pause_s: Longest pause before the second attempt, in seconds; doubles with each further one.
            pause_max_s: Longest pause before any attempt, in seconds; a server's ``Retry-After`` comes on top.
            http: A pool to share; whoever made it closes it. A pool of its own otherwise.
            load: Counts the calls in flight, together with those of others that it is given to.
        """
        self.capabilities = capabilities or Capabilities()
        self._model = model
        self._attempts = attempts
        self._jitter = wait_random_exponential(multiplier=pause_s, max=pause_max_s)
        self._own_http = http is None
        self._http = http or http_client()
        self._replicas = Replicas([ChatServer(base_url, api_key, self._http, load or Load(1))])
        self._keeps = False  # to one server, as a trial does

    @classmethod
    def joined(cls, models: Sequence[Self]) -> Self:
        """One model that several servers have.

        Args:
            models: The same at each server, probed by itself. What holds for all is what the weakest can do, and how
                often and when to try again is as with the first.
        """
        joined = copy.copy(models[0])
        joined._replicas = Replicas([server for model in models for server in model._servers])
        joined.capabilities = weakest([model.capabilities for model in models])
        return joined

    @property
    def name(self) -> str:
        """The model's name, as calls are made with it."""
        return self._model

    @property
    def _servers(self) -> tuple[ChatServer, ...]:
        return self._replicas.servers

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers; of those that are equally busy, the first is asked."""
        return tuple(server.url for server in self._servers)

    @property
    def answered_at(self) -> float:
        """Time of the last answer from one of the model's servers, in seconds of the monotonic clock."""
        return max(server.answered_at for server in self._servers)

    def apart(self) -> Sequence[Self]:
        """Returns the model once for each of its servers, each bound to one."""
        alone = [copy.copy(self) for _ in self._servers]
        for model, server in zip(alone, self._servers, strict=True):
            model._replicas = Replicas([server])
        return alone

    def pinned(self, key: str) -> Self:
        """Returns the model for a trial, which keeps to one server; see :meth:`court.ports.ReplicatedModel.pinned`.

        Servers stand in the order of their weights for the key (rendezvous hashing, Thaler and Ravishankar 1998): where
        one is taken away, only the keys that it was first for go elsewhere, evenly.
        """
        # Shallow: connections, loads and what is known of each server stay common to all trials.
        pinned = copy.copy(self)
        pinned._keeps = True
        pinned._replicas = Replicas(sorted(self._servers, key=lambda server: _weight(server.url, key), reverse=True))
        return pinned

    def room(self) -> bool:
        """True if the server that is asked now would work on one more call at once."""
        return self._replicas.room()

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """One reply; see :meth:`court.ports.ChatModel.reply`."""
        began = time.monotonic()
        answer = await self.answer(request, within_s=within_s)
        try:
            reply = answer.reply(time.monotonic() - began)
        except Failure as failure:
            raise failure.to_court_error() from None
        schema_in_words = request.reply_schema is not None and not self.capabilities.json_schema
        return replace(reply, schema_in_words=True) if schema_in_words else reply

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Asks for the probability of each option as first token; see :meth:`court.ports.ChatModel.odds`.

        On vLLM the probabilities of exactly these tokens are asked for, as they are before anything shapes them; no
        other token is masked, for under a mask a server set to tell processed probabilities would tell them
        renormalised. Elsewhere they are looked up among the 20 most likely tokens: an option that is not among them
        has mass 0, which is a lower bound. They are asked of the model without a thought; one that can't be kept from
        thinking has none, for its first token is that of a thought.
        """
        if self.capabilities.log_probs is LogProbs.NONE or self.capabilities.thinking is Thinking.ALWAYS:
            return None
        began = time.monotonic()
        extra: dict[str, Any] = {"logprobs": True, "top_logprobs": wire.TOP}
        ids: list[int] | None = None
        if self.capabilities.log_probs is LogProbs.CHOSEN:
            # Looking up ids takes from the same time as the call itself.
            ids = [await self._token_id(option, within_s - (time.monotonic() - began)) for option in options]
            extra |= {"top_logprobs": len(ids), "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
        answer = await self.answer(
            replace(request, reply_schema=None, max_tokens=1, thought_tokens=0),
            within_s=within_s - (time.monotonic() - began),
            extra=extra,
        )
        candidates = answer.first_token()
        if candidates is None:
            masses = None
        elif ids is None:
            masses = wire.masses_of_words(candidates, options)
        else:
            masses = wire.masses_of_ids(candidates, ids)
        if masses is None:
            _log.warning("a model server gave no log-probabilities, or others than were asked for: no harm score")
        try:
            # Also without any: the trial accounts for what the call has cost.
            return Odds(masses=masses or (), reply=answer.reply(time.monotonic() - began))
        except Failure as failure:
            # How it ended matters only to what there is to be read.
            if masses is None:
                return None
            raise failure.to_court_error() from None

    async def answer(
        self, request: ChatRequest, *, within_s: float, extra: dict[str, Any] | None = None
    ) -> wire.ServerAnswer:
        """The answer as the server gave it, for those who want to see more of it than a reply.

        Args:
            request: Request to send.
            within_s: Seconds that it may take, retries included.
            extra: Further fields of the body.

        Raises:
            As :meth:`reply`.
        """
        frames = [part for part in request.parts if isinstance(part, Frame)]
        if len(frames) > self.capabilities.pictures:
            raise ModelRefused(
                f"The request shows {len(frames)} pictures; the model server takes {self.capabilities.pictures} in one "
                "prompt. Let it take more, or show fewer.",
                reason="MODEL_TOO_MANY_PICTURES",
            )
        fields = dict(extra or {})
        if request.reply_schema is not None and self.capabilities.json_schema:
            fields["response_format"] = wire.response_format(request.reply_schema)
        return await self._within(within_s, lambda server: self._ask(server, request, frames, fields))

    async def answer_by_id(self, frame: Frame, request: ChatRequest, *, within_s: float) -> wire.ServerAnswer:
        """The answer to a request that begins with a picture, which is named and not sent. Raises as :meth:`reply`."""
        request = replace(request, parts=(frame, *request.parts))
        # Named whether or not the server has it: what it does with an unknown id is what the probe finds out.
        known = {wire.digest(frame): None}
        return await self._within(
            within_s,
            lambda server: server.chat(request, model=self._model, capabilities=self.capabilities, known=known),
        )

    async def listed(self, *, within_s: float) -> wire.ListedModels:
        """The models that the server lists. Raises as :meth:`reply`."""
        return await self._within(within_s, lambda server: server.models())

    async def aclose(self) -> None:
        """Closes the connections, unless they are shared."""
        if self._own_http:
            await self._http.aclose()

    async def _ask(
        self, server: ChatServer, request: ChatRequest, frames: Sequence[Frame], fields: dict[str, Any]
    ) -> wire.ServerAnswer:
        ids = [wire.digest(frame) for frame in frames] if self.capabilities.picture_ids else []
        # Looked up now: until the answer is here, another call may have found out that the server lost them.
        named = [i for i in ids if i in server.known]
        chat = partial(server.chat, request, model=self._model, capabilities=self.capabilities, fields=fields)
        try:
            answer = await chat(known=server.known)
        except Failure as failure:
            if not named or not isinstance(failure.error, ModelRefused) or failure.error.status != 400:
                raise
            # It may have dropped a picture that it had. Refused is refused: this is not a retry, nothing has run.
            server.forget(named)
            answer = await chat(known=server.known)
        server.has(ids)
        return answer

    async def _token_id(self, option: str, within_s: float) -> int:
        """Id of the token that an option is; the same at every server, for the model is."""
        token_ids = self._servers[0].token_ids
        if option not in token_ids:
            ids = await self._within(within_s, lambda server: server.tokens(self._model, option))
            # The probability would be that of its first piece, which other words may begin with as well.
            if len(ids) != 1:
                raise ModelRefused(
                    "An option is not a single token for this model. Choose shorter ones.", reason="MODEL_OPTION"
                )
            (token_ids[option],) = ids
        return token_ids[option]

    async def _within(self, within_s: float, ask: Callable[[ChatServer], Awaitable[_T]]) -> _T:
        """Asks, and asks again where that makes sense, within the time.

        A server that is gone is left for another one, by this call and by later ones of its trial; whether a call may
        be made again, and how often, does not depend on how many servers there are.
        """
        # Nothing is sent whose answer could not be waited for.
        if within_s <= 0:
            raise overrun()
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Failure) and error.again is not Again.NEVER),
            # When the pause would end after the deadline, the failure is told now and not as a lack of time then.
            stop=lambda state: self._attempts_spent(state) or stop_before_delay(within_s)(state),
            wait=self._pause,
            reraise=True,
        )

        # Only a trial has a server to stay with; any other call chooses among all.
        replicas = self._replicas if self._keeps else Replicas(self._servers)
        # Counted for RE-6: a request that kills model servers must not be sent again and again.
        broke_off = 0
        stumbled: set[str] = set()

        async def attempt() -> _T:
            nonlocal broke_off
            server = replicas.choose()
            with server.load.call():  # not while it pauses: the server has nothing to do for it then
                try:
                    answer = await ask(server)
                except Failure as failure:
                    if failure.gone:
                        replicas.leave(server)
                    if failure.unreached or failure.broke_off:
                        server.lost()
                    if failure.stumbled:
                        stumbled.add(server.url)
                    # One that said so and can't be reached afterwards has died of what it was working on.
                    broke_off += failure.broke_off or (failure.unreached and server.url in stumbled)
                    if failure.unreached:
                        stumbled.discard(server.url)
                    raise
                server.answered()
                return answer

        async def attempts() -> _T:
            try:
                return await retrying(attempt)
            except (Failure, asyncio.CancelledError) as error:
                # The library's frames remember what went through them, and that would remember them, and the request.
                raise error.with_traceback(None)  # noqa: B904  # it is the same

        try:
            async with asyncio.timeout(within_s):
                answer = await attempts()
            # Answered in the end: whatever broke off on the way did not die of this request.
            broke_off = 0
            return answer
        except TimeoutError:
            pass
        except Failure as failure:
            if isinstance(failure.error, Unavailable):
                failure.error.broke_off = broke_off
            raise failure.to_court_error() from None
        finally:
            tally.broke_off(broke_off)
        raise overrun()  # not above: with what the call was ended with, it would remember the request

    def _attempts_spent(self, state: RetryCallState) -> bool:
        often = self._attempts + len(self._servers) - 1  # that the last is asked as often as the only one would be
        return state.attempt_number >= (2 if _failure(state).again is Again.ONCE else often)

    def _pause(self, state: RetryCallState) -> float:
        failure = _failure(state)
        if failure.gone and state.attempt_number < len(self._servers):
            return 0.0  # one that has not been asked yet
        return failure.after_s + self._jitter(state)


def _failure(state: RetryCallState) -> Failure:
    failure = state.outcome.exception() if state.outcome else None
    assert isinstance(failure, Failure)
    return failure


def _weight(url: str, key: str) -> bytes:
    return hashlib.sha256(f"{url}\n{key}".encode()).digest()
