"""``POST /v1/judge``: returns the verdict, or an address to poll for it (``Prefer: respond-async``)."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from court.deadline import cancel_all
from court.errors import BadRequest
from memecourt.v1 import court_pb2 as wire
from serving.docket.errors import TrialUnknown
from serving.rest.api import Api, Call, CallerGone, connection_of, finished, json_response, timeout_of
from serving.rest.bodies import ReceivedRequest, received
from serving.rest.messages import response_json
from serving.rest.operations import JUDGE, VERDICT

_FIRST_POLL_S, _LATER_POLL_S = 0.02, 0.25
"""First and later intervals in seconds for checking whether a trial has started."""
_LONGEST_WAIT_S = 600


class JudgeEndpoint:
    """Endpoint of Judge."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # Strong references, since asyncio allows running tasks without any to be garbage-collected.
        self._going_on: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)

        async def work() -> Response:
            if (wait_s := later_after(request)) is not None:
                return await self._later(request, wait_s)
            return json_response(response_json(await self._api.answer(JUDGE, request)))

        if (response := await finished(work)) is not None:
            await response(scope, receive, send)

    async def aclose(self) -> None:
        """Cancels trials that nobody waits for any more."""
        await cancel_all(*self._going_on)

    async def _later(self, request: Request, wait_s: float) -> Response:
        """Returns the verdict if it is ready soon, or else its address once the trial is in the docket."""
        named: list[wire.JudgeRequest] = []

        async def read() -> ReceivedRequest:
            found = await received(JUDGE, request, self._api.fetch)
            message: wire.JudgeRequest = found.message
            # Every request gets an id, which the 202 response needs for the verdict's address. Assigned before the
            # trial sees the request, so that it is recorded under this id.
            message.request_id = message.request_id or str(uuid.uuid4())
            named.append(wire.JudgeRequest(request_id=message.request_id, content=message.content))
            return found

        call = Call(
            self._api,
            JUDGE,
            request,
            timeout_s=timeout_of(request, None),
            reading=read,
            announced_bytes=self._api.announced_bytes(JUDGE, request),
        )
        trial = asyncio.create_task(call.respond())
        # Watch the connection itself: ASGI's receive belongs to the trial, which reads the body with it.
        leaving = asyncio.create_task(connection_of(request).lost.wait())
        self._going_on.add(trial)
        trial.add_done_callback(self._over)
        clock, pause_s = asyncio.get_running_loop(), _FIRST_POLL_S
        until = clock.time() + wait_s
        began = None
        try:
            # Not before the trial is in the docket, however long that takes: until then, the address in the 202
            # response would not exist.
            while began is None or clock.time() < until:
                timeout_s = pause_s if began is None else until - clock.time()
                done, _ = await asyncio.wait((trial, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if leaving in done or trial.cancelled():
                    raise CallerGone
                if trial in done:
                    return json_response(response_json(trial.result()))
                pause_s = min(2 * pause_s, _LATER_POLL_S)
                if began is None and named:
                    began = await self._state_of(request, named[0])
        # Until the 202 response, this caller is the trial's only one, so the trial ends with it (RE-5).
        except BaseException:
            trial.cancel()
            raise
        finally:
            leaving.cancel()
        # safe='': slashes in a caller's id must be escaped.
        where = f"{request.scope.get('root_path', '')}/v1/requests/{quote(named[0].request_id, safe='')}"
        if named[0].content.namespace:
            where += f"?{urlencode({'request.namespace': named[0].content.namespace})}"
        body = {"request_id": named[0].request_id, **response_json(began)}
        return json_response(body, 202, location=where, **{"preference-applied": "respond-async"})

    async def _state_of(self, request: Request, judge_request: wire.JudgeRequest) -> Message | None:
        """Returns the state of a request's trial; None if it has not been opened."""
        name = wire.RequestName(namespace=judge_request.content.namespace, request_id=judge_request.request_id)

        async def read() -> ReceivedRequest:
            return ReceivedRequest(wire.GetVerdictRequest(request=name), 0)

        try:
            call = Call(self._api, VERDICT, request, timeout_s=None, reading=read, announced_bytes=0)
            found: Message = await call.respond()
            return found
        except TrialUnknown:  # only this may resolve itself by waiting
            return None

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._going_on.discard(task)
        with suppress(asyncio.CancelledError, Exception):
            task.result()  # the outcome is in the docket, even if nobody waits for it


def later_after(request: Request) -> float | None:
    """Returns the seconds after which the caller prefers an asynchronous answer (RFC 7240); None if it waits.

    Raises:
        BadRequest: The header's ``wait`` is not a number of seconds.
    """
    prefers: dict[str, str] = {}
    for part in ",".join(request.headers.getlist("prefer")).split(","):
        # Parameters after a semicolon are ignored. If a preference occurs twice, the first counts.
        name, _, word = part.partition(";")[0].partition("=")
        prefers.setdefault(name.strip().lower(), word.strip().strip('"'))
    if "respond-async" not in prefers:
        return None
    wait = prefers.get("wait", "0")
    # The length first, since Python refuses to parse thousands of digits.
    if not wait.isascii() or not wait.isdecimal() or len(wait) > 9 or int(wait) > _LONGEST_WAIT_S:
        raise BadRequest(
            f"Prefer: wait= is a whole number of seconds, at most {_LONGEST_WAIT_S}.",
            reason="BAD_TIMEOUT",
            field="prefer",
        )
    return float(wait)
