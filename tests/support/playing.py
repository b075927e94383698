"""Playing scenes that open servers, and waiting for what nothing tells of."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def play_in(opened: AbstractAsyncContextManager[S], work: Callable[[S], Awaitable[T]]) -> T:
    """Opens a scene, works in it, and closes it."""

    async def scene() -> T:
        async with opened as it:
            return await work(it)

    return asyncio.run(scene())


async def until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Waits until something holds, which is found out by looking; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """The same outside of an event loop."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold after {seconds} s"
        time.sleep(0.05)
