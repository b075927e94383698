"""Running work within a context, and polling for conditions."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")


def run_within(opened: AbstractAsyncContextManager[Any], work: Callable[..., Awaitable[T]]) -> T:
    """Runs work within an asynchronous context, of whose value a tuple is passed as several arguments."""

    async def scene() -> T:
        async with opened as it:
            return await (work(*it) if isinstance(it, tuple) else work(it))

    return asyncio.run(scene())


async def until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Polls until a condition holds; raises TimeoutError after that many seconds."""
    async with asyncio.timeout(seconds):
        while True:
            result = holds()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Polls like :func:`until`, outside of an event loop."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"the condition does not hold after {seconds} s"
        time.sleep(0.05)
