"""Database operations that a docket needs, implemented for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

from court.errors import CourtError, Unavailable
from serving.docket.errors import DocketError, TrialErased, TrialUnknown


class Database(Protocol):
    """A database with the tables of a docket."""

    read_only: bool
    """True if nothing can be written to the database."""

    def writing(self) -> AbstractContextManager[Connection]:
        """Opens a write transaction, which is durable when it ends and rolled back if it raises.

        Raises:
            RolledBack: The write was rolled back, and another try may succeed.
        """

    def reading(self) -> AbstractContextManager[Connection]:
        """Opens a connection whose reads all see the same snapshot."""

    def translated(self, error: Exception) -> CourtError:
        """Converts an error of this database."""

    def scrub(self, patience: float) -> bool:
        """Removes deleted data from the database's files, as far as possible.

        Args:
            patience: Seconds to wait for readers of earlier snapshots.

        Returns:
            False if a reader took longer: then call it again.
        """

    def close(self) -> None:
        """Closes all connections."""


def insert_into(connection: Connection, table: Table) -> Any:
    """Returns an insert statement that supports ON CONFLICT; each database has its own."""
    return {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[connection.dialect.name](table)


def insert_rows(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> None:
    """Inserts rows whose values are already in the form that the driver takes."""
    if connection.dialect.name == "sqlite":
        # Directly through the driver: processing each value would take a third as long as inserting it.
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})"
        connection.exec_driver_sql(statement, [*rows])
    else:
        connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in rows])


def unavailable(why: str) -> Unavailable:
    """Builds the error for a docket that can't be used now."""
    return Unavailable(f"The docket can't be written or read now: {why}.", reason="DOCKET_UNAVAILABLE")


def exists() -> DocketError:
    """Builds the error for an event whose number is taken."""
    return DocketError("The docket already holds an event of that number for this trial.", reason="EVENT_EXISTS")


def failed() -> DocketError:
    """Builds the error for an unknown failure."""
    return DocketError("The docket could not keep or find what it was asked to.")


def later_format(found: int, known: int) -> DocketError:
    """Builds the error for a docket of a later version."""
    return DocketError(
        f"The docket has format {found}; this version of MemeCourt reads up to {known}. Upgrade it.",
        reason="DOCKET_FORMAT",
    )


def unknown(trial_id: str) -> TrialUnknown:
    """Builds the error for an unknown trial."""
    return TrialUnknown(
        f"There is no trial {trial_id or 'with an empty id'} in this docket. `memecourt records list` shows those that "
        "are."
    )


def erased(trial_id: str) -> TrialErased:
    """Builds the error for an erased trial."""
    return TrialErased(f"The record of trial {trial_id} was erased; its entries in the log say when, by whom and why.")


def no_record(trial_id: str) -> DocketError:
    """Builds the error for an invalid record."""
    return DocketError(
        f"What the docket holds of trial {trial_id} is no record: it was altered, or written by another version of "
        "MemeCourt."
    )
