"""One thread that writes to a database, many writes to a commit; or that reads, many reads to a transaction.

Whatever has been handed in while it was committing goes into its next commit, so that many writers at once share the
cost of a flush, and of the ways to a server, instead of queueing for it.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine

from court.errors import CourtError, Unavailable

A = TypeVar("A")
T = TypeVar("T")

_AGAIN_S = 0.01  # between two attempts to have a file that others make anew
_GROUP = 256  # writes in one commit at most: bounds how long the first of them waits

Write = Callable[[Connection], T]


class RolledBack(Exception):
    """Raised where nothing of a transaction was stored. The reason may have passed already; its cause says which."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[A, T]):
    """A kind of write that is done for many at once.

    Attributes:
        rank: Lower ones are done first in a commit. The same order everywhere keeps processes from waiting for each
            other in a circle.
        write: Function that writes a group of requests and returns as many outcomes; an error as an outcome goes to
            that caller alone, and the rest is stored.
    """

    rank: int
    write: Callable[[Connection, Sequence[A]], Sequence[T | CourtError]]


_SINGLY: Batch[Write[Any], Any] = Batch(0, lambda connection, writes: [write(connection) for write in writes])


@dataclass(slots=True)
class _Item:
    batch: Batch[Any, Any]
    ask: Any
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class GroupCommit:
    """Writes, or reads, what it is handed in, many at a time; safe to use from several event loops.

    The thread is given at once what a loop hands in in one of its rounds, and a loop is told of a whole commit at once:
    to be woken for each write would cost either more than the write, and the other its turn at the interpreter.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        translated: Callable[[Exception], CourtError],
        around: Callable[[Connection], AbstractContextManager[None]] = lambda _: nullcontext(),
        name: str = "group-writer",
    ) -> None:
        """Starts the thread.

        Args:
            transaction: Opens one, committed at the end. Where it raises :class:`RolledBack`, all is done once more.
            translated: Error that callers get for a failed write. If it is Unavailable, the fault is the database's,
                and all writes of the commit have failed; else each is tried alone.
            around: Is entered before the writes of a transaction, and left after them and before the commit.
            name: Name of the thread.
        """
        self._around = around
        self._transaction = transaction
        self._translated = translated
        self._items: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
        # A daemon: a process that ends without close() does not hang, and what is lost then was acknowledged to nobody.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, write: Write[T]) -> T:
        """Has it done; a write is on the disk then. Cancelled before, it may not be done."""
        return await self.submit(_SINGLY, write)

    async def submit(self, batch: Batch[A, T], ask: A) -> T:
        """Has it written together with others of its kind; as :meth:`run`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        item = _Item(batch, ask, loop, done)
        # No lock: each loop touches its own key alone, and only from its own thread.
        gathering = self._gathering.get(loop)
        if gathering is None:
            self._gathering[loop] = [item]
            loop.call_soon(self._pass_on, loop)
        else:
            gathering.append(item)
        return await done

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if handed_in := self._gathering.pop(loop, None):
            self._items.put(handed_in)

    async def close(self) -> None:
        """Waits until everything handed in is done. Nothing may be handed in afterwards."""
        # What this loop has gathered in its current round would otherwise come after the end, and never be done.
        if (loop := asyncio.get_running_loop()) in self._gathering:
            self._pass_on(loop)
        self._items.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """The thread: one transaction for all that has come since the last."""
        while (first := self._items.get()) is not None:
            waiting = first
            closing = False
            # Nobody else takes from this queue, so that get() can't block once it is known not to be empty.
            while len(waiting) < _GROUP and not self._items.empty():
                more = self._items.get()
                if more is None:
                    closing = True
                    break
                waiting += more
            # What one loop hands in at once may be more than one commit takes.
            for begin in range(0, len(waiting), _GROUP):
                # A caller that gave up has cancelled its future; where one does from here on, it is written all the
                # same.
                group = [item for item in waiting[begin : begin + _GROUP] if not item.done.cancelled()]
                _deliver(self._committed(group))
            if closing:
                return

    def _committed(self, group: Sequence[_Item]) -> Sequence[tuple[_Item, Any]]:
        """Commits a group and returns each item with its outcome; an exception as an outcome is to be raised."""
        if not group:
            return []
        try:
            return [*zip(group, self._outcomes(group), strict=True)]
        except Exception as error:
            if len(group) > 1 and not isinstance(self._translated(error), Unavailable):
                # One of them is at fault, and only that one is to hear of it.
                return [pair for item in group for pair in self._committed([item])]
            return [(item, self._translated(error)) for item in group]

    def _outcomes(self, group: Sequence[_Item]) -> Sequence[Any]:
        """One per item, all of them kept; or an error, and none of them."""
        try:
            return self._tried(group)
        except RolledBack:
            pass
        try:
            return self._tried(group)
        except RolledBack as error:
            assert isinstance(error.__cause__, Exception)
            raise error.__cause__ from None

    def _tried(self, group: Sequence[_Item]) -> Sequence[Any]:
        outcomes: list[Any] = [None] * len(group)
        places: dict[int, list[int]] = {}
        for place, item in enumerate(group):
            # By identity, which nothing else can take over while the items of the group refer to their batches.
            places.setdefault(id(item.batch), []).append(place)
        with self._transaction() as connection, self._around(connection):
            for own in sorted(places.values(), key=lambda own: group[own[0]].batch.rank):
                results = group[own[0]].batch.write(connection, [group[place].ask for place in own])
                for place, outcome in zip(own, results, strict=True):
                    outcomes[place] = outcome
        return outcomes


