"""The SQLite database of a docket, which processes on one machine can share."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from typing_extensions import override

from court.errors import CourtError
from serving.docket.errors import DocketError
from serving.docket.store import schema
from serving.docket.store import tables as t
from serving.docket.store.tables import Database, exists, failed, later_format, unavailable
from serving.docket.store.transactions import sqlite_engine, sqlite_reader, transaction

_AGAIN_S = 0.05
"""Seconds between two attempts while readers are active."""
_MOVE_S = 0.25
"""Seconds between two checkpoints of the WAL."""
_MOVE_LATER_S = 5.0
"""Maximum of that interval while readers prevent checkpoints."""
_MOVE_PAGES = 32_000
"""WAL size in pages (128 MB) at which a commit checkpoints it itself, because the thread can't keep up."""
_WHY = {
    "SQLITE_BUSY": "another process is writing to it for too long",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_FULL": "its disk is full",
    "SQLITE_READONLY": "its file may only be read",
    "SQLITE_CANTOPEN": "its file is gone",
}


class _Gone(Exception):
    """The opened file does not exist any more."""


class _Mover:
    """Checkpoints the WAL into the database file, in a separate thread.

    Otherwise SQLite makes an occasional commit do so, which then waits for two more flushes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wanted = threading.Condition()
        self._committed = self._closing = False
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Signals that there is something to checkpoint."""
        with self._wanted:
            self._committed = True
            # Started lazily: a docket that is only read needs no thread.
            if self._thread is None:
                self._thread = threading.Thread(target=self._move, name="docket-mover", daemon=True)
                self._thread.start()
            self._wanted.notify()

    def close(self) -> None:
        """Ends the thread; closing the last connection checkpoints the rest."""
        with self._wanted:
            self._closing = True
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()

    def _move(self) -> None:
        pause = _MOVE_S
        while True:
            with self._wanted:
                # Pause first, so that everything committed meanwhile is moved in one go.
                if self._wanted.wait_for(lambda: self._closing, pause):
                    return
                self._wanted.wait_for(lambda: self._closing or self._committed)
                if self._closing:
                    return
                # Cleared before the move: commits during it need another.
                self._committed = False
            if self._moved():
                pause = _MOVE_S
            else:
                pause = min(2 * pause, _MOVE_LATER_S)
                # Retry the rest without waiting for another commit, which may never come.
                with self._wanted:
                    self._committed = True

    def _moved(self) -> bool:
        """Moves committed pages to the main file; False if readers of an earlier snapshot prevented some."""
        try:
            with self._engine.connect() as connection:
                # PASSIVE neither waits for readers and writers nor blocks them.
                _, pages, moved = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
        except SQLAlchemyError:
            return False  # the next commit reports the problem if it persists
        return bool(pages == moved)


class _SqliteFile(Database):
    """A docket's file as it is read."""

    _engine: Engine

    @override
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            # Deferred: takes no lock, and the first read fixes the snapshot.
            connection.exec_driver_sql("BEGIN")
            yield connection

    @override
    def translated(self, error: Exception) -> CourtError:
        return translated(error)

    @override
    def close(self) -> None:
        self._engine.dispose()


