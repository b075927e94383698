"""Common handling of all calls: bytes become a request, an error becomes the right google.rpc status.

Requests arrive as bytes and are parsed here: the library would answer what is no request with INTERNAL. Whatever a
method raises that is no :class:`~court.errors.CourtError` is a fault of ours: the log gets its kind and place, the
caller neither, for what it says may hold a path or the text of a meme.
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
from serving.errors import Busy, not_in_session
from serving.rpc.status import status_of

_TO_ANSWER_S = 0.1
"""What is kept of a caller's deadline to send it the answer, in seconds."""

_MOST_STREAMS = 1000
"""Of one method that are answered at once."""

_NOTHING_CHANGED = frozenset({"LIBRARY_LOCKED", "LIBRARY_NOT_WRITTEN"})
"""Reasons that say that a change was not made."""

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
    """The request in a message.

    Raises:
        BadRequest: The bytes are none; MALFORMED_REQUEST.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise BadRequest(f"The message is no {name}.", reason="MALFORMED_REQUEST") from None


def to_court_error(error: Exception) -> CourtError:
    """The error that a caller is told of: a CourtError as it is, anything else as a fault of ours, which is logged."""
    if isinstance(error, TrialAborted):
        _log.warning("trial=%s failed reason=%s", error.record.trial_id, error.reason)
    if isinstance(error, CourtError):
        return error
    # Places alone: the error's own text may hold that of a meme, and must not get into the log (PR-1).
    where = "".join(traceback.format_tb(error.__traceback__))
    _log.error("request failed: %s\n%s", type(error).__qualname__, where)
    return CourtError("The server made a mistake.", reason="INTERNAL")


async def abort(context: ServiceCall, error: CourtError) -> NoReturn:
    """Ends a call with the status of an error."""
    status = rpc_status.to_status(status_of(error))
    # The library keeps what it raises now for as long as the call, which is in its frames: each holds the other. Let it
    # be without the error, which remembers the request.
    del error
    await context.abort(status.code, status.details, status.trailing_metadata)


async def finish_call(context: ServiceCall, answer: Awaitable[T]) -> T:
    """Awaits an answer, or ends the call with the status of the raised error.

    A caller that vanishes cancels its call. Where it does while something is being sent to it, the library raises an
    error there as well: that is no fault of ours, and nobody is left to be told of it.
    """
    try:
        return await answer
    # Ends of calls that the library brings about itself, and that were told already.
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as error:
        if _of_vanished(error):
            raise asyncio.CancelledError from None
        ending = abort(context, to_court_error(error).with_traceback(None))
    await ending  # out here, or what the library raises would remember the error


def _of_vanished(error: Exception) -> bool:
    """True if the library raised an error because nothing can be sent or received any more, and for no other reason."""
    if isinstance(error, ExceptionGroup):
        return all(_of_vanished(each) for each in error.exceptions)
    return isinstance(error, grpc.aio.InternalError)


def unary(kind: type[Request], method: Unary[Request, Response], memory: ReceiveBudget) -> Handler:
    """A call of one request and one response.

    It is registered as one with a stream of requests, which on the wire is the same: the library would read a single
    one before anything of ours runs.

    Args:
        kind: Type of the request.
        method: Gets the request parsed, and raises its errors.
        memory: Memory budget that is waited for before the request is read.
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
    """A call of one request and a stream of responses.

    ``method`` is an async generator; the next response is asked of it only once flow control has let the one before go.
    So many calls are answered at once, and others told to come again: each lasts for as long as its caller likes, and
    has memory until then. One whose caller takes no response for as long as the server waits ends (IDLE): it would keep
    others out for ever. The rest is as for :func:`unary`; ``of`` is for :meth:`ReceiveBudget.receive`.
    """
    answering = 0

    async def tell(data: bytes, context: ServiceCall) -> None:
        nonlocal answering
        request = parse_request(kind, data)
        if answering >= _MOST_STREAMS:
            raise Busy(f"{answering:,} such streams are open, which is as many as this server has. Come again.")
        # Nothing is awaited since the comparison, so that no two calls take the last place.
        answering += 1
        try:
            outgoing = Responses(context, memory.idle_s, "Read responses as they come; open the call again to go on.")
            # Closed here: left to the garbage collector, what it watches would stay registered until that comes.
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
    """Responses of a call with many of them.

    Args:
        context: The call.
        idle_s: Seconds in which the caller must take a response.
        advice: Advice to a caller that took no response for too long.
    """

    def __init__(self, context: ServiceCall, idle_s: float, advice: str) -> None:
        self._context = context
        self._idle_s = idle_s
        self._advice = advice
        self._begun = False

    async def begin(self, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """Sends the metadata that stand before the responses, unless they were sent."""
        if not self._begun:
            await self._context.send_initial_metadata(tuple(metadata))
            self._begun = True

    async def send(self, response: Message | bytes) -> None:
        """Sends the next response, once flow control has let it go. One at a time.

        Raises:
            BadRequest: The caller did not take it; IDLE. The call can only end then.
        """
        try:
            async with asyncio.timeout(self._idle_s) as limit:
                # With the first response the library would send it a second time where that is not taken, and fail at
                # that: the caller would be told that all is well.
                await self.begin()
                await self._context.write(response)
            return
        except TimeoutError:
            if not limit.expired():
                raise
        # Not above: with what the writing was ended with, it would remember the response, and who waited for it.
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
        # Given back only when the call is over: the request is in memory for as long.
        lot.release()


@contextmanager
def changing() -> Iterator[None]:
    """Around a change that would be made twice if it were asked for again, and what is done to tell of it.

    Raises:
        Unavailable: Without a delay after which to come again where nobody can say whether the change was made.
    """
    try:
        yield
    except Unavailable as error:
        # Of these it is known that nothing was changed: to come again is safe.
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
    """The bytes of a response."""
    return message.SerializeToString()


def time_left(context: ServiceCall) -> float | None:
    """Seconds until an answer must be on its way; None where the caller gave no deadline."""
    left = context.time_remaining()
    # An answer at the very deadline would be a verdict that is kept, and a caller who never gets it.
    return None if left is None else left - _TO_ANSWER_S


def traceparent(context: ServiceCall) -> str:
    """The W3C header of that name, or empty."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""


class Session(Generic[T]):
    """State that a service answers with, from its opening until its closing."""

    def __init__(self) -> None:
        """Not open yet: a server listens while it warms up."""
        self._with: T | None = None
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, what: T) -> None:
        """From now on calls are answered with this."""
        self._with = what

    def close(self) -> None:
        """From now on calls are turned away; those being answered go on."""
        self._with = None

    @contextmanager
    def call(self) -> Iterator[T]:
        """Yields the state while a call is answered. Raises Unavailable while there is none."""
        if self._with is None:
            raise not_in_session()
        self._calls += 1
        self._idle.clear()
        try:
            # Read once: calls that have begun end with what they began with, also when the service closes.
            yield self._with
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def empty(self, seconds: float) -> None:
        """Waits until no call is being answered, at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
