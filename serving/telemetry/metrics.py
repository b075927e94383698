"""Metrics for Prometheus, counted from stored events, so that they agree with the records.

No label contains anything chosen by a caller: no namespace, id or address. Label values come from closed sets (terms of
the court, gRPC methods, reasons in our code) or from the operator's configuration (models).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

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

Metric: TypeAlias = Counter | Gauge | Histogram
M = TypeVar("M", Counter, Gauge, Histogram)

# Buckets in seconds roughly double, from the fastest case to beyond any timeout.
_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TRIAL_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_CALL_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STEPS = {
    "text_read": "Reading the text off a picture.",
    "precedents": "Finding precedents.",
    "near_duplicates": "Finding near duplicates, where there were any.",
}
_WORKERS = ("document reader", "encoder", "picture comparer", "picture reader", "text reader")
"""Workers whose count starts at 0, since alerts can't use missing counters."""
_WEBHOOK_OUTCOMES = ("delivered", "failed", "given_up")
_ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20)


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
        self._by_labels: dict[tuple[Metric, tuple[str, ...]], Metric] = {}
        self.registry = registry = CollectorRegistry(auto_describe=True)
        prometheus_client.ProcessCollector(registry=registry)
        prometheus_client.PlatformCollector(registry=registry)
        prometheus_client.GCCollector(registry=registry)
        Info("memecourt_build", "The version that runs.", registry=registry).info({"version": SOFTWARE})

        def counter(name: str, description: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"memecourt_{name}", description, labels, registry=registry)

        def gauge(name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"memecourt_{name}", description, labels, registry=registry)

        def histogram(name: str, description: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(f"memecourt_{name}", description, labels, buckets=buckets, registry=registry)

        # Calls of the wire.
        method = ("service", "method")
        self._requests = counter("requests", "Calls that have ended, by gRPC status code.", (*method, "code"))
        self._in_progress = gauge("requests_in_progress", "Calls that have not ended.", method)
        self._request_s = histogram(
            "request_duration_seconds", "From the first a call is seen to its end.", _REQUEST_S, method
        )
        self._stream = counter(
            "stream_responses", "Responses in JudgeStream, by the code that Judge would have ended with.", ("code",)
        )

        # Trials.
        self._opened = counter("trials_opened", "Trials that were begun.", ("procedure",))
        self._resumed = counter("trials_resumed", "Times that a trial was taken up again.", ("procedure",))
        self._trials = counter(
            "trials", "Trials that have ended: DECIDED with a label, or FAILED.", ("procedure", "outcome", "label")
        )
        self._failures = counter(
            "trial_failures",
            "Trials that ended without a verdict, by step and reason.",
            ("procedure", "step", "reason"),
        )
        self._trial_s = histogram(
            "trial_duration_seconds",
            "From a trial's beginning, or its being resumed, to its end.",
            _TRIAL_S,
            ("procedure", "outcome"),
        )
        self._rested = counter("sides_rested", "Sides that asked no more, by why.", ("side", "reason"))
        self._rounds = histogram("side_rounds", "Rounds of a side that examined.", _ROUNDS, ("side",))
        self._for_review = counter("verdicts_for_review", "Verdicts that ask for a person.", ("procedure",))
        for procedure in Procedure:  # start at 0, so that alerts on increases notice the first one
            self._for_review.labels(procedure.value)
        self._review_reasons = counter("review_reasons", "Reasons why verdicts ask for a person.", ("reason",))
        self._near = counter("near_duplicates", "Near duplicates found, by what they were found to be.", ("label",))
        self._with_near = counter("trials_with_near_duplicates", "Trials that found a near duplicate.")

        # Models.
        model = ("role", "model")
        self._calls = counter("model_calls", "Answered calls that a trial used.", model)
        self._repairs = counter("model_repairs", "Replies that were asked for again, being unusable.", model)
        self._call_s = histogram(
            "model_call_duration_seconds", "Of what was asked, with what was asked again.", _CALL_S, model
        )
        self._tokens_in = counter("model_input_tokens", "Tokens of the prompts of those calls.", model)
        self._tokens_cached = counter(
            "model_cached_input_tokens", "Of the input tokens, those in the server's prefix cache.", model
        )
        self._tokens_out = counter("model_output_tokens", "Tokens of their replies.", model)
        self._prefix_cache = gauge(
            "model_prefix_cache_working",
            "1 if the model's server was found, at start, to find the beginning of a prompt again; 0 if not.",
            model,
        )
        self._unused_calls = counter("model_unused_calls", "Answered calls that no trial had a use for any more.")
        self._unused_in = counter("model_unused_input_tokens", "Tokens of the prompts of unused calls.")
        self._unused_cached = counter("model_unused_cached_input_tokens", "Of those, the ones in the prefix cache.")
        self._unused_out = counter("model_unused_output_tokens", "Tokens of their replies.")
        self._unanswered = counter("model_unanswered_calls", "Calls that were cancelled, or failed.")

        # Steps.
        self._texts = counter("texts", "Texts of memes, by where they came from.", ("source",))
        self._picture_s = histogram("picture_decode_duration_seconds", "Decoding a picture.", _STEP_S)
        self._step_s = {
            name: histogram(f"{name}_duration_seconds", description, _STEP_S) for name, description in _STEPS.items()
        }

        # What is not a trial.
        self._reused = counter("reused_verdicts", "Answers with an earlier verdict: exact, or near.", ("kind",))
        self._reviews = counter("reviews", "Verdicts that people upheld or overruled.", ("outcome",))
        for outcome in ReviewOutcome:  # start at 0, since alerts can't use missing counters
            self._reviews.labels(outcome.value)

        self._webhook_attempts = counter(
            "webhook_deliveries", "Attempts to hand a message to a receiver of webhooks.", ("hook", "outcome")
        )
        # Start at 0, so that alerts notice the first failure.
        for hook in settings.webhooks:
            for result in _WEBHOOK_OUTCOMES:
                self._webhook_attempts.labels(hook.name, result)
        self._webhook_lag = gauge(
            "webhook_lag_entries", "Entries of the log that a receiver of webhooks was not told of yet.", ("hook",)
        )
        self._webhook_oldest_s = gauge(
            "webhook_oldest_pending_seconds", "Age of the oldest message that waits for its receiver.", ("hook",)
        )

        self.state = StateMetrics(registry)
        registry.register(_WorkerDeaths())

        # What is now.
        self._running = gauge("running_trials", "Trials that are being held.")
        self._waiting = gauge("waiting_requests", "Requests that wait their turn.")
        self._bytes = gauge(
            "request_memory_bytes", "Of requests and decoded pictures in memory, waiting or being tried."
        )
        self._library = gauge("library_precedents", "Memes in the library that is searched.")
        limit = gauge(
            "limit", "What is allowed at once: running_trials, waiting_requests, request_memory_bytes.", ("of",)
        )
        limit.labels("running_trials").set(settings.concurrent_trials)
        limit.labels("waiting_requests").set(settings.waiting_trials)
        limit.labels("request_memory_bytes").set(settings.picture_memory)

    def begun(self, service: str, method: str) -> None:
        """Counts the start of a call."""
        self._series(self._in_progress, service, method).inc()

    def ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Counts the end of a call, with the name of a gRPC status code."""
        self._series(self._in_progress, service, method).dec()
        self._series(self._requests, service, method, code).inc()
        self._series(self._request_s, service, method).observe(seconds)

    def _series(self, metric: M, *labels: str) -> M:
        """Returns a labelled series from a cache: the library's own lookup would double the cost of a call."""
        try:
            # No lock needed: two threads that both miss get the same series from the library.
            return self._by_labels[metric, labels]  # type: ignore[return-value]
        except KeyError:
            return self._by_labels.setdefault((metric, labels), metric.labels(*labels))  # type: ignore[return-value]

    def streamed(self, code: int) -> None:
        """Counts an answered request of a stream, with the code with which Judge would have ended."""
        self._stream.labels(CODES.get(code, "UNKNOWN")).inc()

    def decoded(self, seconds: float) -> None:
        """Observes the decoding of a picture."""
        self._picture_s.observe(seconds)

    def reused(self, *, near: bool) -> None:
        """Counts a reused verdict."""
        self._reused.labels("near" if near else "exact").inc()

    def reviewed(self, outcome: ReviewOutcome) -> None:
        """Counts a review."""
        self._reviews.labels(outcome.value).inc()

    def prefix_cache(self, models: Mapping[str, str], works: Mapping[str, bool]) -> None:
        """Sets the gauge for each role for which it is known."""
        for role, working in works.items():
            self._prefix_cache.labels(role, models[role]).set(working)

    def webhook_attempted(self, hook: str, outcome: str) -> None:
        """Counts a webhook attempt, or a message that was given up."""
        self._webhook_attempts.labels(hook, outcome).inc()

    def webhook_waits(self, hook: str, *, lag: int, oldest_s: float) -> None:
        """Sets the lag of a webhook receiver."""
        self._webhook_lag.labels(hook).set(lag)
        self._webhook_oldest_s.labels(hook).set(oldest_s)

    def webhook_elsewhere(self, hook: str) -> None:
        """Removes the lag of a webhook receiver, which another server reports now."""
        for gauge in (self._webhook_lag, self._webhook_oldest_s):
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
            (self._running, running),
            (self._waiting, waiting),
            (self._bytes, held_bytes),
            (self._library, library),
        ):
            if read is not None:
                gauge.set_function(read)

    def on_event(self, event: AnyEvent, trial: ObservedTrial, calls: Sequence[ReportedCall]) -> None:
        """Counts a stored event of a trial; ``calls`` are the model calls that it reports first."""
        for each in calls:
            self._count_call(each, trial)
        if event.metric and event.took_s is not None:
            self._step_s[event.metric].observe(event.took_s)
        if event.state is TrialState.OPEN:
            # The first event of a record opens the trial; later ones open it again.
            (self._resumed if event.seq else self._opened).labels(trial.procedure).inc()
        match event:
            case TextRead():
                self._texts.labels(event.source.value).inc()
            case NearDuplicatesFound():
                self._with_near.inc()
                for duplicate in event.duplicates:
                    self._near.labels(duplicate.label.value).inc()
            case SideRested():
                self._rested.labels(event.side.value, event.reason.value).inc()
                # Without an examination there is no number of rounds to observe.
                if event.reason is not QuestioningEnd.NO_EXAMINATION:
                    self._rounds.labels(event.side.value).observe(event.rounds)
            case VerdictGiven():
                self._end(event, trial, TrialState.DECIDED, event.verdict.label.value)
                if event.verdict.needs_human_review:
                    self._for_review.labels(trial.procedure).inc()
                # Once each, though a verdict may give a reason several times; in its order, which a set would lose.
                for reason in dict.fromkeys(review.reason for review in event.verdict.review):
                    self._review_reasons.labels(reason.value).inc()
            case TrialFailed():
                self._end(event, trial, TrialState.FAILED, "")
                self._failures.labels(trial.procedure, event.step, event.reason).inc()

    def _count_call(self, model_call: ReportedCall, trial: ObservedTrial) -> None:
        call = model_call.call
        # The configured name: names in servers' replies are unbounded.
        labels = (call.role.value, trial.models.get(call.role.value, "unknown"))
        self._calls.labels(*labels).inc(model_call.requests)
        if call.fault:
            self._repairs.labels(*labels).inc()
        self._call_s.labels(*labels).observe(call.latency_s)
        self._tokens_in.labels(*labels).inc(call.tokens_in)
        self._tokens_cached.labels(*labels).inc(call.tokens_cached)
        self._tokens_out.labels(*labels).inc(call.tokens_out)

    def _end(self, event: VerdictGiven | TrialFailed, trial: ObservedTrial, outcome: TrialState, label: str) -> None:
        self._trials.labels(trial.procedure, outcome.value, label).inc()
        if trial.began is not None:
            seconds = max(0.0, (event.at - trial.began).total_seconds())  # the clock may have been set back
            self._trial_s.labels(trial.procedure, outcome.value).observe(seconds)
        if event.unused:
            self._unused_calls.inc(event.unused.calls)
            self._unused_in.inc(event.unused.tokens_in)
            self._unused_cached.inc(event.unused.tokens_cached)
            self._unused_out.inc(event.unused.tokens_out)
            self._unanswered.inc(event.unused.unanswered)


CODES = {code.value[0]: code.name for code in grpc.StatusCode}
"""Names of gRPC status codes (the same as google.rpc) by number."""