class SqliteDatabase(_SqliteFile):
    """A docket's database in a file."""

    read_only = False
    on_server = False

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        # Once opened, the file is never created again: writes to a new one would be lost when the right one is
        # restored.
        self._engine = sqlite_engine(path, patience, create=False, pages=_MOVE_PAGES)
        # All writes use one connection, whose page cache stays valid; any other would have to read the pages again.
        self._writer = sqlite_engine(path, patience, create=False, pages=_MOVE_PAGES)
        self._mover = _Mover(self._engine)
        # If several threads notice that the file was replaced, one of them reopens it.
        self._lock = threading.Lock()
        self._file = _identity(path)

    @classmethod
    def open(cls, path: Path, *, create: bool, patience: float) -> Self:
        """Opens a docket; as :meth:`serving.docket.open.Docket.open`."""
        if not path.exists():
            if not create:
                raise DocketError(
                    f"There is no docket at {path}. A trial makes one; --docket or MEMECOURT_DOCKET names another.",
                    reason="DOCKET_MISSING",
                )
            # Folder and file are accessible only to their owner (BO-5).
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite creates its companion files with the same mode.
            path.touch(mode=0o600)
        elif not _writable(path):
            raise DocketError(
                f"The docket {path} can't be written: its file or its folder may only be read. Name another with "
                "--docket or MEMECOURT_DOCKET.",
                reason="DOCKET_READ_ONLY",
            )
        database = cls(path, patience)
        try:
            # In a write transaction: of several processes that open a new file, the first creates the tables, and the
            # others find them.
            with transaction(database._writer) as connection:
                _check_or_create(connection)
        except SQLAlchemyError as error:
            database.close()
            raise _no_docket(path, error) from error
        except DocketError as error:
            database.close()
            raise DocketError(f"{path}: {error.message}", reason=error.reason) from None
        return database

    @override
    @contextmanager
    def writing(self) -> Iterator[Connection]:
        self._find()
        with transaction(self._writer) as connection:
            yield connection
        self._mover.committed()
        # Open connections keep using a deleted file, whose data nobody can find again.
        if _identity(self._path) != self._file:
            raise _Gone

    @override
    @contextmanager
    def reading(self) -> Iterator[Connection]:
        self._find()
        with super().reading() as connection:
            yield connection

    @override
    def scrub(self, patience: float) -> bool:
        until = time.monotonic() + patience
        while True:
            # No transaction on this connection: within one, SQLite does not checkpoint.
            with self._engine.connect() as connection:
                # Old pages stay in the WAL until all readers have moved past them.
                busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            if not busy:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_AGAIN_S)

    @override
    def close(self) -> None:
        # Before the connections, since it uses one of them.
        self._mover.close()
        self._dispose()

    def _find(self) -> None:
        """Checks that the open file is still the one at its path; reopens it if it was replaced."""
        with self._lock:
            found = _identity(self._path)
            if found is None:
                raise _Gone
            if found == self._file:
                return
            self._dispose()
            with transaction(self._writer) as connection:
                # Don't create tables in an empty replacement: they would hide that the docket is gone.
                _check_or_create(connection, create=False)
            self._file = found

    def _dispose(self) -> None:
        self._engine.dispose()
        self._writer.dispose()


class ReadOnlySqliteDatabase(_SqliteFile):
    """A docket's file that this user may only read, such as an auditor's copy."""

    read_only = True
    on_server = False

    def __init__(self, path: Path, patience: float) -> None:
        """Prepares the engine without opening the file.

        Raises:
            DocketError: A part of the docket is in SQLite's WAL file, which can't be read.
        """
        wal, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
        unmerged = wal.exists() and wal.stat().st_size > 0
        if unmerged and not index.exists():
            raise DocketError(
                f"The newest entries of {path} lie in {wal.name} beside it, which can't be read where nothing may "
                "be written. Copy both into a folder that can be written, or copy the docket with `memecourt docket "
                "backup`.",
                reason="DOCKET_READ_ONLY",
            )
        # With a WAL the file is not opened as immutable, which would silently omit its newest entries.
        self._engine = sqlite_reader(path, patience, immutable=not unmerged)

    @classmethod
    def open(cls, path: Path, *, patience: float) -> Self:
        """Opens a docket as :meth:`serving.docket.open.Docket.open`, but without upgrading it."""
        database = cls(path, patience)
        try:
            with database.reading() as connection:
                found = connection.execute(text("PRAGMA user_version")).scalar_one()
        except SQLAlchemyError as error:
            database.close()
            raise _no_docket(path, error) from error
        if found != t.FORMAT:
            database.close()
            raise (
                later_format(found, t.FORMAT)
                if found > t.FORMAT
                else DocketError(
                    f"The docket {path} has format {found}, which has to be upgraded to {t.FORMAT}, and may only be "
                    "read. Open a copy that can be written.",
                    reason="DOCKET_FORMAT",
                )
            )
        return database

    @override
    @contextmanager
    def writing(self) -> Iterator[Connection]:
        raise unavailable(_WHY["SQLITE_READONLY"])
        yield  # makes this a generator, as contextmanager requires

    @override
    def scrub(self, patience: float) -> bool:
        return False


