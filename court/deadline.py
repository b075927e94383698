"""Time and cost of a trial: deadline, timeouts of steps, tasks that end together, and the usage of all model calls.

The usage includes calls that no event reports.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from court.errors import CourtError, Overrun

if TYPE_CHECKING:
    # A client that only asks a server ends its tasks by this module, and has no pydantic.
    from court.events import Event, ModelCall, Unused
    from court.ports import ChatReply


@dataclass(slots=True)
class UsageMeter:
    """Counts calls as they are made, and reported calls as events are stored; keyed by the fields of `Unused`."""

    broke_off: int = 0
    _made: Counter[str] = field(default_factory=Counter)
    _reported: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Attributes disconnects during the block, and in tasks started in it, to this trial."""
        before = _OF_TRIAL.set(self)
        try:
            yield
        finally:
            _OF_TRIAL.reset(before)

    def answered(self, reply: ChatReply) -> None:
        """Counts a call that was answered, usably or not."""
        self._made.update(_figures(reply, calls=1))

    def unanswered(self) -> None:
        """Counts a call that was cancelled or failed."""
        self._made["unanswered"] += 1

    def count_stored(self, event: Event) -> None:
        """Counts the calls reported by a stored event."""
        self._reported.update(_reported_by(event))

    def unused(self, *last: Event) -> Unused | None:
        """Returns the usage reported neither by stored events nor by these last ones; None if no model was asked."""
        from court.events import Unused

        if not self._made:
            return None
        # Counter subtraction drops negative counts, which `Unused` rejects.
        return Unused(**(self._made - self._reported - sum(map(_reported_by, last), Counter())))


_OF_TRIAL: ContextVar[UsageMeter | None] = ContextVar("tally of the trial", default=None)


def broke_off(times: int) -> None:
    """Counts how many times servers disconnected during a call that ended without an answer."""
    # Reported to the current trial, if any, in addition to the call's error: a call that is cancelled, or preceded by
    # another failure, can't raise its error to anyone, and a request that kills servers must not go unnoticed.
    if (meter := _OF_TRIAL.get()) is not None:
        # The maximum, not the sum: one crash ends all concurrent calls, and an unanswered call ends the trial.
        meter.broke_off = max(meter.broke_off, times)


def _reported_by(event: Event) -> Counter[str]:
    reported: Counter[str] = Counter()
    for call, _, requests in event.reported_calls:
        reported.update(_figures(call, calls=requests))
    return reported


def _figures(reply: ChatReply | ModelCall, *, calls: int) -> dict[str, int]:
    return {
        "calls": calls,
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "tokens_cached": reply.tokens_cached,
    }


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
