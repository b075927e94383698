"""Slots in which a fake model server works on calls, assigned by rank as in vLLM's priority policy."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class RankedSlots:
    """A limited number of slots; waiting calls get one by rank, lowest first, and within a rank in order of arrival."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def locked(self) -> bool:
        """Returns True if a new call would have to wait."""
        return self._free == 0

    async def acquire(self, rank: int) -> None:
        """Waits for a slot."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number keeps the arrival order within a rank, and heapq from comparing futures, which have no order.
        heapq.heappush(self._waiting, (rank, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            # This call may have got a slot just before it was cancelled: the slot is passed on, or it would be lost.
            if turn.done() and not turn.cancelled():
                self.release()  # the slot came too late
            raise

    def release(self) -> None:
        """Releases a slot to the first call that still waits."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            # Cancelled calls are still in the heap. The slot goes directly to the next call: if it were free in
            # between, a newcomer could take it.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
