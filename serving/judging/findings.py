"""Findings of people, as a server knows them: at once after its own reviews, and within a second after those elsewhere.

A finding is read from the docket when content is asked for, and kept in memory until the log says that it changed. One
read of the log in a second serves all callers, so that content that is asked for often costs no query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from court.in_force import ContentKey, PersonFinding
from serving.docket.store.findings import FindingStore
from serving.docket.store.log_queries import LogFollower
from serving.judging.single_flight import LRUCache

FRESH_S: Final = 1.0
"""Seconds for which the log is not read again."""
_MOST: Final = 10_000
"""Maximum number of findings in memory, and of content without one: about 500 bytes each."""


@dataclass(frozen=True, slots=True)
class _Known:
    found: PersonFinding | None


class Findings:
    """Findings of people by content key.

    Attributes:
        changes: Number of times that something changed: what was read before may be out of date after it.
    """

    def __init__(self, store: FindingStore) -> None:
        """Reads nothing yet."""
        self._store = store
        self._known: LRUCache[ContentKey, _Known] = LRUCache(_MOST)
        self._size: int | None = None
        self._follower = LogFollower(self._read_on, fresh_s=FRESH_S)
        self._dropped: list[Callable[[str], None]] = []
        self.changes = 0

    def subscribe(self, drop: Callable[[str], None]) -> None:
        """Has a function called with the id of each trial that is reviewed, contested or erased."""
        self._dropped.append(drop)

    async def catch_up(self) -> None:
        """Takes into account what was stored up to a second ago, here or elsewhere. Raises Unavailable."""
        await self._follower.get()

    async def find(self, content: ContentKey) -> PersonFinding | None:
        """Returns what people found about content, or None.

        Raises:
            Unavailable: The docket can't be read. An old finding is not used then: it might allow content.
        """
        await self.catch_up()
        known, changes = self._known.get(content), self.changes
        if known is None:
            known = _Known(await self._store.get(content))
            # What was read may be older than a change that was noticed meanwhile.
            if changes == self.changes:
                self._known.keep(content, known)
        found = known.found
        return None if found is None or (found.until and found.until <= datetime.now(UTC)) else found

    def refresh(self) -> None:
        """Has the next call read the log, after a review on this server."""
        self._follower.forget()

    async def _read_on(self) -> None:
        changed = await self._store.changes(self._size)
        self._size = changed.size
        if not changed.trials:
            return
        self.changes += 1
        for content, known in self._known.items():
            if content in changed.contents or (known.found and known.found.trial_id in changed.trials):
                self._known.drop(content)
        for trial_id in changed.trials:
            for drop in self._dropped:
                drop(trial_id)