def _deliver(outcomes: Sequence[tuple[_Item, Any]]) -> None:
    """Hands outcomes to those who wait for them; whose loop is closed, nobody waits any more."""
    own: dict[asyncio.AbstractEventLoop, list[tuple[_Item, Any]]] = {}
    for item, outcome in outcomes:
        own.setdefault(item.loop, []).append((item, outcome))
    for loop, settled in own.items():
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(outcomes: Sequence[tuple[_Item, Any]]) -> None:
    for item, outcome in outcomes:
        if item.done.done():
            continue  # its caller has given up
        if isinstance(outcome, CourtError):
            item.done.set_exception(outcome)
        else:
            item.done.set_result(outcome)


def sqlite_reader(path: Path, patience: float, *, immutable: bool) -> Engine:
    """An engine for a SQLite file that may only be read.

    Args:
        path: The file.
        patience: Seconds to wait for a process that is writing.
        immutable: True where nothing can write to the file: then it is read without the files that SQLite keeps beside
            it, which it could not make. What lies in such a file is not seen.
    """
    engine = create_engine(
        URL.create(
            "sqlite",
            database=f"file:{quote(str(path.absolute()))}",
            query={"mode": "ro", "uri": "true", **({"immutable": "1"} if immutable else {})},
        ),
        connect_args={"timeout": patience},
        hide_parameters=True,
        pool_use_lifo=True,
    )
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    return engine


def sqlite_engine(path: Path, patience: float, *, create: bool = True, pages: int = 8000) -> Engine:
    """An engine for a SQLite file in WAL mode, flushed to the disk at every commit.

    Args:
        path: The file; its directory must be there.
        patience: Seconds to wait for another process that is writing.
        create: True if a connection makes the file when it is missing.
        pages: In the log beside the file (of 4 KiB) from which on whoever commits moves them over into the file: each
            time costs two more flushes.
    """
    url = URL.create(
        "sqlite",
        database=f"file:{quote(str(path.absolute()))}",  # a path may hold ? or #, which end it in a URI
        query={"mode": "rwc" if create else "rw", "uri": "true"},
    )
    engine = create_engine(
        url,
        connect_args={"timeout": patience},
        hide_parameters=True,  # they are what strangers wrote, which has no place in the text of an error
        pool_use_lifo=True,  # each connection keeps pages and statements of its own: those hardly needed stay empty
    )
    event.listen(engine, "connect", lambda connection, _: _set_up(connection, pages, patience))
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes to a SQLite file, committed at the end."""
    with engine.begin() as connection:
        # IMMEDIATE: a second process waits at the door, instead of failing when it comes to write.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _set_up(connection: Any, pages: int, patience: float) -> None:
    """Every connection: readers don't wait for the writer, and a commit is on the disk when it returns."""
    connection.isolation_level = None  # transactions begin where transaction() says so, not where the driver guesses
    cursor = connection.cursor()
    until = time.monotonic() + patience
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # Where several make a file anew at once, SQLite does not wait for the first as it does everywhere else.
            # The low byte is the primary code, whatever detail stands above it.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
    # NORMAL, which is usual with WAL, would let a power failure take commits that were acknowledged.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA wal_autocheckpoint={pages}")
    cursor.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten, and not only given up
    cursor.close()
