"""Measurements of the docket and of the random sample, repeated while a server runs."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from court.errors import CourtError
from serving.docket.ports import TrialReader
from serving.docket.review.drift import RECENT_DAYS, measure_drift
from serving.docket.review.queue import ReviewQueue
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.reviews import ReviewStore

if TYPE_CHECKING:
    from serving.telemetry.metrics import Metrics

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
