"""Metrics of a consumer for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, PlatformCollector, ProcessCollector

from memecourt_queue import __version__

# Seconds: from the repetition of a known verdict to the verdict of a busy court.
_MESSAGE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_GIVEN_BACK = (
    "Deliveries that ended without an answer, to be repeated: failed counts against the message, stopped does not."
)


class QueueMetrics:
    """All metrics of one consumer, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=to)
        PlatformCollector(registry=to)
        Info("memecourt_queue_build", "The version that runs.", registry=to).info({"version": __version__})
        self.answered = Counter("memecourt_queue_answered", "Messages that got a verdict.", ["decision"], registry=to)
        self.dead = Counter("memecourt_queue_dead", "Messages that were dead-lettered.", ["reason"], registry=to)
        self.given_back = Counter("memecourt_queue_given_back", _GIVEN_BACK, ["why"], registry=to)
        self.seconds = Histogram(
            "memecourt_queue_message_duration_seconds",
            "From a message's delivery to its answer.",
            buckets=_MESSAGE_S,
            registry=to,
        )
        self.unread = Gauge(
            "memecourt_queue_unread",
            "Messages that no consumer of the group has read, every 15 s; no number if the queue does not tell.",
            registry=to,
        )
        self.reachable = Gauge("memecourt_queue_reachable", "1 if the broker was usable at last.", registry=to)
        self._working = Gauge("memecourt_queue_working", "Messages that are worked on here.", registry=to)
        # From the start on, for whoever alerts on the first one.
        for decision in ("allow", "block", "review"):
            self.answered.labels(decision)
        for why in ("failed", "stopped"):
            self.given_back.labels(why)
        # Until the first look: 0 would say that nothing waits.
        self.unread.set(math.nan)

    def count_working(self, working: Callable[[], int]) -> None:
        """Has a gauge say at each scrape how many messages are worked on."""
        self._working.set_function(lambda: float(working()))
