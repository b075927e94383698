"""A fake collector of OpenTelemetry traces, on a real port."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


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
