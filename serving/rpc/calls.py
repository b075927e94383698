"""Common handling of all calls: parses requests, and maps errors to google.rpc statuses.

Requests arrive as bytes and are parsed here: the gRPC library would answer a malformed request with INTERNAL. An
exception other than :class:`~court.errors.CourtError` is a bug: its type and traceback are logged but not sent to the
caller, and its message is dropped, since it may contain a path or the text of a meme.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

from court.errors import BadRequest, CourtError, Unavailable
from court.record import TrialAborted
from serving.errors import Busy, Malformed, closing, starting
from serving.rpc.status import status_of

ANSWER_RESERVE_S = 0.1
"""Seconds of a caller's deadline that are reserved for sending the answer."""

_MOST_STREAMS = 1000
"""Maximum number of concurrent calls of one streaming method."""

_NOTHING_CHANGED = frozenset({"LIBRARY_LOCKED", "LIBRARY_NOT_WRITTEN"})
"""Error reasons that guarantee that a change was not made."""

_log = logging.getLogger("memecourt.service")

Request = TypeVar("Request", bound=Message)
T = TypeVar("T")

if TYPE_CHECKING:
    from serving.rpc.flow_control import ReceiveBudget, RequestSource, Reservation

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    CallContext: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def parse_request(kind: type[Request], data: bytes) -> Request:
    """Parses a request.

    Raises:
        BadRequest: The bytes are not a valid request; MALFORMED_REQUEST.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise Malformed(f"The message is no {name}.") from None


def to_court_error(error: Exception) -> CourtError:
    """Returns the error to report to the caller: a CourtError unchanged, anything else as a logged internal error."""
    if isinstance(error, TrialAborted):
        _log.warning("trial=%s failed reason=%s", error.record.trial_id, error.reason)
    if isinstance(error, CourtError):
        return error
    # The traceback alone: the error's message may contain the text of a meme, which must not be logged (PR-1).
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("request failed: %s\n%s", type(error).__qualname__, where)
    return CourtError("The server made a mistake.", reason="INTERNAL")


async def abort(context: CallContext, error: CourtError) -> NoReturn:
    """Ends a call with the status of an error."""
    status = rpc_status.to_status(status_of(error))
    # The library keeps the exception it raises now, and its frames reference the call: a reference cycle. Keep the
    # error, which references the request, out of it.
    del error
    await context.abort(status.code, status.details, status.trailing_metadata)


async def finish_call(context: CallContext, answer: Awaitable[T]) -> T:
    """Awaits an answer, or ends the call with the status of the raised error.

    A caller that disconnects cancels its call. If this happens while something is being sent, the library also raises
    an error there: that is not a bug, and nobody is left to receive it.
    """
    try:
        return await answer
    # The library itself ended the call, and the caller already knows.
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as error:
        if _of_vanished(error):
            raise asyncio.CancelledError from None
        ending = abort(context, to_court_error(error).with_traceback(None))
    await ending  # outside the handler, so that the library's exception does not reference the error


def _of_vanished(error: Exception) -> bool:
    """True if the library raised an error only because the caller has disconnected."""
    if isinstance(error, ExceptionGroup):
        return all(_of_vanished(each) for each in error.exceptions)
    return isinstance(error, grpc.aio.InternalError)


@dataclass(frozen=True, slots=True)
class Budget:
    """Time that a call has, and the trace that it belongs to."""

    within_s: float | None = None
    traceparent: str = ""


class Method(Generic[Request]):
    """A method of a service, whichever transport calls it."""

    def __init__(
        self, request: type[Request], answer: Callable[[Request, Budget], Any], memory: ReceiveBudget, *, of: str = ""
    ) -> None:
        """Describes a method.

        Args:
            answer: Coroutine function that returns the response, or async generator function of a stream's responses.
        """
        self._request = request
        self._answer = answer
        self._memory = memory
        self._of = of
        self._streaming = 0

    @property
    def streams(self) -> bool:
        """True if the method has a stream of responses."""
        return inspect.isasyncgenfunction(self._answer)

    async def respond(self, source: RequestSource, budget: Callable[[], Budget]) -> Message:
        """Reads the request and returns the response."""
        request, reservation = await self._received(source)
        try:
            answering = self._answer(request, budget())
            del request  # the method drops it when only the picture is needed
            response: Message = await answering
            return response
        finally:
            # Released only when the call is over: the request stays in memory until then.
            reservation.release()

    async def stream(self, source: RequestSource, budget: Callable[[], Budget], sink: ResponseSink) -> None:
        """Reads the request and sends the responses.

        The next response is made only once flow control has let the previous one go. The number of concurrent calls is
        limited, and further callers are told to retry: each call lasts for as long as its caller likes, and uses memory
        until then. A call whose caller takes no response within the idle timeout ends (IDLE), as it would lock out
        others for ever.
        """
        request, reservation = await self._received(source)
        try:
            if self._streaming >= _MOST_STREAMS:
                raise Busy(
                    f"{self._streaming:,} such streams are open, which is as many as this server has. Come again."
                )
            # Nothing is awaited since the comparison, so that two calls can't both take the last place.
            self._streaming += 1
            try:
                advice = "Read responses as they come; open the call again to go on."
                outgoing = Responses(sink, self._memory.idle_s, advice)
                # Closed explicitly: otherwise its subscriptions would stay registered until garbage collection.
                async with aclosing(self._answer(request, budget())) as responses:
                    async for response in responses:
                        await outgoing.send(response)
            finally:
                self._streaming -= 1
        finally:
            reservation.release()

    async def _received(self, source: RequestSource) -> tuple[Request, Reservation]:
        received = await self._memory.receive(source, of=self._of)
        if received is None:
            raise Malformed("The call ended without a request.")
        data, reservation = received
        try:
            return (parse_request(self._request, data) if isinstance(data, bytes) else data.message), reservation
        except CourtError:
            reservation.release()
            raise

    def handler(self) -> Handler:
        """Builds the gRPC handler.

        It is registered with a stream of requests, which is the same on the wire: the library would read a single
        request before any of our code runs.
        """

        async def respond(_: AsyncIterator[bytes], context: CallContext) -> bytes:
            response = await finish_call(context, self.respond(context, lambda: budget_of(context)))
            return response.SerializeToString()

        async def stream(_: AsyncIterator[bytes], context: CallContext) -> None:
            await finish_call(context, self.stream(context, lambda: budget_of(context), context))

        if self.streams:
            return grpc.stream_stream_rpc_method_handler(
                stream, request_deserializer=None, response_serializer=lambda response: response.SerializeToString()
            )
        return grpc.stream_unary_rpc_method_handler(respond, request_deserializer=None, response_serializer=None)


class ResponseSink(Protocol):
    """The part of a call that responses are written to."""

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Sends the initial metadata."""

    async def write(self, response: Any) -> None:
        """Sends a response once flow control allows it."""


