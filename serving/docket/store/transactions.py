"""Reads and writes of a docket's database: many writes in one commit, in PostgreSQL by three queues.

Writes submitted during a commit go into the next one, so that concurrent writers share the cost of a flush and of
server round trips instead of queueing for them. The queues are for log, other and fingerprint writes.
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
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError

from court.errors import CourtError, Unavailable
from serving.docket.store.log_append import Signer, signing
from serving.docket.store.tables import Database

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


_READERS_S = 10.0
"""Seconds to wait for those that still read when the docket is closed."""


class Rank(IntEnum):
    """Order of the writes in one commit, the same in every process to prevent deadlocks."""

    CLAIM = 1
    TAKE_OVER = 2
    PICTURE = 3
    APPEND = 4
    REVIEW = 5
    VERDICT_KEY = 6
    BEAT = 7
    RETIRE = 8
    FINGERPRINT = 9
    ACCESS = 10
    SIGN = 11
    ERASE = 12
    LOCKED_REVIEW = 13
    HOOK = 14


class Transactions:
    """Runs the transactions of one docket, which all its stores share; several processes may use the same database.

    Attributes:
        written: Is told the seconds that each write to the log took, whether it was stored or not.
    """

    def __init__(self, database: Database, signer: Signer) -> None:
        self.database = database
        self.written: Callable[[float], None] = lambda _: None
        self._closed = False
        self._reads = 0
        self._reads_changed = threading.Condition()

        def signed(connection: Connection) -> AbstractContextManager[None]:
            return signing(connection, signer)

        self._logged = GroupCommit(database.writing, database.translated, signed)
        # In PostgreSQL what is logged waits for other servers, and so do fingerprints, any of which may hang: what is
        # neither is not to wait for that, and records are not to wait for fingerprints.
        shared = database.on_server
        self._unlogged = GroupCommit(database.writing, database.translated) if shared else self._logged
        self._fingerprints = GroupCommit(database.writing, database.translated) if shared else self._logged
        # What is looked up for every trial takes less in a file than to wake a thread for it, so one does it for all
        # that wait. A server is asked by many at once: each waits for the way there and back.
        self._batched = None if shared else GroupCommit(database.reading, database.translated, name="docket-reader")

    async def write(self, batch: Batch[A, T], request: A) -> T:
        """Writes in the next commit, in which what it adds to the log is signed."""
        self.check_open()
        began = time.perf_counter()
        try:
            return await self._logged.submit(batch, request)
        finally:
            self.written(time.perf_counter() - began)

    async def write_unlogged(self, batch: Batch[A, T], request: A) -> T:
        """Writes in the next commit of unlogged data."""
        self.check_open()
        return await self._unlogged.submit(batch, request)

    async def write_fingerprint(self, batch: Batch[A, T], request: A) -> T:
        """Writes in the next commit of fingerprints, which wait for those of other servers."""
        self.check_open()
        return await self._fingerprints.submit(batch, request)

    async def write_alone(self, work: Callable[[Connection], T]) -> T:
        """Writes in a separate transaction, in a thread; retries once after a rollback."""
        self.check_open()
        return await asyncio.to_thread(self._write_now, work)

    async def read(self, read: Callable[[Connection], T]) -> T:
        """Reads a consistent snapshot in a thread."""
        self.check_open()
        return await asyncio.to_thread(self._read_now, read)

    async def read_batched(self, read: Callable[[Connection], T]) -> T:
        """Reads as :meth:`read`, in one transaction with other waiting reads."""
        if self._batched is None:
            return await self.read(read)
        self.check_open()
        return await self._batched.run(read)

    def check_open(self) -> None:
        """Raises Unavailable where the docket has been closed."""
        if self._closed:
            raise Unavailable("The docket is closed.", reason="DOCKET_CLOSED")

    async def close(self) -> None:
        """Waits until everything handed in is stored, and closes the database."""
        if not self._closed:
            # First: from here on nothing new is accepted, so that all that is waited for below comes to an end.
            self._closed = True
            await asyncio.to_thread(self._let_reads_end)
            if self._batched is not None:
                await self._batched.close()
            await self._logged.close()
            # For a file all three are one object, which can be closed only once.
            if self._fingerprints is not self._logged:
                await self._fingerprints.close()
                await self._unlogged.close()
            self.database.close()

    @contextmanager
    def _counted_read(self) -> Iterator[None]:
        """A read that whoever closes the docket waits for: its connection could not be closed under it."""
        # Under the lock: each read is either counted before the docket waits for those that run, or refused.
        with self._reads_changed:
            self.check_open()
            self._reads += 1
        try:
            yield
        finally:
            with self._reads_changed:
                self._reads -= 1
                self._reads_changed.notify_all()

    def _let_reads_end(self) -> None:
        with self._reads_changed:
            # The result doesn't matter: a read that hangs must not keep the docket from closing.
            self._reads_changed.wait_for(lambda: not self._reads, _READERS_S)

    def _read_now(self, read: Callable[[Connection], T]) -> T:
        with self._counted_read():
            for last in (False, True):
                try:
                    with self.database.reading() as connection:
                        return read(connection)
                except CourtError:
                    raise
                except Exception as error:
                    # A pooled connection may have broken long ago: retry once with a new one.
                    if last or not (isinstance(error, DBAPIError) and error.connection_invalidated):
                        # Without the cause: database messages may contain hosts and users.
                        raise self.database.translated(error) from None
            raise AssertionError("unreachable")

    def _write_now(self, work: Callable[[Connection], T]) -> T:
        for last in (False, True):
            try:
                with self.database.writing() as connection:
                    return work(connection)
            except CourtError:
                raise
            # Nothing was stored, so that a second attempt can't store it twice.
            except RolledBack as error:
                if last:
                    assert isinstance(error.__cause__, Exception)
                    raise self.database.translated(error.__cause__) from None
            except Exception as error:
                raise self.database.translated(error) from None
        raise AssertionError("unreachable")


class SqlStore:
    """A store whose reads and writes are transactions of one docket."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
