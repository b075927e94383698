"""A set of names of any size, with a bounded number in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

_MOST = 100_000
"""Maximum number of names in memory: some 10 MB."""


def scratch_database() -> sqlite3.Connection:
    """Opens a temporary on-disk database that disappears with the connection."""
    # No transactions, as nothing needs to survive this process. The pragma sets SQLite's page cache in KiB.
    database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
    database.execute("PRAGMA cache_size = -8000")
    database.execute("PRAGMA journal_mode = OFF")
    return database


class NameSet:
    """A set of names that spills to disk as it grows."""

    def __init__(self) -> None:
        self._recent: set[str] = set()
        self._database: sqlite3.Connection | None = None

    def __contains__(self, name: str) -> bool:
        """True if the name was added."""
        # Memory first: names of a small file never leave it.
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
        # Created when first needed: most data sets are smaller.
        if self._database is None:
            self._database = scratch_database()
            self._database.execute("CREATE TABLE names (name BLOB PRIMARY KEY) WITHOUT ROWID")
        # Sorted, so that the B-tree is written page by page instead of at random.
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR IGNORE INTO names VALUES (?)", self._sorted())
        self._database.execute("COMMIT")
        # Cleared last: a name must be in one of the two at any time.
        self._recent.clear()

    def _sorted(self) -> Iterator[tuple[bytes]]:
        return ((key,) for key in sorted(map(_key, self._recent)))


def _key(name: str) -> bytes:
    # Names of tar members need not be valid UTF-8.
    return name.encode("utf-8", "surrogatepass")
