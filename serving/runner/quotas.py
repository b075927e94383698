"""Quotas: limits on the trials that a namespace may start per minute and per day.

A quota applies to any minute and any 24 hours (sliding windows), so that it can't be used up twice around midnight.
Time is divided into slices, and a slice counts until all of it has left the window, so that the quota is never
exceeded.
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
# A trial counts for at most one slice too long: a second, or a minute.
_SLICES: Final = {_MINUTE_S: 60, _DAY_S: 1440}
_NAMES: Final = {_MINUTE_S: "minute", _DAY_S: "day"}


class QuotaExceeded(Busy):
    """Raised if a namespace has used up its quota of trials."""

    default_reason = "QUOTA_EXCEEDED"


class _Window:
    """Sliding window that counts events of the last given number of seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        """Counts from zero.

        Args:
            most: Maximum number of events within the window.
            seconds: Length of the window in seconds.
        """
        self.most = most
        self.seconds = seconds
        self._slice_s = seconds / _SLICES[seconds]
        self._counts: OrderedDict[int, int] = OrderedDict()  # by slice number, ascending
        self._total = 0

    def delay(self, now: float) -> float:
        """Seconds until there is room for one more event; 0 if there is now."""
        # Oldest first: slices are in ascending order, so only those at the front can have expired.
        while self._counts and self._over_at(first := next(iter(self._counts))) <= now:
            self._total -= self._counts.pop(first)
        # Expire slice after slice until there is room.
        left = self._total
        for number, count in self._counts.items():
            if left < self.most:
                break
            left -= count
            if left < self.most:
                return self._over_at(number) - now
        return 0.0

    def add(self, at: float, count: int = 1) -> int:
        """Adds events at a time not before the last one; returns the number of their slice."""
        number = int(at // self._slice_s)
        self._counts[number] = self._counts.get(number, 0) + count
        self._total += count
        return number

    def take_off(self, number: int) -> None:
        """Subtracts one event from a slice."""
        # The slice may have expired already.
        if self._counts.get(number):
            self._counts[number] -= 1
            self._total -= 1

    def _over_at(self, number: int) -> float:
        """Returns the time at which a slice has completely left the window."""
        return (number + 1) * self._slice_s + self.seconds


class Quota:
    """Quota of one namespace. Used from one event loop."""

    def __init__(
        self, *, per_minute: int | None, per_day: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts unused.

        Args:
            per_minute: Maximum number of trials per minute; None for no limit.
            per_day: Maximum number of trials per 24 hours; None for no limit.
            clock: Monotonic clock, in seconds.
        """
        limits = {_MINUTE_S: per_minute, _DAY_S: per_day}
        self._windows = [_Window(most, seconds) for seconds, most in limits.items() if most is not None]
        self._clock = clock

    def check(self) -> None:
        """Raises QuotaExceeded if nothing is left."""
        now = self._clock()
        delays = [(window.delay(now), window) for window in self._windows]
        # The longest delay: an earlier retry would be refused by the other window.
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
        """Returns the quota of a trial that was not started."""
        for window, number in zip(self._windows, taken, strict=True):
            window.take_off(number)

    def since(self) -> datetime:
        """Start of the period whose trials count."""
        return datetime.now(UTC) - timedelta(seconds=max(window.seconds for window in self._windows))

    def count_before(self, opened: Mapping[datetime, int]) -> None:
        """Counts trials that were started before this object was created.

        Args:
            opened: Number of trials by the minute in which they were opened.
        """
        now, wall = self._clock(), datetime.now(UTC)
        for window in self._windows:
            # Ascending, as add() requires.
            for at, count in sorted(opened.items()):
                # Counted at the end of their minute, to be safe, but not in the future: clocks of servers differ.
                age_s = max((wall - at).total_seconds() - _MINUTE_S, 0.0)
                if age_s < window.seconds:
                    window.add(now - age_s, count)


def quotas_of(settings: Settings) -> Mapping[str, Quota]:
    """Returns the quotas in the settings, by namespace."""
    return {
        name: Quota(per_minute=each.trials_per_minute, per_day=each.trials_per_day)
        for name, each in settings.namespaces.items()
        if each.trials_per_minute is not None or each.trials_per_day is not None
    }
