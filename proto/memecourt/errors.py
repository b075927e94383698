"""Errors of calls.

CallError          the service gave no answer
└── JudgeError     it gave no verdict: never to be read as "not harmful"
"""

from __future__ import annotations

from typing import Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from memecourt.v1 import court_pb2 as wire

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class CallError(Exception):
    """The service gave no answer.

    Attributes:
        reason: Stable code of the fault; empty if the error did not come from MemeCourt (without a connection, say).
        retry_after: Seconds to wait before a retry; None if a retry will not help, or the time is unknown.
        metadata: Further facts, for example the ``trial_id`` of a trial that failed.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reason = ""
        self.field = ""
        self.retry_after: float | None = None
        self.metadata: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """The error that a call ended in, with its google.rpc details."""
        made = cls(error.code(), error.details() or "")
        try:
            status = rpc_status.from_call(error)
        except ValueError:
            # The details don't match the status: a proxy has replaced it with its own.
            status = None
        for packed in status.details if status else ():
            info, request, retry = (
                error_details_pb2.ErrorInfo(),
                error_details_pb2.BadRequest(),
                error_details_pb2.RetryInfo(),
            )
            if packed.Unpack(info):
                made.reason, made.metadata = info.reason, dict(info.metadata)
                # The field of BadRequest wins, whatever the order of the details.
                made.field = made.field or made.metadata.get("field", "")
            elif packed.Unpack(request) and request.field_violations:
                made.field = request.field_violations[0].field
            elif packed.Unpack(retry):
                made.retry_after = _seconds(retry.retry_delay)
        return made


def _seconds(delay: Duration) -> float:
    # Not as a timedelta, which can't hold every delay that a server may send.
    return float(delay.seconds + delay.nanos / 1e9)


class JudgeError(CallError):
    """The service gave no verdict. Never to be read as "not harmful"."""

    @classmethod
    def of_failure(cls, failure: wire.Failure) -> Self:
        """Builds the error from a failure that came as a value in a stream."""
        # An unknown status code is still a failure, never a verdict.
        made = cls(_CODES.get(failure.code, grpc.StatusCode.UNKNOWN), failure.message)
        made.reason, made.field = failure.reason, failure.field
        if failure.HasField("retry_delay"):
            made.retry_after = _seconds(failure.retry_delay)
        if failure.trial_id:
            made.metadata["trial_id"] = failure.trial_id
        return made

    @classmethod
    def like(cls, error: CallError) -> Self:
        """Builds the error of one request from that of the stream that the request was in."""
        made = cls(error.code, error.message)
        made.reason, made.field = error.reason, error.field
        made.retry_after, made.metadata = error.retry_after, dict(error.metadata)
        return made
