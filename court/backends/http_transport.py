"""Connections that limit the size of response heads and optionally connect to public addresses only."""

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
    """A pool of bounded connections."""

    def __init__(self, context: ssl.SSLContext, limits: httpx2.Limits, *, public_only: bool = False) -> None:
        super().__init__(verify=context, limits=limits)
        # httpcore2 does not limit interim responses, and httpx2 can't pass a custom backend to it.
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
    """Opens connections to public addresses only; certificates are still verified for the host name."""

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
            # One timeout for resolving and all attempts: a name with many dead addresses must not multiply it.
            async with asyncio.timeout(timeout):
                for address in await http_addresses.public_addresses(host, port):
                    try:
                        # Connects to the checked address, as another look-up could give a different one (BO-8).
                        return await super().connect_tcp(
                            address, port, local_address=local_address, socket_options=socket_options
                        )
                    # The next address may work.
                    except httpcore2.ConnectError as error:
                        failure = error
        except TimeoutError:
            failure = httpcore2.ConnectTimeout("no connection in time")
        except OSError:
            failure = httpcore2.ConnectError("the name can't be resolved")
        raise failure


class _BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection that limits the bytes read while waiting for the head of an answer."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        # None once the head has been read: bodies have their own limit.
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
        # The same limit applies to heads over TLS.
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
