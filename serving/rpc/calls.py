"""Common handling of all calls: parses requests, and maps errors to google.rpc statuses.

Requests arrive as bytes and are parsed here: the gRPC library would answer a malformed request with INTERNAL. An
exception other than :class:`~court.errors.CourtError` is a bug: its type and traceback are logged but not sent to the
caller, and its message is dropped, since it may contain a path or the text of a meme.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_status import rpc_status

from court.errors import BadRequest, CourtError, Unavailable
from court.record import TrialAborted
from serving.errors import Busy, closing, starting
from serving.rpc.status import status_of

_ANSWER_RESERVE_S = 0.1
"""Seconds of a caller's deadline that are reserved for sending the answer."""

_MOST_STREAMS = 1000
"""Maximum number of concurrent calls of one streaming method."""

_NOTHING_CHANGED = frozenset({"LIBRARY_LOCKED", "LIBRARY_NOT_WRITTEN"})
"""Error reasons that guarantee that a change was not made."""

_log = logging.getLogger("memecourt.service")

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")

if TYPE_CHECKING:
    from serving.rpc.flow_control import ReceiveBudget
    from serving.service_call import ServiceCall

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Unary: TypeAlias = Callable[[Request, ServiceCall], Awaitable[Response]]
    Streaming: TypeAlias = Callable[[Request, ServiceCall], AsyncGenerator[Response, None]]


def parse_request(kind: type[Request], data: bytes) -> Request:
    """Parses a request.

    Raises:
        BadRequest: The bytes are not a valid request; MALFORMED_REQUEST.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise BadRequest(f"The message is no {name}.", reason="MALFORMED_REQUEST") from None


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


async def abort(context: ServiceCall, error: CourtError) -> NoReturn:
    """Ends a call with the status of an error."""
    status = rpc_status.to_status(status_of(error))
    # The library keeps the exception it raises now, and its frames reference the call: a reference cycle. Keep the
    # error, which references the request, out of it.
    del error
    await context.abort(status.code, status.details, status.trailing_metadata)


async def finish_call(context: ServiceCall, answer: Awaitable[T]) -> T:
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


def unary(kind: type[Request], method: Unary[Request, Response], memory: ReceiveBudget) -> Handler:
    """Builds the handler of a call with one request and one response.

    It is registered with a stream of requests, which is the same on the wire: the library would read a single request
    before any of our code runs.

    Args:
        method: Called with the parsed request; raises its errors.
        memory: Memory budget that must have room before the request is read.
    """

    async def answer(context: ServiceCall) -> Response:
        async with _only_request(memory, context) as data:
            return await method(parse_request(kind, data), context)

    async def call(_: AsyncIterator[bytes], context: ServiceCall) -> Response:
        return await finish_call(context, answer(context))

    return grpc.stream_unary_rpc_method_handler(call, request_deserializer=None, response_serializer=serialized)


def streaming(
    kind: type[Request], method: Streaming[Request, Response], memory: ReceiveBudget, *, of: str = ""
) -> Handler:
    """Builds the handler of a call with one request and a stream of responses.

    ``method`` is an async generator, which is advanced only once flow control has let the previous response go. The
    number of concurrent calls is limited, and further callers are told to retry: each call lasts for as long as its
    caller likes, and uses memory until then. A call whose caller takes no response within the idle timeout ends (IDLE),
    as it would lock out others for ever. The rest is as for :func:`unary`; ``of`` is passed to
    :meth:`ReceiveBudget.receive`.
    """
    answering = 0

    async def tell(data: bytes, context: ServiceCall) -> None:
        nonlocal answering
        request = parse_request(kind, data)
        if answering >= _MOST_STREAMS:
            raise Busy(f"{answering:,} such streams are open, which is as many as this server has. Come again.")
        # Nothing is awaited since the comparison, so that two calls can't both take the last place.
        answering += 1
        try:
            outgoing = Responses(context, memory.idle_s, "Read responses as they come; open the call again to go on.")
            # Closed explicitly: otherwise its subscriptions would stay registered until garbage collection.
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    await outgoing.send(response)
        finally:
            answering -= 1

    async def answer(context: ServiceCall) -> None:
        async with _only_request(memory, context, of) as data:
            await tell(data, context)

    async def call(_: AsyncIterator[bytes], context: ServiceCall) -> None:
        await finish_call(context, answer(context))

    return grpc.stream_stream_rpc_method_handler(call, request_deserializer=None, response_serializer=serialized)


class Responses:
    """Sends the responses of a streaming call.

    Args:
        idle_s: Seconds within which the caller must take a response.
        advice: Advice to a caller that took no response for too long.
    """

    def __init__(self, context: ServiceCall, idle_s: float, advice: str) -> None:
        self._context = context
        self._idle_s = idle_s
        self._advice = advice
        self._begun = False

    async def begin(self, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """Sends the initial metadata, unless they were sent already."""
        if not self._begun:
            await self._context.send_initial_metadata(tuple(metadata))
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
                await self._context.write(response)
            return
        except TimeoutError:
            if not limit.expired():
                raise
        # Raised out here: chained to the timeout, it would keep the response and the waiting frames alive.
        raise BadRequest(f"No response was taken for {self._idle_s:g} seconds. {self._advice}", reason="IDLE")


@asynccontextmanager
async def _only_request(memory: ReceiveBudget, context: ServiceCall, of: str = "") -> AsyncIterator[bytes]:
    received = await memory.receive(context, of=of)
    if received is None:
        raise no_request()
    data, lot = received
    try:
        yield data
    finally:
        # Released only when the call is over: the request stays in memory until then.
        lot.release()


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


def no_request() -> BadRequest:
    """Builds the error for a caller that ended its call without a request."""
    return BadRequest("The call ended without a request.", reason="MALFORMED_REQUEST")


def serialized(message: Message) -> bytes:
    """Serialises a response."""
    return message.SerializeToString()


def time_left(context: ServiceCall) -> float | None:
    """Seconds until an answer must be sent; None if the caller gave no deadline."""
    left = context.time_remaining()
    # An answer right at the deadline would be a verdict that is stored but never reaches the caller.
    return None if left is None else left - _ANSWER_RESERVE_S


def traceparent(context: ServiceCall) -> str:
    """Returns the W3C ``traceparent`` header, or an empty string."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""


class Session(Generic[T]):
    """State of a service between its opening and its closing, with a count of its running calls."""

    def __init__(self) -> None:
        """Starts closed: a server already listens while it warms up."""
        self._with: T | None = None
        self._closed = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, what: T) -> None:
        """Answers calls with this state from now on."""
        self._with = what

    def close(self) -> None:
        """Refuses new calls from now on; running ones continue."""
        self._with, self._closed = None, True

    @contextmanager
    def call(self) -> Iterator[T]:
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

    async def empty(self, seconds: float) -> None:
        """Waits until no call is running, at most the given number of seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
