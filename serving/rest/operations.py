"""Table of HTTP operations and their gRPC methods, from which routes, documentation and tests are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from memecourt.v1 import court_pb2 as wire

PICTURE = "image"
"""Name of a request's picture field, and of the form's picture part."""


class Source(Enum):
    """Part of an HTTP request that a message is built from."""

    QUERY = auto()
    """Query string: ``filter.labels=LABEL_HARMFUL&page_size=10``."""
    BODY = auto()
    """Body: JSON; or for messages with a picture also a form, or the picture itself with the rest in the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An HTTP endpoint and its method.

    Attributes:
        continued_by: Field of a stream that ``Last-Event-ID`` sets; empty otherwise.
    """

    verb: str
    path: str
    service: str
    method: str
    source: Source
    summary: str
    fields: Mapping[str, str] = field(default_factory=dict)
    continued_by: str = ""
    lines: bool = False

    @property
    def descriptor(self) -> MethodDescriptor:
        """Descriptor of the method."""
        return wire.DESCRIPTOR.services_by_name[self.service].methods_by_name[self.method]

    @property
    def full_name(self) -> str:
        """Full name of the method in gRPC."""
        return f"/{wire.DESCRIPTOR.package}.{self.service}/{self.method}"

    @property
    def request(self) -> type[Message]:
        """Type of the request."""
        return GetMessageClass(self.descriptor.input_type)

    @property
    def response(self) -> type[Message]:
        """Type of the response, or of each response of a stream."""
        return GetMessageClass(self.descriptor.output_type)

    @property
    def takes_picture(self) -> bool:
        """True if the request has a picture."""
        return self.source is Source.BODY and PICTURE in self.descriptor.input_type.fields_by_name


def _operation(address: str, method: str, summary: str, **fields: Any) -> Operation:
    """Builds the operation ``VERB /path`` for ``Service.Method``."""
    verb, path = address.split()
    service, name = method.split(".")
    usual = Source.BODY if verb in ("POST", "PATCH") else Source.QUERY
    source = fields.pop("source", usual)
    return Operation(verb=verb, path=path, service=service, method=name, source=source, summary=summary, **fields)


_OF_TRIAL: Any = {"fields": {"trial_id": "trial_id"}}
_OF_PRECEDENT: Any = {"fields": {"id": "id"}}

JUDGE = _operation("POST /v1/judge", "Court.Judge", "Tries a meme.")
VERDICT = _operation(
    "GET /v1/requests/{request_id}",
    "Court.GetVerdict",
    "Where the trial for a request stands, and its verdict.",
    fields={"request_id": "request.request_id"},
)
OPERATIONS: Sequence[Operation] = (
    JUDGE,
    VERDICT,
    _operation(
        "GET /v1/trials/{trial_id}/verdict", "Court.GetVerdict", "Where a trial stands, and its verdict.", **_OF_TRIAL
    ),
    _operation("GET /v1/trials", "Docket.ListTrials", "Trials, newest first."),
    _operation("GET /v1/trials:export", "Docket.ExportTrials", "Trials with all of their events.", lines=True),
    _operation("GET /v1/trials/{trial_id}", "Docket.GetTrial", "One trial with all of its events.", **_OF_TRIAL),
    _operation(
        "GET /v1/trials/{trial_id}/events",
        "Court.WatchTrial",
        "The events of a trial as they happen.",
        continued_by="from_seq",
        **_OF_TRIAL,
    ),
    _operation(
        "POST /v1/trials/{trial_id}/review", "Docket.ReviewVerdict", "Upholds or overrules a verdict.", **_OF_TRIAL
    ),
    _operation("POST /v1/appeals", "Docket.OpenAppeal", "Opens an appeal against a verdict."),
    _operation(
        "GET /v1/trials/{trial_id}/notice",
        "Docket.GetNotice",
        "What to tell those whose content was decided on.",
        **_OF_TRIAL,
    ),
    _operation(
        "GET /v1/reviews/events", "Docket.WatchReviews", "Reviews as people make them.", continued_by="from_entry"
    ),
    _operation(
        "GET /v1/reviews/{entry}/changes",
        "Docket.ListChanges",
        "The requests whose answers a review changes.",
        fields={"entry": "entry"},
    ),
    _operation(
        "POST /v1/precedents:search",
        "Precedents.SearchPrecedents",
        "The precedents most like a text, a picture or both.",
    ),
    _operation("POST /v1/precedents", "Precedents.AddPrecedent", "Adds a labelled meme."),
    _operation(
        "PATCH /v1/precedents/{id}",
        "Precedents.RelabelPrecedent",
        "Gives a meme of the library another label.",
        **_OF_PRECEDENT,
    ),
    _operation(
        "DELETE /v1/precedents/{id}", "Precedents.RemovePrecedent", "Takes a meme out of the library.", **_OF_PRECEDENT
    ),
    _operation("GET /v1/library", "Precedents.GetLibrary", "The library that is searched."),
)
