"""Quotas: trials that a namespace may have begun within a minute and within a day.

A quota holds for any minute and any 24 hours, and not for those of a calendar: none can be used up twice around
midnight. Time is counted in slices, and a slice counts until all of it is over, so that the quota is never exceeded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from serving.errors import Busy
from serving.settings import Settings

_MINUTE_S: Final = 60.0
_DAY_S: Final = 86_400.0
# A trial counts for too long by a slice at most: by a second, or a minute.
_SLICES: Final = {_MINUTE_S: 60, _DAY_S: 1440}
_NAMES: Final = {_MINUTE_S: "minute", _DAY_S: "day"}


class QuotaExceeded(Busy):
    """Raised where a namespace has had as many trials begun as it may."""

    default_reason = "QUOTA_EXCEEDED"


class _Window:
    """Counts what happened within the last so many seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        """Counts from zero.

        Args:
            most: Number that may happen within the window.
            seconds: Length of the window.
        """
        self.most = most
        self.seconds = seconds
        self._slice_s = seconds / _SLICES[seconds]
        self._counts: OrderedDict[int, int] = OrderedDict()  # by number of the slice, rising
        self._total = 0

    def delay(self, now: float) -> float:
        """Seconds until there is room for one more; 0 where there is."""
        # The oldest first: slices are added in rising order, and only those at the front can be over.
        while self._counts and self._over_at(first := next(iter(self._counts))) <= now:
            self._total -= self._counts.pop(first)
        # What would be left once slice after slice is over: the first that makes room says when.
        left = self._total
        for number, count in self._counts.items():
            if left < self.most:
                break
            left -= count
            if left < self.most:
                return self._over_at(number) - now
        return 0.0

    def add(self, at: float, count: int = 1) -> int:
        """Counts some at a time that is not before the last one; returns the number of their slice."""
        number = int(at // self._slice_s)
        self._counts[number] = self._counts.get(number, 0) + count
        self._total += count
        return number

    def take_off(self, number: int) -> None:
        """Counts one of a slice no more."""
        # Its slice may be over by now, and is counted no more anyway.
        if self._counts.get(number):
            self._counts[number] -= 1
            self._total -= 1

    def _over_at(self, number: int) -> float:
        """The time from which on a slice is out of the window with all that is in it."""
        return (number + 1) * self._slice_s + self.seconds


class Quota:
    """Quota of one namespace. Used from one event loop."""

    def __init__(
        self, *, per_minute: int | None, per_day: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Has given nothing yet.

        Args:
            per_minute: Trials within a minute; None for any number.
            per_day: Trials within 24 hours; None for any number.
            clock: Seconds.
        """
        limits = {_MINUTE_S: per_minute, _DAY_S: per_day}
        self._windows = [_Window(most, seconds) for seconds, most in limits.items() if most is not None]
        self._clock = clock

    def check(self) -> None:
        """Raises QuotaExceeded where nothing is left."""
        now = self._clock()
        delays = [(window.delay(now), window) for window in self._windows]
        # The longest: coming again sooner would be refused by the other window.
        delay, longest = max(delays, key=lambda each: each[0])
        if delay > 0:
            raise QuotaExceeded(
                f"This namespace may have {longest.most:,} trials begun in a {_NAMES[longest.seconds]}, and has had "
                "them. Come again later, or have its quota raised.",
                retry_after=delay,
            )

    def take(self) -> tuple[int, ...]:
        """Counts a trial; returns what :meth:`give_back` needs. Raises QuotaExceeded where nothing is left."""
        self.check()
        now = self._clock()
        return tuple(window.add(now) for window in self._windows)

    def give_back(self, taken: tuple[int, ...]) -> None:
        """Counts a trial no more that was not begun."""
        for window, number in zip(self._windows, taken, strict=True):
            window.take_off(number)

    def since(self) -> datetime:
        """The time from which on trials count."""
        return datetime.now(UTC) - timedelta(seconds=max(window.seconds for window in self._windows))

    def count_before(self, opened: Mapping[datetime, int]) -> None:
        """Counts trials that were begun before this was made.

        Args:
            opened: Number of trials by the minute in which they were opened.
        """
        now, wall = self._clock(), datetime.now(UTC)
        for window in self._windows:
            # Rising, as add() wants it.
            for at, count in sorted(opened.items()):
                # As if at the end of the minute, which is the safe side. Not in the future: clocks of servers differ.
                age_s = max((wall - at).total_seconds() - _MINUTE_S, 0.0)
                if age_s < window.seconds:
                    window.add(now - age_s, count)


def quotas_of(settings: Settings) -> Mapping[str, Quota]:
    """The quotas that the settings name, by namespace."""
    return {
        name: Quota(per_minute=each.trials_per_minute, per_day=each.trials_per_day)
        for name, each in settings.namespaces.items()
        if each.trials_per_minute is not None or each.trials_per_day is not None
    }
