"""Requests as they come over HTTP: read only once there is memory for them, and never more than was reserved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.requests import Request

from court.errors import BadRequest
from serving.rest.form import FormReader
from serving.rest.messages import loaded, message_of, object_of, stream_request_of, with_picture
from serving.rest.operations import JUDGE, PICTURE, Operation, Source
from serving.rest.remote_pictures import Fetch, picture_at
from serving.rpc.flow_control import MESSAGE_BYTES

if TYPE_CHECKING:
    from google.protobuf.message import Message

# The same bound on both ways in: no request may be too large for one of them only.
BODY_BYTES = MESSAGE_BYTES
"""Largest body: what gRPC takes. A picture in base64 is a third larger than by itself."""

_JSON, _FORM = "application/json", "multipart/form-data"
LINES = "application/x-ndjson"
"""Media type of lines of JSON."""
_IN_FORM = frozenset({"request", "text"})


def content_length(request: Request) -> int | None:
    """Bytes of a body as its head announces them, as many as are taken at most; None where it does not say."""
    value = request.headers.get("content-length", "")
    # Then Content-Length does not count (RFC 9112, 6.3), and the largest body has to be reserved.
    if "transfer-encoding" in request.headers:
        return None
    return min(int(value), BODY_BYTES) if value.isascii() and value.isdecimal() else 0


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """The body, piece by piece.

    Raises:
        BadRequest: The body is compressed, or too large; BODY_TOO_LARGE, before it is read where its head says so.
        CancelledError: The caller has gone.
    """
    _require_plain(request)
    value, taken = request.headers.get("content-length", ""), 0
    # By the head alone: a caller that waits for "100 Continue" then sends nothing of its body.
    if value.isdecimal() and int(value) > BODY_BYTES:
        raise _too_large()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        piece: bytes = message.get("body", b"")
        taken += len(piece)
        # Counted as well: a chunked body announces no length.
        if taken > BODY_BYTES:
            raise _too_large()
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


async def whole_body(request: Request) -> bytearray:
    """The body. Raises as :func:`pieces_of`."""
    body = bytearray()  # grows in place where many pieces would leave holes
    async for piece in pieces_of(request):
        body += piece
    return body


class RequestLines:
    """Requests of a stream, each a line of the body; no more of it is held than a line, and what came with it."""

    def __init__(self, request: Request, came: Callable[[], None]) -> None:
        """Has read nothing yet; ``came`` is called with each line that has come whole."""
        self._request = request
        self._came = came
        self._buffer = bytearray()
        self._looked = 0
        self._ended = False

    async def read(self) -> bytes:
        """The next request in the contract's binary form; empty where there is none to come.

        Raises:
            BadRequest: The line is no request, or too large.
            CancelledError: The caller has gone.
        """
        _require_plain(self._request)
        media = self._request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != LINES:
            raise BadRequest(
                f"The body's Content-Type is none that is taken here: {LINES}.", reason="MEDIA_TYPE_NOT_TAKEN"
            )
        while True:
            line = await self._line()
            if not line:
                return b""
            # Blank lines are no requests. They do not renew the caller's time either, or they could keep a stream open
            # for ever.
            if line.strip():
                self._came()
                return stream_request_of(line).SerializeToString()

    async def _line(self) -> bytes:
        while True:
            # From where the last search ended: a long line in small pieces would take time with the square of its
            # length.
            end = self._buffer.find(b"\n", self._looked)
            if end < 0 and self._ended:
                # The last line needs no line break.
                end = len(self._buffer) - 1
            # Also before the end of the line is known: what never ends must not fill the memory (BO-1).
            if (len(self._buffer) if end < 0 else end) > BODY_BYTES:
                raise _too_large()
            if end >= 0 or self._ended:
                line = bytes(self._buffer[: end + 1])
                del self._buffer[: end + 1]
                self._looked = 0
                return line
            self._looked = len(self._buffer)
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            self._buffer += message.get("body", b"")
            self._ended = not message.get("more_body", False)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request of the contract.

    Attributes:
        message: Message.
        picture: The picture where it came by itself, and is not in the message.
    """

    message: Message
    picture: bytes | bytearray | None = None

    def serialized(self) -> bytes:
        """The whole request in the contract's binary form."""
        return with_picture(self.message, self.picture)


