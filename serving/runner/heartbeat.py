"""Which servers live: each counts on, and whoever looks twice sees whose count stands still.

No clock is compared with another's: a server is judged by the looker's own monotonic clock, so that clocks may jump.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from court.errors import CourtError
from serving.docket.ports import HeartbeatStore

BEAT_S = 3.0
"""Between two counts, in seconds."""
# Five counts missed: a single one may be late on a busy machine.
DEAD_S = 15.0
"""A server whose count has stood still for so long is dead, in seconds."""
FORGET_S = 3600.0
"""A server whose count has stood still for so long is forgotten, in seconds."""

_NONE = -1
"""For the count of a server that has none."""

_log = logging.getLogger("memecourt.service")


class Heartbeat:
    """Counts for one server, and watches the others.

    Attributes:
        server: Name of this server.
        beat_s: Between two counts, in seconds.
    """

    def __init__(
        self,
        store: HeartbeatStore,
        server: str,
        *,
        beat_s: float | None = None,
        dead_s: float | None = None,
        forget_s: float = FORGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Counts nothing yet.

        Args:
            store: Store of the servers' heartbeats.
            server: Name of this server.
            beat_s: Between two counts, in seconds; None for the usual.
            dead_s: Seconds without a heartbeat after which a server is dead; None for the default.
            forget_s: Seconds without a heartbeat after which a server is removed.
            clock: Monotonic, in seconds.
        """
        self._store = store
        self.server = server
        self.beat_s = BEAT_S if beat_s is None else beat_s
        self._dead_s = DEAD_S if dead_s is None else dead_s
        self._forget_s = forget_s
        self._clock = clock
        self._looked = clock()
        self._counts: dict[str, int] = {}
        self._still: dict[str, float] = {}
        self._moved: set[str] = set()

    async def beat(self) -> None:
        """Counts on, and looks at the others. Raises Unavailable."""
        await self._store.beat(self.server)
        await self.refresh()

    async def refresh(self) -> None:
        """Looks at the others. Raises Unavailable."""
        counts = await self._store.heartbeats()
        now = self._clock()
        # While nobody could look, the others could not count either: of a long gap only so much says anything.
        passed = min(now - self._looked, 2 * self.beat_s)
        self._looked = now
        # Also servers that only a claim names, which dead() has entered: they may be gone before their first count.
        for server in {*counts, *self._still}:
            count = counts.get(server, _NONE)  # one that never counted is like one that has stopped
            before = self._counts.get(server)
            if count != _NONE and before not in (None, count):
                self._moved.add(server)
            if count == _NONE and before not in (None, _NONE):
                # It was removed: by the server itself when it went, or by others long after.
                self._still[server] = max(self._still[server], self._dead_s)
            else:
                self._still[server] = self._still.get(server, 0.0) + passed if before == count else 0.0
            self._counts[server] = count
        for server in [server for server, still in self._still.items() if still >= self._forget_s]:
            await self._forget(server)

    async def _forget(self, server: str) -> None:
        """Removes a count that has stood still for long; of one that is removed already, remembers it for as long."""
        count = self._counts[server]
        if count == _NONE:
            del self._counts[server], self._still[server]
            self._moved.discard(server)
        else:
            # With the count that was read: a server that comes back at this moment is not removed.
            await self._store.retire(server, count)

    async def retire(self) -> None:
        """This server goes, and holds nothing any more: the others need not wait to see that. Raises Unavailable."""
        await self._store.retire(self.server)

    def dead(self, server: str) -> bool:
        """True if a server's heartbeat has stood still for long enough; for a new server, counted from now on."""
        return self._still.setdefault(server, 0.0) >= self._dead_s

    def lives(self, server: str) -> bool:
        """True if a server's heartbeat was seen to advance, and has not stood still for too long since."""
        return server in self._moved and not self.dead(server)

    async def run(self) -> None:
        """Beats until it is cancelled. A docket that is away for a while is waited for."""
        while True:
            await asyncio.sleep(self.beat_s)
            try:
                await self.beat()
            except CourtError as error:
                _log.warning("could not tell the other servers that this one lives: reason=%s", error.reason)
