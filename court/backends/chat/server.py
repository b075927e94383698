"""One model server: its address, the pictures that it has, and one request to it; and which of several a trial asks.

What becomes of a request that fails is not decided here: see :mod:`court.backends.chat.client`.
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
from court.backends.chat.failures import Again, Failure, broke_off, garbled, of_sdk
from court.backends.chat.features import Capabilities
from court.backends.http import CONNECT_S, Load
from court.backends.http_head import UnreadableAnswer
from court.ports import ChatRequest

_KNOWN = 4096  # ids of pictures that the server is thought to have
_RECHECK_S, _RECHECK_MAX_S = 1.0, 30.0
"""Seconds until one that is gone is asked whether it is back; doubles up to the second each time it is not."""


SLOW_START_S = 30.0
"""Seconds from the first answer of a server that was gone until it gets as many trials as the others."""
_LEAST_SHARE = 0.1
"""Share of a server that has just come back: it is chosen where the others have ten times as many calls in flight."""


class ChatServer:
    """A server, as one model is asked there; safe to call concurrently, within one event loop.

    Attributes:
        url: Configured address of its API; identifies the server among others, and in records.
        load: Counts the calls in flight.
        known: Digests of pictures that it is thought to have, the last used last.
        token_ids: Ids of words that are single tokens.
        gone_at: Time at which it was found to be gone, by the same clock; None while it is there.
        back_at: Time of its first answer after it was gone; minus infinity where it never was.
        answered_at: Time of the last answered chat, in seconds of the monotonic clock; minus infinity before the first.
            It is not stored with the load, which models share: several models at one URL each have an engine that may
            die.
    """

    def __init__(self, url: str, api_key: str | None, http: httpx2.AsyncClient, load: Load) -> None:
        """Connects to nothing yet.

        Args:
            url: Address of the API, usually ending in ``/v1``.
            api_key: Key of the API, if the server wants one.
            http: The connections.
            load: Counts the calls in flight, together with those of others that it is given to.
        """
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
            api_key=api_key or "none",  # the SDK wants one; a server that has none set doesn't look at it
            # Retries are decided in one place (client.py): the SDK's own would run a generation several times.
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        # What the SDK found in the environment was not meant for this server.
        self._client.organization = self._client.project = self._client.admin_api_key = None
        # vLLM serves /tokenize beside /v1 and not below it.
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        self._tokenize_url = f"{root}/tokenize"
        for name in ("openai", "httpx2", "httpcore2"):
            # They log addresses, and bodies at the lowest level; a marker in a meme must not turn up in a log.
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
        """The answer to a request. Streamed, so that a reply that broke off can be told from one that never began.

        Args:
            request: Request to send.
            model: Its name at the server.
            capabilities: Capabilities of the server.
            known: Digests of pictures that are named and not sent.
            fields: Further fields of the body.

        Raises:
            Failure: There is no answer, or none that can be read.
        """
        try:
            call = self._client.chat.completions.with_streaming_response.create(
                model=model,
                messages=[],  # they go with the extra fields: the SDK would walk through each part, at 2 ms a call
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
        """The models that it lists. Raises Failure."""
        try:
            response = await self._client.get("/models", cast_to=httpx2.Response)
        except openai.OpenAIError as error:
            raise of_sdk(error) from None
        return wire.read_models(response.content)

    async def tokens(self, model: str, text: str) -> list[int]:
        """Ids of the tokens that a text is for a model. Raises Failure."""
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
        """Takes note that it can't be reached, or broke off."""
        now = time.monotonic()
        # The first miss counts: of several that are gone, the one gone for longest is chosen first (Replicas._best).
        self.gone_at = now if self.gone_at is None else self.gone_at
        self._recheck_at = now + min(_RECHECK_MAX_S, _RECHECK_S * 2**self._misses)
        # Bounds the power above; the pause itself is bounded by _RECHECK_MAX_S long before.
        self._misses = min(self._misses + 1, 16)

    def answered(self) -> None:
        """Takes note that it is there."""
        if self.gone_at is not None:
            self.gone_at, self.back_at = None, time.monotonic()
        elif self._misses and time.monotonic() - self.back_at > _RECHECK_MAX_S:
            self._misses = 0  # it has stayed: the next time it is gone, it is looked for at once again

    def probe_if_gone(self) -> None:
        """Asks one that is gone, now and then, whether it is back; no caller waits for that."""
        due = self.gone_at is not None and time.monotonic() >= self._recheck_at
        if due and (self._looking is None or self._looking.done()):
            # One at a time, and referred to: the event loop refers to tasks weakly.
            self._looking = asyncio.ensure_future(self._probe())

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.models()
        except TimeoutError:
            self.lost()
        except Failure as failure:
            # Any other answer is one: it may list no models.
            if failure.gone:
                self.lost()
            else:
                self.answered()
        else:
            self.answered()

    def has(self, ids: Iterable[str]) -> None:
        """Takes note that it has these pictures."""
        for i in ids:
            self.known[i] = None
            # The last used at the end: what is dropped first is what the server has likely dropped too.
            self.known.move_to_end(i)
        while len(self.known) > _KNOWN:
            self.known.popitem(last=False)

    def forget(self, ids: Iterable[str]) -> None:
        """Takes note that it may not have these pictures."""
        for i in ids:
            self.known.pop(i, None)


