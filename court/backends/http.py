"""HTTP client for outgoing connections, mainly to model servers: bounded answers, and many small connection pools.

Servers may answer anything, so heads and bodies are read up to a limit, whatever the status, and bodies are never
decompressed.

An httpcore2 pool iterates over all its connections and polls idle sockets whenever a request starts or ends. With 64
concurrent trials that was half of the CPU time of a call, and it grows with their number.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import httpcore2
import httpx2

from court.backends import http_addresses

MAX_HEAD_BYTES = 64 * 1024
"""Maximum bytes read while waiting for the end of the head, including any interim (1xx) answers; typical heads have a
few hundred bytes."""


class UnreadableAnswer(httpx2.TransportError):
    """An answer that is compressed although that was not requested, or whose head or body is too long."""


_head_bytes_left: ContextVar[list[int] | None] = ContextVar("_head_bytes_left", default=None)
"""Remaining bytes for the head of the current request; None if it is not waiting for a head. A one-element list, so
that the connection can count down the sender's value."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """A pool of bounded connections."""

    def __init__(self, context: ssl.SSLContext, limits: httpx2.Limits, *, public_only: bool = False) -> None:
        super().__init__(verify=context, limits=limits)
        # httpcore2 does not limit interim responses, and httpx2 can't pass a custom backend to it.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_BoundedBackend(public_only=public_only),
        )


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections, if wanted to public addresses only; certificates are still verified for the host name."""

    def __init__(self, *, public_only: bool) -> None:
        self._backend = httpcore2.AnyIOBackend()
        self._public_only = public_only

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature, here and below
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("the name has no address")
        try:
            # One timeout for resolving and all attempts: a name with many dead addresses must not multiply it.
            async with asyncio.timeout(timeout):
                for address in await http_addresses.public_addresses(host, port) if self._public_only else [host]:
                    try:
                        # Connects to the checked address, as another look-up could give a different one (BO-8).
                        return _BoundedStream(
                            await self._backend.connect_tcp(
                                address, port, local_address=local_address, socket_options=socket_options
                            )
                        )
                    # The next address may work.
                    except httpcore2.ConnectError as error:
                        failure = error
        except TimeoutError:
            failure = httpcore2.ConnectTimeout("no connection in time")
        except OSError:
            failure = httpcore2.ConnectError("the name can't be resolved")
        raise failure

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection that limits the bytes read while waiting for the head of an answer."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        # None once the head has been read: bodies have their own limit.
        left = _head_bytes_left.get()
        if left is not None and left[0] <= 0:
            raise UnreadableAnswer("the head of the answer is longer than any that is read")
        data = await self._stream.read(max_bytes, timeout)
        if left is not None:
            left[0] -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        # The same limit applies to heads over TLS.
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


CONNECT_S = 5.0
"""Connect timeout in seconds, short enough to leave time for a retry."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Maximum size of an answer's body, far more than any ``max_tokens`` of ours can fill."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum bytes of an error's body that are read: enough for a server's reason."""
_LONGEST_AFTER_S = 86_400.0
_POOLS = 32
_LEAST = 16  # minimum connections per pool: with few in total, there are fewer pools


def http_client(
    connections: int = 1024,
    *,
    base_url: str = "",
    public_only: bool = False,
    ca_file: str | None = None,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> httpx2.AsyncClient:
    """Creates the client through which the service makes all its HTTP requests; several models may share it."""
    # Keep-alive outlasts the pauses within a trial. The environment is ignored, as pictures and keys must not go to a
    # proxy that happens to be set there. Redirects are not followed, for the same reason.
    pools = max(1, min(_POOLS, connections // _LEAST))
    each = math.ceil(connections / pools)
    limits = httpx2.Limits(max_connections=each, max_keepalive_connections=max(1, each // 4), keepalive_expiry=30.0)
    # Slow to create, so one is shared by all pools.
    if ca_file is None:
        context = httpx2.create_ssl_context(trust_env=False)
    else:
        context = ssl.create_default_context(cafile=ca_file)
    return httpx2.AsyncClient(
        transport=Spread(
            [BoundedTransport(context, limits, public_only=public_only) for _ in range(pools)], max_answer_bytes
        ),
        # Everything but connecting is limited by the deadline of the whole call.
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        base_url=base_url,
        trust_env=False,
        follow_redirects=False,
    )


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds of a ``Retry-After`` header, given as a number or a date; 0 if missing or invalid."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    # `float` also accepts "inf" and "nan". More than a day is a server error and is capped, as the value is shown in
    # messages.
    return min(seconds, _LONGEST_AFTER_S) if math.isfinite(seconds) and seconds > 0 else 0.0


class Spread(httpx2.AsyncBaseTransport):
    """Sends each request to the first of the pools with the fewest requests in flight, so that few requests use few
    pools and reuse open connections."""  # noqa: D205, D209

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
        # Prevents decompression bombs.
        request.headers["Accept-Encoding"] = "identity"
        place = self._in_flight.index(min(self._in_flight))
        self._in_flight[place] += 1

        def over() -> None:
            self._in_flight[place] -= 1

        # Only until the head has been read: the body has its own limit (BO-1).
        looking = _head_bytes_left.set([MAX_HEAD_BYTES])
        try:
            response = await self._pools[place].handle_async_request(request)
        except BaseException:
            # Including cancellation, or the pool would keep counting a finished request and be avoided.
            over()
            raise
        finally:
            _head_bytes_left.reset(looking)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # Wrapped before the check below, so that closing a rejected answer also decrements the count.
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
    """The body of an answer, limited in size; its request counts as in flight until it is closed."""

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
                # The rest is not awaited, as it may be endless.
                yield chunk[:left]
                return
            left -= len(chunk)
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._over is not None:
                # May be closed repeatedly, but decrements the count only once.
                self._over()
                self._over = None


class Load:
    """Counts calls in flight of all roles and trials that share a server; safe within one event loop.

    It does not throttle: needed calls are made at once, and overload is handled by queueing whole trials. It only
    decides if a side may make speculative calls: below ``concurrency`` calls the server is partly idle, so a wasted
    call costs nothing; above, it would delay a needed one.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError("a server works on at least one call")
        self._concurrency = concurrency
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Number of calls that were sent and have not ended."""
        return self._in_flight

    def room(self) -> bool:
        """True if one more call could start immediately."""
        return self._in_flight < self._concurrency

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call for the duration of the context."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
