"""Admission control: limits running trials and waiting callers, and shares slots fairly between namespaces.

Turns are given by start-time fair queueing (Goyal, Vin and Cheng, 1996) with every turn counting one: namespaces that
wait take turns with each other, whoever comes new to the queue is as near to its head as those that were served last,
and within a namespace who came first goes first. A namespace that floods the queue makes only itself wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from serving.errors import Busy, not_in_session
from serving.runner.quotas import Quota

_WEIGHT = 0.1
"""Of the last trial in the mean time that a trial takes."""
_FIRST_GUESS_S = 1.0
"""What a trial is taken to need before one has ended, in seconds."""
_SHORTEST_S, _LONGEST_S = 0.05, 60.0
"""Bounds of the delay that a caller is told, in seconds."""
_MOST_FINISHED = 10_000
"""Namespaces without anybody waiting whose last turn is remembered, before those of no consequence are forgotten."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """Waiting caller.

    Attributes:
        patient: True if it waits no matter how many wait.
        turn: Done when it has its turn, with the time at which that began.
    """

    patient: bool
    turn: asyncio.Future[float]


@dataclass(slots=True, eq=False)
class _NamespaceQueue:
    """Waiting callers of one namespace; never empty.

    Attributes:
        start: Its next turn in virtual time: that of all who wait with the smallest is given first.
        number: Number of the queue; where the start is equal, lower ones go first.
        waiters: Waiting callers in order of arrival.
        impatient: Number of them that wait only while there is room.
    """

    start: float
    number: int
    waiters: deque[_Waiter] = field(default_factory=deque)
    impatient: int = 0


class Admission:
    """Gives turns. Used from one event loop."""

    def __init__(
        self,
        most: int,
        most_waiting: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        quotas: Mapping[str, Quota] | None = None,
    ) -> None:
        """Starts with no caller.

        Args:
            most: Turns that may be taken at once.
            most_waiting: Callers that may wait for theirs, patient ones aside.
            clock: Seconds.
            quotas: Turns that namespaces may take in some time.
        """
        self._quotas = quotas or {}
        self._most = most
        self._most_waiting = most_waiting
        self._clock = clock
        self._lines: dict[str, _NamespaceQueue] = {}
        self._next: list[tuple[float, int, str]] = []  # a heap; entries of lines that are gone are passed over
        self._numbers = itertools.count()
        self._virtual = 0.0
        self._finish: dict[str, float] = {}  # the virtual time at which a namespace's last turn ends
        self._running = 0
        self._waiting = 0
        self._waiting_patiently = 0
        self._since = 0.0  # sum of the times at which those running began
        self._mean_s: float | None = None
        self._booked = 0.0  # until when those who were told to come again have been told to
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Turns that are being taken."""
        return self._running

    @property
    def waiting(self) -> int:
        """Callers that wait, patient ones included."""
        return self._waiting + self._waiting_patiently

    @property
    def has_room(self) -> bool:
        """True if at most half of the turns are taken, and nobody waits: then there is room for what nobody needs."""
        return 2 * self._running <= self._most and not self.waiting

    @asynccontextmanager
    async def acquire(
        self, namespace: str, *, within_s: float | None = None, patient: bool = False
    ) -> AsyncIterator[None]:
        """A turn, for as long as the block lasts; waits for it. Who is cancelled while waiting leaves at once.

        Args:
            namespace: Namespace of the caller.
            within_s: Seconds that the caller has; who can't be served in them is refused at once.
            patient: True to wait no matter how many wait: for work that is held up elsewhere when there is no room,
                such as a stream.

        Raises:
            Busy: The queue is full, no slot is free in time, or the namespace has used up its quota (QuotaExceeded);
                ``retry_after`` is when one should be.
            Unavailable: The court closes.
        """
        if self._closed:
            raise not_in_session()
        if (quota := self._quotas.get(namespace)) is not None:
            # Also of patient callers: they wait for room, and a quota makes none for hours.
            taken = quota.take()
            try:
                began = await self._enter(namespace, within_s, patient)
            except BaseException:
                quota.give_back(taken)
                raise
        else:
            began = await self._enter(namespace, within_s, patient)
        try:
            yield
        finally:
            took = self._clock() - began
            self._mean_s = took if self._mean_s is None else self._mean_s + _WEIGHT * (took - self._mean_s)
            self._end(began)

    async def _enter(self, namespace: str, within_s: float | None, patient: bool) -> float:
        """Takes a turn, or waits for it; the time at which it begins."""
        # Only where nobody waits: whoever comes must not overtake those who do.
        if self._running < self._most and not self._lines:
            return self._begin(namespace, self._start_of(namespace))
        return await self._wait(namespace, within_s, patient)

    def check(self, namespace: str, *, within_s: float | None = None, patient: bool = False) -> None:
        """Raises what :meth:`acquire` would raise at once: for callers with work to do before they ask for theirs."""
        if self._closed:
            raise not_in_session()
        if (quota := self._quotas.get(namespace)) is not None:
            quota.check()
        if not patient and (self._running >= self._most or self._lines):
            self._giving_way_to(namespace, within_s)

    def close(self) -> None:
        """Sends away who waits, and everybody from now on; turns that have begun go on."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line.waiters:
                # One that is done was let in, or given up, just now.
                if not waiter.turn.done():
                    waiter.turn.set_exception(not_in_session())
        self._lines.clear()
        self._waiting = self._waiting_patiently = 0

    async def empty(self) -> None:
        """Waits until no turn is being taken."""
        await self._idle.wait()

    async def _wait(self, namespace: str, within_s: float | None, patient: bool) -> float:
        if not patient and (theirs := self._giving_way_to(namespace, within_s)) is not None:
            # Patient waiters stay: they do not count against the bound, so their leaving would make no room.
            last = next(w for w in reversed(self._lines[theirs].waiters) if not w.patient)
            self._leave(theirs, last)
            # Its caller may be cancelled in this same round of the loop; a future that is done takes no exception.
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
            elif waiter.turn.exception() is None:  # the turn came as the caller left: the next one has it
                self._end(waiter.turn.result())
            raise

    def _giving_way_to(self, namespace: str, within_s: float | None) -> str | None:
        """The namespace whose last caller gives way to one that comes now; None where there is room for it.

        Raises:
            Busy: There is none, and nobody gives way.
        """
        own = self._lines.get(namespace)
        # Namespaces take turns: before this caller come one round for each own waiter and one more, and never more
        # turns than callers wait.
        before = min(self.waiting, (len(own.waiters) if own else 0) * len(self._lines) + len(self._lines))
        if within_s is not None and self._mean_s is not None and (before + 1) / self._rate() > within_s:
            raise Busy(
                "There are more trials to be held first than can be in the time that was given. Come again, or give "
                "it more time.",
                retry_after=self._delay(),
            )
        if self._waiting < self._most_waiting:
            return None
        # Whoever has more than a share of the queue gives way to who has less: the last to come goes.
        theirs = max(self._lines, key=lambda name: self._lines[name].impatient, default=None)
        if theirs is None or self._lines[theirs].impatient <= (own.impatient if own else 0) + 1:
            raise self._busy()
        return theirs

    def _busy(self) -> Busy:
        return Busy(
            f"{self._running:,} trials are being held and {self._waiting:,} callers wait, which is as many as this "
            "server takes. Come again.",
            retry_after=self._delay(),
        )

    def _rate(self) -> float:
        """Turns a second that come free, as measured. A trial that is running long counts before it has ended."""
        # The mean age of the running trials, without a loop over them: now, less the mean of their starts.
        so_far = self._clock() - self._since / self._running if self._running else 0.0
        mean = max(so_far, _FIRST_GUESS_S) if self._mean_s is None else max(so_far, self._mean_s)
        # Trials may take no time that can be measured.
        return self._most / max(mean, 1e-6)

    def _delay(self) -> float:
        """Returns the retry delay in seconds.

        By then the waiting callers, and those already sent away, have had their turn.

        Callers that were refused together are so called back one by one, as turns come free.
        """
        now, rate = self._clock(), self._rate()
        # Each refusal books one more turn, so refused callers are spread out (RE-4). The cap bounds what a flood of
        # refusals can do to the delay.
        self._booked = min(max(self._booked, now + self.waiting / rate) + 1 / rate, now + _LONGEST_S)
        return max(self._booked - now, _SHORTEST_S)

    def _start_of(self, namespace: str) -> float:
        # The maximum takes away turns that a namespace could save up while it asks for none.
        return max(self._virtual, self._finish.get(namespace, 0.0))

    def _begin(self, namespace: str, start: float) -> float:
        began = self._clock()
        self._since += began
        self._virtual = max(self._virtual, start)
        self._finish[namespace] = start + 1
        self._running += 1
        self._idle.clear()
        if len(self._finish) > _MOST_FINISHED:
            # An entry that is not above the virtual time changes nothing in _start_of, so dropping it is safe.
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
            # A heap has no removal: a queue that has emptied, or has come back under a new number, leaves its entry
            # here.
            if line is None or line.number != number or line.start != start:
                continue
            waiter = line.waiters.popleft()
            self._count(line, waiter, -1)
            left = waiter.turn.done()  # it is leaving just now
            began = 0.0 if left else self._begin(namespace, line.start)
            if line.waiters:
                line.start = self._start_of(namespace)
                heapq.heappush(self._next, (line.start, line.number, namespace))
            else:
                del self._lines[namespace]
            if not left:
                waiter.turn.set_result(began)
        if not self._lines:
            # Only stale entries are left. Without this they pile up where all waiters leave by cancellation.
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
