"""Chat models behind any server with OpenAI's chat completions API: vLLM, SGLang, llama.cpp, Ollama and others.

Timeouts, retries and failover between servers are handled in one place, :meth:`ChatCompletions._within`, and not by the
SDK, whose defaults (600 s, two retries) would run a generation three times.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import httpx2
import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from court import deadline
from court.backends.chat import wire
from court.backends.chat.failures import Failure, Retries, broke_off, garbled, of_sdk, overrun
from court.backends.chat.wire import Capabilities, LogProbs, Thinking, weakest
from court.backends.http import CONNECT_S, Load, UnreadableAnswer
from court.backends.http import http_client as http_client  # offered here too: what a model is made with
from court.errors import ModelRefused, Unavailable
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, Odds, Speed

_KNOWN = 4096  # maximum picture ids assumed to be cached by the server
_RECHECK_S, _RECHECK_MAX_S = 1.0, 30.0
"""Initial and maximum interval, in seconds, of probing a server that is gone; doubles with each failure."""


SLOW_START_S = 30.0
"""Slow start: seconds from the first answer of a returned server until it gets its full share of trials."""
_LEAST_SHARE = 0.1
"""Initial share of a returned server: it is chosen if the others have ten times as many calls in flight."""


class ChatServer:
    """A server of one model; safe to call concurrently, within one event loop.

    Attributes:
        gone_at: Time at which it was found to be gone, in seconds of the monotonic clock; None while it is available.
        answered_at: Time of the last answered chat, in seconds of the monotonic clock; minus infinity before the first.
            Not part of the load, which models share, because several models at one URL have separate engines.
    """

    def __init__(self, url: str, api_key: str | None, http: httpx2.AsyncClient, load: Load) -> None:
        self.url = url
        self._secrets = (api_key,) if api_key else ()
        self.load = load
        self.known: OrderedDict[str, None] = OrderedDict()
        self.token_ids: dict[str, int] = {}
        self.answered_at = float("-inf")
        self.gone_at: float | None = None
        self.back_at = float("-inf")
        self._misses = 0
        self._recheck_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=api_key or "none",  # required by the SDK; servers without a key ignore it
            # Retries are decided in one place (client.py): the SDK's own would run a generation several times.
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        # Values that the SDK took from the environment are not meant for this server.
        self._client.organization = self._client.project = self._client.admin_api_key = None
        # vLLM serves /tokenize beside /v1 and not below it.
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        self._tokenize_url = f"{root}/tokenize"
        for name in ("openai", "httpx2", "httpcore2"):
            # These log addresses, and bodies at debug level; content of memes must not get into logs.
            logging.getLogger(name).setLevel(logging.WARNING)

    async def chat(
        self,
        request: ChatRequest,
        *,
        model: str,
        capabilities: Capabilities,
        known: Mapping[str, None],
        fields: Mapping[str, Any] | None = None,
    ) -> wire.ServerAnswer:
        """Sends a request; streamed, to distinguish an interrupted reply from one that never began.

        Raises:
            Failure: There is no answer, or it can't be parsed.
        """
        try:
            call = self._client.chat.completions.with_streaming_response.create(
                model=model,
                messages=[],  # sent as an extra field: the SDK would process each part, at 2 ms per call
                temperature=capabilities.temperature(request),
                extra_body={
                    "messages": wire.messages(request, capabilities, known),
                    **capabilities.fields(request),
                    **(fields or {}),
                },
            )
            async with call as response:
                answer = wire.read(await _read(response.http_response), self.url)
        except openai.OpenAIError as error:
            texts = [part for part in request.parts if isinstance(part, str)]
            raise of_sdk(error, model=model, sent=[*texts, *self._secrets]) from None
        self.answered_at = time.monotonic()
        return answer

    async def models(self) -> wire.ListedModels:
        """Returns the listed models. Raises Failure."""
        try:
            response = await self._client.get("/models", cast_to=httpx2.Response)
        except openai.OpenAIError as error:
            raise of_sdk(error) from None
        return wire.read_models(response.content)

    async def tokens(self, model: str, text: str) -> list[int]:
        """Returns the token ids of a text for a model. Raises Failure."""
        try:
            response = await self._client.post(
                self._tokenize_url,
                body={"model": model, "prompt": text, "add_special_tokens": False},
                cast_to=httpx2.Response,
            )
        except openai.OpenAIError as error:
            raise of_sdk(error) from None
        return wire.read_tokens(response.content)

    def lost(self) -> None:
        """Marks the server as unreachable or disconnected."""
        now = time.monotonic()
        # The first miss counts: of several gone servers, the one gone for longest is chosen first (Replicas._best).
        self.gone_at = now if self.gone_at is None else self.gone_at
        self._recheck_at = now + min(_RECHECK_MAX_S, _RECHECK_S * 2**self._misses)
        # Bounds the exponent above; the interval reaches _RECHECK_MAX_S long before.
        self._misses = min(self._misses + 1, 16)

    def answered(self) -> None:
        """Marks the server as available."""
        if self.gone_at is not None:
            self.gone_at, self.back_at = None, time.monotonic()
        elif self._misses and time.monotonic() - self.back_at > _RECHECK_MAX_S:
            self._misses = 0  # stable again, so the backoff restarts

    def probe_if_gone(self) -> None:
        """Periodically probes a gone server in the background."""
        due = self.gone_at is not None and time.monotonic() >= self._recheck_at
        if due and (self._looking is None or self._looking.done()):
            # One probe at a time, referenced because the event loop only holds weak references to tasks.
            self._looking = asyncio.ensure_future(self._probe())

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.models()
        except TimeoutError:
            self.lost()
        except Failure as failure:
            # Any other answer means that it is back; some servers do not list models.
            if failure.gone:
                self.lost()
            else:
                self.answered()
        else:
            self.answered()

    def has(self, ids: Iterable[str]) -> None:
        """Marks pictures as cached by the server."""
        for i in ids:
            self.known[i] = None
            # LRU order: the first to be dropped are those that the server has probably evicted too.
            self.known.move_to_end(i)
        while len(self.known) > _KNOWN:
            self.known.popitem(last=False)

    def forget(self, ids: Iterable[str]) -> None:
        """Marks pictures as possibly not cached."""
        for i in ids:
            self.known.pop(i, None)


async def _read(response: httpx2.Response) -> bytes:
    try:
        return await response.aread()
    except UnreadableAnswer:
        raise garbled() from None
    except httpx2.TransportError:
        # The answer had begun: a retry would run the generation again.
        raise broke_off(Retries.NEVER) from None


class Replicas:
    """The servers of one model for one trial; for use within one event loop.

    A trial uses the server with the fewest calls in flight and stays with it, as its prefix is cached there. Ties are
    broken by the trial's own order of servers, so that a picture returns to a server that has seen it. If a server is
    gone, the trial fails over to another, and no new trial starts there until it answers again; its share then grows
    gradually, as its caches are cold and its kernels may need compilation.
    """

    def __init__(self, servers: Sequence[ChatServer]) -> None:
        self.servers = tuple(servers)
        self._own: ChatServer | None = None
        self._left: list[ChatServer] = []

    def choose(self) -> ChatServer:
        """Returns this trial's server; chooses one for the first call, or after the previous one was left."""
        if self._own is None:
            self._own = self._best()
        return self._own

    def leave(self, server: ChatServer) -> None:
        """Excludes a server; once all were excluded, earlier ones may be tried again."""
        if server not in self._left:
            self._left.append(server)
        if len(self._left) == len(self.servers):
            # All others may be tried again, except the one that has just failed.
            self._left = [server]
        if self._own is server:  # of several concurrent failures, only the first causes a switch
            self._own = None

    def room(self) -> bool:
        """True if the server that would be used next could start one more call immediately."""
        return (self._own or self._best()).load.room()

    def _best(self) -> ChatServer:
        if len(self.servers) == 1:
            return self.servers[0]
        candidates = [server for server in self.servers if server not in self._left]
        there = [server for server in candidates if server.gone_at is None]
        for server in self.servers:
            # Triggered by trials choosing a server, so an idle court sends no probes.
            server.probe_if_gone()
        if there:
            # One more than are in flight, so that the share also matters on idle servers.
            return min(there, key=lambda server: (server.load.in_flight + 1) / _share(server))
        return min(candidates, key=lambda server: server.gone_at or 0.0)  # most likely to be back


