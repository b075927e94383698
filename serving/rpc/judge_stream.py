"""A stream of requests: several are tried at a time, and each is answered when it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from court.errors import BadRequest, CourtError, Overrun
from memecourt.many import AT_ONCE
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_in_force
from serving.rpc.calls import Responses, parse_request, time_left, to_court_error
from serving.rpc.flow_control import ReceiveBudget, Reservation
from serving.rpc.status import DEADLINE, failure_of

if TYPE_CHECKING:
    from serving.service_call import ServiceCall

Judging: TypeAlias = Callable[[float | None], Awaitable[tuple[bytes, wire.JudgeResponse]]]
"""Tries a meme within so many seconds: gives a verdict as it is sent, and what is said of the request besides."""

_LONGEST_ID = 128
"""Characters of a request's id that come back: one that is longer is refused, and could be as large as a picture."""
_TO_ANSWER_S = 0.1
"""What is kept of a request's time to answer it, in seconds."""


async def judge_stream(
    context: ServiceCall,
    memory: ReceiveBudget,
    of: str,
    tried: Callable[[wire.JudgeRequest], Judging],
    *,
    most: int,
    worked_on: int,
    idle_s: float,
    on_sent: Callable[[int], None] = lambda _: None,
) -> None:
    """Answers every request of a stream, until the caller ends it.

    Whatever ends the requests, those that were read are still answered first; unless the caller takes no answers.

    Args:
        context: The call.
        memory: Memory budget for requests.
        of: Name of the service for :meth:`serving.rpc.flow_control.ReceiveBudget.receive`.
        tried: Function that judges the meme of a request; raises the fault of the request.
        most: Requests that are tried or wait at once; no more is read until one is answered. As the answer must have
            been taken by the caller, one that is slow to read is also slow to be read.
        worked_on: Requests that the server works on at once without any waiting for the others: the caller is told, so
            that it sends no more of them while their time passes.
        idle_s: Seconds in which the caller must take an answer. While it waits to be taken, an answer has the memory of
            its request, but no more of it than it needs itself.
        on_sent: Is told of each answer: the google.rpc code of a failure, or 0.

    Raises:
        BadRequest: A message is no request; or no request came, or no answer was taken, for as long as the server
            waits.
        Unauthenticated, Unavailable: The token is not what it was; as :func:`check_in_force`.
        Busy, Unavailable: As :meth:`serving.rpc.flow_control.ReceiveBudget.receive`.
    """
    stream = _OpenStream(context, memory, of=of, tried=tried, most=most, idle_s=idle_s, on_sent=on_sent)
    end: CourtError | None = None
    try:
        await stream.begin(worked_on)
        async with asyncio.TaskGroup() as items:
            try:
                while (came := await stream.next()) is not None:
                    request, lot = came
                    # Also where the caller leaves before the task has begun.
                    items.create_task(stream.answer(request, lot)).add_done_callback(lot.released)
                    del came, request, lot
            except CourtError as error:
                end = error
    except* _NotTaken as group:
        end = stream.not_taken
        for each in group.exceptions:  # the library's group holds itself, and these remember the stream
            each.__traceback__ = None
    if end is not None:
        try:
            raise end
        finally:
            del end, stream  # what is raised remembers this frame, and they hold it


class _NotTaken(Exception):
    """The caller takes no answers: the stream ends without those that are left."""


