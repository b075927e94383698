"""Spans for OpenTelemetry: each gRPC call, the trial that runs for it, and the trial's model calls.

The spans of a trial are built from its events afterwards. No attribute holds anything of a meme. Names follow
OpenTelemetry's conventions for generative AI (which left the common conventions for a repository of their own,
open-telemetry/semantic-conventions-genai, and are in development) and for RPC (release candidate); attributes that they
have no name for begin with ``memecourt.``. Beside them stand OpenInference's, by which Phoenix and others distinguish
model calls from searches: the automatic instrumentation of the client that calls models knows neither roles nor rounds,
and loses messages that hold pictures.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from court.events import AnyEvent, PrecedentsCited, ReportedCall, TextRead, TrialFailed, TrialState, VerdictGiven
from serving.telemetry import ObservedTrial
from serving.version import SOFTWARE

_SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Codes that make a server's span one of an error, by the conventions; the others are the caller's own doing."""

_TO_EXPORT_S = 5.0
"""Seconds for the export of the last spans when the server ends: an orchestrator does not wait for ever."""

KIND = "openinference.span.kind"

_log = logging.getLogger("memecourt.telemetry")
_wanted_trace: ContextVar[int] = ContextVar("memecourt_wanted_trace", default=0)
_propagator = TraceContextTextMapPropagator()


class _Ids(RandomIdGenerator):
    """Generates random ids, except for a trace that a record names already."""

    def generate_trace_id(self) -> int:
        return _wanted_trace.get() or super().generate_trace_id()


def open_tracing() -> Tracing:
    """Opens an export as the ``OTEL_`` variables say; they may also name the service."""
    # Names that the operator sets in the variable take precedence over ours.
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {"service.version": SOFTWARE, "service.instance.id": str(uuid.uuid4())}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in attributes:
        own["service.name"] = "memecourt"
    resource = Resource.create({name: value for name, value in own.items() if f"{name}=" not in attributes})
    # No exit handler: whoever opened it closes it, and a process that is killed has nobody to wait for the export.
    provider = TracerProvider(resource=resource, id_generator=_Ids(), shutdown_on_exit=False)
    exporter = OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, exporter)


