"""The operations that a docket needs of a database, which SQLite and PostgreSQL each provide."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

from court.errors import CourtError, Unavailable
from serving.docket.ports import DocketError, TrialErased, TrialUnknown


class Database(Protocol):
    """A database with the tables of a docket."""

    read_only: bool
    """Whether nothing can be written to it."""

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that writes: kept when it ends, on the disk, or not at all where it raises.

        Raises:
            RolledBack: The write was rolled back, and another try may succeed.
        """
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection whose reads all see one moment."""
        ...

    def translated(self, error: Exception) -> CourtError:
        """An error of this database in the court's words."""
        ...

    def scrub(self, patience: float) -> bool:
        """Sees to it that what was deleted is in none of the database's files any more, as far as it can.

        Args:
            patience: Seconds to wait for readers that still see it.

        Returns:
            False where somebody read for longer: then it is to be asked again.
        """
        ...

    def close(self) -> None:
        """Lets go of all connections."""
        ...


def insert_into(connection: Connection, table: Table) -> Any:
    """An insert that can say what happens where a row is there already: each database has its own."""
    return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[connection.dialect.name](table)


def insert_rows(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> None:
    """Inserts rows as they stand: their values are what the database's driver takes."""
    if connection.dialect.name == "sqlite":
        # By the driver itself: to look at each value on its way takes a third as long as to insert it.
        places = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({places})"
        connection.exec_driver_sql(statement, [*rows])
    else:
        connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in rows])


def unavailable(why: str) -> Unavailable:
    """The error for a docket that can't be used now."""
    return Unavailable(f"The docket can't be written or read now: {why}.", reason="DOCKET_UNAVAILABLE")


def exists() -> DocketError:
    """The error for an event whose number is taken."""
    return DocketError("The docket already holds an event of that number for this trial.", reason="EVENT_EXISTS")


def failed() -> DocketError:
    """The error where there is nothing better to say."""
    return DocketError("The docket could not keep or find what it was asked to.")


def later_format(found: int, known: int) -> DocketError:
    """The error for a docket of a version that is not here yet."""
    return DocketError(
        f"The docket has format {found}; this version of MemeCourt reads up to {known}. Upgrade it.",
        reason="DOCKET_FORMAT",
    )


def unknown(trial_id: str) -> TrialUnknown:
    """The error for a trial that is not there."""
    return TrialUnknown(
        f"There is no trial {trial_id or 'with an empty id'} in this docket. `memecourt records list` shows those that "
        "are.",
    )


def erased(trial_id: str) -> TrialErased:
    """The error for a trial whose record was erased."""
    return TrialErased(f"The record of trial {trial_id} was erased; its entries in the log say when, by whom and why.")


def no_record(trial_id: str) -> DocketError:
    """The error for a record that is none."""
    return DocketError(
        f"What the docket holds of trial {trial_id} is no record: it was altered, or written by another version of "
        "MemeCourt.",
    )
