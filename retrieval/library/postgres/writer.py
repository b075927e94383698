"""Changes a library in the database one meme at a time, while replicas search it.

Each change is one transaction over memes, history, counts and head of the library. Writers wait for each other;
searches never wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.precedents import LibraryIdentity
from retrieval.embed.encoder import EncoderIdentity
from retrieval.library.change_rules import CurrentLibrary, PlannedChange
from retrieval.library.changes import Change, Effect, Recorded, with_revocations
from retrieval.library.journal import frame_of, next_head
from retrieval.library.manifest import Counts, LabelledMeme
from retrieval.library.ports import Plan, Writer
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.connections import Connections
from retrieval.library.postgres.push import stored_picture, values_of
from retrieval.library.postgres.schema import LIBRARY, NAMED, State, generations, read_state
from retrieval.library.postgres.view import PostgresView, parsed, storable
from retrieval.library.storage import damaged

if TYPE_CHECKING:
    from retrieval.library.postgres.connections import Connection

_WAIT_S = 10.0
"""Seconds to wait for another writer, which usually takes hundredths of a second; a push takes longer."""


class PostgresWriter(Writer):
    """Changes a library in a database.

    Thread-safe; each caller waits until its change is committed. If the connection is lost during the commit, the
    outcome is unknown until the history is read.
    """

    def __init__(self, address: Address) -> None:
        """Opens a connection for each change. Raises NotLoaded if the driver is not installed."""
        self._connections = Connections(address)

    @property
    def identity(self) -> LibraryIdentity:
        """Identity of the current library for records. Raises BadLibrary or Unavailable."""
        return self._connections.reading(read_state).identity

    @property
    def encoder(self) -> EncoderIdentity:
        """Identity of the library's encoder. Raises BadLibrary or Unavailable."""
        return self._connections.reading(read_state).about.encoder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._connections.close()

    def forget(self) -> None:
        """Permanently deletes removed memes, also on the previous generation; the history keeps who removed which.

        Raises:
            BadLibrary: The library is missing or damaged.
            Unavailable: The server can't be reached, or another writer holds the lock for too long.
        """

        def forgotten(connection: Connection) -> None:
            state = read_state(connection)
            all_generations = [replace(state, generation=generation) for generation in generations(connection)]
            gone: set[str] = set()  # memes that still exist are not forgotten
            for each in all_generations:
                query = (
                    f"SELECT DISTINCT meme FROM {each.history} WHERE meme NOT IN (SELECT id FROM {state.precedents})"
                )
                gone |= {id_ for (id_,) in connection.execute(query)}
            for each in all_generations:
                changes = f"SELECT number, entry FROM {each.history} WHERE meme = ANY(%s)"
                for number, entry in connection.execute(changes, ([*gone],)).fetchall():
                    bare = _change(entry).model_copy(update={"before": None, "after": None})
                    connection.execute(
                        f"UPDATE {each.history} SET entry = %s, vector = NULL, jpeg = NULL WHERE number = %s",
                        (bare.model_dump_json(exclude_defaults=True), number),
                    )
                rows = f"SELECT row FROM {each.precedents} WHERE id = ANY(%s)"
                # The precedents last, as they give the rows in the other tables.
                for table in (each.vectors, each.pictures, each.precedents):
                    connection.execute(f"DELETE FROM {table} WHERE row IN ({rows})", ([*gone],))

        self._connections.writing(forgotten, wait_s=_WAIT_S)

    def meme(self, id_: str) -> LabelledMeme | None:
        """Returns the current meme with this id; None if there is none. Raises BadLibrary or Unavailable."""

        def read(connection: Connection) -> LabelledMeme | None:
            found = _live(connection, read_state(connection), id_)
            return None if found is None else found[1]

        return self._connections.reading(read)

    def history(self, meme: str | None = None) -> list[Recorded]:
        """Returns all recorded changes, of one meme or of all, in order. Raises BadLibrary or Unavailable."""

        def read(connection: Connection) -> list[Recorded]:
            return with_revocations(_changes(connection, read_state(connection), meme))

        return self._connections.reading(read)

    def _made(self, plan: Plan) -> Change:
        def make(connection: Connection) -> Change:
            # Read under the lock, so that the change is planned on the previous writer's state.
            draft = _Draft(connection, read_state(connection))
            return draft.store(plan(draft))

        return self._connections.writing(make, wait_s=_WAIT_S)


