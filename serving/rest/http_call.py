"""Adapts an HTTP request to the call interface of the services' methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import grpc
import orjson
from google.rpc import status_pb2
from starlette.requests import Request
from starlette.types import Send
from typing_extensions import override

from serving.rest.problems import ProblemDetails

if TYPE_CHECKING:
    from google.protobuf.message import Message

EventForm: TypeAlias = Callable[[Any], tuple[int | None, str, dict[str, Any]]]
"""Converts a response to an event: its id, if it has one, its name and its data."""

LINES = "application/x-ndjson"
"""Media type of JSON lines."""
_DETAILS = "grpc-status-details-bin"
_KEEPALIVE_S = 15.0
"""Seconds between keepalives on a stream: proxies close connections that are silent for a minute or less."""


class CallEnded(Exception):
    """A method ended the call with an error.

    Attributes:
        status: Status of the error (google.rpc).
    """

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """A :class:`~serving.service_call.ServiceCall` for an HTTP request, whose body is read lazily.

    Attributes:
        announced_bytes: Bytes to reserve before the request is read; None for the maximum.
    """

    def __init__(
        self,
        request: Request,
        message: Callable[[], Awaitable[bytes]],
        *,
        announced_bytes: int | None,
        timeout_s: float | None,
        events: EventWriter | None = None,
    ) -> None:
        """Prepares the call without reading the body.

        Args:
            message: Reads the request in binary form.
            timeout_s: Timeout of the caller in seconds; None for no timeout.
            events: Takes the responses of a method with many.
        """
        self.announced_bytes = announced_bytes
        self._request = request
        self._message = message
        # Counted from now rather than from reading the request: waiting for memory is part of the caller's time.
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._events = events
        self._was_read = False
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        """See the protocol."""
        client = self._request.client
        return f"http:{client.host}:{client.port}" if client else "http:"

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Returns the HTTP headers."""
        return self._request.headers.items()

    def time_remaining(self) -> float | None:
        """See the protocol."""
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def read(self) -> object:
        """Reads the request, or the end of requests."""
        if self._was_read:
            return grpc.aio.EOF
        self._was_read = True
        return await self._message()

    async def send_initial_metadata(self, initial_metadata: Sequence[tuple[str, str]]) -> None:
        """Starts the event stream."""
        assert self._events is not None
        self._events.headers = [(name.encode(), value.encode()) for name, value in initial_metadata]
        await self._events.begin()

    async def write(self, message: Message | bytes) -> None:
        """Sends an event."""
        assert self._events is not None
        await self._events.begin()
        await self._events.write(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> Never:
        """Raises CallEnded."""
        self._code = code
        status = status_pb2.Status(code=code.value[0], message=details)
        # The complete status is in the details; code and message alone would lose reason and delay.
        for name, value in trailing_metadata:
            if name == _DETAILS and isinstance(value, bytes):
                status = status_pb2.Status.FromString(value)
        raise CallEnded(status)

    def code(self) -> grpc.StatusCode | None:
        """See the protocol."""
        return self._code


class EventWriter:
    """Writes a response of server-sent events."""

    media_type = "text/event-stream; charset=utf-8"
    _sign_of_life = b": still there\n\n"

    def __init__(self, send: Send, form: EventForm) -> None:
        """Prepares the response.

        Args:
            form: Converts responses to events.
        """
        self._send = send
        self._form = form
        self.headers: list[tuple[bytes, bytes]] = []
        # Events and keepalives come from two tasks, but ASGI's send must not be called concurrently.
        self._sending = asyncio.Lock()
        self._alive: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """True once the response head is sent."""
        return self._alive is not None

    async def begin(self) -> None:
        """Sends the response head, unless it is sent already."""
        if self._alive is not None:
            return
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"x-accel-buffering", b"no"),  # by default nginx buffers events
            *self.headers,
        ]
        # Set before the head is sent, so that a concurrent second call does not send it again.
        self._alive = asyncio.create_task(self._stay_alive())
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, response: Message | bytes) -> None:
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
