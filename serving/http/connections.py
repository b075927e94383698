"""HTTP connections that say nothing: closed in time, and first of all where room is short."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

# BO-2 promises these ten seconds.
HEAD_S = 10.0
"""Seconds that a request's head may take, from the connection or the answer before it."""
BODY_S = 30.0
"""Seconds that a request's body may take after its head, where nothing else is said."""


class GuardedConnection(H11Protocol):
    """HTTP/1.1 that waits for nobody for ever.

    A connection is silent while no request of it is being answered, and while a body has not come. One that is silent
    for too long is closed, whatever it sends a byte of now and then; where as many connections stand as are answered at
    once, one that is silent gives way to the next: the one that has been for longest, and before others those that have
    announced no body. All may come from one address: behind a proxy, everybody does.

    An application finds its connection in the state of the scope, as ``connection``.

    Attributes:
        lost: Is set when the connection is gone, also while nothing is read of it.
    """

    def __init__(self, *arguments: Any, body_s: float = BODY_S, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lost = asyncio.Event()
        self.app_state = {**self.app_state, "connection": self}
        self._body_s = body_s
        self._silent_since: float | None = None
        self._awaits_body = False
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_silence()
        # uvicorn turns requests away from this number on, and by now it counts this connection.
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self._make_room()

    @override
    def handle_events(self) -> None:
        super().handle_events()
        if not self._answering():
            return  # what still comes of the body of an answered request buys no time
        # All of the request has come: from here on the caller waits for us.
        if self.conn.their_state is not h11.SEND_BODY:
            self._wait(None)
            self._silent_since, self._awaits_body = None, False
        elif not self._awaits_body:
            self._wait(self._body_s)
            self._silent_since, self._awaits_body = self.loop.time(), True

    def renew_body_time(self) -> None:
        """Gives the rest of a body as long as all of it had: for a body of many requests, with each whole one."""
        if self._awaits_body:
            self._wait(self._body_s)
            self._silent_since = self.loop.time()

    @override
    def on_response_complete(self) -> None:
        # First: super() may begin with the next request, if that has come already, and sets other times.
        self._begin_silence()
        super().on_response_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        self.lost.set()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_silence(self) -> None:
        self._silent_since, self._awaits_body = self.loop.time(), False
        self._wait(HEAD_S)

    def _wait(self, seconds: float | None) -> None:
        """Has the connection closed in so many seconds, whatever it was to be closed for before."""
        if self._timer is not None:
            self._timer.cancel()
        # Aborted and not closed: a transport that is closed first waits for the peer to take what is left to send.
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _make_room(self) -> None:
        silent = [
            # id() decides between equals: connections themselves can't be compared.
            (other._awaits_body, other._silent_since, id(other), other)
            for other in self.connections
            if isinstance(other, GuardedConnection) and other is not self and other._silent_since is not None
        ]
        if silent:
            *_, other = min(silent)
            other._silent_since = None
            other.transport.abort()
            # Not only when the loop comes to it: until then it would count against the request that is about to come.
            self.connections.discard(other)
