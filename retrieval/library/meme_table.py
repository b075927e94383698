"""The memes of a generation as an SQLite table on disk, read on demand and not kept in memory.

A million memes as Python objects take more memory than their vectors. The flags, which a search needs for every row,
take one byte each and are stored beside the table; all else is read when a meme is shown or counted.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.errors import BadRequest
from court.verdict import Label
from retrieval.library.changes import Change
from retrieval.library.filters import Filter
from retrieval.library.manifest import (
    BINDING,
    HARMFUL,
    HAS_PICTURE,
    HAS_TEXT,
    MAX_KEPT_BYTES,
    MEMES,
    PICTURES,
    VERIFIED,
    LabelledMeme,
    StoredPicture,
)
from retrieval.library.storage import damaged

_SCHEMA = """
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE memes (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL, flags INTEGER NOT NULL, text TEXT NOT NULL, categories TEXT NOT NULL,
    source INTEGER NOT NULL, source_label INTEGER NOT NULL, split INTEGER NOT NULL, namespace INTEGER NOT NULL,
    language INTEGER NOT NULL, policy INTEGER NOT NULL, who INTEGER NOT NULL, added INTEGER,
    bytes_sha256 BLOB NOT NULL, pixels_sha256 BLOB NOT NULL, kept_offset INTEGER, kept_size INTEGER, kept_sha256 BLOB
);
CREATE TABLE changes (number INTEGER PRIMARY KEY, meme TEXT NOT NULL, entry TEXT NOT NULL, vector BLOB, picture BLOB);
"""
_INDEXES = """
CREATE UNIQUE INDEX memes_by_id ON memes (id);
CREATE INDEX changes_by_meme ON changes (meme, number);
"""
_COLUMNS = (
    "row, id, flags, text, categories, source, source_label, split, namespace, language, policy, who, added, "
    "bytes_sha256, pixels_sha256, kept_offset, kept_size, kept_sha256"
)
_NAMED = ("source", "split", "namespace", "language", "policy")
_HEX = re.compile(r"[0-9a-f]{64}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 500
_BLOCK = 2000

StoredChange = tuple[Change, bytes | None, bytes | None]
"""A change, and the vector and the picture of the meme that it took out: what is needed to bring it back."""


class MemeWriter:
    """Writes the table of a new generation. Not crash-safe: a crash leaves a file that no ``CURRENT`` refers to."""

    def __init__(self, path: Path) -> None:
        """Creates the file. Raises OSError."""
        self._path = path
        # No implicit transactions: there is a single one, from BEGIN to the COMMIT in finish.
        self._connection = sqlite3.connect(path, isolation_level=None)
        # Written once by one writer and synced at the end: ``CURRENT`` only names a generation that is on the disk.
        self._connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA + "BEGIN;")
        self._names: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self.flags = bytearray()
        self.sources: Counter[str] = Counter()
        self.kept_bytes = 0

    def append(self, meme: LabelledMeme) -> None:
        """Appends a row. Raises OSError."""
        picture = meme.kept
        self._rows.append(
            (
                len(self.flags),
                meme.id,
                meme.flags,
                meme.text,
                json.dumps(meme.categories, ensure_ascii=False) if meme.categories else "",
                self._number(meme.source),
                self._number(meme.source_label),
                *(self._number(getattr(meme, name)) for name in _NAMED[1:]),
                self._number(meme.who),
                # In whole microseconds, which SQL can compare and which are restored without rounding.
                None if meme.added is None else (meme.added - _EPOCH) // timedelta(microseconds=1),
                _packed(meme.bytes_sha256),
                _packed(meme.pixels_sha256),
                *((None, None, None) if picture is None else (picture.offset, picture.size, _packed(picture.sha256))),
            )
        )
        self.flags.append(meme.flags)
        self.sources[meme.source] += 1
        self.kept_bytes += 0 if picture is None else picture.size
        if len(self._rows) >= _BLOCK:
            self._flush()

    def record(self, history: Iterable[StoredChange]) -> None:
        """Stores the history of changes. Raises OSError."""
        self._run(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?)",
            (
                (change.number, change.meme, change.model_dump_json(exclude_defaults=True), vector, picture)
                for change, vector, picture in history
            ),
        )

    def finish(self) -> None:
        """Writes the remaining rows, commits, and builds the indexes.

        Raises:
            BadRequest: An id occurs twice.
            OSError: The disk is full or can't be written to.
        """
        self._flush()
        self._run("INSERT INTO names VALUES (?, ?)", ((number, name) for name, number in self._names.items()))
        try:
            self._connection.execute("COMMIT")
            # After the rows: building an index at once is cheaper than updating it, and also finds duplicate ids.
            self._connection.executescript(_INDEXES)
        except sqlite3.IntegrityError:
            # SQLite reports that an id is duplicated, but not which one.
            twice = "SELECT id FROM memes GROUP BY id HAVING count(*) > 1 ORDER BY min(row)"
            refuse_ids([id_ for (id_,) in self._connection.execute(twice)], "there twice")
        except sqlite3.Error as error:
            raise OSError(f"{MEMES} can't be written") from error
        self.close()

    def close(self) -> None:
        """Closes the file; may be called more than once."""
        self._connection.close()

    def _flush(self) -> None:
        self._run(f"INSERT INTO memes ({_COLUMNS}) VALUES ({', '.join('?' * 18)})", self._rows)
        self._rows.clear()

    def _run(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise OSError(f"{MEMES} can't be written") from error

    def _number(self, name: str) -> int:
        # A source is shared by very many memes: as a number it takes a byte or two in each row.
        return self._names.setdefault(name, len(self._names))


class MemeTable:
    """The table of a generation, opened for reading. Thread-safe.

    The file never changes, and stays readable after it is unlinked. Errors of SQLite are raised as
    :class:`~court.errors.BadLibrary`.
    """

    def __init__(self, path: Path) -> None:
        """Opens the table. Raises BadLibrary."""
        self._lock = threading.Lock()
        try:
            # Immutable: SQLite takes no locks, uses no journal and doesn't check for changes.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            # The page cache would otherwise grow to two megabytes; the pages are in the system's cache anyway.
            self._connection.execute("PRAGMA cache_size=-512")
        except sqlite3.Error as error:
            raise damaged(f"{MEMES} can't be read") from error
        # Read once: names are few, and every row that is shown needs several of them.
        self._names = {number: name for number, name in self.ask("SELECT number, name FROM names")}

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Runs a query and returns all rows. Raises BadLibrary."""
        try:
            # One connection serves all threads: the sqlite3 module's thread check is off, and this lock replaces it.
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise damaged(f"{MEMES} can't be read") from error

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """The memes in these rows, in this order. Raises BadLibrary."""
        found: dict[int, LabelledMeme] = {}
        wanted = list(dict.fromkeys(rows))
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            for answer in self.ask(f"SELECT {_COLUMNS} FROM memes WHERE row IN ({marks})", part):
                found[answer[0]] = self._meme(answer)
        if len(found) != len(wanted):
            raise damaged(f"{MEMES} lacks a row")
        return [found[row] for row in rows]

    def run(self, start: int, stop: int) -> list[LabelledMeme]:
        """The memes in rows ``start`` up to ``stop``. Raises BadLibrary."""
        answers = self.ask(f"SELECT {_COLUMNS} FROM memes WHERE row >= ? AND row < ? ORDER BY row", (start, stop))
        if len(answers) != max(0, stop - start):
            raise damaged(f"{MEMES} lacks a row")
        return [self._meme(answer) for answer in answers]

    def row_of(self, id_: str) -> int | None:
        """Returns the row of a meme; None if there is none. Raises BadLibrary."""
        if not _is_queryable(id_):
            return None
        answers = self.ask("SELECT row FROM memes WHERE id = ?", (id_,))
        return answers[0][0] if answers else None

    def ids(self) -> Iterator[tuple[int, str]]:
        """Yields row and id of every meme, in order."""
        last = -1
        # In blocks, each continuing after the last row: an open cursor would hold the lock while the caller works.
        while answers := self.ask("SELECT row, id FROM memes WHERE row > ? ORDER BY row LIMIT ?", (last, _BLOCK)):
            yield from answers
            last = answers[-1][0]

    def changes(self, meme: str | None = None) -> list[Change]:
        """Returns the changes before this generation was written, of one meme or of all, in order."""
        where, values = ("", ()) if meme is None else ("WHERE meme = ?", (meme,))
        if meme is not None and not _is_queryable(meme):
            return []
        answers = self.ask(f"SELECT entry FROM changes {where} ORDER BY number", values)
        return [_change(entry) for (entry,) in answers]

    def change(self, number: int) -> StoredChange | None:
        """The change of this number, with the data that it removed; None if there is none."""
        # The number may come from a client. SQLite raises if it exceeds 64 bits, and no change has such a number.
        if number.bit_length() > 63:
            return None
        answers = self.ask("SELECT entry, vector, picture FROM changes WHERE number = ?", (number,))
        return next(((_change(entry), vector, picture) for entry, vector, picture in answers), None)

    def history(self) -> Iterator[StoredChange]:
        """Yields all changes, with the data that they removed."""
        # One at a time: each may hold a picture, and all of them may not fit into memory.
        for (number,) in self.ask("SELECT number FROM changes ORDER BY number"):
            change = self.change(number)
            assert change is not None
            yield change

    def choose(self, where: Filter, size: int) -> NDArray[np.bool_]:
        """Mask of the rows that the filter admits, shape (size,). Raises BadLibrary."""
        numbers = {name: number for number, name in self._names.items()}
        terms: list[str] = []
        values: list[Any] = []
        for column, wanted in zip(_NAMED, where.names, strict=True):
            if wanted:
                # If no name is known, the list is empty, which SQLite accepts and which admits no row.
                known = [numbers[name] for name in wanted if name in numbers]
                terms.append(f"{column} IN ({', '.join('?' * len(known))})")
                values += known
        for bound, comparison in ((where.since, ">="), (where.until, "<")):
            if bound is not None:
                terms.append(f"added {comparison} ?")
                values.append((bound - _EPOCH) // timedelta(microseconds=1))
        if where.verified:
            terms.append(f"flags & {VERIFIED} != 0")
        chosen = np.zeros(size, dtype=np.bool_)
        answers = self.ask(f"SELECT row FROM memes WHERE {' AND '.join(terms) or 'TRUE'}", values)
        chosen[np.fromiter((row for (row,) in answers), dtype=np.int64, count=len(answers))] = True
        return chosen

    def check(self, flags: NDArray[np.uint8], pictures_size: int) -> str | None:
        """Describes the first contradiction between the table and these flags; None without. Raises BadLibrary."""
        # The digest proves that the bytes are unchanged, not that this program wrote them.
        ((integrity,),) = self.ask("PRAGMA quick_check(1)")
        if integrity != "ok":
            return f"{MEMES} is not a sound table"
        last, end = -1, 0
        statement = "SELECT row, flags, kept_offset, kept_size FROM memes WHERE row > ? ORDER BY row LIMIT ?"
        while answers := self.ask(statement, (last, 50_000)):
            for row, row_flags, offset, size in answers:
                # Rows must run from 0 without a gap, as they index the vectors and the flags.
                if row != last + 1 or row >= flags.size or row_flags != flags[row]:
                    return f"{MEMES} and the flags beside it are not of the same memes"
                if size is not None:
                    # Pictures must be stored without gaps, so that no two memes share one and none points past the
                    # end.
                    if offset != end or not 1 <= size <= MAX_KEPT_BYTES:
                        return f"row {row} of {MEMES} does not say where its picture is"
                    end += size
                last = row
        if last + 1 != flags.size:
            return f"{MEMES} and the flags beside it are not of the same memes"
        if end != pictures_size:
            return f"{PICTURES} does not hold the pictures that {MEMES} says it does"
        return None

    def _meme(self, answer: tuple[Any, ...]) -> LabelledMeme:
        (row, id_, flags, text, categories, source, source_label, split, namespace, language, policy, who, added) = (
            answer[:13]
        )
        bytes_sha256, pixels_sha256, offset, size, sha256 = answer[13:]
        try:
            return LabelledMeme(
                id=id_,
                label=Label.HARMFUL if flags & HARMFUL else Label.NOT_HARMFUL,
                text=text,
                categories=tuple(json.loads(categories)) if categories else (),
                source=self._names[source],
                source_label=self._names[source_label],
                split=self._names[split],
                namespace=self._names[namespace],
                language=self._names[language],
                policy=self._names[policy],
                who=self._names[who],
                added=None if added is None else _EPOCH + timedelta(microseconds=added),
                verified=bool(flags & VERIFIED),
                binding=bool(flags & BINDING),
                bytes_sha256=_unpacked(bytes_sha256),
                pixels_sha256=_unpacked(pixels_sha256),
                has_text=bool(flags & HAS_TEXT),
                has_picture=bool(flags & HAS_PICTURE),
                kept=None if size is None else StoredPicture(offset=offset, size=size, sha256=_unpacked(sha256)),
            )
        # A table can be written by hand: a missing name or a time out of range is damage like any other.
        except (ValidationError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise damaged(f"row {row} of {MEMES} can't be understood") from error


class Memes(Sequence[LabelledMeme]):
    """Memes by index, read from disk on access and not cached."""

    def __init__(self, size: int, read: Callable[[range], list[LabelledMeme]]) -> None:
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._read(range(self._size)[place])
        # ``or None``: for index -1 the slice must run to the end of the range and not to 0.
        return self._read(range(self._size)[place : place + 1 or None] or _refuse_place())[0]

    def __iter__(self) -> Iterator[LabelledMeme]:
        for start in range(0, self._size, _BLOCK):
            yield from self._read(range(start, min(start + _BLOCK, self._size)))


def refuse_ids(ids: Sequence[str], what: str) -> None:
    """Raises BadRequest that names these ids; does nothing if there are none."""
    if ids:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise BadRequest(f"Each precedent needs an id of its own; {what}: {shown}.", reason="DUPLICATE_ID")


def _refuse_place() -> range:
    raise IndexError("there is no such meme")


def _is_queryable(text: str) -> bool:
    # SQLite rejects lone surrogates, and no text written here contains any.
    return text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in text)


def _change(entry: str) -> Change:
    try:
        return Change.model_validate_json(entry)
    except ValidationError as error:
        raise damaged(f"a change recorded in {MEMES} can't be understood") from error


def _packed(digest: str) -> bytes | str:
    """A hex SHA-256 as bytes, half as long; anything else unchanged."""
    return bytes.fromhex(digest) if _HEX.fullmatch(digest) else digest


def _unpacked(stored: bytes | str) -> str:
    return stored.hex() if isinstance(stored, bytes) else stored
