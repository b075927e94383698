"""Single-flight tasks shared by several callers, and a least-recently-used cache."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WorkCancelled(Exception):
    """The shared work was cancelled, but not by the caller that waits for it."""


class SingleFlight(Generic[T]):
    """A task shared by callers. Each joins it, starts it if necessary, and waits; it is cancelled when the last leaves.

    Attributes:
        task: Task of the work; None before a caller has started it, and again when it is done and all callers have
            left, since its exception and its callers' frames would reference each other.
    """

    def __init__(self, unneeded: Callable[[], object] = lambda: None) -> None:
        """Starts without callers.

        Args:
            unneeded: Called when the work is done, or when no caller is left to start it.
        """
        self.task: asyncio.Task[T] | None = None
        self._callers = 0
        self._is_over = False
        self._unneeded = unneeded

    @property
    def ending(self) -> bool:
        """True if the work is done or being cancelled."""
        return self._is_over or (self.task is not None and (self.task.done() or self.task.cancelling() > 0))

    def __enter__(self) -> Self:
        self._callers += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._callers -= 1
        if self._callers:
            return
        # The last caller drops the task, whose exception would keep the callers' frames alive.
        if self._is_over:
            self.task = None
        elif self.task is None:
            self._unneeded()
        # RE-5: the work, including a pending model call, is cancelled with its last caller.
        elif not self.task.done():
            self.task.cancel()

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Starts the work. Nothing may be awaited before the next caller has joined."""
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(self._over)

    async def result(self) -> T:
        """Waits for the result of the work.

        A caller that is cancelled meanwhile simply leaves.

        Raises:
            WorkCancelled: The work was cancelled.
            As the work.
        """
        assert self.task is not None, "begun by one of the callers"
        # Not `await self.task`: that would propagate one caller's cancellation to the shared work.
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise WorkCancelled
        return self.task.result()

    async def over(self) -> None:
        """Waits until the work is done, however it ends."""
        if self.task is not None:
            await asyncio.wait([self.task])

    def _over(self, task: asyncio.Task[T]) -> None:
        # Retrieve the exception so that the event loop does not report it after all callers have left. For a cancelled
        # task this also drops the stored error, which references the task and would form a cycle.
        with suppress(asyncio.CancelledError):
            task.exception()
        self._is_over = True
        self._unneeded()
        if not self._callers:
            self.task = None


class LRUCache(Generic[K, V]):
    """Bounded map that evicts the least recently used entry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns the value of a key, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Stores an entry, and evicts the least recently used one if full."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Removes an entry."""
        self._values.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """Returns all entries, the most recently used last."""
        return list(self._values.items())
