"""Schema of a library in the database.

::

    memecourt.precedent_library  one row: current generation, its head, description of the library
    memecourt.precedents_7       a row a meme: its id, what is said of it, what it is chosen by
    memecourt.vectors_7          a row a meme: [t|g]
    memecourt.pictures_7         a row a meme that keeps a picture: the JPEG
    memecourt.changes_7          a row a change: what the history of the library says of it

A generation's tables are created and filled in one transaction, in which ``precedent_library`` switches to them. The
previous generation is kept for searches in progress, older ones are dropped.

Vectors have a table of their own and are stored inline (storage ``plain``) as long as they fit into a page, because a
search reads all of them and nothing else. By default PostgreSQL would move each to a TOAST table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import AwareDatetime, Field, ValidationError

from court.errors import BadLibrary
from court.precedents import LibraryIdentity
from court.values import Value
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library.manifest import Counts, Tuning
from retrieval.library.postgres.connections import missing
from retrieval.library.storage import damaged

if TYPE_CHECKING:
    from retrieval.library.postgres.connections import Connection

FORMAT = 1
"""Version of these tables; only this one can be read."""
MAX_DIM = 16_000
_PLAIN_DIM = 2_000
"""Dimensions that fit into a page of 8,192 bytes with the rest of the row."""

LIBRARY = "memecourt.precedent_library"


class About(Value):
    """Description of a library, as in its manifest."""

    name: str
    created: AwareDatetime
    software: str
    encoder: EncoderIdentity
    tuning: Tuning
    lineage: str
    written: int = Field(ge=0)
    """Number of the last change before rows were renumbered; rows of earlier changes are meaningless here."""


@dataclass(frozen=True)
class State:
    """The row of ``precedent_library``.

    Attributes:
        head: Hash chain over the content: the digest of the pushed library, in hex, extended by each change since
            (:func:`retrieval.library.journal.next_head`).
        rows: Number of rows ever used; new memes are appended after them, as a removed meme may be restored to its row.
    """

    generation: int
    head: str
    about: About
    counts: Counts
    rows: int
    changes: int

    @cached_property
    def identity(self) -> LibraryIdentity:
        """Identity for records; until changed, that of the pushed library on disk."""
        return LibraryIdentity(
            name=self.about.name,
            digest=f"sha256:{self.head}",
            size=self.counts.memes,
            encoder=str(self.about.encoder),
            with_picture=self.counts.with_picture,
        )

    @property
    def precedents(self) -> str:
        """Name of the table."""
        return f"memecourt.precedents_{self.generation}"

    @property
    def vectors(self) -> str:
        """Name of the table."""
        return f"memecourt.vectors_{self.generation}"

    @property
    def pictures(self) -> str:
        """Name of the table."""
        return f"memecourt.pictures_{self.generation}"

    @property
    def history(self) -> str:
        """Name of the table."""
        return f"memecourt.changes_{self.generation}"


def read_state(connection: Connection, before: State | None = None) -> State:
    """Reads the state of the current library; ``before`` itself if that is still current.

    Raises:
        BadLibrary: There is no library, or it has another format.
    """
    state = state_or_none(connection, before)
    if state is None:
        raise missing()
    return state


def state_or_none(connection: Connection, before: State | None = None) -> State | None:
    """Reads the state as :func:`read_state`; None if there is none."""
    # Imported here, as the driver is optional.
    from psycopg.rows import dict_row

    if before is not None:
        # The common case, which avoids reading kilobytes of JSON.
        query = f"SELECT 1 FROM {LIBRARY} WHERE format = %s AND generation = %s AND head = %s"
        if connection.execute(query, (FORMAT, before.generation, before.head)).fetchone():
            return before
    # By name, as selecting from a missing table would abort the whole transaction.
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
        generation=row["generation"],
        head=row["head"],
        about=about,
        counts=counts,
        rows=row["rows"],
        changes=row["changes"],
    )


def write_state(connection: Connection, state: State) -> None:
    """Makes a state current, from the commit on."""
    connection.execute(
        f"INSERT INTO {LIBRARY} (format, generation, head, about, counts, rows, changes) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s) "
        "ON CONFLICT (one) DO UPDATE SET format = EXCLUDED.format, generation = EXCLUDED.generation, "
        "head = EXCLUDED.head, about = EXCLUDED.about, counts = EXCLUDED.counts, rows = EXCLUDED.rows, "
        "changes = EXCLUDED.changes",
        (
            FORMAT,
            state.generation,
            state.head,
            state.about.model_dump_json(),
            state.counts.model_dump_json(),
            state.rows,
            state.changes,
        ),
    )


def create_library(connection: Connection) -> None:
    """Creates the table that names the generation, if it does not exist."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS memecourt")
    connection.execute(
        # A key that can only be true enforces a single row.
        f"CREATE TABLE IF NOT EXISTS {LIBRARY} (one boolean PRIMARY KEY DEFAULT true CHECK (one), "
        "format integer NOT NULL, generation integer NOT NULL, head text NOT NULL, about text NOT NULL, "
        "counts text NOT NULL, rows bigint NOT NULL, changes bigint NOT NULL)"
    )


