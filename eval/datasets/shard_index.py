"""Finds pictures in tar files by the names in the rows of another file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import PICTURE_ENDINGS
from eval.datasets.card_places import refuse_link_out
from eval.datasets.name_set import scratch_database
from retrieval.library.shards import open_shard, picture_name, shown

_FAULTS = 1000


class ShardIndex:
    """An index of the pictures in a data set's tar files, built on the first lookup.

    Args:
        data: Directory of the data set; names of pictures are relative to it.
        bases: Folders below which the tar files may be.
        patterns: Names of the tar files as written in a card; ``*`` matches any letters.
    """

    def __init__(self, data: Path, bases: Iterable[Path], patterns: Sequence[str]) -> None:
        self._data, self._bases, self._patterns = data, tuple(bases), tuple(patterns)
        self._database: sqlite3.Connection | None = None
        self.faults: list[str] = []
        """Faults of pictures in the tar files, which count as missing for their rows; at most a thousand are stored."""

    def __bool__(self) -> bool:
        """True if the card names tar files."""
        return bool(self._patterns)

    def find(self, name: str) -> str | None:
        """Name of a picture below the data set's directory, by which it can be read; None if no tar file contains it.

        Matches like files on disk, ignoring case and with or without the ending; in any folder of the archives.

        Raises:
            BadRequest: Several members match, or a tar file can't be read.
        """
        if not self._patterns:
            return None
        # Built lazily: a caller may only need the rows, and shards are large.
        if self._database is None:
            self._database = self._read()
        found = self._named(name)
        if not found and not name.lower().endswith(PICTURE_ENDINGS):
            found = [one for ending in PICTURE_ENDINGS for one in self._named(name + ending)]
        if len(found) > 1:
            raise BadRequest(
                f"The picture {name} could be any of {', '.join(found[:3])}. Name its member in full.",
                reason="PICTURE_AMBIGUOUS",
            )
        return found[0] if found else None

    def _named(self, name: str) -> list[str]:
        assert self._database is not None
        last = name.rpartition("/")[2].lower()
        rows = self._database.execute("SELECT member, place FROM pictures WHERE last = ?", (last,)).fetchall()
        # The archive may contain folders that the rows do not name.
        similar = [(member, place) for member, place in rows if f"/{member}".lower().endswith(f"/{name}".lower())]
        # In order of preference: the exact name, the same in other folders, and the same ignoring case.
        exact = [place for member, place in similar if member == name]
        same = [place for member, place in similar if f"/{member}".endswith(f"/{name}")]
        return exact or same or [place for _, place in similar]

    def _read(self) -> sqlite3.Connection:
        # On disk: there may be millions of members.
        database = scratch_database()
        database.execute("CREATE TABLE pictures (last TEXT NOT NULL, member TEXT NOT NULL, place TEXT NOT NULL)")
        database.execute("BEGIN")
        for shard in self._paths():
            database.executemany("INSERT INTO pictures VALUES (?, ?, ?)", self._pictures(shard))
        # Created after the rows: maintaining an index during inserts takes several times as long.
        database.execute("CREATE INDEX by_last ON pictures (last)")
        database.execute("COMMIT")
        return database

    def _paths(self) -> list[Path]:
        found = (path for base in self._bases for pattern in self._patterns for path in sorted(base.glob(pattern)))
        # Bases may overlap, and each shard is to be read once.
        shards = [path for path in dict.fromkeys(found) if path.is_file()]
        for path in shards:
            refuse_link_out(path, self._data)
        return shards

    def _pictures(self, shard: Path) -> Iterator[tuple[str, str, str]]:
        # Relative, so that a run finds its pictures after the data set was moved.
        name = shard.relative_to(self._data).as_posix()
        with open_shard(shard) as file:
            for member in file.members():
                last = member.name.rpartition("/")[2].lower()
                # Operating systems add hidden files, also with a picture's ending.
                if not last.endswith(PICTURE_ENDINGS) or last.startswith("."):
                    continue
                # Control characters occur in no row, and SQLite refuses lone surrogates.
                fault = member.fault or ("" if member.name.isprintable() else "has a name that is no text")
                if not fault:
                    yield last, member.name, picture_name(name, member)
                elif len(self.faults) < _FAULTS:
                    self.faults.append(f"{name}: its member {shown(member.name)} {fault}")
