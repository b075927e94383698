"""The services' methods with their interceptors, for the gRPC server and for other transports."""

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
    """A service that a server offers."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler of its methods."""
        ...


@dataclass(frozen=True, slots=True)
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class Methods:
    """The methods of services, behind interceptors that count and authorise calls.

    Attributes:
        interceptors: Interceptors of every call, the outermost first.
    """

    def __init__(self, *services: Service, tokens: Tokens | None = None, telemetry: Telemetry = SILENT) -> None:
        """Collects the handlers and interceptors.

        Args:
            services: Services of :mod:`memecourt.v1`.
            tokens: Tokens of callers; None for a server that does not authenticate.
        """
        self.handlers = [service.handler() for service in services]
        # Telemetry comes first, so that calls refused by Access are counted too.
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = (telemetry.interceptor(), Access(tokens))

    async def answer(self, method: str, call: ServiceCall) -> Message | bytes | None:
        """Answers a call of another transport than gRPC, in this task, as the gRPC server would.

        Args:
            method: Full name of the method, ``/memecourt.v1.Court/Judge``.

        Returns:
            The response; None for a method that has written its responses to the call.
        """
        # Through the same interceptors as gRPC: another transport can bypass neither the authorisation nor the counts.
        details = _Details(method, tuple(call.invocation_metadata() or ()))
        handler: _Handler | None = await self._find(details)
        assert handler is not None, method
        # All methods are registered with a stream of requests (calls.unary), so there are no other kinds.
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
    """Yields nothing: requests are read from the call itself."""
    return
    yield
