"""Flow control: requests are read only once there is memory for them, and idle callers keep it from nobody.

The size of a message is known only once it is there. So there must be room for the largest before it is read; what it
does not need is free again as soon as it has come. Until a message is read, flow control holds all but its first
64 KiB back at the caller (:data:`WINDOWS`).

A caller that opens a call and sends nothing, or sends slowly, has that room meanwhile. What keeps it from others:

* It ends when nothing whole has come for as long as the server waits.
* It ends sooner where somebody else waits for the room: after 5 s; after 2 s where it is a stream that has had a
  request before; after one second where no whole request has come over its connection since one was last
  waited for in vain. What came together does not go together: each end lets others in, and all of these at once would
  keep everybody else waiting.
* Such streams have half of the memory at most, such connections a quarter: the rest is for requests over connections
  that are known to send what they announce. As soon as a connection is, all of its calls leave the quarter.
* Among them connections take turns, however many calls each has open, and who came last has the first turn: a caller
  that means well waits for as many as tried before it, and not for all that they have opened.
* No connection has room for more messages that have not come yet than it leaves to the others: one has half of what
  is free, a second one a third, and so on (dynamic thresholds: Choudhury and Hahne 1998, with alpha = 1). So known ones
  that say nothing any more, however many calls they open, don't fill it before there are as many of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from court.errors import BadRequest, CourtError
from court.meme import LIMITS
from serving.errors import Busy, not_in_session

if TYPE_CHECKING:
    from serving.service_call import ServiceCall

MESSAGE_BYTES = LIMITS.max_bytes + 64 * 1024
"""Largest message: a picture at its limit, and room for everything else. gRPC's default of 4 MiB is too small."""

WINDOWS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024))
"""Options of a server: it takes no more of a message that nobody reads yet, however fast the connection is. While a
message is read, its window is as large as the message needs."""

_OVERHEAD = 16 * 1024
"""Bytes that a call counts besides its message, so that small ones are bounded too."""
_PATIENCE_S = 5.0
"""What a request over a known connection has to come, once others wait for memory."""
_PATIENCE_IN_CALL_S = 2.0
"""What the next one of a stream has there."""
_LITTLE_PATIENCE_S = 1.0
"""What a request over another connection has."""
_MOST_KNOWN = 10_000
"""Connections that are remembered."""


_KNOWN, _IN_CALL, _UNKNOWN = range(3)
"""Lanes to the memory: requests over connections that are known to send what they announce; further requests of their
streams; requests over other connections."""


def _lane(*, known: bool, in_call: bool) -> int:
    return _UNKNOWN if not known else _IN_CALL if in_call else _KNOWN


def _never_busy(_: float) -> float:
    return 0.0


class Reservation:
    """Memory that a request has, from before it is read until it is answered."""

    __slots__ = ("_memory", "_reader", "_size", "_why", "busy_until", "in_call", "lane", "of", "peer", "since")

    def __init__(self, memory: ReceiveBudget, size: int, peer: str, lane: int, in_call: bool, of: str) -> None:
        """Reserves memory for a request from ``peer``; see :meth:`ReceiveBudget.receive`."""
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
        """Gives it back; again is no harm."""
        size, self._size = self._size, 0
        self._memory.change(-size)

    def released(self, _: object) -> None:
        """Releases the reservation when a task is done."""
        self.release()

    async def read(self, context: ServiceCall) -> bytes | None:
        """The next message of a call, which this is then the memory of; None where there is none to come."""
        # Who waited for room gets it in one turn of the loop and reads in a later one, and may be sent away in between.
        if self._why is not None:
            raise self._why
        # What asyncio.timeout() does, without its cost: every call comes by here, and hardly any is told to end.
        self._reader = reader = asyncio.current_task()
        assert reader is not None
        cancelled = reader.cancelling()
        try:
            data: object = await context.read()
        except asyncio.CancelledError:
            # Only if no other cancellation is pending: that of a caller who leaves, or of a server that stops, must go
            # on.
            if self._why is not None and reader.uncancel() <= cancelled:
                raise self._why from None
            raise
        finally:
            self._reader = None
        if data is grpc.aio.EOF:
            return None
        assert isinstance(data, bytes)
        self.holds(len(data))
        return data

    def holds(self, size: int) -> None:
        """From now on it is the memory of so many bytes: of the message, or of what is left to be answered with."""
        before, self._size = self._size, size + _OVERHEAD
        self._memory.change(self._size - before)

    def end(self, why: CourtError) -> None:
        """Has :meth:`read` end with an error."""
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
    lot: asyncio.Future[Reservation]