def copy_sqlite(path: Path, to: Path) -> None:
    """Copies a consistent snapshot of a docket's file, including the WAL; others may continue writing.

    Raises:
        DocketError: The file can't be read.
        OSError: The copy can't be written.
    """
    to.unlink(missing_ok=True)
    source = ReadOnlySqliteDatabase(path, patience=10.0)
    try:
        with source.reading() as connection, closing(sqlite3.connect(to)) as copy:
            driver: Any = connection.connection.driver_connection
            driver.backup(copy)
    except (SQLAlchemyError, sqlite3.Error) as error:
        # The target is full; the docket itself is fine. The higher bits of the code are details.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to)) from error
        raise _no_docket(path, error) from error
    finally:
        source.close()


def open_sqlite(
    path: Path, *, create: bool, patience: float, read_only: bool = False
) -> SqliteDatabase | ReadOnlySqliteDatabase:
    """Opens a docket's file: read-only if requested, or if it is not writable and need not be created."""
    # SQLite opens an empty file as a new database, so a check would turn an emptied docket into one without trials.
    if not create and path.exists() and path.stat().st_size == 0:
        raise DocketError(f"{path} is empty, and so no docket. Name another.", reason="DOCKET_MISSING")
    if not create and path.exists() and (read_only or not _writable(path)):
        return ReadOnlySqliteDatabase.open(path, patience=patience)
    return SqliteDatabase.open(path, create=create, patience=patience)


def translated(error: Exception) -> CourtError:
    """Converts an error of SQLite or SQLAlchemy, or one of our own."""
    if isinstance(error, CourtError):
        return error
    if isinstance(error, _Gone):
        return unavailable("its file is gone")
    if isinstance(error, IntegrityError):
        return exists()
    if isinstance(error, OperationalError):
        name = getattr(error.orig, "sqlite_errorname", "") if isinstance(error.orig, sqlite3.Error) else ""
        # The names of SQLite's extended codes start with that of the primary code.
        known = next((why for code, why in _WHY.items() if name.startswith(code)), None)
        return unavailable(known or "it is locked, its disk is full, or its file is gone")
    if isinstance(error, DatabaseError) and getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_CORRUPT"):
        return DocketError("The docket's file is damaged. Restore it from a backup (`memecourt docket restore`).")
    if isinstance(error, SQLAlchemyError) and not isinstance(error, DatabaseError):
        # From the pool: all connections are in use.
        return unavailable("too many ask it at once")
    return failed()


def _writable(path: Path) -> bool:
    """True if this user may write to a file and create companion files next to it, as SQLite must."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _passing(error: BaseException | None) -> str | None:
    """Returns why SQLite could not open a possibly intact file; None if unknown."""
    name = getattr(error, "sqlite_errorname", None) or ""
    # Includes a full disk, if SQLite can't enlarge a memory-mapped file.
    if name.startswith("SQLITE_IOERR"):
        return "the system could not read or write its files, as when a disk is full or failing"
    passing = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")
    return next((_WHY[code] for code in passing if name.startswith(code)), None)


def _no_docket(path: Path, error: Exception | None = None) -> DocketError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if error is not None and (why := _passing(cause)):
        # Don't suggest restoring a backup here, which would lose later records.
        return DocketError(
            f"The docket {path} can't be opened now: {why}. Its records may be whole: remove the cause, and try again.",
            reason="DOCKET_UNAVAILABLE",
        )
    return DocketError(
        f"The file {path} can't be opened as a docket: it is damaged, locked, or something else. Restore it from a "
        "copy, or name another with --docket or MEMECOURT_DOCKET."
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_or_create(connection: Connection, *, create: bool = True) -> None:
    found = connection.execute(text("PRAGMA user_version")).scalar_one()
    tables = connection.execute(text("SELECT count(*) FROM sqlite_master WHERE type = 'table'")).scalar_one()
    if found > t.FORMAT:
        raise later_format(found, t.FORMAT)
    # Tables without a format number belong to another program.
    if found == 0 and (tables or not create):
        raise DocketError("This is a SQLite database, but no docket. Name another.")
    if found == t.FORMAT:
        return
    if found == 0:
        schema.create(connection)
    else:
        schema.upgrade(connection, found)
    # In the same transaction as the tables, so that a crash leaves both or neither.
    connection.execute(text(f"PRAGMA user_version = {t.FORMAT}"))
