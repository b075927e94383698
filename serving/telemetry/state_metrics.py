"""Gauges of the current state: health of services, the docket, and the review queue."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from court.errors import CourtError
from serving.docket.ports import TrialReader
from serving.docket.review.drift import RECENT_DAYS, measure_drift
from serving.docket.review.queue import ReviewQueue
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.reviews import ReviewStore

_WRITE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class StateMetrics:
    """Gauges of one server; NaN if a value is unknown or does not exist."""

    def __init__(self, registry: CollectorRegistry) -> None:

        def gauge(name: str, description: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(f"memecourt_{name}", description, list(labels), registry=registry)

        self._serving = gauge("serving", "1 while a service is SERVING, 0 while it is not.", ["service"])
        self._entries = gauge("docket_entries", "Entries of the docket's log.")
        self._queue = gauge("review_queue", "Verdicts that ask for a person and that nobody has reviewed.")
        self._oldest_s = gauge("review_queue_oldest_seconds", "Age of the trial that has waited longest for a review.")
        self._lag = gauge("anchor_lag_entries", "Entries that no checkpoint covers that was kept outside.")
        self._expiry = gauge(
            "certificate_expiry_timestamp_seconds", "When the server's certificate expires, in Unix time."
        )
        self._write_s = Histogram(
            "memecourt_docket_write_duration_seconds",
            "From when an event, a review or an erasure is handed in until the docket has stored it.",
            buckets=_WRITE_S,
            registry=registry,
        )
        self._expired = Counter("memecourt_retention_erased", "Trials that were erased by age.", registry=registry)
        self._overdue = gauge("retention_overdue", "Trials that are older than they may be and could not be erased.")
        self._sample_reviewed = gauge(
            "sample_reviewed", "Verdicts of the last 28 days that chance drew and people reviewed."
        )
        self._sample_error = gauge("sample_error", "Share of these of which a person found the other label.")
        self._sample_low = gauge("sample_error_low", "Lower end of the 95 % interval of that share.")
        self._sample_expected = gauge("sample_expected_error", "Mean risk of these verdicts, by their own account.")
        self._anchored: int | None = None
        sample = (self._sample_reviewed, self._sample_error, self._sample_low, self._sample_expected)
        for unknown in (*sample, self._overdue, self._entries, self._queue, self._oldest_s, self._lag, self._expiry):
            # 0 would read as an empty queue and a certificate that expired in 1970.
            unknown.set(math.nan)

    def observe_serving(self, services: Iterable[str], is_serving: Callable[[str], bool]) -> None:
        """Registers services whose status is read at each scrape."""
        for service in services:
            self._serving.labels(service).set_function(partial(is_serving, service))

    def observe_certificate(self, expires: Callable[[], datetime]) -> None:
        """Registers the expiry time of the certificate in use."""
        self._expiry.set_function(lambda: expires().timestamp())

    def docket_written(self, seconds: float) -> None:
        """Observes the duration of a write."""
        self._write_s.observe(seconds)

    def anchored(self, entries: int) -> None:
        """Sets the number of entries covered by the witnessed checkpoint; 0 before the first."""
        self._anchored = entries

    def sample_measured(self, *, reviewed: int, error: float | None, low: float | None, expected: float | None) -> None:
        """Sets the error of the random sample, as far as it is known."""
        self._sample_reviewed.set(reviewed)
        for gauge, value in ((self._sample_error, error), (self._sample_low, low), (self._sample_expected, expected)):
            gauge.set(math.nan if value is None else value)

    def expired(self, erased: int, overdue: int) -> None:
        """Counts the result of a retention pass."""
        self._expired.inc(erased)
        self._overdue.set(overdue)

    def docket_measured(self, *, entries: int, queue: int, oldest_s: float) -> None:
        """Sets the figures of the docket.

        Args:
            oldest_s: Age of the longest waiting verdict in seconds; 0 if there is none.
        """
        self._entries.set(entries)
        self._queue.set(queue)
        self._oldest_s.set(oldest_s)
        if self._anchored is not None:
            # The two are read at different times, so the checkpoint may already cover more.
            self._lag.set(max(0, entries - self._anchored))


EVERY_S = 10.0
"""Seconds between two measurements of the docket."""
SAMPLE_EVERY_S = 600.0
"""Seconds between two measurements of the random sample, which read its records."""

_log = logging.getLogger("memecourt.telemetry")


async def measure_sample(
    metrics: StateMetrics, queue: ReviewQueue, trials: TrialReader, *, wanted: float, every_s: float = SAMPLE_EVERY_S
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
            metrics.sample_measured(
                reviewed=recent.reviewed, error=recent.error, low=recent.low, expected=recent.expected
            )
        await asyncio.sleep(every_s)


async def measure_docket(
    metrics: StateMetrics, reviews: ReviewStore, log: TransparencyLog, *, every_s: float = EVERY_S
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
