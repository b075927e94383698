"""A call that came over HTTP, as the services' methods have it, and its answer."""

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

_DETAILS = "grpc-status-details-bin"
_STILL_THERE_S = 15.0
"""Seconds from one sign of life to the next on a stream: proxies close what is silent for a minute or less."""


class CallEnded(Exception):
    """A call was ended with an error.

    Attributes:
        status: The google.rpc status.
    """

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class HttpCall:
    """A :class:`~serving.service_call.ServiceCall` with one request, made of an HTTP request once it is read.

    Attributes:
        announced_bytes: Bytes of the request that are reserved before it is read; None for as many as there may be.
    """

    def __init__(
        self,
        request: Request,
        message: Callable[[], Awaitable[bytes]],
        *,
        announced_bytes: int | None,
        timeout_s: float | None,
        events: EventWriter | None = None,
        many: bool = False,
    ) -> None:
        """Has read nothing yet.

        Args:
            request: HTTP request.
            message: Reads the request and gives it in the contract's binary form; empty where there are many, and none
                is to come.
            announced_bytes: See the attribute.
            timeout_s: Seconds that the caller waits; None for as long as it takes.
            events: Takes the responses of a method with many.
            many: True if the HTTP request holds many of the contract.
        """
        self._many = many
        self.announced_bytes = announced_bytes
        self._request = request
        self._message = message
        # From now, and not from when the request is read: waiting for memory is part of the caller's time.
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._events = events
        self._was_read = False
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        """See the protocol."""
        client = self._request.client
        return f"http:{client.host}:{client.port}" if client else "http:"

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """The headers."""
        return self._request.headers.items()

    def time_remaining(self) -> float | None:
        """See the protocol."""
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def read(self) -> object:
        """The next request, or that there is none to come."""
        if self._was_read and not self._many:
            return grpc.aio.EOF
        self._was_read = True
        data = await self._message()
        if self._many:
            assert self._events is not None
            await self._events.begin()
        return data or (grpc.aio.EOF if self._many else data)

    async def send_initial_metadata(self, initial_metadata: Sequence[tuple[str, str]]) -> None:
        """Begins the stream of events; with many requests, once the first has come: what is wrong has a status then."""
        assert self._events is not None
        self._events.headers = [(name.encode(), value.encode()) for name, value in initial_metadata]
        if not self._many:
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
        # The whole status lies in the details; code and message alone would lose reason and delay.
        for name, value in trailing_metadata:
            if name == _DETAILS and isinstance(value, bytes):
                status = status_pb2.Status.FromString(value)
        raise CallEnded(status)

    def code(self) -> grpc.StatusCode | None:
        """See the protocol."""
        return self._code


class EventWriter:
    """A response of server-sent events.

    Attributes:
        headers: Headers of the response, besides its own.
    """

    media_type = "text/event-stream; charset=utf-8"
    _sign_of_life = b": still there\n\n"

    def __init__(self, send: Send, form: EventForm) -> None:
        """Has sent nothing yet.

        Args:
            send: Sends parts of the response.
            form: Converts responses to events.
        """
        self._send = send
        self._form = form
        self.headers: list[tuple[bytes, bytes]] = []
        # Events and signs of life come from two tasks, and ASGI's send is used by one at a time.
        self._sending = asyncio.Lock()
        self._alive: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """True once the head of the response is sent."""
        return self._alive is not None

    async def begin(self) -> None:
        """Sends the head of the response, unless it is sent."""
        if self._alive is not None:
            return
        headers = [
            (b"content-type", self.media_type.encode()),
            (b"x-accel-buffering", b"no"),  # by itself nginx keeps events until it has many
            *self.headers,
        ]
        # Set before the head is sent, so that a second call that comes meanwhile sends none.
        self._alive = asyncio.create_task(self._stay_alive())
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, response: Message | bytes) -> None:
        """Sends an event."""
        await self._put(self._written(*self._form(response)))

    async def end(self, problem: ProblemDetails | None = None) -> None:
        """Says that the stream is over, or why it broke off, and ends the response."""
        name, data = ("end", {}) if problem is None else ("problem", problem.body)
        await self._put(self._written(None, name, data), more=False)

    def close(self) -> None:
        """Sends no more signs of life."""
        if self._alive is not None:
            self._alive.cancel()

    def _written(self, id_: int | None, name: str, data: Mapping[str, Any]) -> bytes:
        # One line of JSON, in which line breaks are escaped: nothing in a meme's text can end the event or begin
        # another.
        number = f"id: {id_}\n" if id_ is not None else ""
        return f"{number}event: {name}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        async with self._sending:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(_STILL_THERE_S)
            await self._put(self._sign_of_life)


class LineWriter(EventWriter):
    """A response of lines, each a JSON object with one field, whose name says what it is."""

    media_type = "application/x-ndjson"
    _sign_of_life = b"\n"

    @override
    def _written(self, id_: int | None, name: str, data: Mapping[str, Any]) -> bytes:
        return orjson.dumps({name: data} if name else data) + b"\n"
