"""A docket's tables in a SQLite file, which several processes on one machine may use."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, SQLAlchemyError

from court.errors import CourtError
from court.events import TrialOpened, parse_event
from serving.docket import tables as t
from serving.docket.database import exists, failed, later_format, unavailable
from serving.docket.store import DocketError
from serving.docket.writer import sqlite_engine, transaction
from serving.docket.writes import trial_change, trial_row

_log = logging.getLogger(__name__)

_CHUNK = 1000  # trials whose rows are written at once when a docket is upgraded
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
    if found == 1:
        _upgrade(connection)
    elif found == 0:
        t.metadata.create_all(connection)
    connection.execute(text(f"PRAGMA user_version = {t.FORMAT}"))


def _upgrade(connection: Connection) -> None:
    """From format 1, which had events and pictures: all in the transaction of whoever calls, or nothing of it."""
    _log.info("Upgrading the docket to format %d.", t.FORMAT)
    connection.execute(text("DROP INDEX IF EXISTS ix_events_kind"))
    t.metadata.create_all(connection)
    kinds = "'TrialOpened', 'VerdictGiven', 'TrialFailed', 'TrialResumed', 'VerdictReviewed'"
    told = text(f"SELECT trial_id, body FROM events WHERE kind IN ({kinds}) ORDER BY trial_id, seq")
    rows: dict[str, dict[str, object]] = {}
    for trial_id, body in connection.execute(told):
        try:
            event = parse_event(body)
        except ValidationError as error:
            raise DocketError(
                f"The docket can't be upgraded: what it holds of trial {trial_id} is no record. It was altered, or "
                "written by another version of MemeCourt. Restore the docket from a copy.",
            ) from error
        if isinstance(event, TrialOpened):
            if len(rows) >= _CHUNK:
                connection.execute(insert(t.trials), list(rows.values()))
                rows.clear()
            rows[trial_id] = trial_row(event)
        elif trial_id in rows:
            rows[trial_id] |= trial_change(event)
    if rows:
        connection.execute(insert(t.trials), list(rows.values()))
