"""The tables of a docket, the same for SQLite and PostgreSQL, and what both databases can do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    false,
    insert,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from court.errors import CourtError, Unavailable
from serving.docket.errors import DocketError, TrialErased, TrialUnknown

FORMAT = 1
"""Format of these tables; opening a docket migrates an earlier format and refuses a later one."""

metadata = MetaData()

# Compared byte by byte in both databases, independent of locale.
WORD = String().with_variant(String(collation="C"), "postgresql")


class Name(TypeDecorator[str]):
    """Column of untrusted names. PostgreSQL accepts no NUL, which is stored as a backslash and a zero."""

    impl = WORD
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns the stored form."""
        if value is None or ("\\" not in value and "\0" not in value):
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        """Returns the original text."""
        if value is None or "\\" not in value:
            return value
        return re.sub(r"\\(.)", lambda found: "\0" if found[1] == "0" else "\\", value)


class Moment(TypeDecorator[datetime]):
    """Column of a time as :func:`stamp` writes it; empty for none."""

    impl = WORD
    cache_ok = True

    def process_bind_param(self, value: datetime | str | None, dialect: Dialect) -> str:
        """Returns the stored form."""
        return stamp(value) if isinstance(value, datetime) else value or ""

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        """Returns the time."""
        return datetime.fromisoformat(value) if value else None


NUMBER = BigInteger().with_variant(Integer, "sqlite")

entries = Table(
    "entries",
    metadata,
    # The log of all trials, in stored order. Only salts and bodies are ever deleted.
    Column("number", NUMBER, primary_key=True, autoincrement=False),
    Column("trial_id", WORD, nullable=False),  # empty if the entry belongs to no trial
    Column("seq", Integer, nullable=False),  # -1 if the entry is not an event of a trial
    Column("kind", WORD, nullable=False),
    Column("at", String, nullable=False),  # ISO 8601, UTC: sorts as it reads
    Column("commitment", LargeBinary, nullable=False),
    Column("salt", LargeBinary),
    Column("body", LargeBinary),  # canonical JSON, compressed; None once it is erased
)
# Literals rather than parameters, so that SQLite can use a partial index.
IS_EVENT, IS_OTHER = entries.c.seq >= text("0"), entries.c.seq < text("0")
_of_trial, _about_trial = (entries.c.trial_id, entries.c.seq), (entries.c.trial_id, entries.c.number)
Index("entries_of_trial", *_of_trial, unique=True, sqlite_where=IS_EVENT, postgresql_where=IS_EVENT)
Index("entries_about_trial", *_about_trial, sqlite_where=IS_OTHER, postgresql_where=IS_OTHER)
Index("entries_of_kind", entries.c.kind, entries.c.number)

log = Table(
    "log",
    metadata,
    # A single row with the log's state. Appenders lock it, so that numbers have no gaps.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("frontier", LargeBinary, nullable=False),  # of its Merkle tree
    Column("key", Text, nullable=False),  # the public key that its checkpoints are signed with; empty before the first
    Column("checkpoint", Text, nullable=False),  # the latest, a signed note; empty before the first
    Column("signed", BigInteger, nullable=False),  # number of entries that it covers
    Column("erased", BigInteger, nullable=False),  # number of erased entries
)

