"""Helpers for tests of gRPC services: a server on a real port, named callers, and refusals with their details."""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from serving.access.callers import Caller, set_current

M = TypeVar("M", bound=Message)


class Refusal:
    """The error status of a call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # its stub knows calls of the other API only
        assert status is not None, f"no details: {error.code()} {error.details()}"
        self.code = error.code()
        self.message = status.message
        self.details = status.details

    def of(self, kind: type[M]) -> list[M]:
        """Returns the details of one type."""
        found = []
        for packed in self.details:
            message = kind()
            if packed.Unpack(message):
                found.append(message)
        return found

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        """The machine-readable detail."""
        (info,) = self.of(error_details_pb2.ErrorInfo)
        assert info.domain == "memecourt.v1"
        return info

    @property
    def reason(self) -> str:
        """Reason of the refusal."""
        return self.info.reason

    @property
    def field(self) -> str:
        """Field of the request that is at fault; empty if none is named."""
        for bad in self.of(error_details_pb2.BadRequest):
            (violation,) = bad.field_violations
            return violation.field
        return self.of(error_details_pb2.ErrorInfo)[0].metadata.get("field", "")

    @property
    def summary(self) -> tuple[str, str, str]:
        """Code, reason and field."""
        return self.code.name, self.reason, self.field


async def refusal_of(call: Awaitable[Any]) -> Refusal:
    """Awaits a call that must fail; returns its refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Refusal(caught.value)


class Callers(grpc.aio.ServerInterceptor):
    """Sets the caller that the metadata name, without authentication, which these tests don't cover."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = callers

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """See the base class."""
        name = dict(details.invocation_metadata or ()).get("caller")
        if name:
            set_current(self._callers[str(name)])
        return await continuation(details)


def caller_metadata(name: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call by this caller."""
    return (("caller", name),)


@asynccontextmanager
async def running_services(
    *handlers: grpc.GenericRpcHandler, callers: Mapping[str, Caller] | None = None, options: Sequence[Any] = ()
) -> AsyncIterator[grpc.aio.Channel]:
    """Runs a server with these services; yields a channel to it."""
    server = grpc.aio.server(interceptors=[Callers(callers or {})], options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield channel
    finally:
        await server.stop(0)
