"""Writers of responses that are streams: server-sent events, or JSON lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from starlette.types import Send
from typing_extensions import override

from serving.rest.problems import ProblemDetails

if TYPE_CHECKING:
    from google.protobuf.message import Message

EventForm: TypeAlias = Callable[[Any], tuple[int | None, str, dict[str, Any]]]
"""Converts a response to an event: its id, if it has one, its name and its data."""

LINES = "application/x-ndjson"
"""Media type of JSON lines."""
_KEEPALIVE_S = 15.0
"""Seconds between keepalives on a stream: proxies close connections that are silent for a minute or less."""


class EventWriter:
    """Writes a response of server-sent events."""

    media_type = "text/event-stream; charset=utf-8"
    _sign_of_life = b": still there\n\n"

    def __init__(self, send: Send, form: EventForm) -> None:
        self._send = send
        self._form = form
        # Events and keepalives come from two tasks, but ASGI's send must not be called concurrently.
        self._sending = asyncio.Lock()
        self._alive: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """True once the response head is sent."""
        return self._alive is not None

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Sends the response head, unless it is sent already."""
        if self._alive is not None:
            return
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"x-accel-buffering", b"no"),  # by default nginx buffers events
        ]
        # Set before the head is sent, so that a concurrent second call does not send it again.
        self._alive = asyncio.create_task(self._stay_alive())
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, response: Message) -> None:
        """Sends an event."""
        await self._put(self._written(*self._form(response)))

    async def end(self, problem: ProblemDetails | None = None) -> None:
        """Sends the end of the stream, or why it failed, and ends the response."""
        name, data = ("end", {}) if problem is None else ("problem", problem.body)
        await self._put(self._written(None, name, data), more=False)

    def close(self) -> None:
        """Stops the keepalives."""
        if self._alive is not None:
            self._alive.cancel()

    def _written(self, id_: int | None, name: str, data: Mapping[str, Any]) -> bytes:
        # One line of JSON with escaped line breaks: no text of a meme can end the event or start another.
        number = f"id: {id_}\n" if id_ is not None else ""
        return f"{number}event: {name}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        async with self._sending:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            await self._put(self._sign_of_life)


class LineWriter(EventWriter):
    """Writes a response of JSON lines, each an object with one field, whose name is the event's type."""

    media_type = LINES
    _sign_of_life = b"\n"

    @override
    def _written(self, id_: int | None, name: str, data: Mapping[str, Any]) -> bytes:
        return orjson.dumps({name: data}) + b"\n"
