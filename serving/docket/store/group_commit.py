"""Group commit: a thread that batches many writes into one commit, or many reads into one transaction.

Writes submitted during a commit go into the next one, so that concurrent writers share the cost of a flush and of
server round trips instead of queueing for them.
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

_AGAIN_S = 0.01  # seconds between two attempts to open a file that others are creating
_GROUP = 256  # maximum writes per commit, which bounds how long the first of them waits

Write = Callable[[Connection], T]


class RolledBack(Exception):
    """Raised if nothing of a transaction was stored, for a possibly transient reason given as the cause."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[A, T]):
    """A kind of write that is executed for many requests together.

    Attributes:
        rank: Order within a commit, lower ones first; the same order everywhere prevents deadlocks between processes.
        write: Function that writes a group of requests and returns one outcome each; an error as an outcome is raised
            to its caller only, and the rest is stored.
    """

    rank: int
    write: Callable[[Connection, Sequence[A]], Sequence[T | CourtError]]


_SINGLY: Batch[Write[Any], Any] = Batch(0, lambda connection, writes: [write(connection) for write in writes])


@dataclass(slots=True)
class _Item:
    batch: Batch[Any, Any]
    request: Any
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]


class GroupCommit:
    """Executes submitted writes, or reads, in groups; safe to use from several event loops.

    A loop passes all requests of one iteration to the thread together, and the thread reports a whole commit to the
    loop together: waking up for each write would cost more than the write, and contend for the interpreter lock.
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
            transaction: Opens a transaction that commits at the end. If it raises :class:`RolledBack`, all is retried.
            translated: Returns the error that callers get for a failed write. Unavailable means a database failure: all
                writes of the commit fail. Otherwise each is retried alone.
            around: Context that is entered before a transaction's writes and left before its commit.
        """
        self._around = around
        self._transaction = transaction
        self._translated = translated
        self._items: queue.SimpleQueue[list[_Item] | None] = queue.SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
        # A daemon, so that a process that ends without close() does not hang; lost writes were never acknowledged.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, write: Write[T]) -> T:
        """Executes a request; a write is then durable. If cancelled, it may not be executed."""
        return await self.submit(_SINGLY, write)

    async def submit(self, batch: Batch[A, T], request: A) -> T:
        """Executes a request together with others of its kind; as :meth:`run`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        item = _Item(batch, request, loop, done)
        # No lock needed: each loop accesses only its own key, from its own thread.
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
        """Waits until everything submitted is done. Nothing may be submitted afterwards."""
        # Requests gathered in the loop's current iteration would otherwise come after the end marker and be lost.
        if (loop := asyncio.get_running_loop()) in self._gathering:
            self._pass_on(loop)
        self._items.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """Body of the thread: one transaction for everything submitted since the last one."""
        while (first := self._items.get()) is not None:
            waiting = first
            closing = False
            # This thread is the only consumer, so get() can't block if the queue is not empty.
            while len(waiting) < _GROUP and not self._items.empty():
                more = self._items.get()
                if more is None:
                    closing = True
                    break
                waiting += more
            # A single submission may exceed the maximum size of a commit.
            for begin in range(0, len(waiting), _GROUP):
                # Callers that gave up have cancelled their future; from here on, requests are written in any case.
                group = [item for item in waiting[begin : begin + _GROUP] if not item.done.cancelled()]
                _deliver(self._committed(group))
            if closing:
                return

    def _committed(self, group: Sequence[_Item]) -> Sequence[tuple[_Item, Any]]:
        """Commits a group and returns each item with its outcome; exceptions as outcomes are to be raised."""
        if not group:
            return []
        try:
            return [*zip(group, self._outcomes(group), strict=True)]
        except Exception as error:
            if len(group) > 1 and not isinstance(self._translated(error), Unavailable):
                # One of them caused the error, and only that caller should get it.
                return [pair for item in group for pair in self._committed([item])]
            return [(item, self._translated(error)) for item in group]

    def _outcomes(self, group: Sequence[_Item]) -> Sequence[Any]:
        """Returns one outcome per item, all stored; or raises an error, with none stored."""
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
        indices: dict[int, list[int]] = {}
        for index, item in enumerate(group):
            # By id(), which is stable while the group's items reference their batches.
            indices.setdefault(id(item.batch), []).append(index)
        with self._transaction() as connection, self._around(connection):
            for own in sorted(indices.values(), key=lambda own: group[own[0]].batch.rank):
                results = group[own[0]].batch.write(connection, [group[index].request for index in own])
                for index, outcome in zip(own, results, strict=True):
                    outcomes[index] = outcome
        return outcomes


def _deliver(outcomes: Sequence[tuple[_Item, Any]]) -> None:
    """Delivers outcomes to their callers; those of closed loops are dropped."""
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
    """Builds an engine for a read-only SQLite file.

    Args:
        immutable: True if nothing can write to the file: it is then read without SQLite's companion files, which can't
            be created; existing ones are ignored.
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
    """Builds an engine for a SQLite file in WAL mode, flushed to disk at every commit.

    Args:
        pages: Size of the WAL in pages of 4 KiB at which a commit checkpoints it, which costs two more flushes.
    """
    url = URL.create(
        "sqlite",
        database=f"file:{quote(str(path.absolute()))}",  # ? and # in a path must be escaped in a URI
        query={"mode": "rwc" if create else "rw", "uri": "true"},
    )
    engine = create_engine(
        url,
        connect_args={"timeout": patience},
        hide_parameters=True,  # parameters are untrusted content, which must not appear in errors
        pool_use_lifo=True,  # each connection has its own caches: reuse the warm ones
    )
    event.listen(engine, "connect", lambda connection, _: _set_up(connection, pages, patience))
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Opens a write transaction on a SQLite file, committed at the end."""
    with engine.begin() as connection:
        # IMMEDIATE: a second process waits here, instead of failing at its first write.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _set_up(connection: Any, pages: int, patience: float) -> None:
    """Configures a connection: readers don't wait for the writer, and commits are durable when they return."""
    connection.isolation_level = None  # transaction() begins transactions explicitly, not the driver
    cursor = connection.cursor()
    until = time.monotonic() + patience
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # If several processes create a file concurrently, SQLite does not wait for the first, unlike elsewhere. The
            # low byte is the primary error code, without details.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
    # NORMAL, which is common with WAL, could lose acknowledged commits in a power failure.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA wal_autocheckpoint={pages}")
    cursor.execute("PRAGMA secure_delete=ON")  # overwrites deleted data instead of only freeing it
    cursor.close()