class Responses:
    """Sends the responses of a streaming call.

    Args:
        idle_s: Seconds within which the caller must take a response.
    """

    def __init__(self, sink: ResponseSink, idle_s: float, advice: str) -> None:
        self._sink = sink
        self._idle_s = idle_s
        self._advice = advice
        self._begun = False

    async def begin(self, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """Sends the initial metadata, unless they were sent already."""
        if not self._begun:
            await self._sink.send_initial_metadata(tuple(metadata))
            self._begun = True

    async def send(self, response: Message | bytes) -> None:
        """Sends the next response once flow control allows it. Not to be called concurrently.

        Raises:
            BadRequest: The caller did not take it in time; IDLE. The call must then end.
        """
        try:
            async with asyncio.timeout(self._idle_s) as limit:
                # If the metadata went with a first response that is not taken, the library would send them a second
                # time and fail: the caller would be told that all is well.
                await self.begin()
                await self._sink.write(response)
            return
        except TimeoutError:
            if not limit.expired():
                raise
        # Raised out here: chained to the timeout, it would keep the response and the waiting frames alive.
        raise BadRequest(f"No response was taken for {self._idle_s:g} seconds. {self._advice}", reason="IDLE")


@contextmanager
def changing() -> Iterator[None]:
    """Wraps a non-idempotent change, and the work needed to report it, so that callers never repeat it blindly.

    Raises:
        Unavailable: The change may or may not have been made; the error has no retry delay.
    """
    try:
        yield
    except Unavailable as error:
        # These guarantee that nothing was changed, so that a retry is safe.
        if error.reason in _NOTHING_CHANGED:
            raise
        raise Unavailable(
            f"{error.message} What was to be changed may be: look before you ask again.",
            reason=error.reason,
            field=error.field,
            retry_after=None,
        ) from error


def time_left(context: CallContext) -> float | None:
    """Seconds until an answer must be sent; None if the caller gave no deadline."""
    left = context.time_remaining()
    # An answer right at the deadline would be a verdict that is stored but never reaches the caller.
    return None if left is None else left - ANSWER_RESERVE_S


def budget_of(context: CallContext) -> Budget:
    """Returns the time that is left to a gRPC call, and its trace."""
    metadata = context.invocation_metadata() or ()
    traceparent = next((value for key, value in metadata if key == "traceparent" and isinstance(value, str)), "")
    return Budget(time_left(context), traceparent)


class Service(Generic[T]):
    """A service of the contract, which answers UNAVAILABLE until it is opened and once it is closed.

    Subclasses have a method for each of the contract's, of the same name in lower case with underscores.

    Attributes:
        methods: Methods that any transport can call, by their names in the contract.
    """

    def __init__(self, descriptor: ServiceDescriptor, memory: ReceiveBudget) -> None:
        self.name, self.memory = str(descriptor.full_name), memory
        self.methods: Mapping[str, Method[Any]] = {
            str(method.name): Method(
                GetMessageClass(method.input_type),
                getattr(self, re.sub(r"\B([A-Z])", r"_\1", method.name).lower()),
                memory,
                of=self.name,
            )
            # gRPC alone has streams of requests.
            for method in descriptor.methods
            if not method.client_streaming
        }
        self._with: T | None = None
        self._closed = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def handler(self, **others: Handler) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server."""
        handlers = {name: method.handler() for name, method in self.methods.items()}
        return grpc.method_handlers_generic_handler(self.name, {**handlers, **others})

    def close(self) -> None:
        """Refuses new calls from now on; running ones continue."""
        self._with, self._closed = None, True

    async def empty(self, seconds: float) -> None:
        """Waits until no call is running, at most the given number of seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def _begin(self, state: T) -> None:
        """Answers calls with this state from now on."""
        self._with = state

    @contextmanager
    def _call(self) -> Iterator[T]:
        """Yields the state while a call is answered. Raises Unavailable if the service is closed."""
        if self._with is None:
            raise closing() if self._closed else starting()
        self._calls += 1
        self._idle.clear()
        try:
            # Read once: a running call keeps its state even when the service closes.
            yield self._with
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
