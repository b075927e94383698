"""Schema of a library in the database.

::

    memecourt.precedent_library     one row: which shelf holds, its head, what is said of the library
    memecourt.precedents_7          a row a meme: its id, what is said of it, what it is chosen by
    memecourt.vectors_7             a row a meme: [t|g]
    memecourt.pictures_7            a row a meme that keeps a picture: the JPEG
    memecourt.changes_7             a row a change, in order

A shelf's tables are made and filled in one transaction, in which ``precedent_library`` begins to name them. The shelf
before is kept for who still searches it, the one before that is dropped.

The vectors lie apart from all else and in one piece (storage ``plain``) as long as they fit into a page: a search reads
all of them and nothing more. Left to itself PostgreSQL would put each into a side table and look it up there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadLibrary
from court.precedents import LibraryIdentity
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library.manifest import Counts, Tuning
from retrieval.library.postgres.connections import missing
from retrieval.library.storage import damaged

if TYPE_CHECKING:
    from retrieval.library.postgres.connections import Connection

FORMAT = 1
"""Version of these tables. A court reads this one, and says of any other what to do."""
MAX_DIM = 16_000
"""Numbers that a vector of pgvector can hold."""
_PLAIN_DIM = 2_000
"""Numbers that fit into a page of 8,192 bytes, with room for the rest of the row."""

LIBRARY = "memecourt.precedent_library"


class About(BaseModel):
    """Description of a library as a whole, as its manifest has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    created: AwareDatetime
    software: str
    """Version of what put it here."""
    encoder: EncoderIdentity
    tuning: Tuning
    lineage: str
    written: int = Field(ge=0)
    """Changes that were recorded before its rows were numbered as they are: theirs are of no meaning here."""


@dataclass(frozen=True)
class State:
    """The row of ``precedent_library``.

    Attributes:
        shelf: Shelf whose tables are in use.
        head: Stands for all that they hold: the digest of the library that was pushed, in hex, and with each change
            since the SHA-256 of it and the one before (:func:`retrieval.library.journal.next_head`).
        about: Description of the library.
        counts: Number of memes.
        rows: Number of rows there ever were: the next meme goes behind them, since a removed one may come back to its
            row.
        changes: Number of the last change.
    """

    shelf: int
    head: str
    about: About
    counts: Counts
    rows: int
    changes: int

    @cached_property
    def identity(self) -> LibraryIdentity:
        """Identity for records: that of the library on disk that it was made from, until it is changed here."""
        return LibraryIdentity(
            name=self.about.name,
            digest=f"sha256:{self.head}",
            size=self.counts.memes,
            encoder=str(self.about.encoder),
            with_picture=self.counts.with_picture,
        )

    @property
    def precedents(self) -> str:
        """Name of a table."""
        return f"memecourt.precedents_{self.shelf}"

    @property
    def vectors(self) -> str:
        """Name of a table."""
        return f"memecourt.vectors_{self.shelf}"

    @property
    def pictures(self) -> str:
        """Name of a table."""
        return f"memecourt.pictures_{self.shelf}"

    @property
    def history(self) -> str:
        """Name of a table."""
        return f"memecourt.changes_{self.shelf}"


def read_state(connection: Connection, before: State | None = None) -> State:
    """Which library there is now.

    Args:
        connection: In a transaction.
        before: State at the last look; if it is unchanged, it is not read again.

    Raises:
        BadLibrary: There is none, or one of another format.
    """
    state = state_or_none(connection, before)
    if state is None:
        raise missing()
    return state


def state_or_none(connection: Connection, before: State | None = None) -> State | None:
    """Reads the state as :func:`read_state`; None if there is none."""
    # Here, since the driver is optional and this module is imported without it.
    from psycopg.rows import dict_row

    if before is not None:
        # Nearly always; the rest of the row is some kilobytes of JSON.
        query = f"SELECT 1 FROM {LIBRARY} WHERE format = %s AND shelf = %s AND head = %s"
        if connection.execute(query, (FORMAT, before.shelf, before.head)).fetchone():
            return before
    # Asked for by name: to select from a table that is not there would abort the whole transaction.
    if connection.execute("SELECT to_regclass(%s)", (LIBRARY,)).fetchone() == (None,):
        return None
    row = connection.cursor(row_factory=dict_row).execute(f"SELECT * FROM {LIBRARY}").fetchone()
    if row is None:
        return None
    if row["format"] != FORMAT:
        newer = row["format"] > FORMAT
        raise BadLibrary(
            f"The precedent library in the database has format {row['format']}; this version of MemeCourt reads format "
            f"{FORMAT}. {'Upgrade MemeCourt, or push' if newer else 'Push'} the library again with this version.",
            reason="LIBRARY_TOO_NEW" if newer else "LIBRARY_TOO_OLD",
        )
    try:
        about, counts = About.model_validate_json(row["about"]), Counts.model_validate_json(row["counts"])
    except ValidationError as error:
        raise damaged("what the database says of it can't be understood") from error
    return State(
        shelf=row["shelf"], head=row["head"], about=about, counts=counts, rows=row["rows"], changes=row["changes"]
    )


