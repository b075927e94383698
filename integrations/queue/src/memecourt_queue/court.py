"""Client of a court for a consumer, with its health."""

from __future__ import annotations

from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memecourt.aio import AsyncClient
from memecourt.connection import Connection, Tls
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire

_SERVING = health_pb2.HealthCheckResponse.SERVING
_SERVICE = wire.DESCRIPTOR.services_by_name["Court"].full_name
# Short compared to a verdict: a court that can't answer a health check in this time does not serve.
_HEALTH_S = 5.0
# Otherwise waiting for a busy court would use up the trial's time, and the message would seem to be at fault: the
# consumer handles longer delays.
_RETRIES = Retries(longest_told_s=5.0)


class RemoteCourt:
    """Client of a court at a gRPC address."""

    def __init__(self, address: str, *, tls: Tls | None, token: str | None, timeout_s: float) -> None:
        self._client = AsyncClient(address, tls=tls, token=token, retries=_RETRIES)
        self._timeout_s = timeout_s
        self._channel = Connection.to(address, tls=tls).open_async()
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def judge(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        """Returns the verdict. Raises JudgeError."""
        return await self._client.ask(request, timeout=self._timeout_s)

    async def is_serving(self) -> bool:
        """True if the court can be reached and reports that it serves."""
        try:
            health = await self._health.Check(health_pb2.HealthCheckRequest(service=_SERVICE), timeout=_HEALTH_S)
        except grpc.RpcError:  # for any reason: messages wait for the next check
            return False
        return bool(health.status == _SERVING)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        await self._channel.close()
