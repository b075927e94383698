"""One model server with its cached pictures and state, and the choice of a server for a trial.

Retries are decided in :mod:`court.backends.chat.client`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx2
import openai

from court.backends.chat import wire
from court.backends.chat.failures import Failure, Retries, broke_off, garbled, of_sdk
from court.backends.chat.features import Capabilities
from court.backends.http import CONNECT_S, Load
from court.backends.http_head import UnreadableAnswer
from court.ports import ChatRequest

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
        url: Configured address of its API; identifies the server among others, and in records.
        known: Digests of pictures assumed to be cached, in LRU order.
        gone_at: Time at which it was found to be gone, in seconds of the monotonic clock; None while it is available.
        back_at: Time of its first answer after it was gone, by the same clock; minus infinity if it never was gone.
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
    """Returns a server's share of trials, relative to one that has been available for long."""
    return min(1.0, max(_LEAST_SHARE, (time.monotonic() - server.back_at) / SLOW_START_S))
