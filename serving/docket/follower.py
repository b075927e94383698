"""Catching up with the log: one read of the docket for all callers that want to know what is new."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LogFollower(Generic[T]):
    """Runs a read of the docket for all concurrent callers.

    A caller gets the outcome of a run that began after its call: an earlier one may miss the latest entries.

    Attributes:
        running: The last run, which may have ended; None before the first.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]], *, fresh_s: float = 0.0) -> None:
        """Reads nothing yet. Runs that began up to ``fresh_s`` seconds before a call are good enough for it."""
        self._read = read
        self._fresh_s = fresh_s
        self._began = -math.inf
        self.running: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Returns what the docket holds. Raises what the read raises, such as Unavailable."""
        run = await self._wait(math.inf)
        assert run is not None
        return run.result()

    async def catch_up(self, patience_s: float) -> bool:
        """Waits at most ``patience_s`` seconds; returns False if the run takes longer, and goes on. Raises as get."""
        run = await self._wait(patience_s)
        if run is not None:
            run.result()
        return run is not None

    def forget(self) -> None:
        """Has the next call read again, after a change."""
        self._began = -math.inf

    async def _run(self) -> T:
        self._began = asyncio.get_running_loop().time()
        return await self._read()

    async def _wait(self, patience_s: float) -> asyncio.Task[T] | None:
        now = asyncio.get_running_loop().time
        called = now()
        while True:
            run, fresh = self.running, self._began >= called - self._fresh_s
            if run is None or (run.done() and (not fresh or run.cancelled() or run.exception())):
                # A separate task, so that a cancelled caller does not cancel it for the others.
                run = self.running = asyncio.create_task(self._run())
                run.add_done_callback(_retrieve_error)
                self._began, fresh = math.inf, True
            left = max(0.0, called + patience_s - now())
            # wait() does not cancel the task on timeout, as wait_for() would for all callers.
            await asyncio.wait([run], timeout=None if math.isinf(left) else left)
            if not run.done():
                return None
            if fresh and not run.cancelled():
                return run


def _retrieve_error(run: asyncio.Task[Any]) -> None:
    """Retrieves the error of a run without waiters, so that it is not reported as lost: the next call reads again."""
    if not run.cancelled():
        run.exception()
