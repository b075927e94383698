"""An event loop whose clock stands still while there is something to do and jumps where there is not.

Hours of waiting take no time, and how late something ends is exact, however busy the machine. It is for code that waits
for nothing but asyncio itself: no sockets, threads or processes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from court import deadline

T = TypeVar("T")


class _Jumps(selectors.DefaultSelector):
    """Instead of waiting, moves the clock on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and for nothing: this would hang for ever")
        self.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def set_deadlines_by_it(patch: pytest.MonkeyPatch) -> None:
    """Has the court's deadlines go by the loop's clock, too."""
    patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
