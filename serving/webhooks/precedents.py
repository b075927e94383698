"""Records changes of precedents in the docket's log, from which webhook messages are built.

Servers, consoles and commands add to the library's own history. It is compared with the log whenever the library has
changed, so that no change is missed, whoever made it.
"""

from __future__ import annotations

import asyncio
import logging

from court.errors import CourtError
from retrieval.library.changes import Change
from retrieval.open import open_writer_of
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.docket.log.entries import PrecedentChanged
from serving.docket.store.reviews import ReviewStore

POLL_S = 2.0
"""Seconds between two checks of the library."""

_log = logging.getLogger("memecourt.webhooks")


async def note_precedent_changes(
    reviews: ReviewStore, finder: LibraryFinder | PgvectorFinder, *, every_s: float = POLL_S
) -> None:
    """Records changes of the served library until cancelled.

    For a library without recorded changes, only those from now on.
    """
    recorded, since = "", None
    while True:
        try:
            identity = (await finder.account()).identity
            if identity.digest != recorded:
                history = await asyncio.to_thread(_history, finder)
                if since is None:
                    since = history[-1].number if history else 0
                changes = [_entry_of(change, identity.name) for change in history]
                if added := await reviews.record_changes(changes, since=since):
                    _log.info("changes of precedents are on record: changes=%d", added)
                # Only once they are stored, so that a failed round is repeated.
                recorded = identity.digest
        except CourtError as error:
            _log.warning("changes of precedents can't be put on record now: reason=%s", error.reason)
        except ValueError:
            _log.warning("changes of precedents can't be put on record now: the library can't be read")
        await asyncio.sleep(every_s)


def _history(finder: LibraryFinder | PgvectorFinder) -> list[Change]:
    with open_writer_of(finder) as writer:
        return [recorded.change for recorded in writer.history()]


def _entry_of(change: Change, library: str) -> PrecedentChanged:
    return PrecedentChanged(
        at=change.at,
        precedent_id=change.meme,
        change=change.kind.value,
        library=library,
        number=change.number,
        trial_id="",
    )
