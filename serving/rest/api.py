"""Calls the services' methods for HTTP requests: handles deadlines, disconnecting callers and errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from court.deadline import cancel_all
from court.errors import BadRequest, CourtError, Overrun
from serving.http.connections import GuardedConnection
from serving.rest.bodies import ReceivedRequest, content_length, received
from serving.rest.events import EventForm, EventWriter, LineWriter
from serving.rest.messages import response_json
from serving.rest.operations import JUDGE, Operation
from serving.rest.problems import MEDIA_TYPE, ProblemDetails, problem_of
from serving.rest.remote_pictures import Fetch
from serving.rpc.calls import ANSWER_RESERVE_S, Budget, to_court_error
from serving.rpc.server import Methods
from serving.rpc.status import DEADLINE, code_name_of, status_of

TIMEOUT = "x-timeout-s"
"""Header with the caller's timeout in seconds."""
USUAL_TIMEOUT_S = 30.0
"""Default timeout in seconds. Longer requests use ``Prefer: respond-async``."""
_LONGEST_TIMEOUT_S = 3600.0
_LAST_EVENT_S = 1.0
"""Seconds within which a caller must take the last event of a failing stream."""


class CallerGone(Exception):
    """The caller has disconnected, so nobody can be answered."""


@dataclass(frozen=True, slots=True)
class _Incoming:
    """The request of a call as flow control reads it: only once there is memory for it."""

    request: Request
    reading: Callable[[], Awaitable[ReceivedRequest]]
    announced_bytes: int | None

    def peer(self) -> str:
        """Returns the connection of the call."""
        client = self.request.client
        return f"http:{client.host}:{client.port}" if client else "http:"

    async def read(self) -> ReceivedRequest:
        """Reads the request."""
        return await self.reading()


class Call:
    """A call of a method for an HTTP request, whose time runs from now on."""

    def __init__(
        self,
        api: Api,
        operation: Operation,
        request: Request,
        *,
        timeout_s: float | None,
        reading: Callable[[], Awaitable[ReceivedRequest]] | None = None,
        announced_bytes: int | None = None,
    ) -> None:
        """Prepares the call without reading the body.

        Args:
            timeout_s: Timeout of the caller in seconds; None for no timeout. Waiting for memory is part of it.
            reading: Reads the request; None to read it as the operation says.
            announced_bytes: Bytes to reserve before that; None for the maximum.
        """
        self._api = api
        self._operation = operation
        self._request = request
        if reading is None:
            announced_bytes = api.announced_bytes(operation, request)
        self._incoming = _Incoming(request, reading or self._read, announced_bytes)
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    def time_left(self) -> float | None:
        """Seconds until the caller's deadline; None if there is none."""
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def respond(self) -> Any:
        """Calls the method; returns its response, or raises its errors."""
        with self._admitted():
            return await self._api.methods[self._operation.method].respond(self._incoming, self._budget)

    async def stream(self, events: EventWriter) -> None:
        """Calls a method with a stream of responses, and writes them as events."""
        with self._admitted():
            await self._api.methods[self._operation.method].stream(self._incoming, self._budget, events)

    async def finish(self, answering: Coroutine[Any, Any, Any]) -> Any:
        """Returns the result of an answer to this call, until its deadline or until its caller disconnects.

        Raises:
            Overrun: The deadline has passed; DEADLINE.
            CallerGone: The caller has disconnected; the method was cancelled.
        """
        working = asyncio.ensure_future(answering)
        leaving = asyncio.ensure_future(connection_of(self._request).lost.wait())
        try:
            done, _ = await asyncio.wait(
                (working, leaving), timeout=self.time_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if leaving in done or working.cancelled():  # reading the body may notice the disconnect first
                raise CallerGone
            if working in done:
                return working.result()
            raise Overrun("There was no answer in the time that the request gives.", reason=DEADLINE)
        finally:
            # Awaited, so that the method releases its memory and slot, and does not continue after the answer.
            await cancel_all(working, leaving)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Counts the call and lets it through, as the interceptors do over gRPC."""
        headers = self._request.headers
        with self._api.methods.telemetry.call(self._operation.full_name, headers, self.time_left, code_name_of):
            self._api.methods.access.admit(self._operation.full_name, headers.items())
            yield

    async def _read(self) -> ReceivedRequest:
        return await received(self._operation, self._request, self._api.fetch)

    def _budget(self) -> Budget:
        left = self.time_left()
        within_s = None if left is None else left - ANSWER_RESERVE_S
        return Budget(within_s, self._request.headers.get("traceparent", ""))


class Api:
    """Gives HTTP endpoints access to the services' methods."""

    def __init__(self, methods: Methods, fetch: Fetch, *, fetches: bool) -> None:
        """Prepares to answer calls."""
        self.methods = methods
        self.fetch = fetch
        self._fetches = fetches

    async def answer(self, operation: Operation, request: Request) -> Any:
        """Answers a request with the usual timeout. Raises as :meth:`Call.finish` and the method."""
        call = Call(self, operation, request, timeout_s=timeout_of(request, USUAL_TIMEOUT_S))
        return await call.finish(call.respond())

    def announced_bytes(self, operation: Operation, request: Request) -> int | None:
        """Returns the announced size of a request; None for the maximum, as when a picture will be fetched."""
        return None if operation is JUDGE and self._fetches else content_length(request)


class Endpoint:
    """Endpoint of a method with one response."""

    def __init__(self, api: Api, operation: Operation) -> None:
        self._api = api
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)

        async def work() -> Response:
            return json_response(response_json(await self._api.answer(self._operation, request)))

        if (response := await finished(work)) is not None:
            await response(scope, receive, send)