async def received(operation: Operation, request: Request, fetch: Fetch) -> ReceivedRequest:
    """Reads the request of a call.

    Args:
        operation: Operation that is called.
        request: HTTP request; its body has not been read.
        fetch: Fetches a picture where the request names an address.

    Raises:
        BadRequest: The request is malformed, or larger than is taken.
        CancelledError: The caller has gone.
    """
    # What the address and the head say goes before the body, which may repeat it but not contradict it (message_of).
    own = {field: request.path_params[name] for name, field in operation.fields.items()}
    if operation is JUDGE and (key := idempotency_key(request)):
        own["request_id"] = key
    if operation.continued_by and (last := request.headers.get("last-event-id", "")):
        own[operation.continued_by] = _next_event(last, operation)
    pairs = _query_of(request)
    if operation.source is Source.QUERY:
        query = object_of(operation.descriptor.input_type, [*pairs, *own.items()])
        return ReceivedRequest(message_of(operation.request, query))
    query = object_of(operation.descriptor.input_type, pairs)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if operation.takes_picture and media.startswith("image/"):
        message = message_of(operation.request, query, own)
        return ReceivedRequest(message, await whole_body(request))
    # Two places for the same field would need a rule for which one holds.
    if query:
        raise BadRequest(
            "The query goes with a body that is a picture. With another body, say all in the body.",
            reason="QUERY_NOT_TAKEN",
        )
    if operation.takes_picture and media == _FORM:
        return await _of_form(operation, request, own)
    if media == _JSON:
        fields = loaded(await whole_body(request))
        if operation is JUDGE and "image_url" in fields:
            return await _with_fetched(fields, own, fetch)
        return ReceivedRequest(message_of(operation.request, fields, own))
    taken = ", ".join((_JSON, *((_FORM, "image/*") if operation.takes_picture else ())))
    raise BadRequest(f"The body's Content-Type is none that is taken here: {taken}.", reason="MEDIA_TYPE_NOT_TAKEN")


async def _of_form(operation: Operation, request: Request, own: Mapping[str, str]) -> ReceivedRequest:
    # Piece by piece, so that a picture is in memory once, and not in the form as well.
    with closing(FormReader(request.headers["content-type"])) as reader:
        async for piece in pieces_of(request):
            reader.feed(piece)
        form = reader.finish()
    for name in form.fields.keys() - _IN_FORM:
        raise BadRequest(
            f"A form has the parts image, request (a JSON object) and text; {name[:100]} is none of them.",
            reason="MALFORMED_REQUEST",
            field=name[:100],
        )
    fields = loaded(form.fields["request"]) if "request" in form.fields else {}
    if "text" in form.fields:
        try:
            text = form.fields["text"].decode()
        except UnicodeDecodeError:
            raise BadRequest("The part text is not UTF-8.", reason="MALFORMED_REQUEST", field="text") from None
        # The same text twice is harmless. Two texts are refused, as nobody could know which one was judged.
        if fields.setdefault("text", text) != text:
            raise BadRequest(
                "The text stands in the form twice, and is not the same.", reason="MALFORMED_REQUEST", field="text"
            )
    if form.picture is not None and PICTURE in fields:
        raise BadRequest("The picture stands in the form twice.", reason="MALFORMED_REQUEST", field=PICTURE)
    return ReceivedRequest(message_of(operation.request, fields, own), form.picture)


async def _with_fetched(fields: dict[str, object], own: Mapping[str, str], fetch: Fetch) -> ReceivedRequest:
    url = fields.pop("image_url")
    if PICTURE in fields:
        raise BadRequest("Give image or image_url, not both.", reason="MALFORMED_REQUEST", field="image_url")
    message = message_of(JUDGE.request, fields, own)  # what is wrong with the rest is said first
    return ReceivedRequest(message, await picture_at(url, fetch))


def _query_of(request: Request) -> Sequence[tuple[str, str]]:
    """Names and values of the query. Raises BadRequest where it is not UTF-8."""
    try:
        # Strictly: Starlette replaces what it can't read, and a text that nobody sent would be judged.
        return parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("The query is not UTF-8, percent-encoded.", reason="MALFORMED_REQUEST") from None


def idempotency_key(request: Request) -> str:
    """The id of a request that its header of that name gives, with or without the quotes of a structured field."""
    key = request.headers.get("idempotency-key", "").strip()
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def _next_event(last: str, operation: Operation) -> str:
    """Returns the start of a continued stream: behind an event of a trial, and of reviews where the id says."""
    # The length too: of thousands of digits Python makes no number. Numbers of events have 64 bits.
    if not last.isascii() or not last.isdecimal() or len(last) > 19:
        raise BadRequest("Last-Event-ID is an id of an event of this stream.", reason="OUT_OF_RANGE")
    # The id of an event of reviews is the next entry already; that of an event of a trial is its own number.
    return last if operation.continued_by == "from_entry" else str(int(last) + 1)


def _require_plain(request: Request) -> None:
    """Raises BadRequest where the body is compressed: nothing bounds what it would become (BO-1)."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise BadRequest("The body is compressed. Send it without a Content-Encoding.", reason="MEDIA_TYPE_NOT_TAKEN")


def _too_large() -> BadRequest:
    return BadRequest(
        f"The body has more than {BODY_BYTES:,} bytes, which is the most that is taken. A picture in base64 is a third "
        "larger than in a form or by itself.",
        reason="BODY_TOO_LARGE",
    )
