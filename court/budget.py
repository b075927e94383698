"""The caller's deadline as a budget: what is left of it, and what a step may take of that."""

from __future__ import annotations

import math
import time

from court.errors import CourtError, Overrun

_NO_TIME_S = 0.2


class Budget:
    """Time for one trial."""

    def __init__(self, seconds: float | None, call_s: float) -> None:
        """Begins to run at once.

        Args:
            seconds: Until the caller's deadline; None where there is none.
            call_s: Seconds that one call of a model may take at most.
        """
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

    def blame(self, error: CourtError) -> CourtError:
        """The error that ended a trial, or the deadline, where it was that which left a call no time."""
        return _over() if isinstance(error, Overrun) and self.left < _NO_TIME_S else error

    def took(self, seconds: float) -> None:
        """Learns how long a call took."""
        self._longest = max(self._longest, seconds)

    def allows(self, calls: int) -> bool:
        """Whether there is time for so many more calls one after another, each as slow as the slowest so far."""
        return self.left > calls * self._longest


def _over() -> Overrun:
    return Overrun("The time given for this trial is over.", reason="DEADLINE", retry_after=0.0)
