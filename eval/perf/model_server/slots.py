"""Places at which a stand-in model server works on calls, handed out by rank as vLLM's priority policy does."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class RankedSlots:
    """Limited places; those who wait come in by rank, the lowest first, and of one rank in the order of coming."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def locked(self) -> bool:
        """True if a call that comes now would wait."""
        return self._free == 0

    async def acquire(self, rank: int) -> None:
        """Waits for a place."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number keeps the order of arrival within a rank, and heapq from comparing futures, which have no order.
        heapq.heappush(self._waiting, (rank, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            # A place may have been given to this call just before it was cancelled: it is passed on, or it is lost.
            if turn.done() and not turn.cancelled():
                self.release()  # it came too late
            raise

    def release(self) -> None:
        """Gives a place back, to the first of those who still wait."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            # Those that were cancelled are still in the heap. The place goes to the next one directly: if it were free
            # in between, a newcomer could take it.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
