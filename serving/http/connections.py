"""Closes silent HTTP connections in time, and earlier when connections are scarce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

# BO-2 promises this timeout.
HEAD_S = 10.0
"""Timeout in seconds for a request's head, from the connection or, after an answer, from its first byte."""
BODY_S = 30.0
"""Default timeout in seconds for a request's body, from its head."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GuardedConnection(H11Protocol):
    """HTTP/1.1 connection with timeouts against slow or silent clients.

    A connection is silent while none of its requests is being answered, or while a body is incomplete. It is closed
    when it is silent for too long, even if it sends a byte now and then. Between an answer and the first byte of the
    next request it is idle, for the longer time that responses announce as ``Keep-Alive``; a request that has begun is
    never lost to that time.

    When the maximum number of connections is reached, a new one displaces the longest silent one: first the idle, then
    those that have announced no body. There is no limit per address, since behind a proxy all connections share one.

    Applications find their connection in the scope's state, as ``connection``.

    Attributes:
        lost: Event that is set when the connection is lost, even while nothing is read from it.
    """

    def __init__(self, *arguments: Any, body_s: float = BODY_S, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.lost = asyncio.Event()
        self.app_state = {**self.app_state, "connection": self}
        self._body_s = body_s
        self._silent_since: float | None = None
        self._awaits_body = self._idle = False
        self._timer: asyncio.TimerHandle | None = None

    def use_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Gives these headers to the running answer, if its own have not been sent."""
        if self.cycle is not None:
            self.cycle.default_headers = headers

    def end_when_answered(self) -> None:
        """Closes the connection with its running answer, or now if it is idle; a request that has begun is answered."""
        if self._idle or self._answering():
            self.shutdown()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()
        # uvicorn refuses requests from this number on, and already counts this connection.
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) >= limit:
            self._make_room()

    @override
    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._begin_head()
        super().data_received(data)

    @override
    def handle_events(self) -> None:
        super().handle_events()
        if not self._answering():
            return  # the rest of an answered request's body does not extend the timeout
        self._idle = False
        # The request is complete: from here on the caller waits for us.
        if self.conn.their_state is not h11.SEND_BODY:
            self._wait(None)
            self._silent_since, self._awaits_body = None, False
        elif not self._awaits_body:
            self._wait(self._body_s)
            self._silent_since, self._awaits_body = self.loop.time(), True

    @override
    def on_response_complete(self) -> None:
        # First, since super() may start the next request, which sets other timeouts.
        self._silent_since, self._awaits_body, self._idle = self.loop.time(), False, True
        # uvicorn closes an idle connection (``timeout_keep_alive``), which takes for ever if nobody reads its answer.
        self._wait(self.timeout_keep_alive + HEAD_S)
        super().on_response_complete()
        if self._idle and self.conn.trailing_data[0]:
            # The next request's head has begun to arrive together with this one.
            self._unset_keepalive_if_required()
            self._begin_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        self.lost.set()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_head(self) -> None:
        was_idle, self._idle = self._idle, False
        self._silent_since, self._awaits_body = self.loop.time(), False
        self._wait(HEAD_S, self._refuse if was_idle else None)

    def _refuse(self) -> None:
        """Ends a further request whose head takes too long: its caller must not take it for a lost one."""
        self.transport.write(_TOO_SLOW)
        self.transport.close()
        self._wait(HEAD_S)

    def _wait(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        """Sets the timeout after which the connection is aborted, replacing the previous one."""
        if self._timer is not None:
            self._timer.cancel()
        # abort() rather than close(), which first waits for the peer to read pending data.
        self._timer = None if seconds is None else self.loop.call_later(seconds, then or self.transport.abort)

    def _make_room(self) -> None:
        silent = [
            # id() breaks ties, since connections can't be compared.
            (not other._idle, other._awaits_body, other._silent_since, id(other), other)
            for other in self.connections
            if isinstance(other, GuardedConnection) and other is not self and other._silent_since is not None
        ]
        if silent:
            *_, other = min(silent)
            other._silent_since = None
            other.transport.abort()
            # Immediately: until the loop removes it, it would count against the next request.
            self.connections.discard(other)
