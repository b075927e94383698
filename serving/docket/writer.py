"""One thread that writes to a SQLite file, in WAL mode, flushed to the disk at every commit.

Whatever has been handed in while it was committing goes into its next commit, so that many writers at once share the
cost of a flush instead of queueing for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine

from court.errors import CourtError

_GROUP = 256  # writes in one commit at most: bounds how long the first of them waits

Write = Callable[[Connection], None]


class GroupWriter:
    """Writes what it is handed in, many at a time; safe to use from several event loops."""

    def __init__(self, engine: Engine, translated: Callable[[Exception], CourtError]) -> None:
        """Starts the thread.

        Args:
            engine: Made by :func:`sqlite_engine`; whoever made it disposes of it.
            translated: What a caller hears where a write fails.
        """
        self._engine = engine
        self._translated = translated
        self._writes: queue.SimpleQueue[tuple[Write, Future[None]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="group-writer", daemon=True)
        self._writer.start()

    def hand_in(self, write: Write) -> Future[None]:
        """Has it written; the future is done once it is on the disk. Cancelled before, it may not be written."""
        done: Future[None] = Future()
        self._writes.put((write, done))
        return done

    async def close(self) -> None:
        """Waits until everything handed in is kept. Nothing may be handed in afterwards."""
        self._writes.put(None)
        await asyncio.to_thread(self._writer.join)

    def _write(self) -> None:
        """The writer thread: one commit for all that has come since the last."""
        while (first := self._writes.get()) is not None:
            group = [first]
            closing = False
            while len(group) < _GROUP and not self._writes.empty():
                item = self._writes.get()
                if item is None:
                    closing = True
                    break
                group.append(item)
            self._commit(group)
            if closing:
                return

    def _commit(self, group: Sequence[tuple[Write, Future[None]]]) -> None:
        # A caller that gave up has cancelled its future; one that has not can't any more from here on.
        group = [(write, done) for write, done in group if done.set_running_or_notify_cancel()]
        try:
            with transaction(self._engine) as connection:
                for write, _ in group:
                    write(connection)
        except Exception as error:
            if len(group) == 1:
                group[0][1].set_exception(self._translated(error))
                return
            # One of them is at fault, and only that one is to hear of it.
            for write, done in group:
                try:
                    with transaction(self._engine) as connection:
                        write(connection)
                except Exception as own:
                    done.set_exception(self._translated(own))
                else:
                    done.set_result(None)
            return
        for _, done in group:
            done.set_result(None)


def sqlite_engine(path: Path, patience: float) -> Engine:
    """An engine for a SQLite file, which is made at the first connection where it is not there.

    Args:
        path: The file; its directory must be there.
        patience: Seconds to wait for another process that is writing.
    """
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": patience})
    event.listen(engine, "connect", _set_up)
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes, committed at the end."""
    with engine.begin() as connection:
        # IMMEDIATE: a second process waits at the door, instead of failing when it comes to write.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _set_up(connection: Any, _: Any) -> None:
    """Every connection: readers don't wait for the writer, and a commit is on the disk when it returns."""
    connection.isolation_level = None  # transactions begin where transaction() says so, not where the driver guesses
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
