"""``POST /v1/judge``: the verdict at once, or where to ask for it later (``Prefer: respond-async``)."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from urllib.parse import quote, urlencode

from google.protobuf.message import Message
from google.rpc import code_pb2
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from court.errors import BadRequest
from memecourt.v1 import court_pb2 as wire
from serving.rest.api import Api, CallerGone, connection_of, finished, json_response, parsed
from serving.rest.http_call import CallEnded, HttpCall
from serving.rest.messages import response_json
from serving.rest.operations import JUDGE, VERDICT

_FIRST_POLL_S, _LATER_POLL_S = 0.02, 0.25
"""Seconds from one look whether a trial has begun to the next, which are longer each time."""
_LONGEST_WAIT_S = 600


class JudgeEndpoint:
    """Address of Judge."""

    def __init__(self, api: Api) -> None:
        """Answers requests."""
        self._api = api
        # Held here once nobody waits for them, for asyncio itself would let a running task be collected.
        self._going_on: set[asyncio.Task[Message | bytes | None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        request = Request(scope, receive)

        async def work() -> Response:
            if (wait_s := later_after(request)) is not None:
                return await self._later(request, wait_s)
            verdict = await self._api.answer(JUDGE, self._api.call_of(JUDGE, request), request)
            assert verdict is not None
            return json_response(response_json(verdict))

        if (response := await finished(work)) is not None:
            await response(scope, receive, send)

    async def aclose(self) -> None:
        """Ends what nobody waits for any more."""
        for task in self._going_on:
            task.cancel()
        await asyncio.gather(*self._going_on, return_exceptions=True)

    async def _later(self, request: Request, wait_s: float) -> Response:
        """The verdict if it comes soon; else where it is to be had, once the trial has begun and is in the docket."""
        named: list[wire.JudgeRequest] = []

        def name(request: wire.JudgeRequest) -> None:
            # Every request gets a name: 202 has to say under which the verdict will be found.
            # Before the trial sees the request, so that it is recorded under this name.
            request.request_id = request.request_id or str(uuid.uuid4())
            named.append(wire.JudgeRequest(request_id=request.request_id, content=request.content))

        call = self._api.call_of(JUDGE, request, usual_s=None, observe=name)
        trial = asyncio.create_task(self._api.methods.answer(JUDGE.full_name, call))
        # By the connection itself: ASGI's receive belongs to the trial, which reads the body with it.
        leaving = asyncio.create_task(connection_of(request).lost.wait())
        self._going_on.add(trial)
        trial.add_done_callback(self._over)
        clock, pause_s = asyncio.get_running_loop(), _FIRST_POLL_S
        until = clock.time() + wait_s
        began = None
        try:
            # Not before the trial is in the docket, whatever the wait: until then, the address that 202 gives would
            # lead nowhere.
            while began is None or clock.time() < until:
                timeout_s = pause_s if began is None else until - clock.time()
                done, _ = await asyncio.wait((trial, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if leaving in done or trial.cancelled():
                    raise CallerGone
                if trial in done:
                    verdict = parsed(JUDGE, trial.result())
                    assert verdict is not None
                    return json_response(response_json(verdict))
                pause_s = min(2 * pause_s, _LATER_POLL_S)
                if began is None and named:
                    began = await self._state_of(request, named[0])
        # Until 202 has been answered, the trial has this caller alone, and ends with it (RE-5).
        except BaseException:
            trial.cancel()
            raise
        finally:
            leaving.cancel()
        # safe='': a slash in an id of the caller's must not make another address of it.
        where = f"/v1/requests/{quote(named[0].request_id, safe='')}"
        if named[0].content.namespace:
            where += f"?{urlencode({'request.namespace': named[0].content.namespace})}"
        body = {"request_id": named[0].request_id, **response_json(began)}
        return json_response(body, 202, location=where, **{"preference-applied": "respond-async"})

    async def _state_of(self, request: Request, judge_request: wire.JudgeRequest) -> Message | None:
        """Asks for the state of the trial for a request; None where it has not been opened."""
        name = wire.RequestName(namespace=judge_request.content.namespace, request_id=judge_request.request_id)

        async def message() -> bytes:
            return wire.GetVerdictRequest(request=name).SerializeToString()

        call = HttpCall(request, message, announced_bytes=0, timeout_s=None)
        try:
            return parsed(VERDICT, await self._api.methods.answer(VERDICT.full_name, call))
        except CallEnded as ended:
            # Not there yet is what is waited for; anything else would be waited for in vain.
            if ended.status.code != code_pb2.NOT_FOUND:
                raise
            return None

    def _over(self, task: asyncio.Task[Message | bytes | None]) -> None:
        self._going_on.discard(task)
        with suppress(asyncio.CancelledError, Exception):
            task.result()  # an end that nobody waits for stands in the docket


def later_after(request: Request) -> float | None:
    """Seconds after which the caller would rather be answered later (RFC 7240); None where it waits.

    Raises:
        BadRequest: The header says to wait, and not for a number of seconds.
    """
    prefers: dict[str, str] = {}
    for part in ",".join(request.headers.getlist("prefer")).split(","):
        # What stands behind a semicolon means nothing here. Of a preference that comes twice, the first counts.
        name, _, word = part.partition(";")[0].partition("=")
        prefers.setdefault(name.strip().lower(), word.strip().strip('"'))
    if "respond-async" not in prefers:
        return None
    wait = prefers.get("wait", "0")
    # The length first: of thousands of digits Python makes no number.
    if not wait.isascii() or not wait.isdecimal() or len(wait) > 9 or int(wait) > _LONGEST_WAIT_S:
        raise BadRequest(
            f"Prefer: wait= is a whole number of seconds, at most {_LONGEST_WAIT_S}.",
            reason="BAD_TIMEOUT",
            field="prefer",
        )
    return float(wait)
