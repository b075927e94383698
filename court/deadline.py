"""The caller's deadline as a budget: what is left of it, and what a step may take of that."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

from court.errors import CourtError, Overrun
from court.usage import UsageMeter

T = TypeVar("T")

# A call that was given all the time left may end a little before the deadline does: within this many seconds of it, the
# deadline is named as the cause.
_NO_TIME_S = 0.2


class Deadline:
    """Time for one trial, and what its calls cost.

    Attributes:
        tally: Counts the calls.
    """

    def __init__(self, seconds: float | None, call_s: float, meter: UsageMeter | None = None) -> None:
        """Begins to run at once.

        Args:
            seconds: Until the caller's deadline; None where there is none.
            call_s: Seconds that one call of a model may take at most.
            meter: Counts the calls, where somebody wants to know.
        """
        self.tally = meter or UsageMeter()
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self._call_s = call_s
        self._longest = 0.0

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite where there is none."""
        return self._end - time.monotonic()

    def for_call(self) -> float:
        """Seconds that the next call may take. Raises Overrun if there are none."""
        left = self.left
        if left <= 0:
            raise _over()
        return min(left, self._call_s)

    def at_most(self, seconds: float) -> float:
        """Seconds that a step may take which is given so many, and never more than are left; 0 where none are."""
        return max(0.0, min(seconds, self.left))

    def blame(self, error: CourtError) -> CourtError:
        """The error that ended a trial, or the deadline, where it was that which left a call no time."""
        return _over() if isinstance(error, Overrun) and self.left < _NO_TIME_S else error

    def took(self, seconds: float) -> None:
        """Learns how long a call took."""
        self._longest = max(self._longest, seconds)

    def allows(self, calls: int) -> bool:
        """True if there is time for that many more calls in sequence, each as slow as the slowest so far."""
        return self.left > calls * self._longest


async def run_within(step: Awaitable[T], within_s: float, late: Callable[[], Overrun]) -> T:
    """Runs a step and returns its result; cancels it after so many seconds and raises the error that ``late`` makes."""
    clock = asyncio.timeout(within_s)
    try:
        try:
            async with clock:
                return await step
        except TimeoutError:
            if not clock.expired():
                raise  # of the step's own making: no error that it may raise
        # Made here alone: nearly every step is in time, and a trial takes many.
        raise late()  # not above: with what the step was ended with, it would remember what the step worked on
    finally:
        # What is raised remembers this frame, and the clock would hold that by its task.
        del clock


def model_late() -> Overrun:
    """The error of a model that takes longer than one call may, and does not end the call itself."""
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
    """Runs the steps at once; their results in order.

    When one fails, or the whole is cancelled, the others are cancelled and waited for: nothing of a trial runs on after
    its end. The first error is raised as it is, unlike in a TaskGroup, so that whoever catches need not take a group
    apart.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        # A cancelled step has not failed by itself, and exception() would raise for it.
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        return tuple(task.result() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        # Waits until the cancelled steps have ended, and retrieves their errors, which nobody else does.
        await asyncio.gather(*tasks, return_exceptions=True)


async def completed(value: T) -> T:
    """A step that is done already."""
    return value
