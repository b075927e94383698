"""Retry policy: which errors are retried, after how long, and how often, so that a busy server is not overwhelmed.

A call is retried if the service reports a transient error or cannot be reached: after an exponential backoff with full
jitter, never before the time that the server asks for, never after the caller's deadline, and only while the retries of
a client stay a small share of its calls.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc

from memecourt.errors import CallError

_MOST_ENDINGS = 3
"""Maximum number of different earlier errors that a message lists."""

PASSING = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED})
"""Codes of transient errors."""

HEALTH = "/grpc.health.v1.Health/Check"
"""A call that costs a server next to nothing; any response shows that a server is reachable."""
NOT_THERE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""Codes of that call if there is no server, or only a proxy without a server behind it."""

IDLE = "IDLE"
"""Reason for the end of a stream whose caller sent no request, or read no answer, for too long."""

_CUT = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED})
"""Codes with which gRPC or a proxy may end a long stream, besides the transient ones. With asyncio, INTERNAL may hide
the server's own status if that arrives during a write (github.com/grpc/grpc/issues/36066): the next stream shows it."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Retry settings. ``Retries(attempts=1)`` never retries."""

    attempts: int = 5
    """Maximum number of attempts, the first included."""
    first_s: float = 0.2
    """Longest wait before the second attempt, in seconds; it doubles with each further attempt."""
    most_s: float = 20.0
    """Upper bound of that wait, in seconds."""
    share: float = 0.1
    """Maximum ratio of retries to calls, over all calls of a client."""
    spare: float = 10.0
    """Number of retries beyond that ratio, once: so that a client with few calls may retry as well."""
    ready_s: float = 15.0
    """Seconds that a call waits for an unreachable server, which may be starting."""
    longest_told_s: float = math.inf
    """Longest wait that a server may request, in seconds: a call with a timeout ends if it were to wait longer."""

    def __post_init__(self) -> None:
        least = min((self.first_s, self.share, self.spare, self.ready_s, self.longest_told_s))
        if self.attempts < 1 or self.most_s < self.first_s or least < 0:
            raise ValueError("attempts is 1 or more, first_s at most most_s, and nothing is negative")

    def wait_s(
        self, attempt: int, server_s: float | None, left: float | None, chance: Callable[[], float]
    ) -> float | None:
        """Returns the seconds to wait after the attempt of a number, from 1; None if there is no time for another."""
        # Bounded, because doubling a float without end raises OverflowError.
        spread = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 60))
        if server_s is not None:
            # Many clients are given the same delay at the same moment: spread their retries over as long again.
            spread = max(spread, min(server_s, self.most_s))
        least = server_s or 0.0
        if left is not None:
            if least >= left or least > self.longest_told_s:
                return None
            spread = min(spread, (left - least) / 2)  # the other half is for the attempt
        return least + spread * chance()


def connect_again_s(waits: int) -> float:
    """Returns the seconds until the next try to reach a server, after so many waits."""
    # With jitter, so that clients that lost the same server don't all reconnect at once.
    return float(min(1.0, 0.1 * 2 ** min(waits, 10)) * random.uniform(0.5, 1.0))


def patient(retries: Retries) -> Retries:
    """Returns settings for an endless call: retried as long as it takes, or never if these settings never retry."""
    if retries.attempts == 1:
        return retries
    return replace(retries, attempts=2**62, share=1.0, spare=math.inf)


def passing(error: CallError, *, changes: bool = False) -> bool:
    """True if a retry may help and can do no harm.

    Args:
        changes: True if the call changes something each time that it gets through. It is then retried only if the
            server itself asked for that: after a broken connection the fate of the call is unknown.
    """
    if error.code not in PASSING:
        return False
    if changes:
        return bool(error.reason) and error.retry_after is not None
    # gRPC itself reports an oversized message with the code of a busy server, but without a retry delay.
    return error.code is not grpc.StatusCode.RESOURCE_EXHAUSTED or error.retry_after is not None


