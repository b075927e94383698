"""Keeps a finder up to date with its library: changes on disk, by any process, are searched a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from court.errors import CourtError
from retrieval.library import storage
from retrieval.library.library import Library

EVERY_S = 1.0
"""Seconds between two looks at ``CURRENT``; each costs some microseconds."""


class Searched(Protocol):
    """Target of updates: :class:`retrieval.precedents.finder.LibraryFinder`."""

    @property
    def searched(self) -> Library:
        """The library that is being searched."""

    def swap(self, library: Library) -> None:
        """Searches this library from now on. Raises BadLibrary."""


async def follow(finder: Searched, tell: Callable[[str], None], *, every_s: float = EVERY_S) -> None:
    """Swaps in each newer version of the library, until cancelled.

    The new version is read and checked in a thread while searches continue in the old one. A version that can't be used
    (damaged, or made by another encoder) is reported once and skipped; the old one stays in use.

    Args:
        tell: Called with a sentence about each swap or failure.
    """
    looked_at: tuple[int, int, int] | None = None
    while True:
        library = finder.searched
        try:
            mark = storage.mark_of(library.root)
            if mark != looked_at:
                # Stored before reading, so that a write during the read is noticed next time.
                looked_at = mark
                newer = await asyncio.to_thread(library.newer)
                if newer is not None:
                    await asyncio.to_thread(finder.swap, newer)
                    tell(f"The precedent library was changed: {newer.counts.memes:,} memes are searched now.")
        except FileNotFoundError:
            # Missing for a moment or for good: the open library can still be searched.
            pass
        # The mark was stored above, so this is reported once for each write and not at every poll.
        except (CourtError, OSError, ValueError) as error:
            what = error.message if isinstance(error, CourtError) else "It can't be read."
            tell(f"The precedent library was changed, but the former is searched on. {what}")
        await asyncio.sleep(every_s)