def write_state(connection: Connection, state: State) -> None:
    """From the end of the transaction on, this holds."""
    connection.execute(
        f"INSERT INTO {LIBRARY} (format, shelf, head, about, counts, rows, changes) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s) "
        "ON CONFLICT (one) DO UPDATE SET format = EXCLUDED.format, shelf = EXCLUDED.shelf, head = EXCLUDED.head, "
        "about = EXCLUDED.about, counts = EXCLUDED.counts, rows = EXCLUDED.rows, changes = EXCLUDED.changes",
        (
            FORMAT,
            state.shelf,
            state.head,
            state.about.model_dump_json(),
            state.counts.model_dump_json(),
            state.rows,
            state.changes,
        ),
    )


def create_library(connection: Connection) -> None:
    """Makes the table that names the shelf, where it is not there yet."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS memecourt")
    connection.execute(
        # A key that can only be true: there is never a second row.
        f"CREATE TABLE IF NOT EXISTS {LIBRARY} (one boolean PRIMARY KEY DEFAULT true CHECK (one), "
        "format integer NOT NULL, shelf integer NOT NULL, head text NOT NULL, about text NOT NULL, "
        "counts text NOT NULL, rows bigint NOT NULL, changes bigint NOT NULL)"
    )


def create_shelf(connection: Connection, state: State) -> None:
    """Makes the tables of a shelf, without what makes them quick to read."""
    # Names are compared as they are, whatever the language of the database.
    named = ", ".join(f'{name} text COLLATE "C" NOT NULL' for name in NAMED)
    connection.execute(
        f'CREATE TABLE {state.precedents} (row bigint NOT NULL, id text COLLATE "C" NOT NULL, meme text NOT NULL, '
        f"harmful boolean NOT NULL, verified boolean NOT NULL, added timestamptz, {named})"
    )
    # In the row where it fits, since a search reads them all; compressed in neither case.
    storage = "PLAIN" if state.about.encoder.dim <= _PLAIN_DIM else "EXTERNAL"
    connection.execute(
        f"CREATE TABLE {state.vectors} (row bigint NOT NULL, vector vector({state.about.encoder.dim}) NOT NULL)"
    )
    connection.execute(f"ALTER TABLE {state.vectors} ALTER COLUMN vector SET STORAGE {storage}")
    # A JPEG does not become smaller by being compressed again.
    connection.execute(f"CREATE TABLE {state.pictures} (row bigint NOT NULL, jpeg bytea NOT NULL)")
    connection.execute(f"ALTER TABLE {state.pictures} ALTER COLUMN jpeg SET STORAGE EXTERNAL")
    connection.execute(
        f'CREATE TABLE {state.history} (number bigint PRIMARY KEY, meme text COLLATE "C" NOT NULL, '
        "entry text NOT NULL, vector bytea, jpeg bytea)"
    )


def finish_shelf(connection: Connection, state: State) -> None:
    """Builds indexes once the tables are full. Raises psycopg's UniqueViolation if an id stands twice."""
    connection.execute(f"ALTER TABLE {state.precedents} ADD PRIMARY KEY (row)")
    connection.execute(f"ALTER TABLE {state.precedents} ADD UNIQUE (id)")
    connection.execute(f"ALTER TABLE {state.vectors} ADD PRIMARY KEY (row)")
    connection.execute(f"ALTER TABLE {state.pictures} ADD PRIMARY KEY (row)")
    connection.execute(f"CREATE INDEX ON {state.history} (meme, number)")
    for table in (state.precedents, state.vectors, state.pictures, state.history):
        # Until autovacuum comes by, the planner would go by guesses about tables that have just been filled.
        connection.execute(f"ANALYZE {table}")


def shelves(connection: Connection) -> list[int]:
    """All that there are tables of, in order."""
    found = connection.execute(
        "SELECT substring(tablename FROM '^precedents_([0-9]+)$')::integer AS shelf FROM pg_tables "
        "WHERE schemaname = 'memecourt' AND tablename ~ '^precedents_[0-9]+$' ORDER BY shelf"
    )
    return [shelf for (shelf,) in found]


def drop_shelf(connection: Connection, shelf: int) -> None:
    """Drops the tables of a shelf that nobody names any more."""
    for table in ("precedents", "vectors", "pictures", "changes"):
        connection.execute(f"DROP TABLE IF EXISTS memecourt.{table}_{shelf}")


NAMED: tuple[str, ...] = ("source", "split", "namespace", "language", "policy")
"""Columns that a filter chooses by, in the order of :attr:`retrieval.library.filters.Filter.names`."""