def is_cut(error: CallError) -> bool:
    """True if a stream that ended with this error can be resumed where it was."""
    return passing(error) or error.reason == IDLE or (not error.reason and error.code in _CUT)


class Endings:
    """Errors of earlier attempts, reported if the time runs out before one succeeds."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}  # error text -> count, least recent first

    def add(self, error: CallError) -> None:
        """Adds an error."""
        text = str(error)
        # Moved to the end, so that the least recent is dropped below.
        self._ended[text] = self._ended.pop(text, 0) + 1
        if len(self._ended) > _MOST_ENDINGS:
            del self._ended[next(iter(self._ended))]

    def clear(self) -> None:
        """Forgets the errors so far."""
        self._ended.clear()

    def describe(self, what: str) -> str:
        """Describes the errors in words, the last at the end; empty without any. ``what``: attempts or streams."""
        if not self._ended:
            return ""
        return f" {what} before ended in " + ", then ".join(
            text if times == 1 else f"{text} ({times} times)" for text, times in self._ended.items()
        )


class Budget:
    """Retry budget: keeps retries a small share of all calls. Safe to use from several threads."""

    def __init__(self, retries: Retries) -> None:
        self._share = retries.share
        # A retry costs 1: a budget that can't grow to 1 would never allow any, whatever the share.
        self._most = self._left = max(retries.spare, 1.0 if retries.share else 0.0)
        self._lock = threading.Lock()

    def call(self) -> None:
        """Counts a call, at its first attempt."""
        with self._lock:
            self._left = min(self._most, self._left + self._share)

    def repeat(self) -> bool:
        """True if a call may be retried; counts the retry."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Attempts:
    """Attempts of one call."""

    def __init__(
        self,
        retries: Retries,
        budget: Budget,
        timeout: float | None,
        *,
        changes: bool = False,
        stream: bool = False,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Starts with no attempt.

        Args:
            changes: True if the call changes something, as for :func:`passing`.
            stream: True if the answer is a stream that resumes where it was cut: see :func:`is_cut`.
        """
        self._retries = retries
        self._budget = budget
        self._changes = changes
        self._stream = stream
        self._clock = clock
        self._chance = chance
        self._ready_by = 0.0
        self._deadline = None if timeout is None else clock() + timeout
        self._made = 0
        self._endings = Endings()
        # Starts the time in which an unreachable server may still come up.
        self.progress()
        budget.call()

    def left(self) -> float | None:
        """Returns the seconds until the deadline of all attempts together."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def progress(self) -> None:
        """Resets the count of failed attempts, because the last one brought something."""
        self._made = 0
        self._ready_by = self._clock() + (self._retries.ready_s if self._retries.attempts > 1 else 0.0)

    def connect_within_s(self, error: CallError) -> float:
        """Returns the seconds that the next attempt may wait for a connection; 0 if a server sent the error."""
        # A reason comes from the service, so it was reached. For a change, it is unknown whether it got through.
        if error.code is not grpc.StatusCode.UNAVAILABLE or error.reason or self._changes:
            return 0.0
        left = self.left()
        wait = max(0.0, self._ready_by - self._clock())
        return wait if left is None else min(wait, left / 2)  # the other half is for the attempt

    def after(self, error: CallError, *, unreached: bool = False) -> float:
        """Returns the seconds to wait before the next attempt.

        Args:
            unreached: True if there was no connection: such retries cost no server anything and do not count in the
                client's budget.

        Raises:
            CallError: The error itself, if there will be no further attempt. If the time is over, its message lists the
                errors of earlier attempts.
        """
        self._made += 1
        # A stream resumes where it was, so more errors are safe to retry than for a call that starts over.
        retryable = is_cut(error) if self._stream else passing(error, changes=self._changes)
        if retryable and self._made < self._retries.attempts:
            wait = self._retries.wait_s(self._made, error.retry_after, self.left(), self._chance)
            # A stream closed because its caller read slowly costs the server nothing extra.
            if wait is not None and (error.reason == IDLE or unreached or self._budget.repeat()):
                self._endings.add(error)
                return wait
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            error.message += self._endings.describe("Attempts")
        raise error