class _Draft(CurrentLibrary):
    """Library within the transaction of one change."""

    def __init__(self, connection: Connection, state: State) -> None:
        super().__init__(
            encoder=state.about.encoder,
            size=state.counts.memes,
            next_number=state.changes + 1,
            next_row=state.rows,
            written=state.about.written,
        )
        self._connection = connection
        self.state = state
        self._counts = state.counts

    def live(self, id_: str) -> tuple[int, LabelledMeme] | None:
        return _live(self._connection, self.state, id_)

    def changes_of(self, meme: str) -> list[Change]:
        return _changes(self._connection, self.state, meme)

    def change(self, number: int) -> tuple[Change, bytes | None, bytes | None] | None:
        query = f"SELECT entry, vector, jpeg FROM {self.state.history} WHERE number = %s"
        found = self._connection.execute(query, (number,)).fetchone()
        return None if found is None else (_change(found[0]), found[1], found[2])

    def store(self, planned: PlannedChange) -> Change:
        change, vector, picture = planned.change, planned.vector, planned.picture
        match change.effect:
            case Effect.APPEND | Effect.SHOW:
                assert change.after is not None and vector is not None, "the history keeps what it takes out"
                self.put_in(change.row, change.after, vector, picture)
                return self.record(change, vector, picture)
            case Effect.HIDE:
                assert change.before is not None
                return self.record(change, keeps=self.take_out(change.row, change.before))
            case Effect.SET:
                assert change.before is not None and change.after is not None
                self.say(change.row, change.before, change.after)
                return self.record(change)

    def put_in(self, row: int, meme: LabelledMeme, vector: NDArray[np.float32], picture: bytes | None) -> None:
        stored = meme.model_copy(update={"kept": stored_picture(picture)})
        self._insert(row, stored)
        connection = self._connection
        connection.execute(f"INSERT INTO {self.state.vectors} (row, vector) VALUES (%s, %s)", (row, vector))
        if picture:
            connection.execute(f"INSERT INTO {self.state.pictures} (row, jpeg) VALUES (%s, %s)", (row, picture))
        # A restored meme takes its old row; the number of rows never decreases.
        self.state = replace(self.state, rows=max(self.state.rows, row + 1))
        self._count(None, stored)

    def take_out(self, row: int, meme: LabelledMeme) -> tuple[bytes, bytes | None]:
        # Read before deletion and verified by digest, so that the history does not store damaged data.
        picture = PostgresView(self._connection, self.state).picture(meme.id)
        self._connection.execute(f"DELETE FROM {self.state.precedents} WHERE row = %s", (row,))
        self._connection.execute(f"DELETE FROM {self.state.pictures} WHERE row = %s", (row,))
        query = f"DELETE FROM {self.state.vectors} WHERE row = %s RETURNING vector"
        found = self._connection.cursor(binary=True).execute(query, (row,)).fetchone()
        if found is None:
            raise damaged("the vectors of a meme are missing")
        self._count(meme, None)
        return found[0].to_numpy().astype("<f4").tobytes(), picture

    def say(self, row: int, before: LabelledMeme, after: LabelledMeme) -> None:
        self._connection.execute(f"DELETE FROM {self.state.precedents} WHERE row = %s", (row,))
        self._insert(row, after)
        self._count(before, after)

    def record(
        self,
        change: Change,
        vector: NDArray[np.float32] | None = None,
        picture: bytes | None = None,
        *,
        keeps: tuple[bytes, bytes | None] = (b"", None),
    ) -> Change:
        """Records a change; ``keeps`` are vector and picture of the removed meme."""
        self._connection.execute(
            f"INSERT INTO {self.state.history} (number, meme, entry, vector, jpeg) VALUES (%s, %s, %s, %s, %s)",
            (change.number, change.meme, change.model_dump_json(exclude_defaults=True), keeps[0] or None, keeps[1]),
        )
        # Chained as in a journal on disk: the head, which records refer to, covers every change since the push.
        head = next_head(self.state.head, frame_of(change, vector, picture))
        self.state = replace(self.state, head=head, counts=self._counts, changes=change.number)
        self._connection.execute(
            f"UPDATE {LIBRARY} SET head = %s, counts = %s, rows = %s, changes = %s",
            (head, self._counts.model_dump_json(), self.state.rows, change.number),
        )
        return change

    def _insert(self, row: int, meme: LabelledMeme) -> None:
        columns = ("row", "id", "meme", "harmful", "verified", "copy_key", "added", *NAMED)
        marks = ", ".join(["%s"] * len(columns))
        self._connection.execute(
            f"INSERT INTO {self.state.precedents} ({', '.join(columns)}) VALUES ({marks})", values_of(row, meme)
        )

    def _count(self, before: LabelledMeme | None, after: LabelledMeme | None) -> None:
        # Incrementally, as recounting all rows would take longer than the change itself.
        counted = self._counts.model_dump()
        for meme, sign in ((before, -1), (after, 1)):
            if meme is not None:
                counted["memes"] += sign
                counted["with_text"] += sign * meme.has_text
                counted["with_picture"] += sign * meme.has_picture
                counted["harmful" if meme.harmful else "not_harmful"] += sign
                counted["kept_pictures"] += sign * (meme.kept is not None)
                counted["kept_bytes"] += sign * (meme.kept.size if meme.kept else 0)
        self._counts = Counts.model_validate(counted)


def _live(connection: Connection, state: State, id_: str) -> tuple[int, LabelledMeme] | None:
    # An id that the database can't store gives an empty list, and no result instead of an error.
    query = f"SELECT row, meme FROM {state.precedents} WHERE id = ANY(%s)"
    found = connection.execute(query, (storable([id_]),)).fetchone()
    return None if found is None else (found[0], parsed(found[1]))


def _changes(connection: Connection, state: State, meme: str | None) -> list[Change]:
    query = f"SELECT entry FROM {state.history}"
    if meme is None:
        return [_change(entry) for (entry,) in connection.execute(f"{query} ORDER BY number")]
    found = connection.execute(f"{query} WHERE meme = ANY(%s) ORDER BY number", (storable([meme]),))
    return [_change(entry) for (entry,) in found]


def _change(entry: str) -> Change:
    try:
        return Change.model_validate_json(entry)
    except ValidationError as error:
        raise damaged("a change recorded in it can't be understood") from error
