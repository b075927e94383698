"""Errors as problem details (RFC 9457), converted from the gRPC statuses, so that there is only one list of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from google.rpc import code_pb2, error_details_pb2, status_pb2

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:memecourt:problem:"

STATUS_OF_CODE: Mapping[int, HTTPStatus] = {
    code_pb2.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    code_pb2.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    code_pb2.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    code_pb2.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    code_pb2.NOT_FOUND: HTTPStatus.NOT_FOUND,
    code_pb2.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    code_pb2.FAILED_PRECONDITION: HTTPStatus.PRECONDITION_FAILED,
    code_pb2.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    code_pb2.ABORTED: HTTPStatus.BAD_GATEWAY,  # a model's reply could not be used
    code_pb2.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    code_pb2.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
STATUS_OF_REASON: Mapping[str, HTTPStatus] = {
    "NO_SUCH_ADDRESS": HTTPStatus.NOT_FOUND,
    "VERB_NOT_TAKEN": HTTPStatus.METHOD_NOT_ALLOWED,
    "BODY_TOO_LARGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "MEDIA_TYPE_NOT_TAKEN": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "OTHER_NAME": HTTPStatus.MISDIRECTED_REQUEST,
}
"""HTTP statuses of reasons that have no matching gRPC code."""


@dataclass(frozen=True, slots=True)
class ProblemDetails:
    """An error response."""

    status: HTTPStatus
    headers: Mapping[str, str]
    body: Mapping[str, Any]


def problem_of(status: status_pb2.Status) -> ProblemDetails:
    """Converts a google.rpc status, as :func:`serving.rpc.status.status_of` makes them, to problem details."""
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for kind in (info, bad, retry):
            if detail.Is(kind.DESCRIPTOR):
                detail.Unpack(kind)
    # The reason first: these share their code with reasons of another HTTP status.
    http = STATUS_OF_REASON.get(info.reason) or STATUS_OF_CODE.get(status.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    body: dict[str, Any] = {
        "type": f"{_TYPE}{info.reason}",
        "title": http.phrase,
        "status": int(http),
        "detail": status.message,
        "reason": info.reason,
        "code": code_pb2.Code.Name(status.code),
    }
    # Only invalid requests have field violations; other errors name their field in the metadata.
    field = bad.field_violations[0].field if bad.field_violations else info.metadata.get("field", "")
    if field:
        body["field"] = field
    if trial_id := info.metadata.get("trial_id"):
        body["trial_id"] = trial_id
    headers: dict[str, str] = {}
    if http is HTTPStatus.UNAUTHORIZED:
        # Required with every 401 (RFC 9110, 15.5.2).
        headers["www-authenticate"] = "Bearer"
    if retry.HasField("retry_delay"):
        seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        body["retry_after_s"] = seconds
        headers["retry-after"] = str(max(1, math.ceil(seconds)))  # whole seconds: RFC 9110, 10.2.3
    return ProblemDetails(http, headers, body)
