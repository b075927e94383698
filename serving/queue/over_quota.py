"""Messages of namespaces over their quota, which wait without occupying a place among those in progress."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from serving.queue.source import QueuedMeme

MOST_WAITING = 1000
"""Maximum number of such messages per consumer: no other consumer gets them, and each needs heartbeats."""


class OverQuota(Exception):
    """Raised if a message has to wait for its namespace's quota.

    Attributes:
        delay_s: Seconds until the court is asked again.
    """

    def __init__(self, namespace: str, delay_s: float) -> None:
        """Says for how long which namespace waits."""
        super().__init__(namespace)
        self.namespace = namespace
        self.delay_s = delay_s


class QuotaWaiters:
    """Waiting messages of one consumer, and the time until which each namespace is assumed to be over its quota."""

    def __init__(self, most: int = MOST_WAITING, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts empty.

        Args:
            most: Maximum number of waiting messages.
            clock: Monotonic clock, in seconds.
        """
        self._most = most
        self._clock = clock
        self._waiting: dict[str, tuple[QueuedMeme, str]] = {}
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of waiting messages."""
        return len(self._waiting)

    def __contains__(self, id_: object) -> bool:
        """True if the message of an id is waiting."""
        return id_ in self._waiting

    @property
    def memes(self) -> Sequence[QueuedMeme]:
        """Waiting messages, without their contents."""
        return [meme for meme, _ in self._waiting.values()]

    @property
    def has_room(self) -> bool:
        """True if one more may wait."""
        return len(self._waiting) < self._most

    def require(self, namespace: str) -> None:
        """Raises OverQuota if a namespace is assumed to be over its quota and another message may wait."""
        if self._is_over(namespace) and self.has_room:
            raise OverQuota(namespace, self._until[namespace] - self._clock())

    def add(self, meme: QueuedMeme, over: OverQuota) -> None:
        """Adds a waiting message without its content, which is still in the queue: pictures are large."""
        until = self._clock() + over.delay_s
        # The later time: the court's replies may arrive in a different order than its quota was checked.
        self._until[over.namespace] = max(until, self._until.get(over.namespace, until))
        self._waiting[meme.id] = dataclasses.replace(meme, parts={}), over.namespace

    def take_due(self, most: int) -> Sequence[QueuedMeme]:
        """Removes and returns up to ``most`` messages that have waited long enough."""
        # Drop expired times, so that rare namespaces do not accumulate.
        self._until = {namespace: until for namespace, until in self._until.items() if until > self._clock()}
        # In order of arrival: a namespace's oldest message is judged next.
        due = [meme for meme, namespace in self._waiting.values() if not self._is_over(namespace)][:most]
        for meme in due:
            del self._waiting[meme.id]
        return due

    def _is_over(self, namespace: str) -> bool:
        return self._until.get(namespace, -1.0) > self._clock()
