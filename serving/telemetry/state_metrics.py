"""Gauges of the current state: health of services, the docket, and the review queue."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from court.errors import CourtError
from serving.docket.ports import TrialReader
from serving.docket.review.drift import RECENT_DAYS, measure_drift
from serving.docket.review.queue import ReviewQueue
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.reviews import ReviewStore

_UNKNOWN = (
    *("sample_reviewed", "sample_error", "sample_error_low", "sample_expected_error", "retention_overdue"),
    *("docket_entries", "review_queue", "review_queue_oldest_seconds", "anchor_lag_entries"),
    "certificate_expiry_timestamp_seconds",
)
"""Gauges that are unknown at first."""


class StateMetrics:
    """Gauges of one server; NaN if a value is unknown or does not exist."""

    def __init__(self, of: Mapping[str, Any]) -> None:
        """Sets metrics, given by their names in ``metrics.toml``."""
        self._of = of
        self._anchored: int | None = None
        for unknown in _UNKNOWN:
            # 0 would read as an empty queue and a certificate that expired in 1970.
            of[unknown].set(math.nan)

    def observe_serving(self, services: Iterable[str], is_serving: Callable[[str], bool]) -> None:
        """Registers services whose status is read at each scrape."""
        for service in services:
            self._of["serving"].labels(service).set_function(partial(is_serving, service))

    def observe_certificate(self, expires: Callable[[], datetime]) -> None:
        """Registers the expiry time of the certificate in use."""
        self._of["certificate_expiry_timestamp_seconds"].set_function(lambda: expires().timestamp())

    def docket_written(self, seconds: float) -> None:
        """Observes the duration of a write."""
        self._of["docket_write_duration_seconds"].observe(seconds)

    def anchored(self, entries: int) -> None:
        """Sets the number of entries covered by the witnessed checkpoint; 0 before the first."""
        self._anchored = entries

    def sample_measured(self, *, reviewed: int, error: float | None, low: float | None, expected: float | None) -> None:
        """Sets the error of the random sample, as far as it is known."""
        self._of["sample_reviewed"].set(reviewed)
        for gauge, value in (
            (self._of["sample_error"], error),
            (self._of["sample_error_low"], low),
            (self._of["sample_expected_error"], expected),
        ):
            gauge.set(math.nan if value is None else value)

    def expired(self, erased: int, overdue: int) -> None:
        """Counts the result of a retention pass."""
        self._of["retention_erased"].inc(erased)
        self._of["retention_overdue"].set(overdue)

    def docket_measured(self, *, entries: int, queue: int, oldest_s: float) -> None:
        """Sets the figures of the docket.

        Args:
            oldest_s: Age of the longest waiting verdict in seconds; 0 if there is none.
        """
        self._of["docket_entries"].set(entries)
        self._of["review_queue"].set(queue)
        self._of["review_queue_oldest_seconds"].set(oldest_s)
        if self._anchored is not None:
            # The two are read at different times, so the checkpoint may already cover more.
            self._of["anchor_lag_entries"].set(max(0, entries - self._anchored))


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
