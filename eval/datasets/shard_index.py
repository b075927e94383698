"""Pictures in tar files by the names that the rows of another file have for them."""

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
    """An index of the pictures in a data set's tar files, made when the first is looked for.

    Args:
        data: Directory of the data set; names of pictures are relative to it.
        bases: Folders that the tar files may be below.
        patterns: Names of the tar files as a card has them; ``*`` is any letters.
    """

    def __init__(self, data: Path, bases: Iterable[Path], patterns: Sequence[str]) -> None:
        self._data, self._bases, self._patterns = data, tuple(bases), tuple(patterns)
        self._database: sqlite3.Connection | None = None
        self.faults: list[str] = []
        """Faults of pictures in the tar files, which are missing for their rows; of the first thousand."""

    def __bool__(self) -> bool:
        """True if the card names tar files."""
        return bool(self._patterns)

    def find(self, name: str) -> str | None:
        """Name of a picture below the data set's directory, by which it can be read; None where no tar file has it.

        It is looked for as files are, whatever its letters' case and with or without its ending; in any folder of the
        archives.

        Raises:
            BadRequest: Several members fit, or a tar file can't be read.
        """
        if not self._patterns:
            return None
        # Not before it is needed: rows may be all that is wanted, and shards are large.
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
        # Members may stand in a folder of the archive that the rows do not name.
        similar = [(member, place) for member, place in rows if f"/{member}".lower().endswith(f"/{name}".lower())]
        # In this order: the very name, the same in other folders, and the same in other letters.
        exact = [place for member, place in similar if member == name]
        same = [place for member, place in similar if f"/{member}".endswith(f"/{name}")]
        return exact or same or [place for _, place in similar]

    def _read(self) -> sqlite3.Connection:
        # On the disk: there may be millions.
        database = scratch_database()
        database.execute("CREATE TABLE pictures (last TEXT NOT NULL, member TEXT NOT NULL, place TEXT NOT NULL)")
        database.execute("BEGIN")
        for shard in self._paths():
            database.executemany("INSERT INTO pictures VALUES (?, ?, ?)", self._pictures(shard))
        # After the rows: to keep an index in order meanwhile takes several times as long.
        database.execute("CREATE INDEX by_last ON pictures (last)")
        database.execute("COMMIT")
        return database

    def _paths(self) -> list[Path]:
        found = (path for base in self._bases for pattern in self._patterns for path in sorted(base.glob(pattern)))
        # Bases may be the same folder, and each shard is to be read once.
        shards = [path for path in dict.fromkeys(found) if path.is_file()]
        for path in shards:
            refuse_link_out(path, self._data)
        return shards

    def _pictures(self, shard: Path) -> Iterator[tuple[str, str, str]]:
        # Relative, so that a run finds its pictures again where the data set was moved.
        name = shard.relative_to(self._data).as_posix()
        with open_shard(shard) as file:
            for member in file.members():
                last = member.name.rpartition("/")[2].lower()
                # Hidden files are those that systems add for themselves, under a picture's ending too.
                if not last.endswith(PICTURE_ENDINGS) or last.startswith("."):
                    continue
                # A name with control signs is no row's, and SQLite takes no half of a character.
                fault = member.fault or ("" if member.name.isprintable() else "has a name that is no text")
                if not fault:
                    yield last, member.name, picture_name(name, member)
                elif len(self.faults) < _FAULTS:
                    self.faults.append(f"{name}: its member {shown(member.name)} {fault}")
