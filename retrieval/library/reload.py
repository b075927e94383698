"""A finder that keeps up with its library: what is changed on the disk, by whomever, is searched a moment later."""

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
        """The library that is searched now."""
        ...

    def swap(self, library: Library) -> None:
        """Searches this library from now on. Raises BadLibrary."""
        ...


async def follow(finder: Searched, tell: Callable[[str], None], *, every_s: float = EVERY_S) -> None:
    """Swaps the library whenever there is a newer one, until it is cancelled.

    What is new is read and checked in a thread, while searches go on in the old. A newer one that can't be used (it is
    damaged, or was made by another encoder) is told of once and left alone; the old is searched on.

    Args:
        finder: Finder to keep up to date.
        tell: Told of each swap, in a sentence.
        every_s: Seconds between two looks.
    """
    looked_at: tuple[int, int, int] | None = None
    while True:
        library = finder.searched
        try:
            mark = storage.mark_of(library.root)
            if mark != looked_at:
                # Noted before it is read: what is written meanwhile, is looked at next time.
                looked_at = mark
                newer = await asyncio.to_thread(library.newer)
                if newer is not None:
                    await asyncio.to_thread(finder.swap, newer)
                    tell(f"The precedent library was changed: {newer.counts.memes:,} memes are searched now.")
        except FileNotFoundError:
            # Between two libraries, or for ever: what is open can still be searched.
            pass
        # The mark was noted above, so that this is said once for each write, and not every second.
        except (CourtError, OSError, ValueError) as error:
            what = error.message if isinstance(error, CourtError) else "It can't be read."
            tell(f"The precedent library was changed, but the former is searched on. {what}")
        await asyncio.sleep(every_s)
