"""Names that were seen before, of which a bounded number is in memory, however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

_MOST = 100_000
"""Names in memory, at most: some 10 MB."""


def scratch_database() -> sqlite3.Connection:
    """A database in a file without a name, which is gone with the connection."""
    # Without transactions: nothing of it is to outlive this process. SQLite holds so many KiB of it in memory.
    database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
    database.execute("PRAGMA cache_size = -8000")
    database.execute("PRAGMA journal_mode = OFF")
    return database


class NameSet:
    """A set of names that grows on the disk."""

    def __init__(self) -> None:
        self._recent: set[str] = set()
        self._database: sqlite3.Connection | None = None

    def __contains__(self, name: str) -> bool:
        """True if the name was added."""
        # In memory first: names of a small file never leave it.
        if name in self._recent:
            return True
        if self._database is None:
            return False
        found = self._database.execute("SELECT 1 FROM names WHERE name = ?", (_key(name),)).fetchone()
        return found is not None

    def add(self, name: str) -> None:
        """Adds a name."""
        self._recent.add(name)
        if len(self._recent) >= _MOST:
            self._move()

    def _move(self) -> None:
        # Made when it is first needed: most data sets are smaller.
        if self._database is None:
            self._database = scratch_database()
            self._database.execute("CREATE TABLE names (name BLOB PRIMARY KEY) WITHOUT ROWID")
        # Sorted: the tree is written page by page, and not all over.
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR IGNORE INTO names VALUES (?)", self._sorted())
        self._database.execute("COMMIT")
        # Only now: a name must be in one of the two at any time.
        self._recent.clear()

    def _sorted(self) -> Iterator[tuple[bytes]]:
        return ((key,) for key in sorted(map(_key, self._recent)))


def _key(name: str) -> bytes:
    # Names of members need not be UTF-8.
    return name.encode("utf-8", "surrogatepass")