def create_generation(connection: Connection, state: State) -> None:
    """Creates the tables of a generation, without indexes."""
    # Names are compared bytewise, whatever the locale of the database.
    named = ", ".join(f'{name} text COLLATE "C" NOT NULL' for name in NAMED)
    connection.execute(
        f'CREATE TABLE {state.precedents} (row bigint NOT NULL, id text COLLATE "C" NOT NULL, meme text NOT NULL, '
        f"harmful boolean NOT NULL, verified boolean NOT NULL, copy_key text NOT NULL, "
        f"added timestamptz, {named})"
    )
    # Inline if it fits, since a search reads them all; never compressed.
    storage = "PLAIN" if state.about.encoder.dim <= _PLAIN_DIM else "EXTERNAL"
    connection.execute(
        f"CREATE TABLE {state.vectors} (row bigint NOT NULL, vector vector({state.about.encoder.dim}) NOT NULL)"
    )
    connection.execute(f"ALTER TABLE {state.vectors} ALTER COLUMN vector SET STORAGE {storage}")
    # JPEGs do not benefit from compression.
    connection.execute(f"CREATE TABLE {state.pictures} (row bigint NOT NULL, jpeg bytea NOT NULL)")
    connection.execute(f"ALTER TABLE {state.pictures} ALTER COLUMN jpeg SET STORAGE EXTERNAL")
    connection.execute(
        f'CREATE TABLE {state.history} (number bigint PRIMARY KEY, meme text COLLATE "C" NOT NULL, '
        "entry text NOT NULL, vector bytea, jpeg bytea)"
    )


def finish_generation(connection: Connection, state: State) -> None:
    """Builds indexes once the tables are filled. Raises psycopg's UniqueViolation for a duplicate id."""
    connection.execute(f"ALTER TABLE {state.precedents} ADD PRIMARY KEY (row)")
    connection.execute(f"ALTER TABLE {state.precedents} ADD UNIQUE (id)")
    connection.execute(f"ALTER TABLE {state.vectors} ADD PRIMARY KEY (row)")
    connection.execute(f"ALTER TABLE {state.pictures} ADD PRIMARY KEY (row)")
    connection.execute(f"CREATE INDEX ON {state.history} (meme, number)")
    connection.execute(f"CREATE INDEX ON {state.precedents} (copy_key) WHERE copy_key <> ''")
    for table in (state.precedents, state.vectors, state.pictures, state.history):
        # Until autovacuum runs, the planner would have no statistics about the new tables.
        connection.execute(f"ANALYZE {table}")


def generations(connection: Connection) -> list[int]:
    """Returns the numbers of all generations with tables, in order."""
    found = connection.execute(
        "SELECT substring(tablename FROM '^precedents_([0-9]+)$')::integer AS generation FROM pg_tables "
        "WHERE schemaname = 'memecourt' AND tablename ~ '^precedents_[0-9]+$' ORDER BY generation"
    )
    return [generation for (generation,) in found]


def drop_generation(connection: Connection, generation: int) -> None:
    """Drops the tables of an unused generation."""
    for table in ("precedents", "vectors", "pictures", "changes"):
        connection.execute(f"DROP TABLE IF EXISTS memecourt.{table}_{generation}")


NAMED: tuple[str, ...] = ("source", "split", "namespace", "language", "policy")
"""Columns for filters, in the order of :attr:`retrieval.library.filters.Filter.names`."""
