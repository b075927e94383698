"""Pushes a library on disk into a database, atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from court.errors import BadRequest, CourtError
from court.precedents import LibraryIdentity
from retrieval.library.changes import Effect
from retrieval.library.library import Library, software_version
from retrieval.library.manifest import LabelledMeme, StoredPicture
from retrieval.library.postgres import schema
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.connections import Connections
from retrieval.library.postgres.schema import NAMED, About, State
from retrieval.library.postgres.view import storable

if TYPE_CHECKING:
    from retrieval.library.postgres.connections import Connection

_WAIT_S = 10.0
_PROGRESS_EVERY = 1000
"""Memes between two progress reports."""

Progress = Callable[[str, int, int], None]
"""Progress callback: step (``push``), memes done and total."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of a push; ``changes_lost`` were recorded in the replaced library but not in this one."""

    identity: LibraryIdentity
    was_there: bool = False
    replaced: LibraryIdentity | None = None
    changes_lost: int = 0


def push_library(
    library: Library, address: Address, *, replace: bool = False, progress: Progress | None = None
) -> Pushed:
    """Copies a library with its pictures and history into a database, in one transaction.

    Searches continue in the previous library until the commit. If the push fails, nothing has changed.

    Args:
        replace: True to replace an existing library, including all changes made to it there.

    Raises:
        BadLibrary: The database has no pgvector, or a picture of the library was altered.
        BadRequest: There is a library already, or this one can't be stored in a database.
        NotLoaded: The driver is not installed.
        OSError: The library can't be read.
        Unavailable: The server can't be reached, or another writer holds the lock for too long.
    """
    # Checked before copying, as the server would reject the table with its own message.
    if library.manifest.encoder.dim > schema.MAX_DIM:
        raise BadRequest(
            f"A vector in the database has at most {schema.MAX_DIM:,} numbers, and those of this library have "
            f"{library.manifest.encoder.dim:,}."
        )
    connections = Connections(address)
    pushed, stale = connections.writing(
        lambda connection: _pushed(connection, library, replace, progress), wait_s=_WAIT_S
    )
    # In a separate transaction: dropping tables waits for searches in them, and must not affect the push.
    _drop(connections, stale)
    return pushed


def _pushed(
    connection: Connection, library: Library, replace: bool, progress: Progress | None
) -> tuple[Pushed, list[int]]:
    schema.create_library(connection)
    try:
        before = schema.state_or_none(connection)
    except CourtError:
        # Another format: irrelevant if it is to be replaced.
        if not replace:
            raise
        before = None
    # Idempotent: a push repeated because its answer was lost does nothing.
    if before is not None and before.identity == library.identity:
        return Pushed(before.identity, was_there=True), []
    if before is not None and not replace:
        raise BadRequest(
            "There is another precedent library in the database. Ask for it to be replaced; what was changed in it "
            "there is then lost.",
            reason="LIBRARY_EXISTS",
        )
    there = schema.generations(connection)
    state = State(
        # Never an existing number, as searches still read existing generations.
        generation=max(there, default=0) + 1,
        head=library.digest.removeprefix("sha256:"),
        about=About(
            name=library.manifest.name,
            created=library.manifest.created,
            software=software_version(),
            encoder=library.manifest.encoder,
            tuning=library.manifest.tuning,
            lineage=library.manifest.lineage,
            written=library.manifest.changes,
        ),
        counts=library.counts,
        rows=library.flags.size,
        changes=library.manifest.changes + len(library.overlay.changes),
    )
    schema.create_generation(connection, state)
    _copy_memes(connection, library, state, progress)
    _copy_history(connection, library, state)
    schema.finish_generation(connection, state)
    # Last, as replicas find the generation by this row.
    schema.write_state(connection, state)
    # The previous generation stays for searches in progress; older ones are no longer used.
    stale = [generation for generation in there if before is None or generation != before.generation]
    if before is None:
        return Pushed(state.identity), stale
    same = before.about.lineage == state.about.lineage
    # Within one lineage this library includes all changes up to its own number; from another lineage it includes none.
    lost = max(0, before.changes - state.changes) if same else before.changes
    return Pushed(state.identity, replaced=before.identity, changes_lost=lost), stale