class Tracing:
    """Builds spans of calls and trials, and exports them."""

    def __init__(self, provider: TracerProvider, exporter: OTLPSpanExporter) -> None:
        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("memecourt", SOFTWARE)

    def close(self) -> None:
        """Exports waiting spans within :data:`_TO_EXPORT_S`: the library would wait for half a minute."""
        # A daemon: a collector that never answers must not keep the process from ending.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_TO_EXPORT_S)
        if ending.is_alive():
            _log.warning("the collector has not taken the last spans within %g s: they are dropped", _TO_EXPORT_S)
            self._exporter.shutdown()  # breaks off what it is at
            ending.join()

    def trace_id(self) -> str:
        """Trace of the current span, 32 hex digits; empty outside of one."""
        current = trace.get_current_span().get_span_context()
        return trace.format_trace_id(current.trace_id) if current.is_valid else ""

    def reused(self, *, near: bool) -> None:
        """Marks the current call as answered with an earlier verdict."""
        trace.get_current_span().set_attribute("memecourt.reused", "near" if near else "exact")

    def begin_call(self, service: str, method: str, metadata: Mapping[str, str]) -> Span:
        """Starts the span of a call, in the caller's trace if there is one; it becomes current in this task."""
        name = f"{service}/{method}"
        span = self._tracer.start_span(
            name,
            # From an empty context: without a caller's trace this call begins one of its own.
            context=_propagator.extract(metadata, otel_context.Context()),
            kind=SpanKind.SERVER,
            attributes={"rpc.system.name": "grpc", "rpc.method": name},
        )
        # Never detached: each call is answered in a task of its own, and its context ends with it. An async generator
        # that is closed from another task could not detach.
        otel_context.attach(trace.set_span_in_context(span))
        return span

    def end_call(self, span: Span, code: str) -> None:
        """Ends the span of a call with the name of a gRPC status code."""
        span.set_attribute("rpc.response.status_code", code)
        if code in _SERVER_FAULTS:
            span.set_attribute("error.type", code)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def on_event(self, event: AnyEvent, trial: ObservedTrial, calls: Sequence[ReportedCall]) -> None:
        """Adds a stored event to its trial's spans; ``calls`` are the model calls that it is the first to report."""
        if event.state is TrialState.OPEN:
            trial.span = self._trial(event, trial)
        if trial.span is None:
            return
        # A text that the caller gave took no reader, and so no step.
        if isinstance(event, TextRead) and event.took_s is not None:
            self._step("read text", ended=event.at, seconds=event.took_s, trial=trial, attributes={KIND: "TOOL"})
        elif isinstance(event, PrecedentsCited):
            library = event.findings.library.name
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": "retrieval",
                "gen_ai.data_source.id": library,
                KIND: "RETRIEVER",
            }
            self._step(
                f"retrieval {library}", ended=event.at, seconds=event.latency_s, trial=trial, attributes=attributes
            )
        for each in calls:
            self._record_call(each, event, trial)
        if isinstance(event, VerdictGiven):
            trial.span.set_attribute("memecourt.outcome", "DECIDED")
            trial.span.set_attribute("memecourt.label", event.verdict.label.value)
            trial.span.set_attribute("memecourt.needs_human_review", event.verdict.needs_human_review)
            trial.span.end(_ns(event.at))
        elif isinstance(event, TrialFailed):
            trial.span.set_attribute("memecourt.outcome", "FAILED")
            trial.span.set_attribute("memecourt.step", event.step)
            trial.span.set_attribute("error.type", event.reason)
            trial.span.set_status(Status(StatusCode.ERROR))
            trial.span.end(_ns(event.at))

    def _trial(self, event: AnyEvent, trial: ObservedTrial) -> Span:
        """Starts the span of a trial, as a child of the current call if both are in the same trace.

        A trial whose record names another trace, as that of a resumed one does, has no parent but a link to the call.
        """
        current = trace.get_current_span().get_span_context()
        context, links = None, []
        wanted = _trace_id(trial.trace_id)
        # The record names the trace: whoever comes from the record must find the span there.
        if wanted and wanted != current.trace_id:
            context = otel_context.Context()
            links = [trace.Link(current)] if current.is_valid else []
        name = f"memecourt.{trial.procedure.lower()}"
        # The generator of ids takes no argument: this is how it learns the id, for this one span.
        token = _wanted_trace.set(wanted)
        try:
            return self._tracer.start_span(
                f"invoke_workflow {name}",
                context=context,
                links=links,
                start_time=_ns(event.at),
                attributes={
                    "gen_ai.operation.name": "invoke_workflow",
                    "gen_ai.workflow.name": name,
                    KIND: "CHAIN",
                    "session.id": trial.trial_id,
                    "memecourt.trial.id": trial.trial_id,
                    "memecourt.request.id": trial.request_id,
                    "memecourt.procedure": trial.procedure,
                    "memecourt.resumed": event.seq > 0,
                },
            )
        finally:
            _wanted_trace.reset(token)

    def _record_call(self, model_call: ReportedCall, event: AnyEvent, trial: ObservedTrial) -> None:
        """Adds the span of a model call, which ends when the call's event was stored.

        An event says how long its call took, not when it ended: the span is late by as long as the call waited for its
        turn in the record.
        """
        call = model_call.call
        model = trial.models.get(call.role.value, call.model)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            # The dialect of the API; model and address identify the provider.
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": model,
            "gen_ai.response.model": call.model,
            "gen_ai.agent.name": call.role.value.lower(),
            "gen_ai.conversation.id": trial.trial_id,
            "gen_ai.prompt.name": call.prompt_id,
            "gen_ai.prompt.version": call.prompt_digest,
            "gen_ai.usage.input_tokens": call.tokens_in,
            "gen_ai.usage.output_tokens": call.tokens_out,
            "gen_ai.usage.cache_read.input_tokens": call.tokens_cached,
            KIND: "LLM",
            "session.id": trial.trial_id,
            "agent.name": call.role.value.lower(),
            "llm.model_name": call.model,
            "llm.token_count.prompt": call.tokens_in,
            "llm.token_count.completion": call.tokens_out,
            "llm.token_count.total": call.tokens_in + call.tokens_out,
            "llm.token_count.prompt_details.cache_read": call.tokens_cached,
            "memecourt.trial.id": trial.trial_id,
            "memecourt.event.seq": event.seq,
            "memecourt.calls": model_call.requests,
            "memecourt.repaired": bool(call.fault),
        }
        for name in ("side", "round"):
            if (value := getattr(event, name, None)) is not None:
                attributes[f"memecourt.{name}"] = value
        attributes |= _server(call.server)
        self._step(
            f"chat {model}",
            ended=event.at,
            seconds=call.latency_s,
            trial=trial,
            attributes=attributes,
            kind=SpanKind.CLIENT,
        )

    def _step(
        self,
        name: str,
        *,
        ended: datetime,
        seconds: float,
        trial: ObservedTrial,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        span = self._tracer.start_span(
            name,
            # Not the current span, which may be that of another call.
            context=trace.set_span_in_context(trial.span, otel_context.Context()),
            kind=kind,
            start_time=_ns(ended - timedelta(seconds=seconds)),
            attributes=attributes,
        )
        span.end(_ns(ended))


def _ns(at: datetime) -> int:
    """Nanoseconds since the epoch."""
    # By whole microseconds, as events have them: a float has no room for nanoseconds since 1970.
    return round(at.timestamp() * 1e6) * 1000


def _trace_id(id_: str) -> int:
    """Parses the trace id of a record; 0 if it names none."""
    try:
        return int(id_, 16) if len(id_) == 32 else 0
    except ValueError:
        return 0


def _server(address: str) -> dict[str, str | int]:
    """Attributes for the host and port of a model server."""
    parts = urlsplit(address)
    if not parts.hostname:
        return {}
    return {"server.address": parts.hostname, "server.port": parts.port or (443 if parts.scheme == "https" else 80)}
