"""The gRPC service: asks come in, verdicts or honest errors go out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from court.errors import BadRequest, CourtError, TrialAborted, Unavailable
from court.events import AnyEvent, Procedure
from memecourt.v1 import court_pb2 as wire
from serving.assembly import Courthouse
from serving.convert import ask_of, response_of
from serving.status import Busy, status_of

SERVICE = wire.DESCRIPTOR.services_by_name["Court"].full_name

_TO_ANSWER_S = 0.1
"""What is kept of a caller's deadline to send it the verdict, in seconds."""

_log = logging.getLogger("memecourt.service")

if TYPE_CHECKING:
    _Context: TypeAlias = grpc.aio.ServicerContext[bytes, wire.JudgeResponse]


class CourtService:
    """Serves ``memecourt.v1.Court``.

    Until :meth:`open` has been called it answers UNAVAILABLE, so that a server can listen while it warms up.
    """

    def __init__(self, concurrent_trials: int, default: Procedure = Procedure.SUMMARY) -> None:
        self._courthouse: Courthouse | None = None
        self._most = concurrent_trials
        self._held = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._default = default

    def open(self, courthouse: Courthouse) -> None:
        """From now on, asks are heard."""
        self._courthouse = courthouse

    def close(self) -> None:
        """From now on, asks are turned away; those being heard go on."""
        self._courthouse = None

    async def empty(self, seconds: float) -> None:
        """Waits until nothing is being heard any more: a cancelled trial still writes down its end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is to be given.

        Requests arrive as bytes and are parsed here: the library would answer what is no request with INTERNAL.
        """
        judge: grpc.RpcMethodHandler[bytes, wire.JudgeResponse] = grpc.unary_unary_rpc_method_handler(
            self.judge, request_deserializer=None, response_serializer=wire.JudgeResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Judge": judge})

    async def judge(self, data: bytes, context: _Context) -> wire.JudgeResponse:
        """Answers one request."""
        try:
            return await self._judge(data, context)
        except CourtError as error:
            await _abort(context, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # What it says may hold a path or the meme's text; the log gets its kind and place, the caller neither.
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("request failed: %s\n%s", type(error).__qualname__, where)
            await _abort(context, CourtError("The server made a mistake.", reason="INTERNAL"))

    async def _judge(self, data: bytes, context: _Context) -> wire.JudgeResponse:
        courthouse = self._courthouse
        if courthouse is None:
            raise Unavailable("The court is not in session: it is starting or closing.", reason="NOT_IN_SESSION")
        if self._held >= self._most:
            raise Busy(f"{self._most} trials are being held, which is as many as this server takes. Come again.")
        self._held += 1
        self._idle.clear()
        try:
            try:
                request = wire.JudgeRequest.FromString(data)
            except DecodeError:
                raise BadRequest("The message is no memecourt.v1.JudgeRequest.", reason="MALFORMED_REQUEST") from None
            metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
            ask = ask_of(
                request,
                policy=courthouse.court.policy,
                default=self._default,
                traceparent=metadata.get("traceparent", ""),
            )
            try:
                left = context.time_remaining()
                within_s = None if left is None else left - _TO_ANSWER_S
                hearing = await courthouse.hear(ask, _announce, within_s=within_s)
            except TrialAborted as error:
                _log.warning("trial=%s failed reason=%s", error.record.trial_id, error.reason)
                raise
            return response_of(hearing, client_token=request.client_token)
        finally:
            self._held -= 1
            if not self._held:
                self._idle.set()


async def _announce(event: AnyEvent) -> None:
    """One line an event, once it is kept; nothing of the meme itself."""
    _log.info("trial=%s seq=%d event=%s", event.trial_id, event.seq, event.kind)


async def _abort(context: _Context, error: CourtError) -> NoReturn:
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
