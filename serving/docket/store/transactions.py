"""Reads and writes of a docket's database, in PostgreSQL with a queue each for log, other and fingerprint writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from court.errors import CourtError, Unavailable
from serving.docket.store.database import Database
from serving.docket.store.group_commit import Batch, GroupCommit, RolledBack
from serving.docket.store.log_append import Signer, signing
from serving.docket.store.postgres import PostgresDatabase

A = TypeVar("A")
T = TypeVar("T")

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
        shared = isinstance(database, PostgresDatabase)
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
