"""Interceptor that counts, times and traces every call of the server."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from memecourt.v1 import court_pb2 as wire
from serving.telemetry.metrics import CODES

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from serving.telemetry.metrics import Metrics
    from serving.telemetry.tracing import Tracing

    _Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    _Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_OTHER = ("_OTHER", "_OTHER")
"""Label values for unknown services and methods, whose names are arbitrary."""

_KNOWN = {
    f"/{service.full_name}/{method.name}": (str(service.full_name), str(method.name))
    for file in (wire.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
_OURS = tuple(str(service.full_name) for service in wire.DESCRIPTOR.services_by_name.values())
_CLOCK_SKEW_S = 0.25
"""Tolerance in seconds for deadlines: callers cancel by their own clock, slightly before the deadline here, which
counts from the arrival of the call. A call cancelled with no more time left counts as timed out."""


class CallsInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of every call."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._wrapped: dict[tuple[str, str], tuple[_Handler, _Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Returns a call's handler, wrapped to count it."""
        handler = await continuation(handler_call_details)
        # Arbitrary names would each create a series, and so let callers consume memory.
        name = _KNOWN.get(handler_call_details.method, _OTHER)
        if handler is None:
            # Counted here, since there is no handler to wrap.
            if self._metrics:
                self._metrics.count("requests_in_progress", *name)
                self._metrics.ended(*name, "UNIMPLEMENTED", 0.0)
            return handler
        # A method's handler is the same each time, unless another interceptor replaces it.
        known = self._wrapped.get(name)
        if known is None or known[0] is not handler:
            known = self._wrapped[name] = handler, self._around(handler, name)
        return known[1]

    def _around(self, handler: _Handler, name: tuple[str, str]) -> _Handler:
        shape = "_".join(
            "stream" if streaming else "unary" for streaming in (handler.request_streaming, handler.response_streaming)
        )
        answer = getattr(handler, shape)
        tracing = self._tracing if name[0] in _OURS else None

        async def generated(request: Any, context: _Context) -> AsyncIterator[Any]:
            with self._measured(name, context, tracing):
                async for response in answer(request, context):
                    yield response

        async def awaited(request: Any, context: _Context) -> Any:
            with self._measured(name, context, tracing):
                return await answer(request, context)

        return getattr(grpc, f"{shape}_rpc_method_handler")(  # type: ignore[no-any-return]
            # gRPC distinguishes the two kinds of handlers in the same way, so the wrapper must be of the same kind.
            generated if inspect.isasyncgenfunction(answer) else awaited,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _measured(self, name: tuple[str, str], context: _Context, tracing: Tracing | None) -> MeasuredCall:
        return MeasuredCall(
            name,
            dict(context.invocation_metadata() or ()),
            self._metrics,
            tracing,
            time_left=context.time_remaining,
            code_of=lambda error: _status_name(context) or ("UNKNOWN" if error else "OK"),
        )


class MeasuredCall:
    """Measures a running call. A class rather than a generator for speed, since it is on the path of every call."""

    def __init__(
        self,
        name: tuple[str, str],
        headers: Mapping[str, str | bytes],
        metrics: Metrics,
        tracing: Tracing | None,
        *,
        time_left: Callable[[], float | None],
        code_of: Callable[[BaseException | None], str],
    ) -> None:
        """Prepares to measure a call."""
        self._name = name
        self._headers = headers
        self._metrics = metrics
        self._tracing = tracing
        self._time_left = time_left
        self._code_of = code_of
        self._span: Span | None = None
        self._began = 0.0

    @classmethod
    def of_method(cls, method: str, *arguments: Any, **named: Any) -> MeasuredCall:
        """Prepares to measure a call of a method by its full name, ``/memecourt.v1.Court/Judge``."""
        return cls(_KNOWN[method], *arguments, **named)

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        if self._metrics:
            self._metrics.count("requests_in_progress", *self._name)
        if self._tracing:
            # Binary metadata (keys ending in -bin) has no trace context.
            headers = {key: value for key, value in self._headers.items() if isinstance(value, str)}
            self._span = self._tracing.begin_call(*self._name, headers)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        code = self._code(error)
        if self._tracing and self._span:
            self._tracing.end_call(self._span, code)
        if self._metrics:
            self._metrics.ended(*self._name, code, time.perf_counter() - self._began)

    def _code(self, error: BaseException | None) -> str:
        # GeneratorExit if a stream is closed between two responses.
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            left = self._time_left()
            return "DEADLINE_EXCEEDED" if left is not None and left <= _CLOCK_SKEW_S else "CANCELLED"
        return self._code_of(error)


def _status_name(context: _Context) -> str:
    """Returns the name of the status that the handler has set, or an empty string."""
    code: Any = context.code()
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
    return CODES.get(number, "UNKNOWN") if number else ""
