"""Connections to the console that say nothing: closed in time, and first of all where room is short."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds that a request's head may take, from the connection or the answer before it."""
BODY_S = 30.0
"""Seconds that a request's body may take after its head."""


class ConsoleProtocol(H11Protocol):
    """HTTP/1.1 that waits for nobody for ever.

    A connection is silent while no request of it is being answered. One that is silent for too long is closed; where
    as many connections stand as are answered at once, the one that has been silent for longest gives way to the next.
    All may come from one address: behind a proxy, everybody does.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._silent_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_silence()
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self._make_room()

    @override
    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is h11.SEND_BODY:
            self._wait(BODY_S)
            self._silent_since = None
        elif self._answering():
            self._wait(None)
            self._silent_since = None

    @override
    def on_response_complete(self) -> None:
        self._begin_silence()
        super().on_response_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_silence(self) -> None:
        self._silent_since = self.loop.time()
        self._wait(HEAD_S)

    def _wait(self, seconds: float | None) -> None:
        """Has the connection closed in so many seconds, whatever it was to be closed for before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _make_room(self) -> None:
        silent = [
            (other._silent_since, id(other), other)
            for other in self.connections
            if isinstance(other, ConsoleProtocol) and other is not self and other._silent_since is not None
        ]
        if silent:
            _, _, other = min(silent)
            other._silent_since = None
            other.transport.abort()
            # Not only when the loop comes to it: until then it would count against the request that is about to come.
            self.connections.discard(other)
