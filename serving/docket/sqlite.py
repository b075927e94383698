"""A docket's tables in a SQLite file, which several processes on one machine may use."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, text
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, SQLAlchemyError

from court.errors import CourtError
from serving.docket import schema
from serving.docket import tables as t
from serving.docket.database import exists, failed, later_format, unavailable
from serving.docket.store import DocketError
from serving.docket.writer import sqlite_engine, transaction

_AGAIN_S = 0.05
"""Seconds between two attempts to have all readers gone."""
_WHY = {
    "SQLITE_BUSY": "another process is writing to it for too long",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_FULL": "its disk is full",
    "SQLITE_READONLY": "its file may only be read",
    "SQLITE_CANTOPEN": "its file is gone",
}


class _Gone(Exception):
    """The file that was opened is not there any more."""


class SqliteDatabase:
    """A :class:`~serving.docket.database.Database` in a file."""

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        # After it has been opened the file is never made anew: what is written to a fresh one would be lost when the
        # right one is put back.
        self._engine = sqlite_engine(path, patience, create=False)
        self._lock = threading.Lock()
        self._file = _identity(path)

    @classmethod
    def open(cls, path: Path, *, create: bool, patience: float) -> Self:
        """Opens a docket; as :meth:`serving.docket.sql.SqlDocket.open`."""
        if not path.exists():
            if not create:
                raise DocketError(
                    f"There is no docket at {path}. A trial makes one; --docket or MEMECOURT_DOCKET names another.",
                    reason="DOCKET_MISSING",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        database = cls(path, patience)
        try:
            with transaction(database._engine) as connection:
                _check_or_create(connection)
        except SQLAlchemyError as error:
            database.close()
            raise DocketError(
                f"The file {path} can't be opened as a docket: it is damaged, locked, or something else. "
                "Restore it from a copy, or name another with --docket or MEMECOURT_DOCKET.",
            ) from error
        except DocketError as error:
            database.close()
            raise DocketError(f"{path}: {error.message}", reason=error.reason) from None
        return database

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """See :meth:`serving.docket.database.Database.writing`."""
        self._find()
        with transaction(self._engine) as connection:
            yield connection
        # Connections go on in a file that was removed under them, and what they keep there nobody finds again.
        if _identity(self._path) != self._file:
            raise _Gone

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """See :meth:`serving.docket.database.Database.reading`."""
        self._find()
        with self._engine.begin() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection

    def translated(self, error: Exception) -> CourtError:
        """See :meth:`serving.docket.database.Database.translated`."""
        if isinstance(error, CourtError):
            return error
        if isinstance(error, _Gone):
            return unavailable("its file is gone")
        if isinstance(error, IntegrityError):
            return exists()
        if isinstance(error, OperationalError):
            name = getattr(error.orig, "sqlite_errorname", "") if isinstance(error.orig, sqlite3.Error) else ""
            known = next((why for code, why in _WHY.items() if name.startswith(code)), None)
            return unavailable(known or "it is locked, its disk is full, or its file is gone")
        if isinstance(error, SQLAlchemyError) and not isinstance(error, DatabaseError):
            return unavailable("too many ask it at once")
        return failed()

    def scrub(self, patience: float) -> bool:
        """See :meth:`serving.docket.database.Database.scrub`."""
        until = time.monotonic() + patience
        while True:
            with self._engine.connect() as connection:
                # Pages as they were lie in the file beside it until all readers have gone on from them.
                busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            if not busy:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_AGAIN_S)

    def close(self) -> None:
        """See :meth:`serving.docket.database.Database.close`."""
        self._engine.dispose()

    def _find(self) -> None:
        """Sees that the file is the one that is open; goes over to the one that stands in its place, if one does."""
        with self._lock:
            found = _identity(self._path)
            if found is None:
                raise _Gone
            if found == self._file:
                return
            self._engine.dispose()
            with transaction(self._engine) as connection:
                _check_or_create(connection, create=False)
            self._file = found


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
    if found == 0 and (tables or not create):
        raise DocketError("This is a SQLite database, but no docket. Name another.")
    if found == t.FORMAT:
        return
    if found == 0:
        schema.create(connection)
    else:
        schema.upgrade(connection, found)
    connection.execute(text(f"PRAGMA user_version = {t.FORMAT}"))
