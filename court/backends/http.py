"""Connections that the service opens, to model servers above all: bounded, and many small pools like one large one.

Whatever is asked may answer anything: heads and bodies are read up to a bound, whatever their status, and bodies are
taken as they are on the wire, never decompressed.

A pool of httpcore2 looks at every connection that it has, idle sockets one by one, whenever a request comes or goes. At
64 trials at once that was half of all CPU time that a call took, and it grows with their number.
"""

from __future__ import annotations

import email.utils
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import httpx2

from court.backends.http_head import MAX_HEAD_BYTES, UnreadableAnswer, head_bytes_left

CONNECT_S = 5.0
"""For opening a connection: what is not there is noticed while there is time to ask again."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Longest body of an answer. Far above what any ``max_tokens`` of ours can fill."""
MAX_ERROR_BYTES = 64 * 1024
"""As much of a body as is read where the status is no success: enough for a server's reason."""
_LONGEST_AFTER_S = 86_400.0
_POOLS = 32
_LEAST = 16  # connections of a pool: where few are allowed in all, there are fewer pools


def http_client(
    connections: int = 1024,
    *,
    base_url: str = "",
    public_only: bool = False,
    ca_file: str | None = None,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> httpx2.AsyncClient:
    """Connections that several models may share; whatever this service asks over HTTP, it asks through these.

    Keep-alive outlasts the pauses within a trial. The environment is not looked at: a proxy that happens to be set
    there is no place for pictures and keys to go. Redirects are not followed, for the same reason.

    Args:
        connections: At once, at most; up to 31 more where they can't be divided evenly.
        base_url: Base address for addresses without a host.
        public_only: True to refuse names that lead to an address inside some network, however they come to do so.
        ca_file: Certificate authorities to trust in place of the usual ones, PEM.
        max_answer_bytes: Longest body of an answer.
    """
    # What it stands on need not be loaded where nothing is asked over HTTP.
    from court.backends.http_transport import BoundedTransport

    pools = max(1, min(_POOLS, connections // _LEAST))
    each = math.ceil(connections / pools)
    limits = httpx2.Limits(max_connections=each, max_keepalive_connections=max(1, each // 4), keepalive_expiry=30.0)
    # Takes long to make; one does for all.
    if ca_file is None:
        context = httpx2.create_ssl_context(trust_env=False)
    else:
        context = ssl.create_default_context(cafile=ca_file)
    return httpx2.AsyncClient(
        transport=Spread(
            [BoundedTransport(context, limits, public_only=public_only) for _ in range(pools)], max_answer_bytes
        ),
        # All but connecting is bounded by the deadline of the call, which holds for the whole of it.
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        base_url=base_url,
        trust_env=False,
        follow_redirects=False,
    )


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a ``Retry-After`` asks for, given as such or as a date; 0 where there is none to be read."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    # `float` takes "inf" and "nan" as well. A longer time than a day is a fault of the server's, and thousands of years
    # have no place in the messages that pass it on.
    return min(seconds, _LONGEST_AFTER_S) if math.isfinite(seconds) and seconds > 0 else 0.0


class Spread(httpx2.AsyncBaseTransport):
    """Gives each request to the pool with the fewest in flight, and of these to the first: few requests keep to few
    pools, where they find connections that are open."""  # noqa: D205, D209

    def __init__(self, pools: Sequence[httpx2.AsyncBaseTransport], max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._pools = pools
        self._max_answer_bytes = max_answer_bytes
        self._in_flight = [0] * len(pools)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request through the pool and bounds the answer.

        Raises:
            UnreadableAnswer: The answer is compressed, or its head too long.
            httpx2.TransportError: There is none.
        """
        # A few bytes may stand for gigabytes: nothing of ours is worth that.
        request.headers["Accept-Encoding"] = "identity"
        place = self._in_flight.index(min(self._in_flight))
        self._in_flight[place] += 1

        def over() -> None:
            self._in_flight[place] -= 1

        # Until the head is there, and no longer: the body has a bound of its own (BO-1).
        looking = head_bytes_left.set([MAX_HEAD_BYTES])
        try:
            response = await self._pools[place].handle_async_request(request)
        except BaseException:
            # Cancellation as well: the pool would count a request that is over, and be avoided for it.
            over()
            raise
        finally:
            head_bytes_left.reset(looking)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # Wrapped before the check below, so that closing a refused answer also ends its count.
        response.stream = _Bounded(response.stream, over, self._max_answer_bytes, failed=response.is_error)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise UnreadableAnswer("the answer is compressed", request=request)
        return response

    async def __aenter__(self) -> Self:
        for pool in self._pools:
            await pool.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections."""
        for pool in self._pools:
            await pool.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to a bound; its request is in flight until it is closed."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, over: Callable[[], None], max_bytes: int, *, failed: bool
    ) -> None:
        self._stream = stream
        self._over: Callable[[], None] | None = over
        self._max_bytes = max_bytes
        self._failed = failed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ERROR_BYTES if self._failed else self._max_bytes
        async for chunk in self._stream:
            if len(chunk) > left:
                if not self._failed:
                    raise UnreadableAnswer("the answer is longer than any that is read")
                # The rest is not waited for: it may have no end.
                yield chunk[:left]
                return
            left -= len(chunk)
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._over is not None:
                # May be closed more than once; the count goes down once.
                self._over()
                self._over = None


class Load:
    """Counts calls in flight, of all roles and trials that share a server; safe within one event loop.

    It holds nothing back: a call that is needed is made at once, and where too many are made, it is whole trials that
    have to wait. What it decides is whether a side may ask ahead: below ``concurrency`` calls the server would stand
    partly idle, so that a superfluous call costs nobody anything; from there on it would take a needed one's place.
    """

    def __init__(self, concurrency: int) -> None:
        """Starts with no call in flight.

        Args:
            concurrency: Calls that the server works on at once without any of them waiting (vLLM: ``--max-num-seqs``
                or what its cache holds). Where several processes share a server: this one's part of it.
        """
        if concurrency < 1:
            raise ValueError("a server works on at least one call")
        self._concurrency = concurrency
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Calls that were sent and are not answered, given up or failed."""
        return self._in_flight

    def room(self) -> bool:
        """True if one more call would be worked on at once."""
        return self._in_flight < self._concurrency

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call, for as long as the context lasts."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
