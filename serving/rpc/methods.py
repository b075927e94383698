"""The methods of the services and what stands in front of them, for gRPC's server and for other transports alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import grpc

from serving.access.tokens import Tokens
from serving.rpc.auth import Access
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from serving.service_call import ServiceCall

    _Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    _Finding: TypeAlias = Callable[[grpc.HandlerCallDetails], Any]


class Service(Protocol):
    """Service of a server."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Its methods."""
        ...


@dataclass(frozen=True, slots=True)
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class Methods:
    """The methods of services, each behind what counts calls and what refuses them.

    Attributes:
        handlers: Handlers of the services.
        interceptors: Objects that every call passes through, the outermost first.
    """

    def __init__(self, *services: Service, tokens: Tokens | None = None, telemetry: Telemetry = SILENT) -> None:
        """Collects them.

        Args:
            services: Services of :mod:`memecourt.v1`.
            tokens: Tokens of its callers; None for a server that knows none.
            telemetry: Is told of every call.
        """
        self.handlers = [service.handler() for service in services]
        # What is refused for want of a token is counted too.
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = (telemetry.interceptor(), Access(tokens))

    async def answer(self, method: str, call: ServiceCall) -> Message | bytes | None:
        """Answers a call that came by another transport than gRPC, in this task, as gRPC's server would.

        Args:
            method: Full name of the method, ``/memecourt.v1.Court/Judge``.
            call: The call.

        Returns:
            The response; None of a method that has written its responses to the call.
        """
        # Through the same interceptors as gRPC: another transport can neither pass by the check of tokens nor by the
        # counts.
        details = _Details(method, tuple(call.invocation_metadata() or ()))
        handler: _Handler | None = await self._find(details)
        assert handler is not None, method
        # All methods are registered with a stream of requests (calls.unary): there are no other kinds.
        answer: Any = handler.stream_stream or handler.stream_unary
        response: Message | bytes | None = await answer(_no_requests(), call)
        return response

    def _find(self, details: grpc.HandlerCallDetails) -> Any:
        find: _Finding = self._own
        for interceptor in reversed(self.interceptors):
            find = _after(interceptor, find)
        return find(details)

    async def _own(self, details: grpc.HandlerCallDetails) -> _Handler | None:
        return next((found for handler in self.handlers if (found := handler.service(details))), None)


def _after(interceptor: grpc.aio.ServerInterceptor, find: _Finding) -> _Finding:
    return lambda details: interceptor.intercept_service(find, details)


async def _no_requests() -> AsyncIterator[bytes]:
    """Requests are read from the call itself."""
    return
    yield