class _FairQueue:
    """Queue of a lane: connections take turns, and one that has had its turn is last."""

    def __init__(self, *, newest_first: bool) -> None:
        """Starts empty.

        Args:
            newest_first: True if a new connection, and a call of it, goes before those that wait.
        """
        self._newest_first = newest_first
        self._lines: OrderedDict[str, OrderedDict[_Waiter, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, peer: str) -> bool:
        return peer in self._lines

    def add(self, waiter: _Waiter) -> None:
        """One more."""
        if waiter.peer not in self._lines:
            self._lines[waiter.peer] = OrderedDict()
            self._lines.move_to_end(waiter.peer, last=not self._newest_first)
        self._lines[waiter.peer][waiter] = None

    def next(self, may: Callable[[str], bool]) -> str | None:
        """The connection whose turn it is among those that may have one."""
        return next(filter(may, self._lines), None)

    def pop(self, peer: str) -> _Waiter:
        """Gives a connection its turn."""
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
    """The memory for requests. Used from one event loop."""

    def __init__(self, budget: int, idle_s: float, largest: int = MESSAGE_BYTES) -> None:
        """All of it is free.

        Args:
            budget: Bytes; at least those of one message.
            idle_s: Seconds in which a caller must send what it has announced.
            largest: Bytes of a message, at most.
        """
        self._budget = budget
        self._idle_s = idle_s
        self._largest = largest + _OVERHEAD
        at_once = max(1, budget // self._largest)
        self._least = (at_once, at_once // 4, min(1, at_once // 2))  # that a lane has, whoever waits in the others
        # Half for further requests of streams and a quarter for unknown connections (see above); never none, or the
        # first caller of a small server could not come in.
        self._most = (at_once, max(1, at_once // 2), max(1, at_once // 4))
        self._reserved = 0
        self._most_reserved = 0
        self._pictures = 0
        # However many pictures are decoded, they leave room for one message of the largest size.
        self._most_pictures = max(0, min(budget // 2, budget - self._largest))
        self._known: OrderedDict[str, None] = OrderedDict()
        self._reading: dict[Reservation, None] = {}  # what is read longest first
        self._read_in = [0, 0, 0]
        self._read_over: Counter[str] = Counter()
        self._waiting = (_FairQueue(newest_first=False), _FairQueue(newest_first=True), _FairQueue(newest_first=True))
        self._pressing: asyncio.TimerHandle | None = None
        # Memory that is full of silent calls is cleared in a second once they are due, one call after the other.
        self._pace_s = _LITTLE_PATIENCE_S / at_once
        self._next_end = 0.0
        self._idling: asyncio.TimerHandle | None = None
        self._closed = False
        self._closed_to: set[str] = set()

    @property
    def idle_s(self) -> float:
        """Seconds in which a caller must send what it has announced, and take what it is sent."""
        return self._idle_s

    @property
    def bytes_in_use(self) -> int:
        """Bytes that requests have now, those included that are kept free for what is being read; not pictures."""
        return self._reserved

    @property
    def pictures(self) -> int:
        """Bytes that decoded pictures have now."""
        return self._pictures

    @property
    def peak_bytes(self) -> int:
        """The most that they ever had at once."""
        return self._most_reserved

    async def receive(
        self,
        context: ServiceCall,
        *,
        of: str = "",
        in_call: bool = False,
        busy_until: Callable[[float], float] = _never_busy,
    ) -> tuple[bytes, Reservation] | None:
        """Waits for room and reads a request.

        Args:
            context: The call.
            of: Name of the service that the request is for.
            in_call: True if the call has sent a request before: then it waits for room as long as it takes.
            busy_until: Given the loop's time, says until when the call had others to wait for: that long it is not
                idle.

        Returns:
            The message, and its memory, which the caller releases once the request is answered; None where the caller
            has ended its requests.

        Raises:
            BadRequest: Nothing has come for as long as the server waits; IDLE.
            Busy: There was no room, or others needed it and nothing had come.
            Unavailable: The court closes.
        """
        lot = await self._room(context.peer(), in_call, of)
        lot.busy_until = busy_until
        # HTTP says beforehand how long a request is, and gRPC does not.
        announced: int | None = getattr(context, "announced_bytes", None)
        if announced is not None:
            lot.holds(announced)
        if self._idling is None:
            self._idling = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)
        data = None
        try:
            data = await lot.read(context)
        finally:
            self._has_read(lot)
            # Nothing has come, or reading has failed: nobody else would give this memory back.
            if data is None:
                lot.release()
        if data is None:
            return None
        # Renewed: of the connections that are remembered, those in use are the last to be forgotten.
        if lot.peer in self._known:
            self._known.move_to_end(lot.peer)
        else:
            self._know(lot.peer)
        return data, lot

    def close(self, of: str | None = None) -> None:
        """Sends away who waits or has sent nothing yet, and everybody from now on: those of a service, or all."""
        if of is None:
            self._closed = True
        else:
            self._closed_to.add(of)
        for lane in self._waiting:
            for waiter in lane.remove_of(of):
                if not waiter.lot.done():
                    waiter.lot.set_exception(not_in_session())
        for lot in self._reading:
            if of is None or lot.of == of:
                lot.end(not_in_session())

    def change(self, by: int) -> None:
        """Adjusts the number of bytes in use."""
        self._reserved += by
        self._most_reserved = max(self._most_reserved, self._reserved)
        if by < 0:
            self._serve()

    def change_pictures(self, by: int) -> None:
        """Decoded pictures have so many bytes more, or fewer, now.

        They take room from requests, up to half of it: what is in memory already has to be tried, and what needs no
        trial is not to wait for that.
        """
        self._pictures += by
        if by < 0:
            self._serve()

    def _know(self, peer: str) -> None:
        """A connection has sent what it announced: all of its calls leave the part that is for new ones."""
        self._known[peer] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        for lot in self._reading:
            if lot.peer == peer and lot.lane == _UNKNOWN:
                # Counted over to its new lane, or _has_read would give the place back to the wrong one.
                self._read_in[_UNKNOWN] -= 1
                lot.lane = _lane(known=True, in_call=lot.in_call)
                self._read_in[lot.lane] += 1
        for waiter in self._waiting[_UNKNOWN].remove_all(peer):
            waiter.lane = _lane(known=True, in_call=waiter.in_call)
            self._waiting[waiter.lane].add(waiter)
        self._serve()

    async def _room(self, peer: str, in_call: bool, of: str) -> Reservation:
        if self._closed or of in self._closed_to:
            raise not_in_session()
        lane = _lane(known=peer in self._known, in_call=in_call)
        if self._read_in[lane] < self._most[lane] and self._may(peer):
            return self._lot(peer, lane, in_call, of)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(peer=peer, lane=lane, in_call=in_call, of=of, lot=loop.create_future())
        self._waiting[lane].add(waiter)
        self._serve()
        # A stream waits as long as it takes: flow control stops its caller meanwhile.
        timer = None if in_call else loop.call_later(self._idle_s, _refuse, waiter)
        try:
            return await waiter.lot
        except BaseException:
            left = not self._waiting[waiter.lane].remove(waiter)
            if left and not waiter.lot.cancelled() and waiter.lot.exception() is None:  # room came as the caller left
                self._has_read(waiter.lot.result())
                waiter.lot.result().release()
            raise
        finally:
            if timer:
                timer.cancel()

    @property
    def _rooms(self) -> int:
        """Returns the number of further messages that there is room for."""
        return (self._budget - self._reserved - min(self._pictures, self._most_pictures)) // self._largest

    def _may(self, peer: str) -> bool:
        """True if there is room for one more message over a connection."""
        # The dynamic threshold: a connection reads no more messages at once than it leaves room for.
        return self._read_over[peer] < self._rooms

    def _lot(self, peer: str, lane: int, in_call: bool, of: str) -> Reservation:
        lot = Reservation(self, self._largest, peer=peer, lane=lane, in_call=in_call, of=of)
        self._reading[lot] = None
        self._read_in[lane] += 1
        self._read_over[peer] += 1
        self.change(self._largest)
        return lot

    def _has_read(self, lot: Reservation) -> None:
        del self._reading[lot]
        self._read_in[lot.lane] -= 1
        self._read_over[lot.peer] -= 1
        if not self._read_over[lot.peer]:
            del self._read_over[lot.peer]
        self._serve()

    def _serve(self) -> None:
        """Gives room to who waits, as far as there is any; else sees to it that there is."""
        if not self._pressing and not any(self._waiting):
            return  # nearly always, and asked for with every request
        while self._rooms > 0 and (turn := self._next_turn()) is not None:
            waiter = self._waiting[turn[0]].pop(turn[1])
            # If it is done, its caller has left in this same moment, and nothing is reserved for it.
            if not waiter.lot.done():
                waiter.lot.set_result(self._lot(waiter.peer, waiter.lane, waiter.in_call, waiter.of))
        self._press()

    def _next_turn(self) -> tuple[int, str] | None:
        """Lane and connection of the next to have room: of a lane that has less than its part, else of the first."""
        lanes = [lane for lane in (_KNOWN, _IN_CALL, _UNKNOWN) if self._read_in[lane] < self._most[lane]]
        # A lane below its part comes first, or known callers in large numbers would shut out all others.
        short = [lane for lane in lanes if lane != _KNOWN and self._read_in[lane] < self._least[lane]]
        for lane in short + lanes:
            if (peer := self._waiting[lane].next(self._may)) is not None:
                return lane, peer
        return None

    def _press(self) -> None:
        """Ends what has been read for too long while others wait, one at a time; looks again when the next is due."""
        if self._pressing:
            self._pressing.cancel()
            self._pressing = None
        # A call that is ending gives its memory back in a moment, which may be all that is needed.
        if not any(self._waiting) or any(lot.ending for lot in self._reading):
            return
        times = [(self._due(lot), lot) for lot in self._reading if self._in_the_way(lot)]
        now = asyncio.get_running_loop().time()
        late = [lot for due, lot in times if due <= now]
        if late and now >= self._next_end:
            self._next_end = now + self._pace_s
            # Of a lane, of the connection that has most, what is read longest.
            lot = max(late, key=lambda lot: (lot.lane, self._read_over[lot.peer]))
            # It has been silent where it mattered: its next calls wait as those of an unknown connection.
            self._known.pop(lot.peer, None)
            lot.end(Busy("The server needs the memory for requests that have come. Come again."))
        elif times:
            first = max(min(due for due, _ in times), self._next_end)
            self._pressing = asyncio.get_running_loop().call_at(first, self._press)

    def _in_the_way(self, lot: Reservation) -> bool:
        """True if a caller waits that the end of this reservation could give room."""
        if self._rooms < 1:
            return True
        # Where there is room, whoever waits has all that its lane, or its connection, may have.
        waiting = self._waiting[lot.lane]
        return bool(waiting) and (self._read_in[lot.lane] >= self._most[lot.lane] or lot.peer in waiting)

    def _due(self, lot: Reservation) -> float:
        if lot.peer not in self._known:
            return lot.since + _LITTLE_PATIENCE_S
        return lot.since + (_PATIENCE_IN_CALL_S if lot.lane == _IN_CALL else _PATIENCE_S)

    def _end_idle(self) -> None:
        """Ends what nothing has come for; looks again when the next is due. They are few: one clock does for all."""
        now = asyncio.get_running_loop().time()
        # A stream whose requests are being worked on is not idle: its time runs from the last answer.
        due = {lot: max(lot.since, lot.busy_until(now)) + self._idle_s for lot in self._reading}
        for lot, when in due.items():
            if when <= now:
                lot.end(
                    BadRequest(
                        f"No request came for {self._idle_s:g} seconds. Open the call when there is one to send.",
                        reason="IDLE",
                    )
                )
        later = [when for when in due.values() if when > now]
        self._idling = asyncio.get_running_loop().call_at(min(later), self._end_idle) if later else None


def _refuse(waiter: _Waiter) -> None:
    if not waiter.lot.done():
        waiter.lot.set_exception(Busy("There was no memory for one more request. Come again."))
