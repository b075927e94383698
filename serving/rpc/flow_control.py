"""Flow control: a request is read only once there is memory for it, and idle callers can't starve others.

The size of a message is known only once it has arrived. So room for the largest possible message is reserved before it
is read, and the unused part is freed as soon as it has arrived. Until a message is read, HTTP/2 flow control holds all
but its first 64 KiB back at the caller (:data:`WINDOWS`).

A caller that opens a call and sends nothing, or sends slowly, holds this reservation meanwhile. These rules keep it
from starving others:

* The call ends when no complete message has arrived within the server's idle timeout.
* It ends sooner if somebody else waits for memory: after 5 s; after 2 s for a stream that has sent a request before;
  after 1 s on an unknown connection, that is, one without a complete request since it last timed out. Calls that
  arrived together are ended one at a time: each end lets others in, and a whole batch let in at once would again keep
  everybody else waiting.
* Such streams get at most half of the memory, and unknown connections a quarter: the rest is for requests on
  connections that are known to send what they announce. Once a connection is known, all of its calls leave the quarter.
* Unknown connections take turns, however many calls each has open, and the newest goes first: an honest caller then
  waits for one turn of each other connection, not for all calls that they have opened.
* No connection may reserve room for more messages in transit than it leaves free for others: one gets half of the free
  room, a second one a third, and so on (dynamic thresholds: Choudhury and Hahne 1998, with alpha = 1). So a few known
  connections that fall silent can't fill the memory, however many calls they open.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from court.errors import BadRequest, CourtError
from court.meme import LIMITS
from serving.errors import Busy, closing

MESSAGE_BYTES = LIMITS.max_bytes + 64 * 1024
"""Size of the largest message: a picture at its limit, plus the other fields. gRPC's default of 4 MiB is too small."""

WINDOWS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024))
"""Server options that limit how much of an unread message is buffered, however fast the connection is. While a message
is being read, its window grows to the message's size."""

_OVERHEAD = 16 * 1024
"""Bytes that a call counts in addition to its message, so that the number of small ones is bounded too."""
_KNOWN_TIMEOUT_S = 5.0
"""Seconds that a request on a known connection has to arrive once others wait for memory."""
_IN_CALL_TIMEOUT_S = 2.0
"""The same for the next request of a stream."""
_UNKNOWN_TIMEOUT_S = 1.0
"""The same for a request on an unknown connection."""
_MAX_KNOWN = 10_000
"""Maximum number of known connections that are remembered."""


_KNOWN, _IN_CALL, _UNKNOWN = range(3)
"""Lanes: requests on known connections; further requests of their streams; requests on unknown connections."""


def _lane(*, known: bool, in_call: bool) -> int:
    return _UNKNOWN if not known else _IN_CALL if in_call else _KNOWN


def _never_busy(_: float) -> float:
    return 0.0


class RequestSource(Protocol):
    """The part of a call that requests are read from.

    A transport that knows a request's length in advance gives it in ``announced_bytes``, to reserve just that.
    """

    def peer(self) -> str:
        """Returns the connection of the call."""

    async def read(self) -> Any:
        """Reads the next request, whose length is its size in bytes; ``grpc.aio.EOF`` at the end."""


class Reservation:
    """Memory reserved for a request, from before it is read until it is answered."""

    __slots__ = ("_memory", "_reader", "_size", "_why", "busy_until", "in_call", "lane", "of", "peer", "since")

    def __init__(self, memory: ReceiveBudget, size: int, peer: str, lane: int, in_call: bool, of: str) -> None:
        self._memory = memory
        self._size = size
        self._why: CourtError | None = None
        self._reader: asyncio.Task[object] | None = None
        self.peer = peer
        self.lane = lane
        self.in_call = in_call
        self.of = of
        self.busy_until: Callable[[float], float] = _never_busy
        self.since = asyncio.get_running_loop().time()

    def release(self) -> None:
        """Releases the memory; idempotent."""
        size, self._size = self._size, 0
        self._memory.change(-size)

    def released(self, _: object) -> None:
        """Releases the reservation when a task is done."""
        self.release()

    async def read(self, source: RequestSource) -> Any:
        """Reads the next message of a call into this reservation; None if the caller has finished sending."""
        # A waiter gets its room in one turn of the event loop and reads in a later one; it may be ended in between.
        if self._why is not None:
            raise self._why
        # Like asyncio.timeout(), but cheaper: every call passes here, and hardly any is ended.
        self._reader = reader = asyncio.current_task()
        assert reader is not None
        cancelled = reader.cancelling()
        try:
            data: Any = await source.read()
        except asyncio.CancelledError:
            # Only if no other cancellation is pending: one by a disconnecting caller or a stopping server must
            # propagate.
            if self._why is not None and reader.uncancel() <= cancelled:
                raise self._why from None
            raise
        finally:
            self._reader = None
        if data is grpc.aio.EOF:
            return None
        self.holds(len(data))
        return data

    def holds(self, size: int) -> None:
        """Shrinks the reservation to the size of the message, or of the remaining response."""
        before, self._size = self._size, size + _OVERHEAD
        self._memory.change(self._size - before)

    def end(self, why: CourtError) -> None:
        """Makes :meth:`read` raise an error."""
        if self._why is None:
            self._why = why
            if self._reader is not None:
                self._reader.cancel()

    @property
    def ending(self) -> bool:
        """True if the call was told to end."""
        return self._why is not None