class EventEndpoint:
    """Endpoint of a streaming method, whose responses are sent as server-sent events or as JSON lines."""

    def __init__(self, api: Api, operation: Operation, form: EventForm) -> None:
        """Creates the endpoint of an operation; ``form`` converts its responses to events."""
        self._api = api
        self._operation = operation
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)
        events = (LineWriter if self._operation.lines else EventWriter)(send, self._form)

        async def work() -> None:
            call = Call(self._api, self._operation, request, timeout_s=timeout_of(request, None))
            await call.finish(call.stream(events))
            # A stream without any event still needs a response.
            await events.send_initial_metadata()

        try:
            failed: list[ProblemDetails] = []
            await finished(work, failed.append)
            if connection_of(request).lost.is_set():
                return
            # Before the head is sent, an error can be an HTTP status; afterwards only an event.
            if failed and not events.begun:
                await problem_response(failed[0])(scope, receive, send)
                return
            # A caller that reads nothing must not keep a connection and its memory for a last event.
            async with asyncio.timeout(_LAST_EVENT_S):
                await events.end(*failed)
        except TimeoutError:
            connection_of(request).transport.abort()  # it reads nothing, which may be why the stream failed
        finally:
            events.close()


async def finished(
    work: Callable[[], Awaitable[Response | None]], failed: Callable[[ProblemDetails], Response | None] | None = None
) -> Response | None:
    """Awaits work and returns its response, or that of its problem; None if the caller has disconnected."""
    try:
        return await work()
    except CallerGone:
        return None
    except Exception as error:
        return (failed or problem_response)(problem_of(status_of(to_court_error(error))))


def json_response(content: Any, status: int = 200, **headers: str) -> Response:
    """Builds a JSON response."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def problem_response(problem: ProblemDetails) -> Response:
    """Builds the response for a problem."""
    return Response(orjson.dumps(problem.body), problem.status, dict(problem.headers), MEDIA_TYPE)


def error_response(error: CourtError) -> Response:
    """Builds the response for an error that occurred before any method was called."""
    return problem_response(problem_of(status_of(error)))


def timeout_of(request: Request, usual: float | None) -> float | None:
    """Returns the caller's timeout in seconds. Raises BadRequest if its header is invalid."""
    value = request.headers.get(TIMEOUT)
    if value is None:
        return usual
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    # Written so that NaN is refused too, for which all comparisons are false.
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise BadRequest(
            f"{TIMEOUT} is a number of seconds, above 0 and at most {_LONGEST_TIMEOUT_S:g}.",
            reason="BAD_TIMEOUT",
            field=TIMEOUT,
        )
    return seconds


def connection_of(request: Request) -> GuardedConnection:
    """Returns the connection that a request came over."""
    connection = request.scope["state"]["connection"]
    assert isinstance(connection, GuardedConnection)
    return connection
