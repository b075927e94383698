"""The caller's deadline: the time left, and the timeout of each step."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

from court.errors import CourtError, Overrun
from court.usage import UsageMeter

T = TypeVar("T")

# A call whose timeout is all the time left may end slightly before the deadline: within this many seconds of it, the
# deadline is reported as the cause.
_NO_TIME_S = 0.2


class Deadline:
    """Deadline of one trial, and the duration of its calls."""

    def __init__(self, seconds: float | None, call_s: float, meter: UsageMeter | None = None) -> None:
        self.usage = meter or UsageMeter()
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self._call_s = call_s
        self._longest = 0.0

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite if there is none."""
        return self._end - time.monotonic()

    def for_call(self) -> float:
        """Returns the timeout of the next call, in seconds. Raises Overrun if no time is left."""
        left = self.left
        if left <= 0:
            raise _over()
        return min(left, self._call_s)

    def at_most(self, seconds: float) -> float:
        """Limits a step's timeout, in seconds, to the time left; 0 if none is left."""
        return max(0.0, min(seconds, self.left))

    def blame(self, error: CourtError) -> CourtError:
        """Returns the error, or the deadline's error if a call timed out because the deadline had come."""
        return _over() if isinstance(error, Overrun) and self.left < _NO_TIME_S else error

    def took(self, seconds: float) -> None:
        """Records how long a call took."""
        self._longest = max(self._longest, seconds)

    def allows(self, calls: int) -> bool:
        """True if there is time for that many more sequential calls, each as slow as the slowest so far."""
        return self.left > calls * self._longest


async def run_within(step: Awaitable[T], within_s: float, late: Callable[[], Overrun]) -> T:
    """Runs a step with a timeout and returns its result; raises the error built by ``late`` if it times out."""
    clock = asyncio.timeout(within_s)
    try:
        try:
            async with clock:
                return await step
        except TimeoutError:
            if not clock.expired():
                raise  # the step's own TimeoutError, which is a bug
        # Built only here: nearly every step is in time, and a trial has many.
        raise late()  # outside the except block: chained to the TimeoutError, it would reference the step's data
    finally:
        # The raised error references this frame, and the clock would keep it alive through its task.
        del clock


def model_late() -> Overrun:
    """Returns the error for a model call that exceeds its timeout without ending itself."""
    return Overrun("The model did not answer in the time it was given.", reason="MODEL_TOO_SLOW")


def _over() -> Overrun:
    return Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0)


T1 = TypeVar("T1")
T2 = TypeVar("T2")


@overload
async def gather_or_cancel(first: Coroutine[Any, Any, T1], second: Coroutine[Any, Any, T2], /) -> tuple[T1, T2]: ...
@overload
async def gather_or_cancel(*steps: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...
async def gather_or_cancel(*steps: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Runs the steps concurrently and returns their results in order.

    When one fails, or the whole is cancelled, the others are cancelled and awaited, so that no task outlives its trial.
    Unlike in a TaskGroup, the first error is raised as it is, so that callers need not unpack an exception group.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        # A cancelled step has not failed, and exception() would raise for it.
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        return tuple(task.result() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        # Waits until the cancelled steps have ended, and retrieves their errors, which would otherwise be logged.
        await asyncio.gather(*tasks, return_exceptions=True)


async def completed(value: T) -> T:
    """Returns the value at once: a step that needs no work."""
    return value
