"""Metrics for Prometheus, counted from stored events, so that they agree with the records.

No label contains anything chosen by a caller: no namespace, id or address. Label values come from closed sets (terms of
the court, gRPC methods, reasons in our code) or from the operator's configuration (models).
"""

from __future__ import annotations

import asyncio
import logging
import math
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import grpc
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from court.backends.sandbox.process import worker_deaths
from court.errors import CourtError
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
from serving.docket.ports import TrialReader
from serving.docket.review.drift import RECENT_DAYS, measure_drift
from serving.docket.review.queue import ReviewQueue
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.reviews import ReviewStore
from serving.telemetry import ObservedTrial
from serving.version import SOFTWARE

if TYPE_CHECKING:
    from serving.settings import Settings


_WORKERS = ("document reader", "encoder", "picture comparer", "picture reader", "text reader")
"""Workers whose count starts at 0, since alerts can't use missing counters."""
_WEBHOOK_OUTCOMES = ("delivered", "failed", "given_up")
_UNKNOWN = (
    *("sample_reviewed", "sample_error", "sample_error_low", "sample_expected_error", "retention_overdue"),
    *("docket_entries", "review_queue", "review_queue_oldest_seconds", "anchor_lag_entries"),
    "certificate_expiry_timestamp_seconds",
)
"""Gauges that are unknown at first."""


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
        self._by_labels: dict[tuple[str, tuple[str, ...]], Any] = {}
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
        for unknown in _UNKNOWN:
            # 0 would read as an empty queue and a certificate that expired in 1970.
            of[unknown].set(math.nan)
        # Entries that the witnessed checkpoint covers, 0 before the first; None without a witness.
        self._anchored: int | None = None
        registry.register(_WorkerDeaths())
        of["limit"].labels("running_trials").set(settings.concurrent_trials)
        of["limit"].labels("waiting_requests").set(settings.waiting_trials)
        of["limit"].labels("request_memory_bytes").set(settings.picture_memory)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Adds to the counter or gauge of a name in ``metrics.toml``."""
        self._series(name, *labels).inc(by)

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Sets a gauge; None if the value is unknown or does not exist."""
        self._series(name, *labels).set(math.nan if value is None else value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Observes a value of a histogram."""
        self._series(name, *labels).observe(value)

    def read(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """Reads a gauge at each scrape, from another thread: the function must be fast."""
        self._series(name, *labels).set_function(read)

    def forget(self, name: str, *labels: str) -> None:
        """Removes a series, which would otherwise show its last value for ever."""
        self._by_labels.pop((name, labels), None)
        with suppress(KeyError):
            self._of[name].remove(*labels)

    def ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Counts the end of a call, with the name of a gRPC status code."""
        self.count("requests_in_progress", service, method, by=-1)
        self.count("requests", service, method, code)
        self.observe("request_duration_seconds", seconds, service, method)

    def _series(self, name: str, *labels: str) -> Any:
        """Returns a labelled series from a cache: the library's own lookup would double the cost of a call."""
        try:
            # No lock needed: two threads that both miss get the same series from the library.
            return self._by_labels[name, labels]
        except KeyError:
            metric = self._of[name]
            return self._by_labels.setdefault((name, labels), metric.labels(*labels) if labels else metric)

    def streamed(self, code: int) -> None:
        """Counts an answered request of a stream, with the code with which Judge would have ended."""
        self.count("stream_responses", CODES.get(code, "UNKNOWN"))

    def expired(self, erased: int, overdue: int) -> None:
        """Counts the result of a retention pass."""
        self.count("retention_erased", by=erased)
        self.set("retention_overdue", overdue)

    def anchored(self, entries: int) -> None:
        """Sets the number of entries covered by the witnessed checkpoint."""
        self._anchored = entries

    def docket_measured(self, *, entries: int, queue: int, oldest_s: float) -> None:
        """Sets the figures of the docket; ``oldest_s`` is the age of the longest waiting verdict, 0 without any."""
        self.set("docket_entries", entries)
        self.set("review_queue", queue)
        self.set("review_queue_oldest_seconds", oldest_s)
        if self._anchored is not None:
            # The two are read at different times, so the checkpoint may already cover more.
            self.set("anchor_lag_entries", max(0, entries - self._anchored))

    def on_event(self, event: AnyEvent, trial: ObservedTrial, calls: Sequence[ReportedCall]) -> None:
        """Counts a stored event of a trial; ``calls`` are the model calls that it reports first."""
        for each in calls:
            self._count_call(each, trial)
        if event.metric and event.took_s is not None:
            self.observe(f"{event.metric}_duration_seconds", event.took_s)
        if event.state is TrialState.OPEN:
            # The first event of a record opens the trial; later ones open it again.
            self.count("trials_resumed" if event.seq else "trials_opened", trial.procedure)
        match event:
            case TextRead():
                self.count("texts", event.source.value)
            case NearDuplicatesFound():
                self.count("trials_with_near_duplicates")
                for duplicate in event.duplicates:
                    self.count("near_duplicates", duplicate.label.value)
            case SideRested():
                self.count("sides_rested", event.side.value, event.reason.value)
                # Without an examination there is no number of rounds to observe.
                if event.reason is not QuestioningEnd.NO_EXAMINATION:
                    self.observe("side_rounds", event.rounds, event.side.value)
            case VerdictGiven():
                self._end(event, trial, TrialState.DECIDED, event.verdict.label.value)
                if event.verdict.needs_human_review:
                    self.count("verdicts_for_review", trial.procedure)
                # Once each, though a verdict may give a reason several times; in its order, which a set would lose.
                for reason in dict.fromkeys(review.reason for review in event.verdict.review):
                    self.count("review_reasons", reason.value)
            case TrialFailed():
                self._end(event, trial, TrialState.FAILED, "")
                self.count("trial_failures", trial.procedure, event.step, event.reason)

    def _count_call(self, model_call: ReportedCall, trial: ObservedTrial) -> None:
        call = model_call.call
        # The configured name: names in servers' replies are unbounded.
        labels = (call.role.value, trial.models.get(call.role.value, "unknown"))
        self.count("model_calls", *labels, by=model_call.requests)
        if call.fault:
            self.count("model_repairs", *labels)
        self.observe("model_call_duration_seconds", call.latency_s, *labels)
        self.count("model_input_tokens", *labels, by=call.tokens_in)
        self.count("model_cached_input_tokens", *labels, by=call.tokens_cached)
        self.count("model_output_tokens", *labels, by=call.tokens_out)

    def _end(self, event: VerdictGiven | TrialFailed, trial: ObservedTrial, outcome: TrialState, label: str) -> None:
        self.count("trials", trial.procedure, outcome.value, label)
        if trial.began is not None:
            seconds = max(0.0, (event.at - trial.began).total_seconds())  # the clock may have been set back
            self.observe("trial_duration_seconds", seconds, trial.procedure, outcome.value)
        if event.unused:
            self.count("model_unused_calls", by=event.unused.calls)
            self.count("model_unused_input_tokens", by=event.unused.tokens_in)
            self.count("model_unused_cached_input_tokens", by=event.unused.tokens_cached)
            self.count("model_unused_output_tokens", by=event.unused.tokens_out)
            self.count("model_unanswered_calls", by=event.unused.unanswered)


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


EVERY_S = 10.0
"""Seconds between two measurements of the docket."""
SAMPLE_EVERY_S = 600.0
"""Seconds between two measurements of the random sample, which read its records."""

_log = logging.getLogger("memecourt.telemetry")


async def measure_sample(
    metrics: Metrics, queue: ReviewQueue, trials: TrialReader, *, wanted: float, every_s: float = SAMPLE_EVERY_S
) -> None:
    """Measures the error of the random sample of the last 28 days until cancelled."""
    while True:
        try:
            report = await measure_drift(queue, trials, now=datetime.now(UTC), weeks=RECENT_DAYS // 7, wanted=wanted)
        # Continue: the next measurement may succeed.
        except CourtError as error:
            _log.warning("the random sample can't be measured now: reason=%s", error.reason)
        else:
            recent = report.recent
            metrics.set("sample_reviewed", recent.reviewed)
            metrics.set("sample_error", recent.error)
            metrics.set("sample_error_low", recent.low)
            metrics.set("sample_expected_error", recent.expected)
        await asyncio.sleep(every_s)


async def measure_docket(
    metrics: Metrics, reviews: ReviewStore, log: TransparencyLog, *, every_s: float = EVERY_S
) -> None:
    """Measures the docket until cancelled. All servers of one docket report the same."""
    while True:
        try:
            waiting, entries = await reviews.awaiting_review(), await log.size()
        # Continue: an outage of the docket must not end the measurements.
        except CourtError as error:
            _log.warning("the docket can't be measured now: reason=%s", error.reason)
        else:
            age_s = (datetime.now(UTC) - waiting.oldest).total_seconds() if waiting.oldest else 0.0
            # At least 0, since clocks of servers differ.
            metrics.docket_measured(entries=entries, queue=waiting.count, oldest_s=max(0.0, age_s))
        await asyncio.sleep(every_s)
