"""Heartbeats: each server increments a counter in the docket, and one whose counter stops is considered dead.

Clocks of different servers are never compared: each server uses its own monotonic clock, so wall clocks may jump.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from court.errors import CourtError
from serving.docket.store.requests import HeartbeatStore

BEAT_S = 3.0
"""Seconds between two heartbeats."""
# Five missed heartbeats: a single one may be late on a busy machine.
DEAD_S = 15.0
"""Seconds without a heartbeat after which a server is dead."""
FORGET_S = 3600.0
"""Seconds without a heartbeat after which a server is removed."""

_NONE = -1
"""Stands for the missing counter of a server."""

_log = logging.getLogger("memecourt.service")


class Heartbeat:
    """Sends the heartbeats of one server, and watches those of the others."""

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
        """Sends a heartbeat, and reads those of the others. Raises Unavailable."""
        await self._store.beat(self.server)
        await self.refresh()

    async def refresh(self) -> None:
        """Reads the heartbeats of the others. Raises Unavailable."""
        counts = await self._store.heartbeats()
        now = self._clock()
        # While this server could not read the docket, others could not write to it either: cap the elapsed time.
        passed = min(now - self._looked, 2 * self.beat_s)
        self._looked = now
        # Also servers known only from a lease, added by dead(): they may have died before their first heartbeat.
        for server in {*counts, *self._still}:
            count = counts.get(server, _NONE)  # one that never sent a heartbeat is treated like one that stopped
            before = self._counts.get(server)
            if count != _NONE and before not in (None, count):
                self._moved.add(server)
            if count == _NONE and before not in (None, _NONE):
                # It was removed: by the server itself on shutdown, or by others much later.
                self._still[server] = max(self._still[server], self._dead_s)
            else:
                self._still[server] = self._still.get(server, 0.0) + passed if before == count else 0.0
            self._counts[server] = count
        for server in [server for server, still in self._still.items() if still >= self._forget_s]:
            await self._forget(server)

    async def _forget(self, server: str) -> None:
        """Removes a counter that stopped long ago, and forgets servers whose counter was removed that long ago."""
        count = self._counts[server]
        if count == _NONE:
            del self._counts[server], self._still[server]
            self._moved.discard(server)
        else:
            # Compared with the counter that was read, so that a server that comes back right now is not removed.
            await self._store.retire(server, count)

    async def retire(self) -> None:
        """Removes this server's counter, so that others need not wait for it to expire. Raises Unavailable."""
        await self._store.retire(self.server)

    def dead(self, server: str) -> bool:
        """True if a server has sent no heartbeat for long enough; an unknown server is watched from now on."""
        return self._still.setdefault(server, 0.0) >= self._dead_s

    def lives(self, server: str) -> bool:
        """True if a server's heartbeat was seen to advance, and has not stopped since."""
        return server in self._moved and not self.dead(server)

    async def run(self) -> None:
        """Sends heartbeats until cancelled, and survives outages of the docket."""
        while True:
            await asyncio.sleep(self.beat_s)
            try:
                await self.beat()
            except CourtError as error:
                _log.warning("could not tell the other servers that this one lives: reason=%s", error.reason)