tiles = Table(
    "tiles",
    metadata,
    # The Merkle tree in tiles (C2SP tlog-tiles); the last one of each level may be partial.
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("place", NUMBER, primary_key=True, autoincrement=False),
    Column("hashes", LargeBinary, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    # The checkpoints that verdicts' receipts refer to.
    Column("size", NUMBER, primary_key=True, autoincrement=False),
    Column("note", Text, nullable=False),
)

parts = Table(
    "parts",
    metadata,
    # Log entries of texts that events of many trials quote.
    Column("key", LargeBinary, primary_key=True),
    Column("number", NUMBER, nullable=False),
    Column("of", Name, nullable=False, index=True),  # the precedent that it belongs to
)

document_uses = Table(
    "document_uses",
    metadata,
    # Trials by the texts of documents that they quote: a text is erased with the last trial that quotes it.
    Column("part", LargeBinary, primary_key=True),  # its key among the parts
    Column("trial_id", WORD, primary_key=True, index=True),
)

pictures = Table(
    "pictures",
    metadata,
    Column("pixels_sha256", WORD, primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("png", LargeBinary, nullable=False),
)

leaving = Table(
    "leaving",
    metadata,
    # Deletion outbox: pictures in the object store whose last trial was erased, until they are removed.
    Column("pixels_sha256", WORD, primary_key=True),
)

trials = Table(
    "trials",
    metadata,
    # Derived from the events, and always written in the same transaction.
    Column("trial_id", WORD, primary_key=True),
    Column("opened_at", WORD, nullable=False),
    Column("procedure", String, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("content_id", Name, nullable=False),
    Column("request_id", Name, nullable=False),
    Column("pixels_sha256", WORD, nullable=False),  # of a text that was sent alone, the text's digest
    Column("state", WORD, nullable=False),
    Column("label", WORD, nullable=False),  # empty where there is no verdict
    Column("needs_review", Boolean, nullable=False),
    # True for a block that is queued for review and stands meanwhile.
    Column("block_stands", Boolean, nullable=False),
    Column("outcome", WORD, nullable=False),  # of the last review; empty where there was none
    Column("review", Text),  # that event
    Column("failure_reason", String, nullable=False),
    Column("erased", Boolean, nullable=False, server_default=false()),
    Column("content", WORD, nullable=False),  # key of its content, with the next column; empty once erased
    Column("wording", WORD, nullable=False),
    Column("policy", WORD, nullable=False),  # its digest
    Column("precedent", Name, nullable=False),  # the binding precedent that settled it; empty without
    Column("heard", Boolean, nullable=False),  # whether a person has reviewed or contested its verdict
)

# Each selective filter has an index in listing order.
_order = (trials.c.opened_at, trials.c.trial_id)
Index("trials_by_time", *_order)
Index("trials_by_namespace", trials.c.namespace, *_order)
Index("trials_by_state", trials.c.state, *_order)
Index("trials_by_label", trials.c.label, *_order)
Index("trials_by_outcome", trials.c.outcome, *_order)
Index("trials_by_picture", trials.c.pixels_sha256, trials.c.state, *_order)
Index("trials_by_content", trials.c.namespace, trials.c.content_id, *_order)
Index("trials_by_finding", trials.c.content, trials.c.wording)
Index("trials_by_need", trials.c.needs_review, trials.c.outcome, *_order)

requests = Table(
    "requests",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("request_id", Name, primary_key=True),
    Column("payload", String, nullable=False),
    Column("trial_id", WORD, nullable=False),
    Column("owner", WORD, nullable=False),
    Column("content_id", Name, nullable=False),
    Column("at", WORD, nullable=False),  # when it was first asked
)
Index("requests_by_trial", requests.c.trial_id)

servers = Table(
    "servers", metadata, Column("owner", WORD, primary_key=True), Column("beats", BigInteger, nullable=False)
)

known = Table(
    "known", metadata, Column("key", WORD, primary_key=True), Column("trial_id", WORD, nullable=False, index=True)
)

findings = Table(
    "findings",
    metadata,
    # Findings of people by content key, derived from the log and always written in the same transaction.
    Column("content", WORD, primary_key=True),
    Column("wording", WORD, primary_key=True),
    Column("trial_id", WORD, nullable=False, index=True),  # whose review or appeal was the last
    Column("label", WORD, nullable=False),  # empty where a case is open that nobody has reviewed
    Column("at", WORD, nullable=False),
    Column("contested", Boolean, nullable=False),
    Column("acquitters", Integer, nullable=False),
    Column("policy", WORD, nullable=False),  # digest of the policy that the trial applied
    Column("notes", Text, nullable=False),  # on the case, to go on with the next event
    Column("until", WORD, nullable=False),  # end of a finding whose trial has expired; empty while there is the trial
)

fingerprints = Table(
    "looks",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("trial_id", WORD, nullable=False, unique=True),
    Column("look", LargeBinary, nullable=False),
    # Numbers are never reused, even after erasures: readers continue from the last one that they have seen.
    sqlite_autoincrement=True,
)

followed = Table(
    "followed",
    metadata,
    # One row, of a candidate's docket: the entry of the court's log at which following it goes on.
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("next", BigInteger, nullable=False),
)

hooks = Table(
    "hooks",
    metadata,
    # Webhook receivers by name, with their positions in the log.
    Column("name", WORD, primary_key=True),
    Column("next_entry", BigInteger, nullable=False),
    Column("owner", WORD, nullable=False),  # the server that sends; empty where none does
    Column("paused_until", Moment, nullable=False),  # empty where it is not paused
    Column("failing_since", Moment, nullable=False),  # since when nothing was taken; empty where the last was
    Column("disabled_at", Moment, nullable=False),  # empty where it is enabled
    Column("why", Text, nullable=False),  # it was disabled
)

deliveries = Table(
    "deliveries",
    metadata,
    # Messages that were not taken at their first attempt. What is sent is made of the entry, each time anew.
    Column("hook", WORD, primary_key=True),
    Column("entry", NUMBER, primary_key=True, autoincrement=False),
    Column("event", WORD, primary_key=True),
    Column("since", Moment, nullable=False),  # time of the entry
    Column("attempts", Integer, nullable=False),
    Column("due_at", Moment, nullable=False),  # empty where it was given up
    Column("error", Text, nullable=False),  # of the last attempt, in our words
)
Index("deliveries_due", deliveries.c.hook, deliveries.c.due_at)


def stamp(at: datetime) -> str:
    """A time as it is kept."""
    # Always six digits, so that times sort as texts.
    return at.astimezone(UTC).isoformat(timespec="microseconds")


class Database(Protocol):
    """A database with the tables of a docket."""

    read_only: bool
    """True if nothing can be written to the database."""
    on_server: bool
    """True if the database is a server's, which a write may wait for; False for a file."""

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