def _copy_memes(connection: Connection, library: Library, state: State, progress: Progress | None) -> None:
    # One table after another, as a connection supports one COPY at a time.
    rows = range(library.counts.memes) if library.live is None else library.live.tolist()
    total, steps = len(rows), 3
    done = 0

    def report_step() -> None:
        nonlocal done
        done += 1
        if progress and (done % _PROGRESS_EVERY == 0 or done == steps * total):
            progress("push", done // steps, total)

    columns = ("row", "id", "meme", "harmful", "verified", "copy_key", "added", *NAMED)
    types = ("int8", "text", "text", "bool", "bool", "text", "timestamptz", *("text" for _ in NAMED))
    # Binary, so that vectors are bit-exact, and texts and JPEGs need no quoting.
    with connection.cursor().copy(f"COPY {state.precedents} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(types)
        for row, meme in zip(rows, library.memes, strict=True):
            copy.write_row(values_of(row, meme))
            report_step()
    with connection.cursor().copy(f"COPY {state.vectors} (row, vector) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(("int8", "vector"))
        for row in rows:
            copy.write_row((row, library.vector_of(row)))
            report_step()
    with connection.cursor().copy(f"COPY {state.pictures} (row, jpeg) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(("int8", "bytea"))
        for row, meme in zip(rows, library.memes, strict=True):
            if (jpeg := library.picture_of(meme)) is not None:
                copy.write_row((row, jpeg))
            report_step()


def values_of(row: int, meme: LabelledMeme) -> tuple[Any, ...]:
    """Returns the values of a row in the table of precedents.

    Raises:
        BadRequest: The meme has a name that the database can't store.
    """
    names = [getattr(meme, name) for name in NAMED]
    if len(storable([meme.id, *names])) != 1 + len(names):
        raise BadRequest(
            "An id, source, split, namespace, language or policy holds a sign that a database can't keep (NUL, or half "
            "of a surrogate pair). Build the library again without it."
        )
    # A file offset is meaningless here.
    placed = None if meme.kept is None else meme.kept.model_copy(update={"offset": 0})
    stored = meme.model_copy(update={"kept": placed}).model_dump_json(exclude_defaults=True)
    return (row, meme.id, stored, meme.harmful, meme.verified, meme.copy_key, meme.added, *names)


def stored_picture(jpeg: bytes | None) -> StoredPicture | None:
    """Returns a meme's reference to its stored picture."""
    return None if not jpeg else StoredPicture(offset=0, size=len(jpeg), sha256=hashlib.sha256(jpeg).hexdigest())


def _copy_history(connection: Connection, library: Library, state: State) -> None:
    with connection.cursor().copy(
        f"COPY {state.history} (number, meme, entry, vector, jpeg) FROM STDIN (FORMAT BINARY)"
    ) as copy:
        copy.set_types(("int8", "text", "text", "bytea", "bytea"))
        for number, meme, entry, vector, jpeg in _history(library):
            copy.write_row((number, meme, entry, vector, jpeg))


def _history(library: Library) -> Iterator[tuple[int, str, str, bytes | None, bytes | None]]:
    for recorded in library.history():
        change = recorded.change
        found = library.base.table.change(change.number)
        vector, jpeg = (None, None) if found is None else found[1:]
        # Memes removed after the generation was written are still in their rows; the table has earlier ones.
        taken_out = change.number > library.manifest.changes and change.effect is Effect.HIDE
        if taken_out and recorded.revoked_by is None and change.before is not None:
            (meme,) = library.read([change.row])
            vector, jpeg = library.vector_of(change.row).astype("<f4").tobytes(), library.picture_of(meme)
        yield change.number, change.meme, change.model_dump_json(exclude_defaults=True), vector, jpeg


def _drop(connections: Connections, stale: list[int]) -> None:
    def dropped(connection: Connection) -> None:
        # Does not wait long for old searches.
        connection.execute("SET LOCAL lock_timeout = '2s'")
        for generation in stale:
            schema.drop_generation(connection, generation)

    if stale:
        try:
            connections.writing(dropped, wait_s=_WAIT_S)
        except CourtError as error:
            # Still in use: the tables only cost space until the next push.
            if error.reason != "LIBRARY_LOCKED":
                raise
