"""Opens a queue by its address, and the client of the court that judges its memes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from court.errors import BadRequest, NotLoaded
from memecourt.aio import AsyncClient
from memecourt.connection import Connection, Tls
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from serving.queue.source import QueueSettings, QueueSource
from serving.rpc.health import COURT

# Short compared to a verdict: a court that can't answer a health check in this time does not serve.
_HEALTH_S = 5.0
_LONGEST_TOLD_S = 5.0
"""Maximum retry delay in seconds that counts within a request's timeout; the consumer handles longer ones."""


@asynccontextmanager
async def open_queue(settings: QueueSettings) -> AsyncIterator[QueueSource]:
    """Opens a queue inside the block.

    Raises:
        BadRequest: The address names no supported queue, or its server refuses this consumer.
        NotLoaded: The client for this kind of queue is not installed.
        Unavailable: Its server can't be reached.
    """
    # Only the scheme is parsed here: the rest may contain a password, and is passed to the client unchanged.
    scheme = settings.address.partition("://")[0].lower()
    opener = {"redis": _redis, "rediss": _redis, "unix": _redis, "nats": _jetstream, "tls": _jetstream}.get(scheme)
    if opener is None:
        raise BadRequest(
            "The address of a queue is redis://HOST:PORT/DATABASE or nats://HOST:PORT; with TLS rediss:// or tls://.",
            reason="QUEUE_ADDRESS",
            field="queue",
        )
    source = await _opened(asyncio.ensure_future(opener(settings)))
    try:
        yield source
    finally:
        await source.aclose()


async def _opened(opening: asyncio.Future[QueueSource]) -> QueueSource:
    """Waits for a source to be opened; cancellation takes effect immediately."""
    try:
        await asyncio.wait([opening])
    except asyncio.CancelledError:
        # Repeated until it takes effect: asyncio.wait_for of Python 3.11, which redis-py uses, loses a cancellation
        # that coincides with the end of a write, and the full timeout of a silent server would pass.
        while not opening.done():
            opening.cancel()
            await asyncio.wait([opening], timeout=0.1)
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().aclose()
        raise
    return opening.result()


async def _redis(settings: QueueSettings) -> QueueSource:
    # Imported lazily, since the clients of queues are an optional extra.
    try:
        from serving.queue.redis_streams import RedisStreams
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    return await RedisStreams(settings).open()


async def _jetstream(settings: QueueSettings) -> QueueSource:
    try:
        from serving.queue.jetstream import JetStreamQueue
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    return await JetStreamQueue(settings).open()


def _not_installed(error: ModuleNotFoundError) -> NotLoaded:
    return NotLoaded(f"Queues are not installed ({error.name} is missing): pip install 'memecourt[queue]'.")


class RemoteCourt:
    """Client of a court at a gRPC address."""

    def __init__(
        self, address: str, *, tls: Tls | None, token: str | Callable[[], str] | None, timeout_s: float
    ) -> None:
        """Prepares the client; it connects at the first request.

        Args:
            address: ``host:port``.
            tls: TLS options; None for a connection without TLS.
            timeout_s: Timeout of a verdict in seconds.

        Raises:
            ValueError: A token would be sent without TLS.
            OSError: A file of certificates can't be read.
        """
        # Otherwise waiting for a quota would use up the trial's time, and the message would seem to be at fault.
        self._client = AsyncClient(address, tls=tls, token=token, retries=Retries(longest_told_s=_LONGEST_TOLD_S))
        self._timeout_s = timeout_s
        self._channel = Connection.to(address, tls=tls).open_async()
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def judge(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        """See :class:`serving.queue.consumer.JudgingCourt`."""
        return await self._client.ask(request, timeout=self._timeout_s)

    async def is_serving(self) -> bool:
        """See :class:`serving.queue.consumer.JudgingCourt`."""
        try:
            health = await self._health.Check(health_pb2.HealthCheckRequest(service=COURT), timeout=_HEALTH_S)
        # For any reason: messages wait for the next check.
        except grpc.RpcError:
            return False
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._channel.close()
