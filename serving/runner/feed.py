"""Wakes subscribers of a trial, or of reviews, when the docket holds more of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context

from court.errors import CourtError
from court.events import AnyEvent
from court.ports import EventListener
from serving.access.callers import in_force
from serving.docket.ports import TransparencyLog

POLL_S = 0.5
"""How often the docket is asked for what other servers have kept, in seconds."""


_REVIEWED = ""
"""What those watch who watch reviews: no trial has this id."""


class EventFeed:
    """Tells listeners of stored events, and wakes those who watch a trial or reviews when there is more of it.

    What this server keeps it tells at once. What others keep the docket is asked for now and then, once for all who
    watch: a thousand that each asked for themselves would take a processor, and keep everybody else's reads waiting.
    """

    def __init__(self) -> None:
        self._listeners: list[EventListener] = []
        self._watching: dict[str, dict[asyncio.Event, Callable[[], bool]]] = {}
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    def subscribe(self, listener: EventListener) -> None:
        """Have a listener told of every event that is published from now on, in the order of subscription."""
        self._listeners.append(listener)

    async def publish(self, event: AnyEvent) -> None:
        """Tell of an event that the docket has stored."""
        for listener in self._listeners:
            await listener(event)
        self._wake(event.trial_id)

    def tell_review(self) -> None:
        """A review was kept."""
        self._wake(_REVIEWED)

    def close(self) -> None:
        """The court closes: who watches what is not held here is sent away."""
        self.closed = True
        self._wake_all()

    @contextmanager
    def watching(self, trial_id: str, log: TransparencyLog) -> Iterator[asyncio.Event]:
        """While the block lasts, the event is set when there is more of that trial, or the call's token has changed.

        Whoever reads what there is first, and then whenever it is set, misses nothing.
        """
        # Registered before the caller reads the docket for the first time: what is stored between the two still wakes
        # it.
        woken = asyncio.Event()
        self._watching.setdefault(trial_id, {})[woken] = in_force()
        if self._following is None:
            self._following = asyncio.create_task(self._follow(log), context=Context())  # of no call
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
        return self.watching(_REVIEWED, log)

    async def _follow(self, log: TransparencyLog) -> None:
        known = -1
        while True:
            try:
                size, added = await log.added(known if known >= 0 else await log.size())
            except CourtError:
                self._wake_all()  # each of them finds out what is wrong
            else:
                if size < known or known < 0:
                    self._wake_all()  # another docket stands there, or some read before it was known how far it is
                for kind, trial_id in added:
                    if trial_id:
                        self._wake(trial_id)
                    if kind == "VerdictReviewed":
                        self._wake(_REVIEWED)
                known = size
            for watching in self._watching.values():
                for woken, still in watching.items():
                    # A token that is taken out ends its open streams (GR-1): the watcher wakes, and finds that out by
                    # itself.
                    if not still():
                        woken.set()
            await asyncio.sleep(POLL_S)

    def _wake(self, what: str) -> None:
        for woken in self._watching.get(what, ()):
            woken.set()

    def _wake_all(self) -> None:
        for what in self._watching:
            self._wake(what)
