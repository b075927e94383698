"""State of a stream of requests: which were sent, which are unanswered, and which to retry when.

Independent of threads and asyncio: callers report events to a :class:`Book`, which says what to do next. Each request
that was read has exactly one outcome, whatever happens to connections: it is sent as often as necessary, and its
request_id makes the server try it once.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from memecourt.connection import MESSAGE_BYTES
from memecourt.errors import CallError, JudgeError
from memecourt.result import Result
from memecourt.retries import IDLE, Budget, Endings, Retries, is_cut, passing
from memecourt.v1 import court_pb2 as wire

Outcome = tuple[str, Result | JudgeError]
"""The request_id, and the result or the error in its place."""

AT_ONCE = "memecourt-at-once"
"""Metadata at the beginning of a stream: the number of its requests that the server works on at once."""
_FIRST_BOUND = 4  # requests in flight
_LONGEST_NAME = 128  # characters of a request_id

TO_END_S = 5.0
"""Seconds in which a server ends a stream that is closed on our side. If we ended it, it would count as cancelled."""

_LONGEST_S = 366 * 86_400
"""Longest timeout of a request, in seconds: neither the wire nor clocks can express more."""

_ROOM_FOR_TIMEOUT = 32  # bytes that the timeout adds to a message, at most


@dataclass(slots=True)
class _PendingRequest:
    message: wire.JudgeStreamRequest
    deadline: float  # by the clock
    attempts: int = 0
    sent: int = 0  # number of the stream that carries it; 0: not in a stream
    failure: JudgeError | None = None  # last error, if it is to be retried


def not_opened(error: BaseException) -> JudgeError:
    """Builds the error for a stream that could not be opened, for example without a token."""
    kind = type(error).__qualname__
    return JudgeError(grpc.StatusCode.FAILED_PRECONDITION, f"No stream could be opened ({kind}).")


class Book:
    """Requests of one ``judge_many``, from when they are read until their outcome is delivered."""

    def __init__(
        self,
        retries: Retries,
        budget: Budget,
        *,
        timeout: float,
        at_once: int,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not at_once >= 1:
            raise ValueError(f"at_once is 1 or more, not {at_once}")
        if not 0 < timeout <= _LONGEST_S:
            raise ValueError(f"timeout is longer than nothing and at most a year, in seconds, not {timeout}")
        self._retries = retries
        self._budget = budget
        self._timeout = timeout
        self._at_once = at_once
        self._bound = at_once
        self._clock = clock
        self._chance = chance
        self._pending: dict[str, _PendingRequest] = {}
        self._ready: deque[str] = deque()
        self._later: list[tuple[float, str]] = []  # a heap of (due time, request_id)
        self._cuts = 0  # consecutive, since the last answer
        self._endings = Endings()  # errors of streams since the last answer
        self._streams = 0  # number opened so far
        self._streams_cut = 0  # the newest stream at the time of the last cut
        self._not_before = 0.0  # earliest time to open the next stream, by the clock
        self.closed = False
        """True if no more requests will come."""
        self.given_up: set[int] = set()
        """Numbers of the streams that carry an unanswered request whose timeout has passed."""
        self.refused: CallError | None = None
        """Error for which no further stream can be opened: no more requests are read, and only answers in the open
        streams are awaited. None if streams can be opened."""
        self.outcomes: deque[Outcome] = deque()
        """Outcomes to deliver."""

    @property
    def done(self) -> bool:
        """True if every request has its outcome and no more will come."""
        return (self.closed or self.refused is not None) and not self._pending

    @property
    def all_sent(self) -> bool:
        """True if nothing is left to be sent, so that our side of a stream may be closed."""
        # This happens at once, because a server reserves memory for further messages. Requests that fail for a
        # transient reason later are sent again in another stream.
        return self.closed and all(pending.sent for pending in self._pending.values())

    def room(self) -> bool:
        """True if another request may be read."""
        return len(self._pending) + len(self.outcomes) < min(self._at_once, self._bound)

    def limit_until_known(self) -> None:
        """Keeps few requests in flight until :meth:`set_limit_from`."""
        # A server that works on few at once would queue the others while their timeouts run.
        self._bound = _FIRST_BOUND

    def set_limit_from(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Sets the number of requests that a server works on at once, by its metadata at the beginning of a stream."""
        # More in flight would queue there while their timeouts run. A server that sends no limit leaves it to the
        # caller.
        limit = next((value for key, value in metadata or () if key == AT_ONCE), "")
        self._bound = int(limit) if isinstance(limit, str) and limit.isdecimal() and int(limit) > 0 else self._at_once

    def take(self, request: wire.JudgeRequest) -> None:
        """Adds a request.

        Raises:
            ValueError: The request has no request_id, or that of another one in flight.
        """
        name = request.request_id
        if not name:
            raise ValueError("a request has no request_id; in a stream each needs one, by which its outcome is known")
        if name in self._pending:
            raise ValueError(f"two requests at once have the request_id {name!r}; give each one of its own")
        pending = _PendingRequest(wire.JudgeStreamRequest(request=request), self._clock() + self._timeout)
        error = None if self.refused is None else JudgeError.like(self.refused)  # requested in the meantime
        if pending.message.ByteSize() + _ROOM_FOR_TIMEOUT > MESSAGE_BYTES:
            # Sending it would end the stream, and all other requests in it.
            error = JudgeError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"The request is larger than {MESSAGE_BYTES:,} bytes; not sent."
            )
        elif len(name) > _LONGEST_NAME:
            # A server would report it too, but by a shortened id, which matches no request here.
            error = JudgeError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"The request_id has {len(name)} characters; at most {_LONGEST_NAME} are allowed. Not sent.",
            )
            error.field = "request_id"
        if error is not None:
            self.outcomes.append((name, error))
            return
        # Only now: a request that already has its outcome must neither be sent nor count in the budget.
        self._pending[name] = pending
        self._ready.append(name)
        self._budget.call()

    def to_send(self) -> bool:
        """True if something is to be sent now; expires requests first, as :meth:`expire`."""
        self.expire()
        # Skip requests that have had their outcome in the meantime.
        while self._ready and (self._ready[0] not in self._pending or self._pending[self._ready[0]].sent):
            self._ready.popleft()
        return bool(self._ready)

    def to_open(self) -> bool:
        """True if something is to be sent now, and a stream may be opened for it."""
        return self.to_send() and self._clock() >= self._not_before

    def opened(self) -> int:
        """Returns the number for a stream that is opened now."""
        self._streams += 1
        return self._streams

    def send(self, stream: int) -> wire.JudgeStreamRequest:
        """Returns the request to send in a stream now; only valid after :meth:`to_send`."""
        pending = self._pending[self._ready.popleft()]
        # The stream now carries it: `cut` uses this number to find what to send again.
        pending.sent = stream
        pending.attempts += 1
        # The time left at this moment: a request may wait here or be sent several times. At least 1 ms: the server
        # refuses 0.
        pending.message.timeout.FromMilliseconds(max(1, round(1000 * (pending.deadline - self._clock()))))
        return pending.message

    def wait_s(self) -> float | None:
        """Returns the seconds until a retry, a stream to open or a deadline is due; None if nothing is."""
        # Including deadlines, so that a caller gets its outcome in time even if nothing else happens.
        times = [pending.deadline for pending in self._pending.values()]
        if self._later:
            times.append(self._later[0][0])
        if self._pending and self._not_before > self._clock():
            times.append(self._not_before)
        return max(0.0, min(times) - self._clock()) if times else None

    def hear(self, response: wire.JudgeStreamResponse) -> None:
        """Processes a response of a stream."""
        # Any answer shows that streams work: reset the backoff.
        self._cuts = 0
        self._endings.clear()
        name = response.request_id
        pending = self._pending.get(name)
        if pending is None or not pending.sent:
            return  # it timed out and has had its outcome
        if response.HasField("verdict"):
            self._finish(name, Result(response.verdict))
            return
        if not response.HasField("failure"):
            self._finish(name, JudgeError(grpc.StatusCode.UNKNOWN, "An outcome that this version does not know."))
            return
        pending.sent = 0
        pending.failure = error = JudgeError.of_failure(response.failure)
        now = self._clock()
        # A retry needs a stream, and none can be opened after a refusal.
        if self.refused is None and pending.attempts < self._retries.attempts and passing(error):
            wait = self._retries.wait_s(pending.attempts, error.retry_after, pending.deadline - now, self._chance)
            if wait is not None and self._budget.repeat():
                heapq.heappush(self._later, (now + wait, name))
                return
        self._finish(name, error)

    def cut(self, stream: int, error: CallError | None) -> None:
        """Processes the end of a stream by an error, or None: unanswered requests are sent again, if that can help."""
        self.given_up.discard(stream)
        unanswered = [name for name, pending in self._pending.items() if pending.sent == stream]
        if error is None:
            if not unanswered:
                return
            error = CallError(grpc.StatusCode.UNAVAILABLE, "The stream ended before all requests were answered.")
        for name in unanswered:
            self._pending[name].sent = 0
        if not is_cut(error):
            if not self.all_sent:  # otherwise no other stream is needed
                self.refuse(error)
            return
        self._endings.add(error)
        # No further stream can be opened to send these in.
        if self.refused is not None:
            self.refuse(self.refused)
            return
        self._ready.extendleft(reversed(unanswered))  # in their original order, ahead of all others
        if error.reason == IDLE:
            return  # the server is fine: no backoff
        # One event that breaks several streams counts once.
        counts = stream > self._streams_cut and (unanswered or stream == self._streams)
        if counts:
            self._cuts += 1
            self._streams_cut = self._streams
        if counts or error.retry_after is not None:
            wait = self._retries.wait_s(max(1, self._cuts), error.retry_after, None, self._chance)
            if wait is not None:
                self._not_before = max(self._not_before, self._clock() + wait)

    def refuse(self, error: CallError) -> None:
        """Fails all requests that are in no stream, since none can be opened; others may still be answered."""
        self.refused = self.refused or error
        # Over a copy: `_finish` removes requests.
        for name, pending in tuple(self._pending.items()):
            if not pending.sent:
                self._finish(name, JudgeError.like(error))

    def expire(self) -> None:
        """Fails requests whose timeout has passed, and makes those that are due for a retry ready to send."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[1])
        for name, pending in tuple(self._pending.items()):
            if pending.deadline > now:
                continue
            # It was waiting for a retry: its last error explains more than a timeout would.
            if pending.failure is not None and not pending.sent:
                self._finish(name, pending.failure)
                continue
            if pending.sent:
                self.given_up.add(pending.sent)
            message = f"There was no verdict within {self._timeout:g} s."
            if pending.failure is not None:
                message += f" It was answered before with {pending.failure}"
            message += self._endings.describe("Streams")
            self._finish(name, JudgeError(grpc.StatusCode.DEADLINE_EXCEEDED, message))

    def _finish(self, name: str, outcome: Result | JudgeError) -> None:
        del self._pending[name]
        self.outcomes.append((name, outcome))
