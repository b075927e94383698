"""The Court service: judges memes over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_namespace, current
from serving.docket.errors import TrialUnknown
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.judging.request import Answer, TrialRequest
from serving.judging.single_flight import LRUCache
from serving.rpc.calls import Budget, Method, Session, budget_of, finish_call, grpc_handler
from serving.rpc.convert import answer_of, ask_of, in_force_of, receipt_of, verdict_of
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge_stream import Judging, judge_stream
from serving.rpc.listings import line_of, summary_of
from serving.rpc.watch import trial_named, unknown_trial, watch_trial
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from court.record import TrialRecord
    from serving.rpc.calls import CallContext, Handler

SERVICE = wire.DESCRIPTOR.services_by_name["Court"].full_name

_MOST_VERDICTS = 1024
"""Maximum number of cached verdicts in serialised form, for reuse."""


@dataclass(frozen=True, slots=True)
class _OpenCourt:
    """State of the court service while it is open."""

    executor: TrialExecutor
    runner: TrialRunner


class CourtService:
    """Serves ``memecourt.v1.Court``.

    Answers UNAVAILABLE until :meth:`open` has been called, so that a server can listen while it warms up.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry = SILENT, *, memory: ReceiveBudget) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._session: Session[_OpenCourt] = Session()
        self._memory = memory
        self._court: _OpenCourt | None = None
        self._verdicts: LRUCache[str, bytes] = LRUCache(_MOST_VERDICTS)
        self.methods: Mapping[str, Method[Any]] = {
            "Judge": Method(wire.JudgeRequest, self.judge, memory, of=SERVICE),
            "WatchTrial": Method(wire.WatchTrialRequest, self.watch_trial, memory, of=SERVICE),
            "GetVerdict": Method(wire.GetVerdictRequest, self.get_verdict, memory),
        }
        telemetry.metrics.observe(held_bytes=lambda: memory.bytes_in_use + memory.pictures)

    @property
    def memory(self) -> ReceiveBudget:
        """Memory budget of requests."""
        return self._memory

    def open(self, executor: TrialExecutor, runner: TrialRunner) -> None:
        """Answers calls from now on."""
        self._court = _OpenCourt(executor, runner)
        admission = runner.admission
        self._telemetry.metrics.observe(running=lambda: admission.running, waiting=lambda: admission.waiting)
        self._session.open(self._court)

    def close(self) -> None:
        """Refuses new and waiting requests; running trials continue."""
        self._session.close()
        # Only for this service: calls for records and precedents are still answered while trials finish.
        self._memory.close(SERVICE)
        if self._court is not None:
            self._court.runner.admission.close()
            self._court.executor.feed.close()

    async def empty(self, seconds: float) -> None:
        """Waits until no trial is running; cancelled trials still record their end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._session.empty(seconds)
                if self._court is not None:
                    await self._court.runner.admission.empty()

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server."""
        stream: Handler = grpc.stream_stream_rpc_method_handler(
            self.judge_stream, request_deserializer=None, response_serializer=None
        )
        return grpc_handler(SERVICE, self.methods, JudgeStream=stream)

    async def judge(self, request: wire.JudgeRequest, budget: Budget) -> wire.JudgeResponse:
        """Judges one meme."""
        with self._session.call() as court:
            trial_request, token = self._request_of(request, budget.traceparent), request.client_token
            del request  # only the picture is kept for long
            answer = await court.runner.answer(trial_request, within_s=budget.within_s)
            return await self._response_to(court, answer, trial_request, token)

    async def judge_stream(self, _: AsyncIterator[bytes], context: CallContext) -> None:
        """Judges a stream of memes."""
        await finish_call(context, self._judge_stream(context))

    async def watch_trial(
        self, request: wire.WatchTrialRequest, _: Budget
    ) -> AsyncGenerator[wire.WatchTrialResponse, None]:
        """Streams the events of a trial."""
        with self._session.call() as court:
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
        with self._session.call() as court:
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
        with self._session.call() as court:

            def judging_of(request: wire.JudgeRequest) -> Judging:
                trial_request = self._request_of(request, budget_of(context).traceparent)
                token = request.client_token

                async def respond(within_s: float | None) -> wire.JudgeResponse:
                    answer = await court.runner.answer(trial_request, within_s=within_s, patient=True)
                    return await self._response_to(court, answer, trial_request, token)

                return respond

            await judge_stream(
                context,
                self._memory,
                SERVICE,
                judging_of,
                most=self._settings.concurrent_trials,
                worked_on=self._settings.worked_on_at_once,
                idle_s=self._settings.idle,
                on_sent=self._telemetry.metrics.streamed,
            )

    def _request_of(self, request: wire.JudgeRequest, traceparent: str) -> TrialRequest:
        trial_request = ask_of(
            request,
            default=self._settings.procedure,
            traceparent=traceparent,
            trace_id=self._telemetry.trace_id(),
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
