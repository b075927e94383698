"""Messages of namespaces that are over their quota: they wait without a place among those that are worked on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from serving.queue.source import QueuedMeme

MOST_WAITING = 1000
"""Messages of one consumer that wait so: no other consumer gets them, and signs of life are given for each."""


class OverQuota(Exception):
    """Raised where a message has to wait for its namespace's quota.

    Attributes:
        namespace: Namespace.
        delay_s: Seconds until the court is asked again.
    """

    def __init__(self, namespace: str, delay_s: float) -> None:
        """Says for how long which namespace waits."""
        super().__init__(namespace)
        self.namespace = namespace
        self.delay_s = delay_s


class QuotaWaiters:
    """Messages of one consumer that wait, and the time until which namespaces are thought to be over their quota."""

    def __init__(self, most: int = MOST_WAITING, clock: Callable[[], float] = time.monotonic) -> None:
        """Has no message yet.

        Args:
            most: Largest number of messages that wait.
            clock: Monotonic, in seconds.
        """
        self._most = most
        self._clock = clock
        self._waiting: dict[str, tuple[QueuedMeme, str]] = {}
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of messages that wait."""
        return len(self._waiting)

    def __contains__(self, id_: object) -> bool:
        """True if the message of this id waits."""
        return id_ in self._waiting

    @property
    def memes(self) -> Sequence[QueuedMeme]:
        """Messages that wait, without their contents."""
        return [meme for meme, _ in self._waiting.values()]

    @property
    def has_room(self) -> bool:
        """True if one more may wait."""
        return len(self._waiting) < self._most

    def require(self, namespace: str) -> None:
        """Raises OverQuota where a namespace is thought to be over its quota, and one more of its messages may wait."""
        if self._is_over(namespace) and self.has_room:
            raise OverQuota(namespace, self._until[namespace] - self._clock())

    def add(self, meme: QueuedMeme, over: OverQuota) -> None:
        """Has a message wait, without its content: that is in the queue, and pictures are large."""
        until = self._clock() + over.delay_s
        # The later of two: replies of the court may come in another order than its quota was measured.
        self._until[over.namespace] = max(until, self._until.get(over.namespace, until))
        self._waiting[meme.id] = dataclasses.replace(meme, parts={}), over.namespace

    def take_due(self, most: int) -> Sequence[QueuedMeme]:
        """Up to so many messages that have waited long enough; they wait no more."""
        # Times that have passed are dropped, so that namespaces which come once do not pile up.
        self._until = {namespace: until for namespace, until in self._until.items() if until > self._clock()}
        # In the order in which they came: a namespace's oldest message is the next to be judged.
        due = [meme for meme, namespace in self._waiting.values() if not self._is_over(namespace)][:most]
        for meme in due:
            del self._waiting[meme.id]
        return due

    def _is_over(self, namespace: str) -> bool:
        return self._until.get(namespace, -1.0) > self._clock()
