"""Event feed: wakes subscribers of a trial or of reviews when the docket has new entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context

from court.errors import CourtError
from court.events import AnyEvent
from court.ports import EventListener
from serving.access.callers import in_force
from serving.docket.store.log_queries import TransparencyLog

POLL_S = 0.5
"""Seconds between two queries of the docket for what other servers have stored."""


_REVIEWS = ""
"""Subscription key for reviews: no trial has this id."""


class EventFeed:
    """Notifies listeners of stored events, and wakes subscribers of a trial or of reviews.

    Events of this server are published at once. For those of other servers the docket is polled, once for all
    subscribers: a thousand of them polling separately would saturate a CPU and delay all other reads.
    """

    def __init__(self) -> None:
        self._listeners: list[EventListener] = []
        self._watching: dict[str, dict[asyncio.Event, Callable[[], bool]]] = {}
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    def subscribe(self, listener: EventListener) -> None:
        """Adds a listener to every future event; listeners are called in order of subscription."""
        self._listeners.append(listener)

    async def publish(self, event: AnyEvent) -> None:
        """Publishes an event that the docket has stored."""
        for listener in self._listeners:
            await listener(event)
        self._wake(event.trial_id)

    def tell_review(self) -> None:
        """Wakes subscribers of reviews after one was stored."""
        self._wake(_REVIEWS)

    def close(self) -> None:
        """Marks the court as closing: subscriptions to trials that do not run here end."""
        self.closed = True
        self._wake_all()

    @contextmanager
    def watching(self, trial_id: str, log: TransparencyLog) -> Iterator[asyncio.Event]:
        """Yields an event that is set whenever there is more of a trial, or the call's token has changed.

        A subscriber that reads once first, and then whenever it is set, misses nothing.
        """
        # Registered before the caller's first read of the docket: events stored in between still wake it.
        woken = asyncio.Event()
        self._watching.setdefault(trial_id, {})[woken] = in_force()
        if self._following is None:
            self._following = asyncio.create_task(self._follow(log), context=Context())  # not in any call's context
        try:
            yield woken
        finally:
            del self._watching[trial_id][woken]
            if not self._watching[trial_id]:
                del self._watching[trial_id]
            if not self._watching:
                self._following.cancel()
                self._following = None

    def watching_reviews(self, log: TransparencyLog) -> AbstractContextManager[asyncio.Event]:
        """Subscribes to reviews of any trials."""
        return self.watching(_REVIEWS, log)

    async def _follow(self, log: TransparencyLog) -> None:
        known = -1
        while True:
            try:
                size, added = await log.added(known if known >= 0 else await log.size())
            except CourtError:
                self._wake_all()  # each of them then sees the error itself
            else:
                if size < known or known < 0:
                    self._wake_all()  # the docket was replaced, or read before its size was known
                for kind, trial_id in added:
                    if trial_id:
                        self._wake(trial_id)
                    if kind == "VerdictReviewed":
                        self._wake(_REVIEWS)
                known = size
            for watching in self._watching.values():
                for woken, still in watching.items():
                    # Revoking a token ends its open streams (GR-1): wake the subscriber, which then checks its token.
                    if not still():
                        woken.set()
            await asyncio.sleep(POLL_S)

    def _wake(self, what: str) -> None:
        for woken in self._watching.get(what, ()):
            woken.set()

    def _wake_all(self) -> None:
        for what in self._watching:
            self._wake(what)
