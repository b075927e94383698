"""Calls the services' methods for HTTP requests: handles deadlines, disconnecting callers and errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from court.errors import BadRequest, CourtError, Overrun
from serving.http.connections import GuardedConnection
from serving.rest.bodies import content_length, received
from serving.rest.http_call import CallEnded, EventForm, EventWriter, HttpCall, LineWriter
from serving.rest.messages import response_json
from serving.rest.operations import JUDGE, Operation
from serving.rest.problems import MEDIA_TYPE, ProblemDetails, problem_of
from serving.rest.remote_pictures import Fetch
from serving.rpc.calls import to_court_error
from serving.rpc.methods import Methods
from serving.rpc.status import DEADLINE, status_of

TIMEOUT = "x-timeout-s"
"""Header with the caller's timeout in seconds."""
USUAL_TIMEOUT_S = 30.0
"""Default timeout in seconds. Longer requests use ``Prefer: respond-async``."""
_LONGEST_TIMEOUT_S = 3600.0
_LAST_EVENT_S = 1.0
"""Seconds within which a caller must take the last event of a failing stream."""


class CallerGone(Exception):
    """The caller has disconnected, so nobody can be answered."""


class Api:
    """Gives HTTP endpoints access to the services' methods."""

    def __init__(self, methods: Methods, fetch: Fetch, *, fetches: bool) -> None:
        """Prepares to answer calls.

        Args:
            fetch: Fetches pictures that a request names by address, or refuses to.
            fetches: True if ``fetch`` ever fetches pictures.
        """
        self.methods = methods
        self.fetch = fetch
        self._fetches = fetches

    async def answer(self, operation: Operation, call: HttpCall, request: Request) -> Message | None:
        """Answers a call until its deadline, or until its caller disconnects.

        Returns:
            The response; None for a method that has written its responses to the call.

        Raises:
            CallEnded: The method has ended the call with an error.
            Overrun: The deadline has passed; DEADLINE.
            CallerGone: The caller has disconnected; the method was cancelled.
        """
        working = asyncio.ensure_future(self.methods.answer(operation.full_name, call))
        leaving = asyncio.ensure_future(connection_of(request).lost.wait())
        try:
            done, _ = await asyncio.wait(
                (working, leaving), timeout=call.time_remaining(), return_when=asyncio.FIRST_COMPLETED
            )
            if leaving in done or working.cancelled():  # reading the body may notice the disconnect first
                raise CallerGone
            if working in done:
                return parsed(operation, working.result())
            raise Overrun("There was no answer in the time that the request gives.", reason=DEADLINE)
        finally:
            working.cancel()
            leaving.cancel()
            # Awaited, so that the method releases its memory and slot, and does not continue after the answer.
            await asyncio.gather(working, leaving, return_exceptions=True)

    def call_of(
        self,
        operation: Operation,
        request: Request,
        *,
        usual_s: float | None = USUAL_TIMEOUT_S,
        events: EventWriter | None = None,
        observe: Callable[[Any], None] = lambda _: None,
    ) -> HttpCall:
        """Builds the call for an HTTP request.

        Args:
            usual_s: Timeout in seconds if the header gives none; None for no timeout.
            events: Writer for the responses of a streaming method.
            observe: Called with the request message, without a separately sent picture; may complete it.

        Raises:
            BadRequest: The timeout header is not a number of seconds.
        """

        # Read only when the method asks for it, once there is memory for the body.
        async def message() -> bytes:
            found = await received(operation, request, self.fetch)
            observe(found.message)
            return found.serialized()

        return HttpCall(
            request,
            message,
            announced_bytes=self.announced_bytes(operation, request),
            timeout_s=timeout_of(request, usual_s),
            events=events,
        )

    def announced_bytes(self, operation: Operation, request: Request) -> int | None:
        """Returns the announced size of a request; None for the maximum, as when a picture will be fetched."""
        return None if operation is JUDGE and self._fetches else content_length(request)


class Endpoint:
    """Endpoint of a method with one response."""

    def __init__(self, api: Api, operation: Operation) -> None:
        """Creates the endpoint of an operation."""
        self._api = api
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)

        async def work() -> Response:
            response = await self._api.answer(self._operation, self._api.call_of(self._operation, request), request)
            assert response is not None
            return json_response(response_json(response))

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
            await self._api.answer(
                self._operation, self._api.call_of(self._operation, request, usual_s=None, events=events), request
            )
            # A stream without any event still needs a response.
            if not events.begun:
                await events.begin()

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
    work: Callable[[], Awaitable[Response | None]],
    failed: Callable[[ProblemDetails], Response | None] | None = None,
) -> Response | None:
    """Awaits work and returns its response, or that of its problem; None if the caller has disconnected.

    Args:
        failed: Converts a problem to a response; RFC 9457 if not given.
    """
    try:
        return await work()
    except CallerGone:
        return None
    except CallEnded as ended:
        status = ended.status
    except Exception as error:
        status = status_of(to_court_error(error))
    return (failed or problem_response)(problem_of(status))


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


def parsed(operation: Operation, response: Message | bytes | None) -> Message | None:
    """Returns a response as a message, parsing it if the method has serialised it."""
    return operation.response.FromString(response) if isinstance(response, bytes) else response


def connection_of(request: Request) -> GuardedConnection:
    """Returns the connection that a request came over."""
    connection = request.scope["state"]["connection"]
    assert isinstance(connection, GuardedConnection)
    return connection
