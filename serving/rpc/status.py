"""Maps errors of the court to google.rpc statuses; the only place that does so."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from court.errors import BadInput, BadLibrary, CourtError, ModelRefused, NotLoaded, Overrun, ReplyUnusable, Unavailable
from court.record import TrialAborted
from memecourt.v1 import court_pb2 as wire
from retrieval.library.changes import CantChange, NoSuchPrecedent, PrecedentExists
from serving.access.callers import NotAllowed, Unauthenticated
from serving.docket.errors import NotDecided, RequestConflict, TrialUnknown
from serving.errors import Busy

DOMAIN = "memecourt.v1"
DEADLINE = "DEADLINE"
"""Reason of an overrun of the caller's own deadline, rather than of one of our time limits."""


_MAX_MESSAGE_BYTES, _MAX_FIELD_BYTES = 1000, 200
"""Maximum UTF-8 bytes of a message and of a field name, which may quote the request. A status is sent as metadata,
which clients refuse beyond 8 KiB; it contains the message three times, once with three characters per byte."""

_CODES: tuple[tuple[type[CourtError], code_pb2.Code.ValueType], ...] = (
    (Busy, code_pb2.RESOURCE_EXHAUSTED),
    (ReplyUnusable, code_pb2.ABORTED),
    (Unavailable, code_pb2.UNAVAILABLE),
    (RequestConflict, code_pb2.ALREADY_EXISTS),
    (PrecedentExists, code_pb2.ALREADY_EXISTS),
    (TrialUnknown, code_pb2.NOT_FOUND),
    (NoSuchPrecedent, code_pb2.NOT_FOUND),
    (CantChange, code_pb2.FAILED_PRECONDITION),
    (NotDecided, code_pb2.FAILED_PRECONDITION),
    (NotLoaded, code_pb2.FAILED_PRECONDITION),
    (BadLibrary, code_pb2.FAILED_PRECONDITION),
    (ModelRefused, code_pb2.FAILED_PRECONDITION),
    (Unauthenticated, code_pb2.UNAUTHENTICATED),
    (NotAllowed, code_pb2.PERMISSION_DENIED),
    (BadInput, code_pb2.INVALID_ARGUMENT),
)
"""The first match counts: subclasses come before their base classes."""


def status_of(error: CourtError) -> status_pb2.Status:
    """Builds the google.rpc status of an error: code, message, one ErrorInfo, and details that the code calls for."""
    root, code = _root(error), _code_of(error)
    message, field = _cut(root.message, _MAX_MESSAGE_BYTES), _cut(root.field or "", _MAX_FIELD_BYTES)
    info = error_details_pb2.ErrorInfo(reason=root.reason, domain=DOMAIN)
    # The trial's record says more than any status can.
    if isinstance(error, TrialAborted):
        info.metadata["trial_id"] = error.record.trial_id
    details: list[Message] = [info]
    if code == code_pb2.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message, reason=root.reason)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    elif field:
        info.metadata["field"] = field
    delay = _retry_delay(root, code)
    if delay is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def code_name_of(error: BaseException | None) -> str:
    """Returns the name of the gRPC code that a call with this outcome ends with."""
    if error is None:
        return "OK"
    code = _code_of(error) if isinstance(error, CourtError) else code_pb2.INTERNAL
    return str(code_pb2.Code.Name(code))


def failure_of(error: CourtError) -> wire.Failure:
    """Converts an error to a value, for a response in a stream."""
    root, code = _root(error), _code_of(error)
    return wire.Failure(
        code=code,
        reason=root.reason,
        message=_cut(root.message, _MAX_MESSAGE_BYTES),
        field=_cut(root.field or "", _MAX_FIELD_BYTES),
        retry_delay=_retry_delay(root, code),
        trial_id=error.record.trial_id if isinstance(error, TrialAborted) else "",
    )


def _cut(text: str, most: int) -> str:
    """Truncates a text to at most the given number of UTF-8 bytes."""
    # The cut may fall within a character, whose rest is dropped. A lone surrogate can't be encoded in UTF-8 at all.
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _root(error: CourtError) -> CourtError:
    return error.cause if isinstance(error, TrialAborted) else error


def _code_of(error: CourtError) -> code_pb2.Code.ValueType:
    root = _root(error)
    if isinstance(root, Overrun) and root.reason == DEADLINE:
        return code_pb2.DEADLINE_EXCEEDED
    return next((code for kind, code in _CODES if isinstance(root, kind)), code_pb2.INTERNAL)


def _retry_delay(root: CourtError, code: int) -> Duration | None:
    # No delay if a retry could make a change twice (see calls.changing), and none after the caller's own deadline.
    if not isinstance(root, Unavailable) or root.retry_after is None or code == code_pb2.DEADLINE_EXCEEDED:
        return None
    delay = Duration()
    delay.FromMilliseconds(round(root.retry_after * 1000))
    return delay