@dataclass(slots=True, eq=False)
class _Waiter:
    peer: str
    lane: int
    in_call: bool
    of: str
    reservation: asyncio.Future[Reservation]


class _FairQueue:
    """Queue of a lane: connections take turns, and one that has had its turn goes last."""

    def __init__(self, *, newest_first: bool) -> None:
        """Starts empty.

        Args:
            newest_first: True if new connections, and new calls of one connection, go before those already waiting.
        """
        self._newest_first = newest_first
        self._lines: OrderedDict[str, OrderedDict[_Waiter, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, peer: str) -> bool:
        return peer in self._lines

    def add(self, waiter: _Waiter) -> None:
        """Adds a waiter."""
        if waiter.peer not in self._lines:
            self._lines[waiter.peer] = OrderedDict()
            self._lines.move_to_end(waiter.peer, last=not self._newest_first)
        self._lines[waiter.peer][waiter] = None

    def next(self, may: Callable[[str], bool]) -> str | None:
        """Returns the next connection in turn among those that may have one."""
        return next(filter(may, self._lines), None)

    def pop(self, peer: str) -> _Waiter:
        """Removes and returns the waiter that is next in turn for a connection."""
        line = self._lines[peer]
        waiter, _ = line.popitem(last=self._newest_first)
        if line:
            self._lines.move_to_end(peer)
        else:
            del self._lines[peer]
        return waiter

    def remove(self, waiter: _Waiter) -> bool:
        """Removes a waiter; True if it was still waiting."""
        line = self._lines.get(waiter.peer, OrderedDict())
        if waiter not in line:
            return False
        del line[waiter]
        if not line:
            del self._lines[waiter.peer]
        return True

    def remove_all(self, peer: str) -> list[_Waiter]:
        """Removes and returns the waiters of a connection."""
        return [*self._lines.pop(peer, ())]

    def remove_of(self, of: str | None) -> list[_Waiter]:
        """Removes and returns the waiters of a service, or all."""
        leaving = [waiter for line in self._lines.values() for waiter in line if of is None or waiter.of == of]
        for waiter in leaving:
            self.remove(waiter)
        return leaving


class ReceiveBudget:
    """Memory budget for requests. Used from one event loop."""

    def __init__(self, budget: int, idle_s: float) -> None:
        """Starts with all memory free."""
        self._budget = budget
        self._idle_s = idle_s
        self._largest = MESSAGE_BYTES + _OVERHEAD
        at_once = max(1, budget // self._largest)
        self._least = (
            at_once,
            at_once // 4,
            min(1, at_once // 2),
        )  # guaranteed to each lane, whoever waits in the others
        # Half for further requests of streams and a quarter for unknown connections (see above), but at least one
        # message: otherwise the first caller of a small server could never connect.
        self._most = (at_once, max(1, at_once // 2), max(1, at_once // 4))
        self._reserved = 0
        self._most_reserved = 0
        self._pictures = 0
        # Decoded pictures always leave room for one message of the largest size.
        self._most_pictures = max(0, min(budget // 2, budget - self._largest))
        self._known: OrderedDict[str, None] = OrderedDict()
        self._reading: dict[Reservation, None] = {}  # in order of start
        self._read_in = [0, 0, 0]
        self._read_over: Counter[str] = Counter()
        self._waiting = (_FairQueue(newest_first=False), _FairQueue(newest_first=True), _FairQueue(newest_first=True))
        self._pressing: asyncio.TimerHandle | None = None
        # Pace at which overdue calls are ended one by one, so that memory full of silent calls is cleared in one
        # second.
        self._pace_s = _UNKNOWN_TIMEOUT_S / at_once
        self._next_end = 0.0
        self._idling: asyncio.TimerHandle | None = None
        self._closed = False
        self._closed_to: set[str] = set()

    @property
    def idle_s(self) -> float:
        """Seconds within which a caller must send its request, and take its responses."""
        return self._idle_s

    @property
    def bytes_in_use(self) -> int:
        """Bytes currently reserved by requests, including for messages being read, but not decoded pictures."""
        return self._reserved

    @property
    def pictures(self) -> int:
        """Bytes currently used by decoded pictures."""
        return self._pictures

    @property
    def peak_bytes(self) -> int:
        """Peak of the bytes in use."""
        return self._most_reserved

    async def receive(
        self,
        source: RequestSource,
        *,
        of: str = "",
        in_call: bool = False,
        busy_until: Callable[[float], float] = _never_busy,
    ) -> tuple[Any, Reservation] | None:
        """Waits for memory and reads a request.

        Args:
            in_call: True if the call has sent a request before: it then waits for memory without a timeout.
            busy_until: Given the loop's time, returns until when the call was waiting for the server: it was not idle
                then.

        Returns:
            The message and its reservation, to be released once the request is answered; None if the caller has
            finished sending.

        Raises:
            BadRequest: No request arrived within the idle timeout; IDLE.
            Busy: There was no memory, or others needed it before the request had arrived.
            Unavailable: The court is closing.
        """
        reservation = await self._room(source.peer(), in_call, of)
        reservation.busy_until = busy_until
        # HTTP announces the length of a request, gRPC does not.
        announced: int | None = getattr(source, "announced_bytes", None)
        if announced is not None:
            reservation.holds(announced)
        if self._idling is None:
            self._idling = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)
        data = None
        try:
            data = await reservation.read(source)
        finally:
            self._has_read(reservation)
            # Nothing arrived, or reading failed: nobody else would release this memory.
            if data is None:
                reservation.release()
        if data is None:
            return None
        # Marked as recently used: connections in use are the last to be forgotten.
        if reservation.peer in self._known:
            self._known.move_to_end(reservation.peer)
        else:
            self._know(reservation.peer)
        return data, reservation

    def close(self, of: str | None = None) -> None:
        """Refuses waiting, unfinished and all future requests, of one service or of all."""
        if of is None:
            self._closed = True
        else:
            self._closed_to.add(of)
        for lane in self._waiting:
            for waiter in lane.remove_of(of):
                if not waiter.reservation.done():
                    waiter.reservation.set_exception(closing())
        for reservation in self._reading:
            if of is None or reservation.of == of:
                reservation.end(closing())

    def change(self, by: int) -> None:
        """Adjusts the number of bytes in use."""
        self._reserved += by
        self._most_reserved = max(self._most_reserved, self._reserved)
        if by < 0:
            self._serve()

    def change_pictures(self, by: int) -> None:
        """Adjusts the number of bytes used by decoded pictures.

        Pictures take up to half of the budget from requests: work already in memory must be finished first, but
        requests that need no trial must not wait for it.
        """
        self._pictures += by
        if by < 0:
            self._serve()

    def _know(self, peer: str) -> None:
        """Marks a connection as known: all of its calls leave the lane of unknown connections."""
        self._known[peer] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        for reservation in self._reading:
            if reservation.peer == peer and reservation.lane == _UNKNOWN:
                # Move its count to the new lane, or _has_read would decrement the wrong one.
                self._read_in[_UNKNOWN] -= 1
                reservation.lane = _lane(known=True, in_call=reservation.in_call)
                self._read_in[reservation.lane] += 1
        for waiter in self._waiting[_UNKNOWN].remove_all(peer):
            waiter.lane = _lane(known=True, in_call=waiter.in_call)
            self._waiting[waiter.lane].add(waiter)
        self._serve()

    async def _room(self, peer: str, in_call: bool, of: str) -> Reservation:
        if self._closed or of in self._closed_to:
            raise closing()
        lane = _lane(known=peer in self._known, in_call=in_call)
        if self._read_in[lane] < self._most[lane] and self._may(peer):
            return self._lot(peer, lane, in_call, of)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(peer=peer, lane=lane, in_call=in_call, of=of, reservation=loop.create_future())
        self._waiting[lane].add(waiter)
        self._serve()
        # A stream waits without a timeout: flow control stops its caller meanwhile.
        timer = None if in_call else loop.call_later(self._idle_s, _refuse, waiter)
        try:
            return await waiter.reservation
        except BaseException:
            left = not self._waiting[waiter.lane].remove(waiter)
            if (
                left and not waiter.reservation.cancelled() and waiter.reservation.exception() is None
            ):  # room was assigned just as the caller left
                self._has_read(waiter.reservation.result())
                waiter.reservation.result().release()
            raise
        finally:
            if timer:
                timer.cancel()

    @property
    def _rooms(self) -> int:
        """Number of further messages that there is room for."""
        return (self._budget - self._reserved - min(self._pictures, self._most_pictures)) // self._largest

    def _may(self, peer: str) -> bool:
        """True if a connection may reserve room for one more message."""
        # The dynamic threshold: a connection reads no more messages at once than it leaves room for others.
        return self._read_over[peer] < self._rooms

    def _lot(self, peer: str, lane: int, in_call: bool, of: str) -> Reservation:
        reservation = Reservation(self, self._largest, peer=peer, lane=lane, in_call=in_call, of=of)
        self._reading[reservation] = None
        self._read_in[lane] += 1
        self._read_over[peer] += 1
        self.change(self._largest)
        return reservation

    def _has_read(self, reservation: Reservation) -> None:
        del self._reading[reservation]
        self._read_in[reservation.lane] -= 1
        self._read_over[reservation.peer] -= 1
        if not self._read_over[reservation.peer]:
            del self._read_over[reservation.peer]
        self._serve()

    def _serve(self) -> None:
        """Assigns free room to waiters; if there is none, ends overdue calls."""
        if not self._pressing and not any(self._waiting):
            return  # the common case, on the path of every request
        while self._rooms > 0 and (turn := self._next_turn()) is not None:
            waiter = self._waiting[turn[0]].pop(turn[1])
            # If it is done, its caller has just left, and nothing is reserved for it.
            if not waiter.reservation.done():
                waiter.reservation.set_result(self._lot(waiter.peer, waiter.lane, waiter.in_call, waiter.of))
        self._press()

    def _next_turn(self) -> tuple[int, str] | None:
        """Returns lane and connection of the next waiter: lanes below their guaranteed share first."""
        lanes = [lane for lane in (_KNOWN, _IN_CALL, _UNKNOWN) if self._read_in[lane] < self._most[lane]]
        # Lanes below their share come first: otherwise many known callers would lock out all others.
        short = [lane for lane in lanes if lane != _KNOWN and self._read_in[lane] < self._least[lane]]
        for lane in short + lanes:
            if (peer := self._waiting[lane].next(self._may)) is not None:
                return lane, peer
        return None

    def _press(self) -> None:
        """Ends overdue reads while others wait, one at a time, and schedules the next check."""
        if self._pressing:
            self._pressing.cancel()
            self._pressing = None
        # A call that is already ending frees its memory in a moment, which may be enough.
        if not any(self._waiting) or any(reservation.ending for reservation in self._reading):
            return
        times = [
            (self._due(reservation), reservation) for reservation in self._reading if self._in_the_way(reservation)
        ]
        now = asyncio.get_running_loop().time()
        late = [reservation for due, reservation in times if due <= now]
        if late and now >= self._next_end:
            self._next_end = now + self._pace_s
            # In the highest lane, the longest-running read of the connection with the most reads.
            reservation = max(late, key=lambda reservation: (reservation.lane, self._read_over[reservation.peer]))
            # It was silent while others waited: its next calls count as those of an unknown connection.
            self._known.pop(reservation.peer, None)
            reservation.end(Busy("The server needs the memory for requests that have come. Come again."))
        elif times:
            first = max(min(due for due, _ in times), self._next_end)
            self._pressing = asyncio.get_running_loop().call_at(first, self._press)

    def _in_the_way(self, reservation: Reservation) -> bool:
        """True if ending this reservation could give room to a waiting caller."""
        if self._rooms < 1:
            return True
        # If there is free room, each waiter is limited by its lane or its connection.
        waiting = self._waiting[reservation.lane]
        return bool(waiting) and (
            self._read_in[reservation.lane] >= self._most[reservation.lane] or reservation.peer in waiting
        )

    def _due(self, reservation: Reservation) -> float:
        if reservation.peer not in self._known:
            return reservation.since + _UNKNOWN_TIMEOUT_S
        return reservation.since + (_IN_CALL_TIMEOUT_S if reservation.lane == _IN_CALL else _KNOWN_TIMEOUT_S)

    def _end_idle(self) -> None:
        """Ends idle calls and schedules the next check. One timer suffices for all, since they are few."""
        now = asyncio.get_running_loop().time()
        # A stream whose requests are being processed is not idle: its time runs from the last answer.
        due = {
            reservation: max(reservation.since, reservation.busy_until(now)) + self._idle_s
            for reservation in self._reading
        }
        for reservation, when in due.items():
            if when <= now:
                reservation.end(
                    BadRequest(
                        f"No request came for {self._idle_s:g} seconds. Open the call when there is one to send.",
                        reason="IDLE",
                    )
                )
        later = [when for when in due.values() if when > now]
        self._idling = asyncio.get_running_loop().call_at(min(later), self._end_idle) if later else None


def _refuse(waiter: _Waiter) -> None:
    if not waiter.reservation.done():
        waiter.reservation.set_exception(Busy("There was no memory for one more request. Come again."))