def _share(server: ChatServer) -> float:
    return min(1.0, max(_LEAST_SHARE, (time.monotonic() - server.back_at) / SLOW_START_S))


_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ChatCompletions:
    """A :class:`~court.ports.ReplicatedModel`; safe to call concurrently, within one event loop."""

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
        """Opens no connection yet; the key of the API is not read from the environment."""
        self.capabilities = capabilities or Capabilities()
        self.speed: Speed | None = None
        self.weights = ""
        self._model = model
        self._attempts = attempts
        self._jitter = wait_random_exponential(multiplier=pause_s, max=pause_max_s)
        self._own_http = http is None
        self._http = http or http_client()
        self._replicas = Replicas([ChatServer(base_url, api_key, self._http, load or Load(1))])
        self._keeps = False  # True if pinned to one server, as in a trial

    @classmethod
    def joined(cls, models: Sequence[Self]) -> Self:
        """Joins a model that was probed at several servers: capabilities that all share, retries of the first."""
        joined = copy.copy(models[0])
        joined._replicas = Replicas([server for model in models for server in model._servers])
        joined.capabilities = weakest([model.capabilities for model in models])
        # The slowest, since any trial may meet it.
        joined.speed = min((model.speed for model in models if model.speed), key=lambda one: one.write, default=None)
        joined.weights = "+".join(sorted({model.weights for model in models if model.weights}))
        return joined

    @property
    def name(self) -> str:
        """Name of the model, as used in calls."""
        return self._model

    @property
    def _servers(self) -> tuple[ChatServer, ...]:
        return self._replicas.servers

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, in order of preference between equally loaded ones."""
        return tuple(server.url for server in self._servers)

    @property
    def answered_at(self) -> float:
        """Time of the last answer from one of the model's servers, in seconds of the monotonic clock."""
        return max(server.answered_at for server in self._servers)

    def apart(self) -> Sequence[Self]:
        """Returns the model once for each of its servers, each bound to one."""
        bound_models = [copy.copy(self) for _ in self._servers]
        for model, server in zip(bound_models, self._servers, strict=True):
            model._replicas = Replicas([server])
        return bound_models

    def pinned(self, key: str) -> Self:
        """Returns the model for a trial, pinned to one server; see :meth:`court.ports.ReplicatedModel.pinned`."""
        # Servers are ordered by their weights for the key (rendezvous hashing, Thaler and Ravishankar 1998): if one is
        # removed, only its own keys move, evenly, to the others.
        # A shallow copy: connections, loads and the state of each server are shared by all trials.
        pinned = copy.copy(self)
        pinned._keeps = True
        pinned._replicas = Replicas(sorted(self._servers, key=lambda server: _weight(server.url, key), reverse=True))
        return pinned

    def room(self) -> bool:
        """True if the server that would be used now could start one more call immediately."""
        return self._replicas.room()

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Requests one reply; see :meth:`court.ports.ChatModel.reply`."""
        began = time.monotonic()
        answer = await self.answer(request, within_s=within_s)
        try:
            reply = answer.reply(time.monotonic() - began)
        except Failure as failure:
            raise failure.to_court_error() from None
        schema_in_words = request.reply_schema is not None and not self.capabilities.json_schema
        return replace(reply, schema_in_words=True) if schema_in_words else reply

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Requests the probability of each option as first token; see :meth:`court.ports.ChatModel.odds`."""
        # On vLLM the raw probabilities of exactly these tokens are requested; other tokens are not masked, as a server
        # configured to return processed probabilities would renormalise them. Elsewhere they are looked up among the 20
        # most likely tokens; an option that is not among them has mass 0, which is a lower bound. Thinking is turned
        # off; a model that always thinks has no odds, because its first token belongs to a thought.
        if self.capabilities.log_probs is LogProbs.NONE or self.capabilities.thinking is Thinking.ALWAYS:
            return None
        began = time.monotonic()
        extra: dict[str, Any] = {"logprobs": True, "top_logprobs": wire.TOP}
        ids: list[int] | None = None
        if self.capabilities.log_probs is LogProbs.CHOSEN:
            # Looking up ids counts towards the timeout of the call.
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
            # Also without masses, as the trial accounts for the call's cost.
            return Odds(masses=masses or (), reply=answer.reply(time.monotonic() - began))
        except Failure as failure:
            # The finish reason is irrelevant without masses.
            if masses is None:
                return None
            raise failure.to_court_error() from None

    async def answer(
        self, request: ChatRequest, *, within_s: float, extra: dict[str, Any] | None = None
    ) -> wire.ServerAnswer:
        """Returns the server's full answer, for callers that need more than the reply.

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
        """Sends a request that begins with a picture, referenced by its id only. Raises as :meth:`reply`."""
        request = replace(request, parts=(frame, *request.parts))
        # Referenced even if the server does not have it, as the probe tests how it handles an unknown id.
        known = {wire.digest(frame): None}
        return await self._within(
            within_s,
            lambda server: server.chat(request, model=self._model, capabilities=self.capabilities, known=known),
        )

    async def listed(self, *, within_s: float) -> wire.ListedModels:
        """Returns the models that the server lists. Raises as :meth:`reply`."""
        return await self._within(within_s, lambda server: server.models())

    async def aclose(self) -> None:
        """Closes the connections, unless they are shared."""
        if self._own_http:
            await self._http.aclose()

    async def _ask(
        self, server: ChatServer, request: ChatRequest, frames: Sequence[Frame], fields: dict[str, Any]
    ) -> wire.ServerAnswer:
        ids = [wire.digest(frame) for frame in frames] if self.capabilities.picture_ids else []
        # Captured now: by the time of the answer, another call may have found that the server lost them.
        named = [i for i in ids if i in server.known]
        chat = partial(server.chat, request, model=self._model, capabilities=self.capabilities, fields=fields)
        try:
            answer = await chat(known=server.known)
        except Failure as failure:
            if not named or not isinstance(failure.error, ModelRefused) or failure.error.status != 400:
                raise
            # The server may have evicted a picture. It rejected the request, so nothing has run, and this does not
            # count as a retry.
            server.forget(named)
            answer = await chat(known=server.known)
        server.has(ids)
        return answer

    async def _token_id(self, option: str, within_s: float) -> int:
        """Returns the id of an option's token, which is the same at every server of the model."""
        token_ids = self._servers[0].token_ids
        if option not in token_ids:
            ids = await self._within(within_s, lambda server: server.tokens(self._model, option))
            # The probability would be that of its first token, with which other words may begin too.
            if len(ids) != 1:
                raise ModelRefused(
                    "An option is not a single token for this model. Choose shorter ones.", reason="MODEL_OPTION"
                )
            (token_ids[option],) = ids
        return token_ids[option]

    async def _within(self, within_s: float, call: Callable[[ChatServer], Awaitable[_T]]) -> _T:
        """Runs a call with retries and failover, within a timeout."""
        # If a server is gone, this call and later ones of its trial fail over to another; if and how often a call may
        # be retried does not depend on the number of servers.
        # Sends nothing if there is no time to wait for the answer.
        if within_s <= 0:
            raise overrun()
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Failure) and error.retries is not Retries.NEVER),
            # If the backoff would exceed the deadline, the current failure is raised instead of a later timeout.
            stop=lambda state: self._attempts_spent(state) or stop_before_delay(within_s)(state),
            wait=self._pause,
            reraise=True,
        )

        # Only a trial is pinned to a server; any other call chooses among all.
        replicas = self._replicas if self._keeps else Replicas(self._servers)
        # Counted for RE-6: a request that crashes model servers must not be repeated indefinitely.
        broke_off = 0
        stumbled: set[str] = set()

        async def attempt() -> _T:
            nonlocal broke_off
            server = replicas.choose()
            with server.load.call():  # not during backoff, when the server has nothing to do
                try:
                    answer = await call(server)
                except Failure as failure:
                    if failure.gone:
                        replicas.leave(server)
                    if failure.unreached or failure.broke_off:
                        server.lost()
                    if failure.stumbled:
                        stumbled.add(server.url)
                    # A server that reported an internal error and then can't be reached has crashed during this
                    # request.
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
                # Tenacity's frames reference the error, which would reference them and the request.
                raise error.with_traceback(None)  # noqa: B904  # it is the same

        try:
            async with asyncio.timeout(within_s):
                answer = await attempts()
            # Answered in the end, so earlier disconnects were not caused by this request.
            broke_off = 0
            return answer
        except TimeoutError:
            pass
        except Failure as failure:
            if isinstance(failure.error, Unavailable):
                failure.error.broke_off = broke_off
            raise failure.to_court_error() from None
        finally:
            deadline.broke_off(broke_off)
        raise overrun()  # outside the except block: chained to the TimeoutError, it would reference the request

    def _attempts_spent(self, state: RetryCallState) -> bool:
        often = self._attempts + len(self._servers) - 1  # so that the last server gets as many attempts as a single one
        return state.attempt_number >= (2 if _failure(state).retries is Retries.ONCE else often)

    def _pause(self, state: RetryCallState) -> float:
        failure = _failure(state)
        if failure.gone and state.attempt_number < len(self._servers):
            return 0.0  # fail over at once to a server that was not tried yet
        return failure.after_s + self._jitter(state)


def _failure(state: RetryCallState) -> Failure:
    failure = state.outcome.exception() if state.outcome else None
    assert isinstance(failure, Failure)
    return failure


def _weight(url: str, key: str) -> bytes:
    return hashlib.sha256(f"{url}\n{key}".encode()).digest()
