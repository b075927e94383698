"""Builders of request messages."""

from __future__ import annotations

import uuid
from typing import TypedDict, TypeVar

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from memecourt.errors import CallError
from memecourt.v1 import court_pb2 as wire

M = TypeVar("M", wire.JudgeRequest, wire.AddPrecedentRequest)


class About(TypedDict, total=False):
    """Further fields of a request, as :func:`judge_request` takes them."""

    language: str
    procedure: wire.Procedure.ValueType
    request_id: str
    namespace: str
    content_id: str
    policy: wire.PolicyReference | None
    client_token: bytes
    try_anew: bool
    pins: wire.Pins | None


def judge_request(
    image: bytes | None = None,
    *,
    text: str | None = None,
    language: str = "",
    procedure: wire.Procedure.ValueType = wire.PROCEDURE_UNSPECIFIED,
    request_id: str = "",
    namespace: str = "",
    content_id: str = "",
    policy: wire.PolicyReference | None = None,
    client_token: bytes = b"",
    try_anew: bool = False,
    pins: wire.Pins | None = None,
) -> wire.JudgeRequest:
    """Builds a request; the fields of ``JudgeRequest`` explain each argument.

    Args:
        image: The picture file; None to have the text judged alone.
        language: BCP 47 tag of the text.
        request_id: Caller's id of the request; if empty, the client generates one when it sends the request.
        try_anew: True to demand a trial of its own even if an earlier verdict could be reused.

    Raises:
        ValueError: The picture has no bytes and there is a text: the server would judge that alone.
    """
    if image is not None and not image and text:
        raise ValueError("the picture has no bytes; give None in its place to have the text judged alone")
    return wire.JudgeRequest(
        request_id=request_id,
        content=wire.Content(namespace=namespace, id=content_id) if namespace or content_id else None,
        image=image or b"",
        text=text,
        language=language,
        procedure=procedure,
        policy=policy,
        client_token=client_token,
        try_anew=try_anew,
        pins=pins,
    )


def named(request: wire.JudgeRequest) -> wire.JudgeRequest:
    """Returns the request, or a copy with a random request_id if it has none, so that a retry costs no second trial."""
    return _named(request, "request_id")


def named_precedent(request: wire.AddPrecedentRequest) -> wire.AddPrecedentRequest:
    """Returns the request, or a copy with a random id if it has none, so that a retry adds the precedent once."""
    return _named(request, "id")


def added(request: wire.AddPrecedentRequest, error: CallError) -> wire.AddPrecedentResponse:
    """Returns the response of an attempt whose answer was lost, for an id from :func:`named_precedent`.

    Raises:
        CallError: The error itself, unless it says that the precedent exists.
    """
    # The id was generated for this request: only an earlier attempt of it can have used it.
    if error.code is not grpc.StatusCode.ALREADY_EXISTS:
        raise error
    return wire.AddPrecedentResponse(id=request.id)


def watch_request(trial_id: str, request_id: str, namespace: str, from_seq: int) -> wire.WatchTrialRequest:
    """Builds the request to watch a trial, named by its own id or that of its request.

    Raises:
        ValueError: Neither or both are given.
    """
    if bool(trial_id) == bool(request_id):
        raise ValueError("name the trial by its trial_id or by its request_id")
    if trial_id:
        return wire.WatchTrialRequest(trial_id=trial_id, from_seq=from_seq)
    return wire.WatchTrialRequest(
        request=wire.RequestName(namespace=namespace, request_id=request_id), from_seq=from_seq
    )


def verdict_request(trial_id: str, request_id: str, namespace: str) -> wire.GetVerdictRequest:
    """Builds the request for the verdict of a trial, named by either id. Raises ValueError as :func:`watch_request`."""
    named = watch_request(trial_id, request_id, namespace, 0)
    if trial_id:
        return wire.GetVerdictRequest(trial_id=trial_id)
    return wire.GetVerdictRequest(request=named.request)


class Export:
    """Cursor of an export: after a break, it continues with the trials that were not exported yet."""

    def __init__(self, which: wire.TrialFilter | None) -> None:
        self._which = wire.TrialFilter()
        if which is not None:
            # A copy, because `opened_from` is moved forward below and the filter belongs to the caller.
            self._which.CopyFrom(which)
        self._at: Timestamp | None = None
        self._known: set[str] = set()  # ids of the exported trials opened at that time

    def request(self) -> wire.ExportTrialsRequest:
        """Builds the request for the trials that are still missing."""
        if self._at is not None:
            # Inclusive: trials opened at that moment come again, and `_known` filters them out.
            self._which.opened_from.CopyFrom(self._at)
        return wire.ExportTrialsRequest(filter=self._which)

    def is_new(self, trial: wire.Trial) -> bool:
        """True if the trial was not exported yet; marks it as exported."""
        summary = trial.summary
        # Trials come in the order in which they were opened, so none of an earlier moment can come again.
        if self._at is None or summary.opened_at != self._at:
            self._at, self._known = summary.opened_at, set()
        if summary.trial_id in self._known:
            return False
        self._known.add(summary.trial_id)
        return True


def _named(request: M, field: str) -> M:
    if getattr(request, field):
        return request
    # A copy: if the caller sends the same request again, it must get another id.
    copy = type(request)()
    copy.CopyFrom(request)
    setattr(copy, field, uuid.uuid4().hex)
    return copy
