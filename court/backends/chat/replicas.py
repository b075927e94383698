"""Several servers of one model: which of them a trial asks, and how one that was gone is taken up again.

A trial goes to the server with the fewest calls in flight and keeps to it, for that has its prefix in the cache; of
servers that are equally busy it takes the first in an order of its own, so that a picture comes back to a server that
has seen it. From a server that is gone it goes on to another, and no other trial begins there until it has answered
again; then it gets its share little by little, for its caches are empty and its kernels may have to be compiled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from court.backends.chat.server import ChatServer

SLOW_START_S = 30.0
"""Seconds from the first answer of a server that was gone until it gets as many trials as the others."""
_LEAST_SHARE = 0.1
"""Share of a server that has just come back: it is chosen where the others have ten times as many calls in flight."""


class Replicas:
    """Servers of one model, as one trial asks them; for use within one event loop.

    Args:
        servers: Servers, those that this trial prefers first.
    """

    def __init__(self, servers: Sequence[ChatServer]) -> None:
        self.servers = tuple(servers)
        self._own: ChatServer | None = None
        self._left: list[ChatServer] = []

    def choose(self) -> ChatServer:
        """Returns the server that this trial keeps to; chooses one for its first call, or where its own is left."""
        if self._own is None:
            self._own = self._best()
        return self._own

    def leave(self, server: ChatServer) -> None:
        """Goes on without a server; once all were left, the first of them may be asked again."""
        if server not in self._left:
            self._left.append(server)
        if len(self._left) == len(self.servers):
            self._left = [server]
        if self._own is server:  # of calls that fail together, one moves on
            self._own = None

    def room(self) -> bool:
        """True if the server that is asked next would work on one more call at once."""
        return (self._own or self._best()).load.room()

    def _best(self) -> ChatServer:
        if len(self.servers) == 1:
            return self.servers[0]
        candidates = [server for server in self.servers if server not in self._left]
        there = [server for server in candidates if server.gone_at is None]
        for server in self.servers:
            server.look_whether_back()
        if there:
            return min(there, key=lambda server: (server.load.in_flight + 1) / _share(server))
        return min(candidates, key=lambda server: server.gone_at or 0.0)  # likeliest to be back


def _share(server: ChatServer) -> float:
    """Share of trials that a server gets, of those that one gets that has been there for long."""
    return min(1.0, max(_LEAST_SHARE, (time.monotonic() - server.back_at) / SLOW_START_S))
