"""Memes of a data set that is being checked, on the disk: however many there are, few of them are in memory."""

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
"""Expressions of SQL whose value memes may share. Two without a text, or without a picture that was compared, share
nothing by that."""


@dataclass(frozen=True, slots=True)
class FoundMeme:
    """A meme as findings name it.

    Attributes:
        row: Its number, counted from 1 over all splits.
        split: Its split.
        line: Place in its file.
        id: Its id.
        label: Its labels of the task that conflicts are told by; empty where there is none.
    """

    row: int
    split: str
    line: int
    id: str
    label: str

    @property
    def name(self) -> str:
        """Place and id."""
        return f"{self.split}:{self.line} ({self.id})"


class FoundMemes:
    """The memes of all splits, in order."""

    def __init__(self) -> None:
        self._database = scratch_database()
        self._database.execute(_TABLE)
        # One transaction for all: a commit for each row would take longer than reading it.
        self._database.execute("BEGIN")

    def add(self, split: str, meme: CardMeme, label: tuple[str, ...], path: Path | None) -> None:
        """Adds a meme with the path of its picture; None where there is none."""
        key = text_key(meme.text)
        # A digest: texts may be long, and are only compared.
        text = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest() if key else None
        # As bytes: a file system allows names that are no text.
        values = (split, meme.line, meme.id, ", ".join(label), text, os.fsencode(path) if path else None)
        self._database.execute("INSERT INTO found VALUES (NULL, ?, ?, ?, ?, ?, ?, NULL, NULL)", values)

    def pictures(self, *, same_size: bool = False) -> Iterator[list[tuple[FoundMeme, Path]]]:
        """The memes whose pictures are there, some at a time; with ``same_size``, those as large as another's."""
        which = "path IS NOT NULL"
        if same_size:
            which += " AND size IN (SELECT size FROM found WHERE size IS NOT NULL GROUP BY size HAVING COUNT(*) > 1)"
        query = f"SELECT {_NAMED}, path FROM found WHERE {which} AND row > ? ORDER BY row LIMIT {_PAGE}"
        last = 0
        # Page by page: rows are changed meanwhile.
        while rows := self._database.execute(query, (last,)).fetchall():
            last = rows[-1][0]
            yield [(FoundMeme(*named), Path(os.fsdecode(path))) for *named, path in rows]

    def count_pictures(self) -> int:
        """Number of memes whose pictures are there."""
        # Counted before any is decoded, so that progress has its total.
        (count,) = self._database.execute("SELECT COUNT(*) FROM found WHERE path IS NOT NULL").fetchone()
        return int(count)

    def without_picture(self, split: str) -> list[str]:
        """Names of a split's memes whose pictures are not there."""
        # By the table and not by a list: where all are missing, nobody wants their names.
        query = f"SELECT {_NAMED} FROM found WHERE split = ? AND path IS NULL ORDER BY row"
        return [FoundMeme(*named).name for named in self._database.execute(query, (split,))]

    def set_size(self, meme: FoundMeme, size: int) -> None:
        """Notes the size of a meme's picture in bytes."""
        self._database.execute("UPDATE found SET size = ? WHERE row = ?", (size, meme.row))

    def set_picture(self, meme: FoundMeme, digest: str) -> None:
        """Notes what a meme's picture is compared by."""
        self._database.execute("UPDATE found SET picture = ? WHERE row = ?", (digest, meme.row))

    def groups(self, same: str) -> Iterator[list[FoundMeme]]:
        """Groups of several memes of the same value, in the order of the first of each; memes without one are in none.

        Args:
            same: One of the expressions of this module.
        """
        query = f"""SELECT same.first, {_NAMED} FROM found JOIN (
            SELECT {same} AS value, MIN(row) AS first FROM found WHERE {same} IS NOT NULL
            GROUP BY value HAVING COUNT(*) > 1
        ) AS same ON {same} = same.value ORDER BY same.first, found.row"""
        # Rows of a group follow each other, so that one group at a time is in memory.
        for _, rows in groupby(self._database.execute(query), lambda row: row[0]):
            yield [FoundMeme(*named) for _, *named in rows]
