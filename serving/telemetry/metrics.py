"""Metrics for Prometheus, counted from stored events, so that they agree with the records.

No label contains anything chosen by a caller: no namespace, id or address. Label values come from closed sets (terms of
the court, gRPC methods, reasons in our code) or from the operator's configuration (models).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import grpc
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from court.backends.sandbox.process import worker_deaths
from court.events import (
    AnyEvent,
    NearDuplicatesFound,
    Procedure,
    QuestioningEnd,
    ReportedCall,
    ReviewOutcome,
    SideRested,
    TextRead,
    TrialFailed,
    VerdictGiven,
)
from court.record import TrialState
from serving.telemetry import ObservedTrial
from serving.telemetry.state_metrics import StateMetrics
from serving.version import SOFTWARE

if TYPE_CHECKING:
    from serving.settings import Settings

_WORKERS = ("document reader", "encoder", "picture comparer", "picture reader", "text reader")
"""Workers whose count starts at 0, since alerts can't use missing counters."""
_WEBHOOK_OUTCOMES = ("delivered", "failed", "given_up")


class _WorkerDeaths(Collector):
    """Counts guarded worker processes that died while working, by kind."""

    _name, _labelnames = "memecourt_worker_deaths", ("worker",)

    def describe(self) -> list[CounterMetricFamily]:
        description = "Processes that worked on what strangers sent and died, or were ended because it took too long."
        return [CounterMetricFamily(self._name, description, labels=self._labelnames)]

    def collect(self) -> list[CounterMetricFamily]:
        (family,) = self.describe()
        # Also workers that died under any other name, so that none is missed.
        for worker in (*_WORKERS, *(worker_deaths.keys() - set(_WORKERS))):
            family.add_metric([worker], worker_deaths[worker])
        return [family]


