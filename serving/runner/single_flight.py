"""Work that several callers wait for, and that goes on for as long as one of them does; and what was lately used."""

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
    """The work was cancelled by somebody else than the caller that waits for it."""


class SingleFlight(Generic[T]):
    """A task with callers. Each enters it, begins it if nobody has, and waits; when the last has left, it is cancelled.

    Attributes:
        task: The work; None until one of the callers has begun it, and again when it is over and all have left: what
            it raised holds on to whoever waited for it, and they would hold it.
    """

    def __init__(self, unneeded: Callable[[], object] = lambda: None) -> None:
        """Without callers.

        Args:
            unneeded: Is called when the work is over, or when nobody is left to begin it.
        """
        self.task: asyncio.Task[T] | None = None
        self._callers = 0
        self._is_over = False
        self._unneeded = unneeded

    @property
    def ending(self) -> bool:
        """True if only the end of the work is left."""
        return self._is_over or (self.task is not None and (self.task.done() or self.task.cancelling() > 0))

    def __enter__(self) -> Self:
        """One more caller."""
        self._callers += 1
        return self

    def __exit__(self, *_: object) -> None:
        """One less."""
        self._callers -= 1
        if self._callers:
            return
        # The last one out lets go of the task, whose error would keep its callers' frames alive.
        if self._is_over:
            self.task = None
        elif self.task is None:
            self._unneeded()
        # RE-5: with its last caller the work ends, and the model call that it waits for.
        elif not self.task.done():
            self.task.cancel()

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Begins the work. From here to the next caller's entering, nothing may be awaited."""
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(self._over)

    async def result(self) -> T:
        """Waits for the result of the work.

        A caller that is cancelled meanwhile just leaves.

        Raises:
            Ended: The work was cancelled.
            As the work.
        """
        assert self.task is not None, "begun by one of the callers"
        # Not `await self.task`: that would pass the cancellation of one caller on to the work of all.
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise WorkCancelled
        return self.task.result()

    async def over(self) -> None:
        """Waits until the work is over, however it ends."""
        if self.task is not None:
            await asyncio.wait([self.task])

    def _over(self, task: asyncio.Task[T]) -> None:
        # What failed when all callers had left is nobody's to hear of, nor the event loop's. Where it was cancelled
        # this takes the error away, which remembers all that was under way, and so the task: each would hold the other.
        with suppress(asyncio.CancelledError):
            task.exception()
        self._is_over = True
        self._unneeded()
        if not self._callers:
            self.task = None


class LRUCache(Generic[K, V]):
    """Keeps what was last used, and as many of it as may be."""

    def __init__(self, most: int) -> None:
        """Empty."""
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns the value of a key, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keeps it, in the place of what has not been used for longest."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Keeps it no longer."""
        self._values.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """All that is kept, the last used last."""
        return list(self._values.items())
