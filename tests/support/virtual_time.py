"""An event loop whose clock stands still while tasks run, and jumps to the next timer when all wait.

Hours of waiting take no time, and durations are exact however busy the machine. It suits code that waits for asyncio
alone: no sockets, threads or processes.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from court import deadline

T = TypeVar("T")


class _Jumps(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("all tasks wait and no timer is set: this would hang forever")
        self.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like ``asyncio.run``, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def use_virtual_deadlines(patch: pytest.MonkeyPatch) -> None:
    """Makes the court's deadlines use the loop's clock, too."""
    patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
