"""Helpers of tests of telemetry."""

import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from court.events import Summarised, SummarisedAhead, VerdictGiven
from court.ports import ChatReply, FinishReason
from serving.telemetry.logs import set_up
from tests.support.cast import as_json


def described(request):
    """A description by a server that has half of the prompt cached and reports a model name of its own."""
    return ChatReply(
        text=as_json({"description": "A crowd stands under a green flag."}),
        finish=FinishReason.STOP,
        model="proposer-model-as-served",
        tokens_in=200,
        tokens_out=20,
        tokens_cached=100,
        latency_s=3.5,
        server="http://model.example:8000/v1",
    )


def calls_of(record):
    """Yields each model call of a record with the number of requests it took; a call in two events counts once."""
    ahead = {(event.side, event.round) for event in record.all(SummarisedAhead)}
    for event in record.events:
        call = getattr(event, "call", None)
        if call is not None and not (isinstance(event, Summarised) and (event.side, event.round) in ahead):
            yield call, 2 if call.fault else 1
        if isinstance(event, VerdictGiven) and event.odds:
            yield event.odds.call, 2


class Lines:
    """Collects what a logger writes; iterates over its lines."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def __iter__(self):
        return iter(self.text.splitlines())


@contextmanager
def logging_as(log_format):
    """Sets up the process's logging as a server does, and restores it afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("memecourt")
    before = root.handlers[:], root.level, ours.level, sys.unraisablehook, threading.excepthook
    lines = Lines()
    set_up(log_format, lines)
    try:
        yield lines
    finally:
        logging.captureWarnings(False)
        root.handlers[:], root.level, ours.level, sys.unraisablehook, threading.excepthook = before
        logging.getLogger().setLevel(before[1])
        ours.setLevel(before[2])


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Stores all exported spans.

    Attributes:
        requests: Export requests, in order of arrival.
        endpoint: URL of the collector, for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.endpoint = ""

    def Export(self, request: Any, context: object) -> Any:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        """All spans, in order of arrival."""
        return [span for r in self.requests for of in r.resource_spans for s in of.scope_spans for span in s.spans]

    def named(self, prefix: str) -> list[Any]:
        """Returns the spans whose names begin with a prefix."""
        return [span for span in self.spans if span.name.startswith(prefix)]

    @property
    def resource(self) -> dict[str, Any]:
        """Resource attributes of the first exporter."""
        return attributes_of(self.requests[0].resource_spans[0].resource)


def attributes_of(span: Any) -> dict[str, Any]:
    """Returns the attributes of a span or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Runs a collector for as long as the context lasts."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
