"""Tasks that end together. Nothing else of the court is imported, since a client that only asks a server uses them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")


@overload
async def gather_or_cancel(first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2], /) -> tuple[T1, T2]: ...
@overload
async def gather_or_cancel(*steps: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...
async def gather_or_cancel(*steps: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Runs the steps concurrently and returns their results in order."""
    # When one fails, or the whole is cancelled, the others are cancelled and awaited, so that no task outlives its
    # trial. Unlike in a TaskGroup, the first error is raised as it is, so that callers need not unpack an exception
    # group.
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        # A cancelled step has not failed, and exception() would raise for it.
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        return tuple(task.result() for task in tasks)
    finally:
        await cancel_all(*tasks)


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits until they have ended. Their errors are retrieved, which would otherwise be logged."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def completed(value: T) -> T:
    """Returns the value at once: a step that needs no work."""
    return value
