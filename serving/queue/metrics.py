"""Metrics of a consumer for Prometheus, by the rules of :mod:`serving.telemetry.metrics`."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, PlatformCollector, ProcessCollector

from serving.version import SOFTWARE

# Seconds: from what a verdict that is known takes to what a court that is busy makes of it.
_MESSAGE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class QueueMetrics:
    """All metrics of one consumer, in a registry of their own.

    Attributes:
        answered: Messages that got a verdict here, by decision.
        dead: Messages that were put aside here, by reason.
        given_back: Deliveries that ended here without an answer, by why: the message is delivered again.
        seconds: Time from a message's delivery to its answer.
        unread: Messages that no consumer has read yet.
    """

    def __init__(self) -> None:
        """Counts from zero."""
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Info("memecourt_build", "The version that runs.", registry=registry).info({"version": SOFTWARE})
        self.answered = Counter(
            "memecourt_queue_answered", "Messages that got a verdict here.", ("decision",), registry=registry
        )
        self.dead = Counter(
            "memecourt_queue_dead", "Messages that were put aside here, by reason.", ("reason",), registry=registry
        )
        self.given_back = Counter(
            "memecourt_queue_given_back",
            "Deliveries that ended here without an answer: the message is delivered again.",
            ("why",),
            registry=registry,
        )
        self.seconds = Histogram(
            "memecourt_queue_message_duration_seconds",
            "From a message's delivery to its answer, without the time that it waited for a quota.",
            buckets=_MESSAGE_S,
            registry=registry,
        )
        self.unread = Gauge(
            "memecourt_queue_unread", "Messages that no consumer of the group has read yet.", registry=registry
        )
        self._working = Gauge("memecourt_queue_working", "Messages that are worked on here.", registry=registry)
        self._over_quota = Gauge(
            "memecourt_queue_over_quota",
            "Messages that wait here because their namespace is over its quota.",
            registry=registry,
        )
        # From the start on, for whoever alerts on the first one.
        for decision in ("allow", "block", "review"):
            self.answered.labels(decision)
        for why in ("failed", "stopped"):
            self.given_back.labels(why)
        # Until the first look: 0 would say that nothing waits.
        self.unread.set(math.nan)

    def count_now(self, *, working: Callable[[], int], over_quota: Callable[[], int]) -> None:
        """Has the gauges say at each scrape how many there are."""
        self._working.set_function(lambda: float(working()))
        self._over_quota.set_function(lambda: float(over_quota()))
