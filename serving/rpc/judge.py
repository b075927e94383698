"""The Court service: judges memes over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import grpc

from court.errors import BadRequest, CourtError, Overrun
from memecourt.many import AT_ONCE
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_in_force, check_namespace, current
from serving.docket.errors import TrialUnknown
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.judging.request import Answer, LRUCache, TrialRequest
from serving.rpc.calls import (
    Budget,
    Responses,
    Service,
    budget_of,
    finish_call,
    parse_request,
    time_left,
    to_court_error,
)
from serving.rpc.convert import answer_of, ask_of, in_force_of, receipt_of, verdict_of
from serving.rpc.flow_control import ReceiveBudget, Reservation
from serving.rpc.listings import line_of, summary_of
from serving.rpc.status import DEADLINE, failure_of
from serving.rpc.watch import trial_named, unknown_trial, watch_trial
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from court.record import TrialRecord
    from serving.rpc.calls import CallContext, Handler


Judging: TypeAlias = Callable[[float | None], Awaitable[wire.JudgeResponse]]
"""Judges a meme within the given seconds."""

_MAX_ID_CHARS = 128
"""Maximum characters of a request id that are echoed: longer ones are refused, and could be as large as a picture."""
_ANSWER_RESERVE_S = 0.1
"""Seconds of a request's time that are reserved for sending the answer."""


class _ResponseNotTaken(Exception):
    """The caller takes no answers: the stream ends without sending the remaining ones."""


class _OpenStream:
    """A stream of requests, each judged by the function that ``judging_of`` returns for it.

    No more than ``concurrent_trials`` are read until an answer has been taken, which applies backpressure to slow
    callers. An answer that is not taken holds its request's memory, shrunk to its own size, for the idle timeout.
    """

    def __init__(
        self,
        context: CallContext,
        memory: ReceiveBudget,
        of: str,
        judging_of: Callable[[wire.JudgeRequest], Judging],
        *,
        settings: Settings,
        on_sent: Callable[[int], None],
    ) -> None:
        """Reads nothing yet; ``on_sent`` is called for each answer with the google.rpc code of its failure, or 0."""
        self._context = context
        self._memory = memory
        self._of = of
        self._tried = judging_of
        self._responses = Responses(
            context, settings.idle, "Read them as they come; those that are left can be had by asking again."
        )
        self._on_sent = on_sent
        self._worked_on = settings.worked_on_at_once
        self._slots = asyncio.Semaphore(settings.concurrent_trials)
        self._writing = asyncio.Lock()
        self.idle_error: BadRequest | None = None
        self._read = 0
        self._answered = 0
        self._last_answer = 0.0  # by the loop's clock

    async def run(self) -> None:
        """Answers all requests until the caller ends the stream.

        However the stream ends, requests that were read are answered first, unless the caller takes no answers.

        Raises:
            BadRequest: A message is malformed, or the idle timeout passed without a request or without an answer taken.
            Unauthenticated, Unavailable: The token has changed; as :func:`check_in_force`.
            Busy, Unavailable: As :meth:`serving.rpc.flow_control.ReceiveBudget.receive`.
        """
        end: CourtError | None = None
        try:
            # How many are processed at once: more would only wait while their time runs.
            await self._responses.begin([(AT_ONCE, str(self._worked_on))])
            async with asyncio.TaskGroup() as items:
                try:
                    while (received := await self.next()) is not None:
                        request, reservation = received
                        # Also released if the caller leaves before the task has started.
                        items.create_task(self.answer(request, reservation)).add_done_callback(reservation.released)
                        del received, request, reservation
                except CourtError as error:
                    end = error
        except* _ResponseNotTaken as group:
            end = self.idle_error
            for each in group.exceptions:  # break reference cycles: the group references itself, its errors the stream
                each.__traceback__ = None
        if end is not None:
            try:
                raise end
            finally:
                del end, self  # break the cycle of the raised error, this frame and the stream

    async def next(self) -> tuple[wire.JudgeStreamRequest, Reservation] | None:
        """Waits for a free place and reads the next request; None if the caller has finished sending."""
        # First the place, then the memory: no memory is reserved for a request that would only wait.
        await self._slots.acquire()
        received = await self._memory.receive(
            self._context, of=self._of, in_call=self._read > 0, busy_until=self._busy_until
        )
        if received is None:
            return None
        data, reservation = received
        try:
            check_in_force()
            request = parse_request(wire.JudgeStreamRequest, data)
        except CourtError:
            reservation.release()
            raise
        self._read += 1
        return request, reservation

    async def answer(self, request: wire.JudgeStreamRequest, reservation: Reservation) -> None:
        """Answers a request with its verdict or failure. Raises _ResponseNotTaken if the caller does not take it."""
        try:
            response = await self._outcome(request)
            del request
            data = response.SerializeToString()
            reservation.holds(len(data))
            # Answers become ready in any order, and a call sends one message at a time.
            async with self._writing:
                await self._write(data)
            self._on_sent(response.failure.code)  # 0 where there is a verdict
        finally:
            self._answered += 1
            self._last_answer = asyncio.get_running_loop().time()
            self._slots.release()

    async def _write(self, data: bytes) -> None:
        if self.idle_error is not None:
            raise _ResponseNotTaken  # the earlier answer is still being written
        try:
            await self._responses.send(data)
        except BadRequest as error:
            self.idle_error = error.with_traceback(None)  # which holds this, and the answer
            raise _ResponseNotTaken from None

    async def _outcome(self, request: wire.JudgeStreamRequest) -> wire.JudgeStreamResponse:
        response = wire.JudgeStreamResponse(request_id=request.request.request_id[:_MAX_ID_CHARS])
        try:
            verdict = await self._verdict(request)
        # The failure of one request does not affect the stream and its other requests.
        except Exception as error:
            response.failure.CopyFrom(failure_of(to_court_error(error)))
        else:
            response.verdict.CopyFrom(verdict)
        return response

    async def _verdict(self, request: wire.JudgeStreamRequest) -> wire.JudgeResponse:
        if not request.request.request_id:
            raise BadRequest(
                "A request in a stream has a request_id of its own, to tell the responses apart.",
                reason="FIELD_MISSING",
                field="request_id",
            )
        within_s = time_left(self._context)
        timeout_s = _timeout_of(request)
        if timeout_s is not None:
            # At most a tenth, so that the reserve does not use up a short timeout.
            own_s = timeout_s - min(_ANSWER_RESERVE_S, timeout_s / 10)
            within_s = own_s if within_s is None else min(own_s, within_s)
        judging_of = self._tried(request.request)
        request.Clear()  # only the picture is kept for long
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await judging_of(within_s)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Overrun(
                f"There was no verdict within {timeout_s:g} seconds, which is the request's timeout.", reason=DEADLINE
            ) from None

    def _busy_until(self, now: float) -> float:
        # While an answer is due, the caller is waiting for the server and is not idle.
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