class _OpenStream:
    def __init__(
        self,
        context: ServiceCall,
        memory: ReceiveBudget,
        of: str,
        tried: Callable[[wire.JudgeRequest], Judging],
        most: int,
        idle_s: float,
        on_sent: Callable[[int], None],
    ) -> None:
        self._context = context
        self._memory = memory
        self._of = of
        self._tried = tried
        self._responses = Responses(
            context, idle_s, "Read them as they come; those that are left can be had by asking again."
        )
        self._on_sent = on_sent
        self._places = asyncio.Semaphore(most)
        self._writing = asyncio.Lock()
        self.not_taken: BadRequest | None = None
        self._read = 0
        self._answered = 0
        self._last_answer = 0.0  # by the loop's clock

    async def begin(self, worked_on: int) -> None:
        """Tells the caller how many requests are worked on at once."""
        await self._responses.begin([(AT_ONCE, str(worked_on))])

    async def next(self) -> tuple[wire.JudgeStreamRequest, Reservation] | None:
        """The next request and its memory, once there is place for it; None where there is none to come."""
        # The place comes before the memory: no memory is reserved for a request that would only wait.
        await self._places.acquire()
        received = await self._memory.receive(
            self._context, of=self._of, in_call=self._read > 0, busy_until=self._busy_until
        )
        if received is None:
            return None
        data, lot = received
        try:
            check_in_force()
            request = parse_request(wire.JudgeStreamRequest, data)
        except CourtError:
            lot.release()
            raise
        self._read += 1
        return request, lot

    async def answer(self, request: wire.JudgeStreamRequest, lot: Reservation) -> None:
        """Answers a request, whatever comes of it. Raises _NotTaken where the caller does not take the answer."""
        try:
            response = await self._outcome(request)
            del request
            data = response.SerializeToString()
            lot.holds(len(data))
            # Answers become ready in any order, and a call takes one message at a time.
            async with self._writing:
                await self._write(data)
            self._on_sent(response.failure.code)  # 0 where there is a verdict
        finally:
            self._answered += 1
            self._last_answer = asyncio.get_running_loop().time()
            self._places.release()

    async def _write(self, data: bytes) -> None:
        if self.not_taken is not None:
            raise _NotTaken  # what was not taken is still being written
        try:
            await self._responses.send(data)
        except BadRequest as error:
            self.not_taken = error.with_traceback(None)  # which holds this, and the answer
            raise _NotTaken from None

    async def _outcome(self, request: wire.JudgeStreamRequest) -> wire.JudgeStreamResponse:
        response = wire.JudgeStreamResponse(request_id=request.request.request_id[:_LONGEST_ID])
        try:
            verdict, own = await self._verdict(request)
        # Whatever went wrong with one request, the stream and its other requests go on.
        except Exception as error:
            response.failure.CopyFrom(failure_of(to_court_error(error)))
        else:
            response.verdict.MergeFromString(verdict)
            response.verdict.MergeFrom(own)
        return response

    async def _verdict(self, request: wire.JudgeStreamRequest) -> tuple[bytes, wire.JudgeResponse]:
        if not request.request.request_id:
            raise BadRequest(
                "A request in a stream has a request_id of its own, to tell the responses apart.",
                reason="FIELD_MISSING",
                field="request_id",
            )
        within_s = time_left(self._context)
        timeout_s = _timeout_of(request)
        if timeout_s is not None:
            # At most a tenth, so that a short timeout is not used up by the reserve.
            own_s = timeout_s - min(_TO_ANSWER_S, timeout_s / 10)
            within_s = own_s if within_s is None else min(own_s, within_s)
        tried = self._tried(request.request)
        request.Clear()  # what is held for long is the picture alone
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await tried(within_s)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Overrun(
                f"There was no verdict within {timeout_s:g} seconds, which is the request's timeout.", reason=DEADLINE
            ) from None

    def _busy_until(self, now: float) -> float:
        # While an answer is due, it is the caller who waits, and not the server.
        return now if self._answered < self._read else self._last_answer


def _timeout_of(request: wire.JudgeStreamRequest) -> float | None:
    if not request.HasField("timeout"):
        return None
    seconds = request.timeout.seconds + request.timeout.nanos / 1e9
    if seconds <= 0:
        raise BadRequest(
            "timeout must be longer than nothing. Leave it out to have none.", reason="BAD_TIMEOUT", field="timeout"
        )
    return seconds
