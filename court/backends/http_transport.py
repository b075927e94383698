"""Connections that end where the head of an answer has no end, and that lead only where they may."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2

from court.backends import http_addresses
from court.backends.http_head import UnreadableAnswer, head_bytes_left


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """A pool of such connections."""

    def __init__(self, context: ssl.SSLContext, limits: httpx2.Limits, *, public_only: bool = False) -> None:
        """Opens nothing yet.

        Args:
            context: Settings of TLS.
            limits: Bounds of the pool.
            public_only: True to connect to public addresses alone.
        """
        super().__init__(verify=context, limits=limits)
        # httpcore2 counts no interim answers, and httpx2 hands no backend on to it.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_PublicBackend() if public_only else _BoundedBackend(),
        )


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections over TCP."""

    def __init__(self) -> None:
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature, here and below
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(
            host, port, timeout=timeout, local_address=local_address, socket_options=socket_options
        )
        return _BoundedStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _PublicBackend(_BoundedBackend):
    """Opens connections to public addresses alone; the name is still the one that a certificate must be for."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("the name has no address")
        try:
            # One limit for resolving and for all attempts together: a name with many dead addresses must not multiply
            # it.
            async with asyncio.timeout(timeout):
                for address in await http_addresses.public_addresses(host, port):
                    try:
                        # To the address that was checked: resolved once more, the name might lead elsewhere (BO-8).
                        return await super().connect_tcp(
                            address, port, local_address=local_address, socket_options=socket_options
                        )
                    # One address may be dead where the next one answers.
                    except httpcore2.ConnectError as error:
                        failure = error
        except TimeoutError:
            failure = httpcore2.ConnectTimeout("no connection in time")
        except OSError:
            failure = httpcore2.ConnectError("the name can't be resolved")
        raise failure


class _BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection that is read from only up to a bound while the head of an answer is looked for."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        # None once the head is there: bodies have a bound of their own.
        left = head_bytes_left.get()
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
        # Heads that come through TLS have the same bound.
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