_SERVICE = wire.DESCRIPTOR.services_by_name["Court"]

_MOST_VERDICTS = 1024
"""Maximum number of cached verdicts in serialised form, for reuse."""


@dataclass(frozen=True, slots=True)
class _OpenCourt:
    """State of the court service while it is open."""

    executor: TrialExecutor
    runner: TrialRunner


class CourtService(Service[_OpenCourt]):
    """Serves ``memecourt.v1.Court``; a server can listen while it warms up."""

    def __init__(self, settings: Settings, telemetry: Telemetry = SILENT, *, memory: ReceiveBudget) -> None:
        super().__init__(_SERVICE, memory)
        self._settings = settings
        self._telemetry = telemetry
        self._court: _OpenCourt | None = None
        self._verdicts: LRUCache[str, bytes] = LRUCache(_MOST_VERDICTS)
        telemetry.metrics.read("request_memory_bytes", lambda: memory.bytes_in_use + memory.pictures)

    def open(self, executor: TrialExecutor, runner: TrialRunner) -> None:
        """Answers calls from now on."""
        self._court = _OpenCourt(executor, runner)
        admission = runner.admission
        self._telemetry.metrics.read("running_trials", lambda: admission.running)
        self._telemetry.metrics.read("waiting_requests", lambda: admission.waiting)
        self._begin(self._court)

    def close(self) -> None:
        """Refuses new and waiting requests; running trials continue."""
        super().close()
        # Only for this service: calls for records and precedents are still answered while trials finish.
        self.memory.close(self.name)
        if self._court is not None:
            self._court.runner.admission.close()
            self._court.executor.feed.close()

    async def empty(self, seconds: float) -> None:
        """Waits until no trial is running; cancelled trials still record their end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await super().empty(seconds)
                if self._court is not None:
                    await self._court.runner.admission.empty()

    def handler(self, **others: Handler) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server."""
        stream: Handler = grpc.stream_stream_rpc_method_handler(
            self.judge_stream, request_deserializer=None, response_serializer=None
        )
        return super().handler(JudgeStream=stream, **others)

    async def judge(self, request: wire.JudgeRequest, budget: Budget) -> wire.JudgeResponse:
        """Judges one meme."""
        with self._call() as court:
            trial_request, token = self._request_of(request, budget.traceparent), request.client_token
            del request  # only the picture is kept for long
            answer = await court.runner.answer(trial_request, within_s=budget.within_s)
            return await self._response_to(court, answer, trial_request, token)

    async def start(self, request: TrialRequest) -> str:
        """Has a meme of the console judged in the background; returns its trial's id."""
        with self._call() as court:
            return await court.runner.start(request)

    async def judge_stream(self, _: AsyncIterator[bytes], context: CallContext) -> None:
        """Judges a stream of memes."""
        await finish_call(context, self._judge_stream(context))

    async def watch_trial(
        self, request: wire.WatchTrialRequest, _: Budget
    ) -> AsyncGenerator[wire.WatchTrialResponse, None]:
        """Streams the events of a trial."""
        with self._call() as court:
            async for response in watch_trial(
                request,
                trials=court.executor.docket.trials,
                log=court.executor.docket.log,
                runner=court.runner,
                feed=court.executor.feed,
            ):
                yield response

    async def get_verdict(self, request: wire.GetVerdictRequest, _: Budget) -> wire.GetVerdictResponse:
        """Returns the state of a trial, and its verdict if there is one."""
        with self._call() as court:
            trial_id = await trial_named(request, court.runner)
            # The caller's own request may have been answered with the verdict of another namespace's trial, which it
            # may then see.
            by_request = request.WhichOneof("trial") == "request"
            try:
                record = await court.executor.docket.trials.record(trial_id)
            except TrialUnknown:
                raise unknown_trial() from None  # erased, or not opened yet: the caller has to repeat the request
            if not (by_request or current().sees(record.opened.meme.namespace)):
                raise unknown_trial()
            response = wire.GetVerdictResponse(trial_id=trial_id)
            stands = summary_of(line_of(record))
            response.state, response.failure_reason = stands.state, stands.failure_reason
            # A trial without a verdict still has a state, which tells polling callers how far it is.
            if record.verdict is not None:
                response.verdict.MergeFromString(await self._sent(court, record))
                response.verdict.decision = stands.decision
                assert record.in_force is not None, "there is a verdict"
                response.verdict.in_force.CopyFrom(in_force_of(record.in_force))
                response.verdict.request_id = request.request.request_id or record.opened.request_id
                if current().sees(record.opened.meme.namespace):
                    response.verdict.content.CopyFrom(stands.content)
            return response

    async def _judge_stream(self, context: CallContext) -> None:
        with self._call() as court:

            def judging_of(request: wire.JudgeRequest) -> Judging:
                trial_request = self._request_of(request, budget_of(context).traceparent)
                token = request.client_token

                async def respond(within_s: float | None) -> wire.JudgeResponse:
                    answer = await court.runner.answer(trial_request, within_s=within_s, patient=True)
                    return await self._response_to(court, answer, trial_request, token)

                return respond

            stream = _OpenStream(
                context,
                self.memory,
                self.name,
                judging_of,
                settings=self._settings,
                on_sent=self._telemetry.metrics.streamed,
            )
            try:
                await stream.run()
            finally:
                del stream  # an error references this frame

    def _request_of(self, request: wire.JudgeRequest, traceparent: str) -> TrialRequest:
        trial_request = ask_of(
            request, default=self._settings.procedure, traceparent=traceparent, trace_id=self._telemetry.trace_id()
        )
        check_namespace(trial_request.namespace)
        return trial_request

    async def _response_to(
        self, court: _OpenCourt, answer: Answer, request: TrialRequest, token: bytes
    ) -> wire.JudgeResponse:
        response = wire.JudgeResponse.FromString(await self._sent(court, answer.record, keep=answer.reused))
        response.MergeFrom(answer_of(answer, request, client_token=token))
        return response

    async def _sent(self, court: _OpenCourt, record: TrialRecord, *, keep: bool = True) -> bytes:
        """Serialises a verdict with its receipt; caches it if ``keep``."""
        # A verdict and its place in the log never change, so that the serialised form can be cached.
        if (sent := self._verdicts.get(record.trial_id)) is not None:
            return sent
        response = verdict_of(record)
        response.receipt.CopyFrom(receipt_of(await court.executor.docket.log.receipt(record.trial_id)))
        sent = response.SerializeToString()
        if keep:
            self._verdicts.keep(record.trial_id, sent)
        return sent
