"""Several steps at once, of which the first failure ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")


@overload
async def together(first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2], /) -> tuple[T1, T2]: ...
@overload
async def together(*steps: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...
async def together(*steps: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Runs the steps at once; their results in order.

    When one fails, or the whole is cancelled, the others are cancelled and waited for: nothing of a trial runs on after
    its end. The first error is raised as it is, unlike in a TaskGroup, so that whoever catches need not take a group
    apart.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        return tuple(task.result() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def done(value: T) -> T:
    """A step that is done already."""
    return value
