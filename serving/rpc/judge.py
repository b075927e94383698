"""The gRPC service: asks come in, verdicts or honest errors go out."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from court.digests import HASHED_AT_ONCE
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_namespace, current
from serving.docket.ports import TrialUnknown
from serving.rpc.calls import (
    Session,
    finish_call,
    no_request,
    parse_request,
    streaming,
    time_left,
    traceparent,
    unary,
)
from serving.rpc.convert import answer_of, ask_of, check_request_id, duration, receipt_of, verdict_of
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge_stream import Judging, judge_stream
from serving.rpc.listings import line_of, summary_of
from serving.rpc.watch import trial_named, unknown_trial, watch_trial
from serving.runner.executor import TrialExecutor
from serving.runner.request import Answer, CachedAnswer, TrialRequest
from serving.runner.runner import TrialRunner
from serving.runner.single_flight import LRUCache
from serving.settings import Settings
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from court.record import TrialRecord
    from serving.rpc.calls import Handler
    from serving.service_call import ServiceCall

SERVICE = wire.DESCRIPTOR.services_by_name["Court"].full_name

_MOST_VERDICTS = 1024
"""Verdicts that are kept in the form in which they are sent, for when they are given again."""
_MOST_REPEATS = 8192
"""Requests whose like may come again: some KiB each, and the text that came with it."""


@dataclass(frozen=True, slots=True)
class _Sitting:
    """State of the court service while it is open."""

    house: TrialExecutor
    reception: TrialRunner


class CourtService:
    """Serves ``memecourt.v1.Court``.

    Until :meth:`open` has been called it answers UNAVAILABLE, so that a server can listen while it warms up.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry = SILENT, *, memory: ReceiveBudget) -> None:
        """Not open yet.

        Args:
            settings: Limits: trials at once, waiting callers, memory.
            telemetry: Is told of every event.
            memory: Memory budget of all services of the server.
        """
        self._settings = settings
        self._telemetry = telemetry
        self._session: Session[_Sitting] = Session()
        self._memory = memory
        self._sitting: _Sitting | None = None
        self._verdicts: LRUCache[str, bytes] = LRUCache(_MOST_VERDICTS)
        self._repeats: LRUCache[bytes, CachedResponse] = LRUCache(_MOST_REPEATS)
        budget = self._memory
        telemetry.observe(bytes=lambda: budget.bytes_in_use + budget.pictures)

    @property
    def memory(self) -> ReceiveBudget:
        """Memory budget of requests."""
        return self._memory

    def open(self, house: TrialExecutor, reception: TrialRunner) -> None:
        """From now on, asks are heard."""
        self._sitting = _Sitting(house, reception)
        admission = reception.admission
        self._telemetry.observe(running=lambda: admission.running, waiting=lambda: admission.waiting)
        self._session.open(self._sitting)

    def close(self) -> None:
        """From now on, asks are turned away, those that wait for their turn too; trials that have begun go on."""
        self._session.close()
        # For this service alone: while trials end, records and precedents are still answered.
        self._memory.close(SERVICE)
        if self._sitting is not None:
            self._sitting.reception.admission.close()
            self._sitting.house.feed.close()

    async def empty(self, seconds: float) -> None:
        """Waits until nothing is being heard any more: a cancelled trial still writes down its end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._session.empty(seconds)
                if self._sitting is not None:
                    await self._sitting.reception.admission.empty()

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler for a server.

        Judge is registered as a call with a stream of requests, which on the wire is the same: its one request is then
        read when there is memory for it, and not before.
        """
        judge: Handler = grpc.stream_unary_rpc_method_handler(
            self.judge, request_deserializer=None, response_serializer=None
        )
        stream: Handler = grpc.stream_stream_rpc_method_handler(
            self.judge_stream, request_deserializer=None, response_serializer=None
        )
        watch = streaming(wire.WatchTrialRequest, self.watch_trial, self._memory, of=SERVICE)
        get = unary(wire.GetVerdictRequest, self.get_verdict, self._memory)
        return grpc.method_handlers_generic_handler(
            SERVICE, {"Judge": judge, "JudgeStream": stream, "WatchTrial": watch, "GetVerdict": get}
        )

    async def judge(self, _: AsyncIterator[bytes], context: ServiceCall) -> bytes:
        """Answers one request."""
        return await finish_call(context, self._judge(context))

    async def judge_stream(self, _: AsyncIterator[bytes], context: ServiceCall) -> None:
        """Answers requests as they come."""
        await finish_call(context, self._judge_stream(context))

    async def watch_trial(
        self, request: wire.WatchTrialRequest, _: ServiceCall
    ) -> AsyncGenerator[wire.WatchTrialResponse, None]:
        """Tells the events of a trial."""
        with self._session.call() as sitting:
            async for response in watch_trial(
                request,
                trials=sitting.house.docket.trials,
                log=sitting.house.docket.log,
                reception=sitting.reception,
                hub=sitting.house.feed,
            ):
                yield response

    async def get_verdict(self, request: wire.GetVerdictRequest, _: ServiceCall) -> wire.GetVerdictResponse:
        """Tells the state of a trial, and its verdict."""
        with self._session.call() as sitting:
            trial_id = await trial_named(request, sitting.reception)
            # A request of the caller's own may have been given the verdict of another namespace's trial, which it may
            # then see.
            by_request = request.WhichOneof("trial") == "request"
            try:
                record = await sitting.house.docket.trials.record(trial_id)
            except TrialUnknown:
                raise unknown_trial() from None  # erased, or not opened yet: what is lost then has to be asked again
            if not (by_request or current().sees(record.opened.meme.namespace)):
                raise unknown_trial()
            response = wire.GetVerdictResponse(trial_id=trial_id)
            stands = summary_of(line_of(record))
            response.state, response.failure_reason = stands.state, stands.failure_reason
            # A trial without a verdict has a state all the same, and whoever asks again learns from it how far it is.
            if record.verdict is not None:
                response.verdict.MergeFromString(await self._sent(sitting, record))
                response.verdict.request_id = request.request.request_id or record.opened.request_id
                if current().sees(record.opened.meme.namespace):
                    response.verdict.content.CopyFrom(stands.content)
            return response

    async def _judge(self, context: ServiceCall) -> bytes:
        with self._session.call() as sitting:
            received = await self._memory.receive(context, of=SERVICE)
            if received is None:
                raise no_request()
            data, lot = received
            # It holds the message as well: with it, the `del data` below would free nothing.
            del received
            try:
                began = time.perf_counter()
                request = parse_request(wire.JudgeRequest, data)
                del data  # what is held for long is the picture alone
                check_request_id(request.request_id)  # the one thing that no request before it answers for
                like = likeness(request)
                # Before the request is looked at any closer: a repeat costs neither decoding nor a place.
                repeat = self._repeats.get(like) if like else None
                if repeat and (repeated := await self._repeated_response(sitting, repeat, request.request_id, began)):
                    return repeated
                ask, token = self._request_of(request, context), request.client_token
                del request
                answer = await sitting.reception.answer(ask, within_s=time_left(context))
                verdict, own = await self._response_to(sitting, answer, ask, token)
                # Only with the content: it names the namespace that later callers must be allowed to see before they
                # get the same.
                if like and answer.cached and own.reused_from.HasField("content"):
                    self._repeats.keep(like, CachedResponse.of(answer.cached, own))
                return verdict + own.SerializeToString()  # messages that are joined are merged
            finally:
                lot.release()

    async def _judge_stream(self, context: ServiceCall) -> None:
        with self._session.call() as sitting:

            def tried(request: wire.JudgeRequest) -> Judging:
                ask, token = self._request_of(request, context), request.client_token

                async def respond(within_s: float | None) -> tuple[bytes, wire.JudgeResponse]:
                    answer = await sitting.reception.answer(ask, within_s=within_s, patient=True)
                    return await self._response_to(sitting, answer, ask, token)

                return respond

            await judge_stream(
                context,
                self._memory,
                SERVICE,
                tried,
                most=self._settings.concurrent_trials,
                worked_on=self._settings.worked_on_at_once,
                idle_s=self._settings.idle,
                on_sent=self._telemetry.streamed,
            )

    def _request_of(self, request: wire.JudgeRequest, context: ServiceCall) -> TrialRequest:
        ask = ask_of(
            request,
            default=self._settings.procedure,
            traceparent=traceparent(context),
            trace_id=self._telemetry.trace_id(),
        )
        check_namespace(ask.namespace)
        return ask

    async def _response_to(
        self, sitting: _Sitting, answer: Answer, ask: TrialRequest, token: bytes
    ) -> tuple[bytes, wire.JudgeResponse]:
        """A verdict as it is sent, and what the response says of this request besides."""
        verdict = await self._sent(sitting, answer.record, keep=answer.reused)
        return verdict, answer_of(answer, ask, client_token=token)

    async def _repeated_response(
        self, sitting: _Sitting, repeat: CachedResponse, request_id: str, began: float
    ) -> bytes | None:
        """The response to a request like one that was answered from memory; None where it has to be looked at."""
        # Each time: who calls now may have another token than who came first, and the digest says nothing of tokens
        # (GR-1).
        check_namespace(repeat.answer.ask.namespace)
        if not current().sees(repeat.namespace):
            return None
        record = await sitting.reception.again(repeat.answer, request_id)
        if record is None:
            return None
        own = repeat.with_its_own(request_id or str(uuid.uuid4()), time.perf_counter() - began)
        return await self._sent(sitting, record) + own

    async def _sent(self, sitting: _Sitting, record: TrialRecord, *, keep: bool = True) -> bytes:
        """A verdict with its receipt, as it is sent; ``keep`` where it will be sent again."""
        # A verdict and its place in the log never change, so what was made for one request serves the next.
        if (sent := self._verdicts.get(record.trial_id)) is not None:
            return sent
        response = verdict_of(record)
        response.receipt.CopyFrom(receipt_of(await sitting.house.docket.log.receipt(record.trial_id)))
        sent = response.SerializeToString()
        if keep:
            self._verdicts.keep(record.trial_id, sent)
        return sent


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """Stored answer to a request that may come again.

    Attributes:
        answer: Verdict, with the request that it answers.
        own: Part of the response about the request, its id and its timings aside, as it is sent.
        namespace: Namespace of the content that the verdict was given for: the response names it.
    """

    answer: CachedAnswer
    own: bytes
    namespace: str

    @classmethod
    def of(cls, cached: CachedAnswer, own: wire.JudgeResponse) -> CachedResponse:
        """Stores an answer, and the part of the response about its request."""
        response = wire.JudgeResponse()
        response.CopyFrom(own)
        response.ClearField("request_id")
        response.ClearField("timings")
        return cls(cached, response.SerializeToString(), own.reused_from.content.namespace)

    def with_its_own(self, request_id: str, seconds: float) -> bytes:
        """Serialises the response to another such request, with its own id and timing."""
        timings = wire.Timings(total=duration(seconds), picture=_NONE, text=_NONE, precedents=_NONE)
        return self.own + wire.JudgeResponse(request_id=request_id, timings=timings).SerializeToString()


def likeness(request: wire.JudgeRequest) -> bytes | None:
    """Digests requests that differ by their id alone to equal values.

    None for large ones, too slow to digest where calls run.

    Not the same in the next version of protobuf, perhaps: it is for keeping in memory.
    """
    # Digesting happens in the event loop here, where every other call waits for it.
    if len(request.image) > HASHED_AT_ONCE:
        return None
    request_id = request.request_id
    request.ClearField("request_id")
    # Deterministic, so that maps, such as pinned models, come in one order.
    data = request.SerializeToString(deterministic=True)
    # Put back: the caller goes on with this very message.
    request.request_id = request_id
    return hashlib.sha256(data).digest()


_NONE = duration(0.0)
