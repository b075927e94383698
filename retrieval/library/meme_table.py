"""The memes of a generation as a table on disk: what is read of it is what is asked for, and nothing stays in memory.

A million memes as Python objects take more memory than their vectors. What a search needs of every row, its flags, is
a byte each and lies beside the table; all else is read when a meme is shown or counted.
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
"""Rows asked for by one statement."""
_BLOCK = 2000
"""Rows read ahead by who goes through all of them."""

StoredChange = tuple[Change, bytes | None, bytes | None]
"""A change, and the vector and the picture of the meme that it took out: what is needed to bring it back."""


class MemeWriter:
    """Writes the table of a new generation. Not for a database in use: a crash leaves a file that nobody names."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        # Without transactions of the module's own: there is one, from BEGIN to the COMMIT in finish.
        self._connection = sqlite3.connect(path, isolation_level=None)
        # Written once, by one, and synced at the end: the generation is only named when all of it is on the disk.
        self._connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA + "BEGIN;")
        self._names: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self.flags = bytearray()
        self.sources: Counter[str] = Counter()
        self.kept_bytes = 0

    def append(self, meme: LabelledMeme) -> None:
        """One more row. Raises OSError."""
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
                # In whole microseconds: they compare in SQL, and come back without rounding.
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
        """Writes what is left.

        Raises:
            BadRequest: An id stands twice.
            OSError: The disk will not have it.
        """
        self._flush()
        self._run("INSERT INTO names VALUES (?, ?)", ((number, name) for name, number in self._names.items()))
        try:
            self._connection.execute("COMMIT")
            # After the rows: an index that is built at once is cheaper than one that is kept up, and finds ids that
            # stand twice.
            self._connection.executescript(_INDEXES)
        except sqlite3.IntegrityError:
            # SQLite says that an id stands twice, but not which.
            twice = "SELECT id FROM memes GROUP BY id HAVING count(*) > 1 ORDER BY min(row)"
            refuse_ids([id_ for (id_,) in self._connection.execute(twice)], "there twice")
        except sqlite3.Error as error:
            raise OSError(f"{MEMES} can't be written") from error
        self.close()

    def close(self) -> None:
        """Lets go of the file; more than once is allowed."""
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
        # A source stands at very many memes: as a number it takes a byte or two of each row.
        return self._names.setdefault(name, len(self._names))


class MemeTable:
    """The table of a generation, open to be read; safe to use from several threads.

    The file never changes, and stays readable when its name is gone. What SQLite finds wrong with it, is
    :class:`~court.errors.BadLibrary`.
    """

    def __init__(self, path: Path) -> None:
        """Raises BadLibrary."""
        self._lock = threading.Lock()
        try:
            # Immutable: no locks, no journal, no look at whether somebody else has changed it.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            # It would otherwise grow by what was read, two megabytes; the pages lie in the system's cache anyway.
            self._connection.execute("PRAGMA cache_size=-512")
        except sqlite3.Error as error:
            raise damaged(f"{MEMES} can't be read") from error
        # Read once: they are few, and every row that is shown needs several of them.
        self._names = {number: name for number, name in self.ask("SELECT number, name FROM names")}

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of the answer. Raises BadLibrary."""
        try:
            # One connection serves all threads: SQLite's own check of that is off, and this lock stands in for it.
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
        """Row and id of all, in order."""
        last = -1
        # A block at a time, from the last row on: an open cursor would need the lock for as long as the caller takes.
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
        """One change with what it took out; None where there is none of that number."""
        # The number may come from a caller: one that SQLite's 64 bits can't hold would raise, and no change has it.
        if number.bit_length() > 63:
            return None
        answers = self.ask("SELECT entry, vector, picture FROM changes WHERE number = ?", (number,))
        return next(((_change(entry), vector, picture) for entry, vector, picture in answers), None)

    def history(self) -> Iterator[StoredChange]:
        """All changes with what they took out."""
        # One at a time: each may bring a picture, and all of them together need not fit into memory.
        for (number,) in self.ask("SELECT number FROM changes ORDER BY number"):
            change = self.change(number)
            assert change is not None
            yield change

    def choose(self, where: Filter, size: int) -> NDArray[np.bool_]:
        """Which of the rows, of which there are ``size``, the filter lets through. Raises BadLibrary."""
        numbers = {name: number for number, name in self._names.items()}
        terms: list[str] = []
        values: list[Any] = []
        for column, wanted in zip(_NAMED, where.names, strict=True):
            if wanted:
                # Where none is known the list is empty, which SQLite takes, and which lets nothing through.
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
        """Describes the first contradiction between the table and these flags; None if there is none.

        Raises BadLibrary.
        """
        # The digest says that the bytes are those that were written, not that they were written by us.
        ((integrity,),) = self.ask("PRAGMA quick_check(1)")
        if integrity != "ok":
            return f"{MEMES} is not a sound table"
        last, end = -1, 0
        statement = "SELECT row, flags, kept_offset, kept_size FROM memes WHERE row > ? ORDER BY row LIMIT ?"
        while answers := self.ask(statement, (last, 50_000)):
            for row, row_flags, offset, size in answers:
                # Rows run from 0 without a gap: by them the vectors and the flags are found.
                if row != last + 1 or row >= flags.size or row_flags != flags[row]:
                    return f"{MEMES} and the flags beside it are not of the same memes"
                if size is not None:
                    # Pictures lie one behind the other without a gap, so that no two memes can share one, and none
                    # points beyond.
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
                bytes_sha256=_unpacked(bytes_sha256),
                pixels_sha256=_unpacked(pixels_sha256),
                has_text=bool(flags & HAS_TEXT),
                has_picture=bool(flags & HAS_PICTURE),
                kept=None if size is None else StoredPicture(offset=offset, size=size, sha256=_unpacked(sha256)),
            )
        # A table can be written by hand: a name that it lacks, or a time beyond all years, is damage like any other.
        except (ValidationError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise damaged(f"row {row} of {MEMES} can't be understood") from error


class Memes(Sequence[LabelledMeme]):
    """Memes by place, read from the disk when they are asked for; what is read is not kept."""

    def __init__(self, size: int, read: Callable[[range], list[LabelledMeme]]) -> None:
        """``read`` gives the memes in these places, in order."""
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._read(range(self._size)[place])
        # Of -1 the slice must end with the range and not at 0, hence ``or None``.
        return self._read(range(self._size)[place : place + 1 or None] or _refuse_place())[0]

    def __iter__(self) -> Iterator[LabelledMeme]:
        for start in range(0, self._size, _BLOCK):
            yield from self._read(range(start, min(start + _BLOCK, self._size)))


def refuse_ids(ids: Sequence[str], what: str) -> None:
    """Raises BadRequest if there are any."""
    if ids:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise BadRequest(f"Each precedent needs an id of its own; {what}: {shown}.", reason="DUPLICATE_ID")


def _refuse_place() -> range:
    raise IndexError("there is no such meme")


def _is_queryable(text: str) -> bool:
    # SQLite takes no lone surrogates, and what we wrote holds none.
    return text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in text)


def _change(entry: str) -> Change:
    try:
        return Change.model_validate_json(entry)
    except ValidationError as error:
        raise damaged(f"a change recorded in {MEMES} can't be understood") from error


def _packed(digest: str) -> bytes | str:
    """Half as long; anything that is no SHA-256 in hex stays as it is."""
    return bytes.fromhex(digest) if _HEX.fullmatch(digest) else digest


def _unpacked(stored: bytes | str) -> str:
    return stored.hex() if isinstance(stored, bytes) else stored
