"""Calls of the services' methods by HTTP requests: with a deadline, until the caller leaves, with one form of error."""

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
from serving.rest.bodies import RequestLines, content_length, received
from serving.rest.http_call import CallEnded, EventForm, EventWriter, HttpCall, LineWriter
from serving.rest.messages import response_json
from serving.rest.operations import JUDGE, Operation, Source
from serving.rest.problems import MEDIA_TYPE, ProblemDetails, problem_of
from serving.rest.remote_pictures import Fetch
from serving.rpc.calls import to_court_error
from serving.rpc.methods import Methods
from serving.rpc.status import DEADLINE, status_of

TIMEOUT = "x-timeout-s"
"""Header with the seconds that a caller waits."""
USUAL_TIMEOUT_S = 30.0
"""Where a caller does not say. What takes longer is asked for with ``Prefer: respond-async``."""
_LONGEST_TIMEOUT_S = 3600.0
_TO_SAY_WHY_S = 1.0
"""Seconds in which a caller must take the last event of a stream that breaks off."""


class CallerGone(Exception):
    """The caller has left, and nobody is to be answered."""


class Api:
    """The methods of the services, as endpoints of HTTP have them."""

    def __init__(self, methods: Methods, fetch: Fetch, *, fetches: bool) -> None:
        """Answers calls.

        Args:
            methods: Methods of the services.
            fetch: Fetches pictures where a request names an address, or refuses to.
            fetches: True if it ever fetches one.
        """
        self.methods = methods
        self.fetch = fetch
        self._fetches = fetches

    async def answer(self, operation: Operation, call: HttpCall, request: Request) -> Message | None:
        """Answers a call, as long as its caller is there and waits.

        Returns:
            The response; None of a method that has written its responses to the call.

        Raises:
            CallEnded: The method has ended the call with an error.
            Overrun: The deadline has passed; DEADLINE.
            CallerGone: The caller has left; the method was cancelled.
        """
        working = asyncio.ensure_future(self.methods.answer(operation.full_name, call))
        leaving = asyncio.ensure_future(connection_of(request).lost.wait())
        try:
            done, _ = await asyncio.wait(
                (working, leaving), timeout=call.time_remaining(), return_when=asyncio.FIRST_COMPLETED
            )
            if leaving in done or working.cancelled():  # who reads a body may see first that no more will come
                raise CallerGone
            if working in done:
                return parsed(operation, working.result())
            raise Overrun("There was no answer in the time that the request gives.", reason=DEADLINE)
        finally:
            working.cancel()
            leaving.cancel()
            # Awaited: the method gives memory and slot back as it ends, and nothing of it goes on behind the answer.
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
        """The call of an operation that an HTTP request is.

        Args:
            operation: Operation that is called.
            request: HTTP request.
            usual_s: Seconds that the caller waits where its header does not say; None for as long as it takes.
            events: Takes the responses of a method with many.
            observe: Is shown the message of the request, without a picture that came by itself, and may complete it.

        Raises:
            BadRequest: The header of the deadline is no number of seconds.
        """
        if operation.source is Source.LINES:
            lines = RequestLines(request, connection_of(request).renew_body_time)
            return HttpCall(
                request,
                lines.read,
                announced_bytes=None,
                timeout_s=timeout_of(request, usual_s),
                events=events,
                many=True,
            )

        # Read when the method asks for it: by then there is memory for the body.
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
        """Bytes that a request will have; None for as many as there may be, as nobody announces a fetched picture's."""
        return None if operation is JUDGE and self._fetches else content_length(request)


class Endpoint:
    """Address of a method with one response."""

    def __init__(self, api: Api, operation: Operation) -> None:
        """Answers requests for an operation."""
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
    """Address of a method with many responses, which are sent as server-sent events or as lines of JSON."""

    def __init__(self, api: Api, operation: Operation, form: EventForm) -> None:
        """Answers requests for an operation; ``form`` converts its responses to events."""
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
            # A stream that ends without an event has a response all the same.
            if not events.begun:
                await events.begin()

        try:
            failed: list[ProblemDetails] = []
            await finished(work, failed.append)
            if connection_of(request).lost.is_set():
                return
            # Before the head is sent, what went wrong still has a status; afterwards it can only be an event.
            if failed and not events.begun:
                await problem_response(failed[0])(scope, receive, send)
                return
            # A caller that takes nothing must not keep a connection and its memory for the sake of a last event.
            async with asyncio.timeout(_TO_SAY_WHY_S):
                await events.end(*failed)
        except TimeoutError:
            connection_of(request).transport.abort()  # it takes nothing: that may be why the stream broke off
        finally:
            events.close()


async def finished(
    work: Callable[[], Awaitable[Response | None]],
    failed: Callable[[ProblemDetails], Response | None] | None = None,
) -> Response | None:
    """Awaits work and gives its response, or that of the problem it ends with; None where the caller has gone.

    Args:
        work: Work to await.
        failed: Makes a response of a problem; that of RFC 9457 if not given.
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
    """A response of JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def problem_response(problem: ProblemDetails) -> Response:
    """The response of a problem."""
    return Response(orjson.dumps(problem.body), problem.status, dict(problem.headers), MEDIA_TYPE)


def error_response(error: CourtError) -> Response:
    """The response of an error that no method was asked for."""
    return problem_response(problem_of(status_of(error)))


def timeout_of(request: Request, usual: float | None) -> float | None:
    """Seconds that the caller waits. Raises BadRequest where its header is no such number."""
    value = request.headers.get(TIMEOUT)
    if value is None:
        return usual
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    # Written so that NaN, for which no comparison holds, is refused too.
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise BadRequest(
            f"{TIMEOUT} is a number of seconds, above 0 and at most {_LONGEST_TIMEOUT_S:g}.",
            reason="BAD_TIMEOUT",
            field=TIMEOUT,
        )
    return seconds


def parsed(operation: Operation, response: Message | bytes | None) -> Message | None:
    """A response as a message, also where the method has serialised it itself."""
    return operation.response.FromString(response) if isinstance(response, bytes) else response


def connection_of(request: Request) -> GuardedConnection:
    """Returns the connection that a request came over."""
    connection = request.scope["state"]["connection"]
    assert isinstance(connection, GuardedConnection)
    return connection