class Metrics:
    """All metrics of one server, in their own registry."""

    def __init__(self, settings: Settings) -> None:
        # Disables the extra creation-time series of each counter: process_start_time_seconds suffices.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._by_labels: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self.registry = registry = CollectorRegistry(auto_describe=True)
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)
        Info("memecourt_build", "The version that runs.", registry=registry).info({"version": SOFTWARE})

        self._of = of = _made(registry)
        # Start at 0, so that alerts notice the first increase: they can't use missing counters.
        for procedure in Procedure:
            of["verdicts_for_review"].labels(procedure.value)
        for outcome in ReviewOutcome:
            of["reviews"].labels(outcome.value)
        for hook in settings.webhooks:
            for result in _WEBHOOK_OUTCOMES:
                of["webhook_deliveries"].labels(hook.name, result)
        self.state = StateMetrics(of)
        registry.register(_WorkerDeaths())
        of["limit"].labels("running_trials").set(settings.concurrent_trials)
        of["limit"].labels("waiting_requests").set(settings.waiting_trials)
        of["limit"].labels("request_memory_bytes").set(settings.picture_memory)

    def begun(self, service: str, method: str) -> None:
        """Counts the start of a call."""
        self._series(self._of["requests_in_progress"], service, method).inc()

    def ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Counts the end of a call, with the name of a gRPC status code."""
        self._series(self._of["requests_in_progress"], service, method).dec()
        self._series(self._of["requests"], service, method, code).inc()
        self._series(self._of["request_duration_seconds"], service, method).observe(seconds)

    def _series(self, metric: Any, *labels: str) -> Any:
        """Returns a labelled series from a cache: the library's own lookup would double the cost of a call."""
        try:
            # No lock needed: two threads that both miss get the same series from the library.
            return self._by_labels[metric, labels]
        except KeyError:
            return self._by_labels.setdefault((metric, labels), metric.labels(*labels))

    def streamed(self, code: int) -> None:
        """Counts an answered request of a stream, with the code with which Judge would have ended."""
        self._of["stream_responses"].labels(CODES.get(code, "UNKNOWN")).inc()

    def decoded(self, seconds: float) -> None:
        """Observes the decoding of a picture."""
        self._of["picture_decode_duration_seconds"].observe(seconds)

    def reused(self, *, near: bool) -> None:
        """Counts a reused verdict."""
        self._of["reused_verdicts"].labels("near" if near else "exact").inc()

    def reviewed(self, outcome: ReviewOutcome) -> None:
        """Counts a review."""
        self._of["reviews"].labels(outcome.value).inc()

    def prefix_cache(self, models: Mapping[str, str], works: Mapping[str, bool]) -> None:
        """Sets the gauge for each role for which it is known."""
        for role, working in works.items():
            self._of["model_prefix_cache_working"].labels(role, models[role]).set(working)

    def webhook_attempted(self, hook: str, outcome: str) -> None:
        """Counts a webhook attempt, or a message that was given up."""
        self._of["webhook_deliveries"].labels(hook, outcome).inc()

    def webhook_waits(self, hook: str, *, lag: int, oldest_s: float) -> None:
        """Sets the lag of a webhook receiver."""
        self._of["webhook_lag_entries"].labels(hook).set(lag)
        self._of["webhook_oldest_pending_seconds"].labels(hook).set(oldest_s)

    def webhook_elsewhere(self, hook: str) -> None:
        """Removes the lag of a webhook receiver, which another server reports now."""
        for gauge in (self._of["webhook_lag_entries"], self._of["webhook_oldest_pending_seconds"]):
            with suppress(KeyError):
                # Otherwise it would show the last value of this server for ever.
                gauge.remove(hook)

    def observe(
        self,
        *,
        running: Callable[[], float] | None = None,
        waiting: Callable[[], float] | None = None,
        held_bytes: Callable[[], float] | None = None,
        library: Callable[[], float] | None = None,
    ) -> None:
        """Registers sources of current values, which are called from another thread and must be fast."""
        for gauge, read in (
            (self._of["running_trials"], running),
            (self._of["waiting_requests"], waiting),
            (self._of["request_memory_bytes"], held_bytes),
            (self._of["library_precedents"], library),
        ):
            if read is not None:
                gauge.set_function(read)

    def on_event(self, event: AnyEvent, trial: ObservedTrial, calls: Sequence[ReportedCall]) -> None:
        """Counts a stored event of a trial; ``calls`` are the model calls that it reports first."""
        for each in calls:
            self._count_call(each, trial)
        if event.metric and event.took_s is not None:
            self._of[f"{event.metric}_duration_seconds"].observe(event.took_s)
        if event.state is TrialState.OPEN:
            # The first event of a record opens the trial; later ones open it again.
            (self._of["trials_resumed"] if event.seq else self._of["trials_opened"]).labels(trial.procedure).inc()
        match event:
            case TextRead():
                self._of["texts"].labels(event.source.value).inc()
            case NearDuplicatesFound():
                self._of["trials_with_near_duplicates"].inc()
                for duplicate in event.duplicates:
                    self._of["near_duplicates"].labels(duplicate.label.value).inc()
            case SideRested():
                self._of["sides_rested"].labels(event.side.value, event.reason.value).inc()
                # Without an examination there is no number of rounds to observe.
                if event.reason is not QuestioningEnd.NO_EXAMINATION:
                    self._of["side_rounds"].labels(event.side.value).observe(event.rounds)
            case VerdictGiven():
                self._end(event, trial, TrialState.DECIDED, event.verdict.label.value)
                if event.verdict.needs_human_review:
                    self._of["verdicts_for_review"].labels(trial.procedure).inc()
                # Once each, though a verdict may give a reason several times; in its order, which a set would lose.
                for reason in dict.fromkeys(review.reason for review in event.verdict.review):
                    self._of["review_reasons"].labels(reason.value).inc()
            case TrialFailed():
                self._end(event, trial, TrialState.FAILED, "")
                self._of["trial_failures"].labels(trial.procedure, event.step, event.reason).inc()

    def _count_call(self, model_call: ReportedCall, trial: ObservedTrial) -> None:
        call = model_call.call
        # The configured name: names in servers' replies are unbounded.
        labels = (call.role.value, trial.models.get(call.role.value, "unknown"))
        self._of["model_calls"].labels(*labels).inc(model_call.requests)
        if call.fault:
            self._of["model_repairs"].labels(*labels).inc()
        self._of["model_call_duration_seconds"].labels(*labels).observe(call.latency_s)
        self._of["model_input_tokens"].labels(*labels).inc(call.tokens_in)
        self._of["model_cached_input_tokens"].labels(*labels).inc(call.tokens_cached)
        self._of["model_output_tokens"].labels(*labels).inc(call.tokens_out)

    def _end(self, event: VerdictGiven | TrialFailed, trial: ObservedTrial, outcome: TrialState, label: str) -> None:
        self._of["trials"].labels(trial.procedure, outcome.value, label).inc()
        if trial.began is not None:
            seconds = max(0.0, (event.at - trial.began).total_seconds())  # the clock may have been set back
            self._of["trial_duration_seconds"].labels(trial.procedure, outcome.value).observe(seconds)
        if event.unused:
            self._of["model_unused_calls"].inc(event.unused.calls)
            self._of["model_unused_input_tokens"].inc(event.unused.tokens_in)
            self._of["model_unused_cached_input_tokens"].inc(event.unused.tokens_cached)
            self._of["model_unused_output_tokens"].inc(event.unused.tokens_out)
            self._of["model_unanswered_calls"].inc(event.unused.unanswered)


CODES = {code.value[0]: code.name for code in grpc.StatusCode}
"""Names of gRPC status codes (the same as google.rpc) by number."""


def _made(registry: CollectorRegistry) -> dict[str, Any]:
    """Makes the metrics of ``metrics.toml``, by name."""
    described = tomllib.loads((files(__package__) / "metrics.toml").read_text("utf-8"))
    kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
    made = {}
    for name, each in described["metrics"].items():
        own = {"buckets": described["buckets"][each["buckets"]]} if "buckets" in each else {}
        labels = each.get("labels", ())
        made[name] = kinds[each["kind"]](f"memecourt_{name}", each["help"], labels, registry=registry, **own)
    return made
