"""On-disk table of a checked data set's memes, so that memory use is bounded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from eval.datasets.card_split import CardMeme
from eval.datasets.name_set import scratch_database
from retrieval.text import text_key

_PAGE = 1000
_TABLE = """CREATE TABLE found (
    row INTEGER PRIMARY KEY, split TEXT, line INTEGER, id TEXT, label TEXT,
    text BLOB, path BLOB, size INTEGER, picture TEXT
)"""
_NAMED = "found.row, split, line, id, label"
SAME_ID, SAME_TEXT, SAME_PICTURE = "id", "text", "picture"
SAME_MEME = "picture || COALESCE(hex(text), '')"
"""SQL expressions whose values memes may share. Rows with a missing text, or with a picture that was not compared,
yield NULL and match nothing."""


@dataclass(frozen=True, slots=True)
class FoundMeme:
    """A meme as findings refer to it.

    Attributes:
        row: Number counted from 1 over all splits.
        label: Labels of the task on which conflicts are reported; empty if there are none.
    """

    row: int
    split: str
    line: int
    id: str
    label: str

    @property
    def name(self) -> str:
        """Position and id."""
        return f"{self.split}:{self.line} ({self.id})"


class FoundMemes:
    """The memes of all splits, in order."""

    def __init__(self) -> None:
        self._database = scratch_database()
        self._database.execute(_TABLE)
        # A single transaction: committing each row would take longer than reading it.
        self._database.execute("BEGIN")

    def add(self, split: str, meme: CardMeme, label: tuple[str, ...], path: Path | None) -> None:
        """Adds a meme with the path of its picture, or None if missing."""
        key = text_key(meme.text)
        # Only a digest is stored: texts may be long, and are only compared.
        text = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest() if key else None
        # As bytes: a file name need not be valid text.
        values = (split, meme.line, meme.id, ", ".join(label), text, os.fsencode(path) if path else None)
        self._database.execute("INSERT INTO found VALUES (NULL, ?, ?, ?, ?, ?, ?, NULL, NULL)", values)

    def pictures(self, *, same_size: bool = False) -> Iterator[list[tuple[FoundMeme, Path]]]:
        """Pages of memes whose pictures exist; with ``same_size``, only those whose file size is not unique."""
        which = "path IS NOT NULL"
        if same_size:
            which += " AND size IN (SELECT size FROM found WHERE size IS NOT NULL GROUP BY size HAVING COUNT(*) > 1)"
        query = f"SELECT {_NAMED}, path FROM found WHERE {which} AND row > ? ORDER BY row LIMIT {_PAGE}"
        last = 0
        # In pages, because rows are updated meanwhile.
        while rows := self._database.execute(query, (last,)).fetchall():
            last = rows[-1][0]
            yield [(FoundMeme(*named), Path(os.fsdecode(path))) for *named, path in rows]

    def count_pictures(self) -> int:
        """Number of memes whose pictures exist."""
        # Counted before decoding starts, so that progress has a total.
        (count,) = self._database.execute("SELECT COUNT(*) FROM found WHERE path IS NOT NULL").fetchone()
        return int(count)

    def without_picture(self, split: str) -> list[str]:
        """Names of a split's memes without a picture."""
        # Queried on demand instead of kept in a list: if all are missing, the names are not needed.
        query = f"SELECT {_NAMED} FROM found WHERE split = ? AND path IS NULL ORDER BY row"
        return [FoundMeme(*named).name for named in self._database.execute(query, (split,))]

    def set_size(self, meme: FoundMeme, size: int) -> None:
        """Stores the file size of a meme's picture in bytes."""
        self._database.execute("UPDATE found SET size = ? WHERE row = ?", (size, meme.row))

    def set_picture(self, meme: FoundMeme, digest: str) -> None:
        """Stores the digest by which a meme's picture is compared."""
        self._database.execute("UPDATE found SET picture = ? WHERE row = ?", (digest, meme.row))

    def groups(self, same: str) -> Iterator[list[FoundMeme]]:
        """Groups of memes with the same value, ordered by first member; memes with NULL are in none.

        Args:
            same: One of this module's SQL expressions.
        """
        query = f"""SELECT same.first, {_NAMED} FROM found JOIN (
            SELECT {same} AS value, MIN(row) AS first FROM found WHERE {same} IS NOT NULL
            GROUP BY value HAVING COUNT(*) > 1
        ) AS same ON {same} = same.value ORDER BY same.first, found.row"""
        # Sorted by value, so that only one group at a time is in memory.
        for _, rows in groupby(self._database.execute(query), lambda row: row[0]):
            yield [FoundMeme(*named) for _, *named in rows]
