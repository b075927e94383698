"""Errors of the court as google.rpc statuses: the one place that knows which is which."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from court.errors import (
    BadInput,
    BadLibrary,
    CourtError,
    ModelRefused,
    NotLoaded,
    Overrun,
    ReplyUnusable,
    TrialAborted,
    Unavailable,
)

DOMAIN = "memecourt.v1"
DEADLINE = "DEADLINE"
"""Reason of the overrun that is the caller's own deadline, and not one of our time limits."""


class Busy(Unavailable):
    """As many trials are being held as this server is set up for."""

    default_reason = "BUSY"


def _code_of(error: CourtError) -> int:
    if isinstance(error, Busy):
        return int(code_pb2.RESOURCE_EXHAUSTED)
    if isinstance(error, Overrun) and error.reason == DEADLINE:
        return int(code_pb2.DEADLINE_EXCEEDED)
    if isinstance(error, ReplyUnusable):
        return int(code_pb2.ABORTED)
    if isinstance(error, Unavailable):
        return int(code_pb2.UNAVAILABLE)
    if isinstance(error, BadInput):
        return int(code_pb2.INVALID_ARGUMENT)
    if isinstance(error, NotLoaded | BadLibrary | ModelRefused):
        return int(code_pb2.FAILED_PRECONDITION)
    return int(code_pb2.INTERNAL)


def status_of(error: CourtError) -> status_pb2.Status:
    """The google.rpc status of an error: its code, its message, one ErrorInfo, and what the code calls for besides."""
    root = error.cause if isinstance(error, TrialAborted) else error
    code = _code_of(root)
    info = error_details_pb2.ErrorInfo(reason=root.reason, domain=DOMAIN)
    if isinstance(error, TrialAborted):
        info.metadata["trial_id"] = error.record.trial_id
    details: list[Message] = [info]
    if code == code_pb2.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=root.field or "", description=root.message, reason=root.reason
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(root, Unavailable) and code != code_pb2.DEADLINE_EXCEEDED:
        delay = Duration()
        delay.FromMilliseconds(round(root.retry_after * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code, message=root.message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status
