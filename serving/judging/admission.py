"""Admission control: limits running trials and waiting callers, and shares slots fairly between namespaces.

Slots are assigned by start-time fair queueing (Goyal, Vin and Cheng, 1996), each slot with cost one: waiting namespaces
take turns, a namespace new to the queue is as near to its head as those served last, and within a namespace the order
is first come, first served. A namespace that floods the queue only delays itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from serving.errors import Busy, closing

_SMOOTHING = 0.1
"""Weight of the latest trial in the moving average of trial durations."""
_INITIAL_MEAN_S = 1.0
"""Assumed duration of a trial in seconds until one has ended."""
_SHORTEST_S, _LONGEST_S = 0.05, 60.0
"""Bounds of the retry delay that callers are given, in seconds."""
_MAX_FINISHED = 10_000
"""Number of idle namespaces whose last turn is remembered before irrelevant ones are dropped."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting caller.

    Attributes:
        turn: Resolved with its start time when the caller gets a slot.
    """

    patient: bool
    turn: asyncio.Future[float]


@dataclass(slots=True, eq=False)
class _NamespaceQueue:
    """Waiting callers of one namespace; never empty.

    Attributes:
        start: Virtual start time of its next turn; the smallest of all queues is served first.
        number: Number of the queue, which breaks ties: lower ones go first.
    """

    start: float
    number: int
    waiters: deque[_Waiter] = field(default_factory=deque)
    impatient: int = 0


class Admission:
    """Admission control with fair queueing between namespaces. Used from one event loop."""

    def __init__(self, most: int, most_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without callers.

        Args:
            most_waiting: Maximum number of waiting callers, not counting patient ones.
        """
        self._most = most
        self._most_waiting = most_waiting
        self._clock = clock
        self._lines: dict[str, _NamespaceQueue] = {}
        self._next: list[tuple[float, int, str]] = []  # a heap; stale entries of removed queues are skipped
        self._numbers = itertools.count()
        self._virtual = 0.0
        self._finish: dict[str, float] = {}  # virtual time at which a namespace's last turn ends
        self._running = 0
        self._waiting = 0
        self._waiting_patiently = 0
        self._since = 0.0  # sum of the start times of the running trials
        self._mean_s: float | None = None
        self._booked = 0.0  # time until which retries are already booked
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Number of slots in use."""
        return self._running

    @property
    def waiting(self) -> int:
        """Number of waiting callers, including patient ones."""
        return self._waiting + self._waiting_patiently

    @asynccontextmanager
    async def acquire(
        self, namespace: str, *, within_s: float | None = None, patient: bool = False
    ) -> AsyncIterator[None]:
        """Waits for a slot and holds it inside the block. A caller that is cancelled leaves the queue at once.

        Args:
            within_s: Seconds that the caller has; it is refused at once if it can't be served in time.
            patient: True to wait however long the queue is: for work with backpressure of its own, such as a stream.

        Raises:
            Busy: The queue is full, or no slot is free in time; ``retry_after`` says when to try again.
            Unavailable: The court is closing.
        """
        if self._closed:
            raise closing()
        # Only if nobody waits: a new caller must not overtake the queue.
        if self._running < self._most and not self._lines:
            began = self._begin(namespace, self._start_of(namespace))
        else:
            began = await self._wait(namespace, within_s, patient)
        try:
            yield
        finally:
            took = self._clock() - began
            self._mean_s = took if self._mean_s is None else self._mean_s + _SMOOTHING * (took - self._mean_s)
            self._end(began)

    def check(self, namespace: str, *, within_s: float | None = None, patient: bool = False) -> None:
        """Raises what :meth:`acquire` would raise at once, for callers with work to do before they need their slot."""
        if self._closed:
            raise closing()
        if not patient and (self._running >= self._most or self._lines):
            self._giving_way_to(namespace, within_s)

    def close(self) -> None:
        """Refuses waiting and new callers from now on; running trials continue."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line.waiters:
                # If it is done, it was just admitted or cancelled.
                if not waiter.turn.done():
                    waiter.turn.set_exception(closing())
        self._lines.clear()
        self._waiting = self._waiting_patiently = 0

    async def empty(self) -> None:
        """Waits until no slot is in use."""
        await self._idle.wait()

    async def _wait(self, namespace: str, within_s: float | None, patient: bool) -> float:
        if not patient and (crowded_out := self._giving_way_to(namespace, within_s)) is not None:
            # Patient waiters stay: they do not count against the limit, so removing one would make no room.
            last = next(w for w in reversed(self._lines[crowded_out].waiters) if not w.patient)
            self._leave(crowded_out, last)
            # Its caller may have been cancelled in this iteration of the event loop; a done future takes no exception.
            if not last.turn.done():
                last.turn.set_exception(self._busy())
        line = self._lines.get(namespace)
        if line is None:
            line = self._lines[namespace] = _NamespaceQueue(self._start_of(namespace), next(self._numbers))
            heapq.heappush(self._next, (line.start, line.number, namespace))
        waiter = _Waiter(patient, asyncio.get_running_loop().create_future())
        line.waiters.append(waiter)
        self._count(line, waiter, 1)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.cancelled():
                self._leave(namespace, waiter)
            elif waiter.turn.exception() is None:  # the slot was assigned just as the caller left: pass it on
                self._end(waiter.turn.result())
            raise

    def _giving_way_to(self, namespace: str, within_s: float | None) -> str | None:
        """Returns the namespace whose last caller is displaced by a new one; None if there is room.

        Raises:
            Busy: There is no room, and nobody can be displaced.
        """
        own = self._lines.get(namespace)
        # Namespaces take turns: one round for each waiter of its own and one more precede this caller, but never more
        # turns than there are waiting callers.
        before = min(self.waiting, (len(own.waiters) if own else 0) * len(self._lines) + len(self._lines))
        if within_s is not None and self._mean_s is not None and (before + 1) / self._rate() > within_s:
            raise Busy(
                "There are more trials to be held first than can be in the time that was given. Come again, or give "
                "it more time.",
                retry_after=self._delay(),
            )
        if self._waiting < self._most_waiting:
            return None
        # A namespace with more than its share of the queue gives way to one with less: its latest caller is dropped.
        crowded_out = max(self._lines, key=lambda name: self._lines[name].impatient, default=None)
        if crowded_out is None or self._lines[crowded_out].impatient <= (own.impatient if own else 0) + 1:
            raise self._busy()
        return crowded_out

    def _busy(self) -> Busy:
        return Busy(
            f"{self._running:,} trials are being held and {self._waiting:,} callers wait, which is as many as this "
            "server takes. Come again.",
            retry_after=self._delay(),
        )

    def _rate(self) -> float:
        """Measured rate of slots becoming free per second; long-running trials count before they end."""
        # The mean age of the running trials without a loop: now minus the mean of their start times.
        so_far = self._clock() - self._since / self._running if self._running else 0.0
        mean = max(so_far, _INITIAL_MEAN_S) if self._mean_s is None else max(so_far, self._mean_s)
        # Trials may be too short to measure.
        return self._most / max(mean, 1e-6)

    def _delay(self) -> float:
        """Returns the retry delay in seconds.

        By then the waiting callers, and those refused earlier, should have had their turn.

        So callers that were refused together return one by one, as slots become free.
        """
        now, rate = self._clock(), self._rate()
        # Each refusal books one more turn, which spreads out the retries (RE-4). The cap bounds the effect that a flood
        # of refusals has on the delay.
        self._booked = min(max(self._booked, now + self.waiting / rate) + 1 / rate, now + _LONGEST_S)
        return max(self._booked - now, _SHORTEST_S)

    def _start_of(self, namespace: str) -> float:
        # The maximum prevents a namespace from saving up turns while it is idle.
        return max(self._virtual, self._finish.get(namespace, 0.0))

    def _begin(self, namespace: str, start: float) -> float:
        began = self._clock()
        self._since += began
        self._virtual = max(self._virtual, start)
        self._finish[namespace] = start + 1
        self._running += 1
        self._idle.clear()
        if len(self._finish) > _MAX_FINISHED:
            # Entries not above the virtual time have no effect in _start_of, so they can be dropped.
            self._finish = {name: finish for name, finish in self._finish.items() if finish > self._virtual}
        return began

    def _end(self, began: float) -> None:
        self._since -= began
        self._running -= 1
        self._hand_on()

    def _hand_on(self) -> None:
        while self._running < self._most and self._lines:
            start, number, namespace = heapq.heappop(self._next)
            line = self._lines.get(namespace)
            # A heap has no removal: a queue that has emptied, or was re-created under a new number, leaves a stale
            # entry.
            if line is None or line.number != number or line.start != start:
                continue
            waiter = line.waiters.popleft()
            self._count(line, waiter, -1)
            left = waiter.turn.done()  # its caller is just leaving
            began = 0.0 if left else self._begin(namespace, line.start)
            if line.waiters:
                line.start = self._start_of(namespace)
                heapq.heappush(self._next, (line.start, line.number, namespace))
            else:
                del self._lines[namespace]
            if not left:
                waiter.turn.set_result(began)
        if not self._lines:
            # Only stale entries are left. They would accumulate if all waiters left by cancellation.
            self._next.clear()
        if not self._running:
            self._idle.set()

    def _leave(self, namespace: str, waiter: _Waiter) -> None:
        line = self._lines.get(namespace)
        if line is None or waiter not in line.waiters:
            return  # the queue was dissolved
        line.waiters.remove(waiter)
        self._count(line, waiter, -1)
        if not line.waiters:
            del self._lines[namespace]

    def _count(self, line: _NamespaceQueue, waiter: _Waiter, by: int) -> None:
        if waiter.patient:
            self._waiting_patiently += by
        else:
            self._waiting += by
            line.impatient += by