async def _read(response: httpx2.Response) -> bytes:
    try:
        return await response.aread()
    except UnreadableAnswer:
        raise garbled() from None
    except httpx2.TransportError:
        # It had begun: the generation has run, and would run again.
        raise broke_off(Again.NEVER) from None


class Replicas:
    """Servers of one model, as one trial asks them; for use within one event loop.

    A trial goes to the server with the fewest calls in flight and keeps to it, for that has its prefix in the cache; of
    servers that are equally busy it takes the first in an order of its own, so that a picture comes back to a server
    that has seen it. From a server that is gone it goes on to another, and no other trial begins there until it has
    answered again; then it gets its share little by little, for its caches are empty and its kernels may have to be
    compiled.

    Args:
        servers: Servers, those that this trial prefers first.
    """

    def __init__(self, servers: Sequence[ChatServer]) -> None:
        self.servers = tuple(servers)
        self._own: ChatServer | None = None
        self._left: list[ChatServer] = []

    def choose(self) -> ChatServer:
        """Returns the server that this trial keeps to; chooses one for its first call, or where its own is left."""
        if self._own is None:
            self._own = self._best()
        return self._own

    def leave(self, server: ChatServer) -> None:
        """Goes on without a server; once all were left, the first of them may be asked again."""
        if server not in self._left:
            self._left.append(server)
        if len(self._left) == len(self.servers):
            # All but this one, which failed a moment ago.
            self._left = [server]
        if self._own is server:  # of calls that fail together, one moves on
            self._own = None

    def room(self) -> bool:
        """True if the server that is asked next would work on one more call at once."""
        return (self._own or self._best()).load.room()

    def _best(self) -> ChatServer:
        if len(self.servers) == 1:
            return self.servers[0]
        candidates = [server for server in self.servers if server not in self._left]
        there = [server for server in candidates if server.gone_at is None]
        for server in self.servers:
            # Driven by trials that choose a server: a court that tries nothing sends nothing.
            server.probe_if_gone()
        if there:
            # One more than are in flight, or a share would make no difference while nothing is.
            return min(there, key=lambda server: (server.load.in_flight + 1) / _share(server))
        return min(candidates, key=lambda server: server.gone_at or 0.0)  # likeliest to be back


def _share(server: ChatServer) -> float:
    """Share of trials that a server gets, of those that one gets that has been there for long."""
    return min(1.0, max(_LEAST_SHARE, (time.monotonic() - server.back_at) / SLOW_START_S))
