"""HTTP request bodies: read only once memory is reserved, and never more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from court.errors import BadRequest
from serving.errors import Malformed
from serving.rest.messages import loaded, message_of, object_of, with_picture
from serving.rest.operations import JUDGE, PICTURE, Operation, Source
from serving.rest.remote_pictures import Fetch, picture_at
from serving.rpc.flow_control import MESSAGE_BYTES

_MOST_FIELDS = 8
_LONGEST_FIELD = 64 * 1024
_AS_IT_IS = (b"", b"7bit", b"8bit", b"binary")
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii", b"ascii")
_ASCII_IN_THEM = (b"iso-8859-", b"windows-125")
"""Supersets of ASCII; some libraries declare one of them whatever they send."""


@dataclass(slots=True)
class Form:
    """The parts of a form received so far."""

    fields: dict[str, bytearray] = field(default_factory=dict)
    picture: bytearray | None = None


class FormReader:
    """Parses a body piece by piece."""

    def __init__(self, content_type: str) -> None:
        """Starts parsing. Raises BadRequest if the header has no boundary."""
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        self._delimiter = b"--" + boundary
        self._preamble: bytearray | None = bytearray()
        self.form = Form()
        self._header = b""
        self._value = b""
        self._name: str | None = None
        self._charset = b"utf-8"
        self._ended = False
        callbacks: Any = {
            "on_part_begin": self._part_begins,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }
        try:
            if not boundary:
                raise FormParserError
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError:
            raise _malformed() from None

    def feed(self, piece: bytes) -> None:
        """Parses a piece. Raises BadRequest if the form is malformed or has unsupported parts."""
        if self._preamble is not None:
            self._preamble += piece
            begin = (
                0 if self._preamble.startswith(self._delimiter) else self._preamble.find(b"\n" + self._delimiter) + 1
            )
            if begin == 0 and not self._preamble.startswith(self._delimiter):
                if len(self._preamble) > _LONGEST_FIELD:
                    raise _malformed()
                return
            piece, self._preamble = bytes(self._preamble[begin:]), None
        try:
            self._parser.write(piece)
        except FormParserError:
            raise _malformed() from None

    def finish(self) -> Form:
        """Returns the complete form. Raises BadRequest if it is incomplete."""
        # Only the closing boundary ends a form: a truncated body must not pass for a shorter one.
        if not self._ended:
            raise _malformed()
        return self.form

    def close(self) -> None:
        """Breaks the reference cycle of reader and parser, which would keep the picture until garbage collection."""
        self.form = Form()

    def _part_begins(self) -> None:
        self._name, self._charset = None, b"utf-8"
        self._header = self._value = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            name = parse_options_header(self._value)[1].get(b"name", b"")
            # An invalid name matches no known field and is refused for that.
            self._name = name.decode("utf-8", "replace")
        elif self._header.lower() == b"content-type":
            self._charset = parse_options_header(self._value)[1].get(b"charset", b"utf-8").lower()
        # Without decoding it, an encoded text would be judged literally.
        elif self._header.lower() == b"content-transfer-encoding" and self._value.strip().lower() not in _AS_IT_IS:
            raise Malformed("A part of the form has a Content-Transfer-Encoding. Send its bytes as they are.")
        self._header = self._value = b""

    def _headers_end(self) -> None:
        if self._name is None:
            raise _malformed()
        if self._name in self.form.fields or (self._name == PICTURE and self.form.picture is not None):
            raise Malformed(f"The form has the part {self._name[:100]} twice.", field=self._name[:100])
        if self._name == PICTURE:
            self.form.picture = bytearray()
        elif self._charset not in _UTF_8 and not self._charset.startswith(_ASCII_IN_THEM):
            raise self._not_utf_8()
        # Names are checked when the form has ended: until then, the number and length of fields limit the memory.
        elif len(self.form.fields) == _MOST_FIELDS:
            raise Malformed(f"The form has more than {_MOST_FIELDS} fields.")
        else:
            self.form.fields[self._name] = bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        assert self._name is not None
        if self._name == PICTURE:
            assert self.form.picture is not None
            # Slicing the bytes would copy the picture again.
            self.form.picture += memoryview(data)[start:end]
            return
        text = self.form.fields[self._name]
        text += data[start:end]
        if self._charset not in _UTF_8 and not data[start:end].isascii():
            raise self._not_utf_8()
        if len(text) > _LONGEST_FIELD:
            raise BadRequest(
                f"The part {self._name[:100]} has more than {_LONGEST_FIELD:,} bytes.",
                reason="FIELD_TOO_LONG",
                field=self._name[:100],
            )

    def _not_utf_8(self) -> BadRequest:
        name = (self._name or "")[:100]
        return Malformed(f"The part {name} is not UTF-8.", field=name)

    def _end(self) -> None:
        self._ended = True


def _malformed() -> BadRequest:
    return Malformed("The body is no multipart/form-data with the boundary that its Content-Type names.")


# The same limit for both transports, so that no request is too large for only one of them.
BODY_BYTES = MESSAGE_BYTES
"""Maximum size of a body, as for gRPC. A picture in base64 is a third larger."""

_JSON, _FORM = "application/json", "multipart/form-data"
_IN_FORM = frozenset({"request", "text"})


def content_length(request: Request) -> int | None:
    """Returns the announced size of a body, capped at the maximum; None if it is not announced."""
    value = request.headers.get("content-length", "")
    # Content-Length is then ignored (RFC 9112, 6.3), and the maximum must be reserved.
    if "transfer-encoding" in request.headers:
        return None
    return min(int(value), BODY_BYTES) if value.isascii() and value.isdecimal() else 0


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """Yields the body in pieces.

    Raises:
        BadRequest: The body is compressed or too large (BODY_TOO_LARGE, before reading it if announced).
        CancelledError: The caller has gone.
    """
    _require_plain(request)
    value, taken = request.headers.get("content-length", ""), 0
    # By the header alone, so that a caller that waits for "100 Continue" need not send the body.
    if value.isdecimal() and int(value) > BODY_BYTES:
        raise _too_large()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        piece: bytes = message.get("body", b"")
        taken += len(piece)
        # Also counted, since a chunked body announces no length.
        if taken > BODY_BYTES:
            raise _too_large()
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


async def whole_body(request: Request) -> bytearray:
    """Returns the complete body. Raises as :func:`pieces_of`."""
    body = bytearray()  # grows in place, while many pieces would fragment memory
    async for piece in pieces_of(request):
        body += piece
    return body


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A received request; its length is that of what was received for it."""

    message: Any
    size: int

    def __len__(self) -> int:
        return self.size


async def received(operation: Operation, request: Request, fetch: Fetch) -> ReceivedRequest:
    """Reads the request of a call.

    Raises:
        BadRequest: The request is malformed or too large.
        CancelledError: The caller has gone.
    """
    # Path and headers take precedence over the body, which may repeat but not contradict them (message_of).
    own = {field: request.path_params[name] for name, field in operation.fields.items()}
    if operation is JUDGE and (key := idempotency_key(request)):
        own["request_id"] = key
    if operation.continued_by and (last := request.headers.get("last-event-id", "")):
        own[operation.continued_by] = _next_event(last, operation)
    pairs = _query_of(request)
    if operation.source is Source.QUERY:
        query = object_of(operation.descriptor.input_type, [*pairs, *own.items()])
        return ReceivedRequest(message_of(operation.request, query), len(request.scope["query_string"]))
    query = object_of(operation.descriptor.input_type, pairs)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if operation.takes_picture and media.startswith("image/"):
        message = message_of(operation.request, query, own)
        picture = await whole_body(request)
        return ReceivedRequest(with_picture(message, picture), len(picture))
    # A field in two places would need a rule for which one counts.
    if query:
        raise BadRequest(
            "The query goes with a body that is a picture. With another body, say all in the body.",
            reason="QUERY_NOT_TAKEN",
        )
    if operation.takes_picture and media == _FORM:
        return await _of_form(operation, request, own)
    if media == _JSON:
        body = await whole_body(request)
        fields = loaded(body)
        if operation is JUDGE and "image_url" in fields:
            return await _with_fetched(fields, own, fetch)
        return ReceivedRequest(message_of(operation.request, fields, own), len(body))
    taken = ", ".join((_JSON, *((_FORM, "image/*") if operation.takes_picture else ())))
    raise BadRequest(f"The body's Content-Type is none that is taken here: {taken}.", reason="MEDIA_TYPE_NOT_TAKEN")


async def _of_form(operation: Operation, request: Request, own: Mapping[str, str]) -> ReceivedRequest:
    # Piece by piece, so that a picture is in memory only once.
    with closing(FormReader(request.headers["content-type"])) as reader:
        async for piece in pieces_of(request):
            reader.feed(piece)
        form = reader.finish()
    for name in form.fields.keys() - _IN_FORM:
        raise Malformed(
            f"A form has the parts image, request (a JSON object) and text; {name[:100]} is none of them.",
            field=name[:100],
        )
    fields = loaded(form.fields["request"]) if "request" in form.fields else {}
    if "text" in form.fields:
        try:
            text = form.fields["text"].decode()
        except UnicodeDecodeError:
            raise Malformed("The part text is not UTF-8.", field="text") from None
        # The same text twice is harmless. Two different texts are refused, as it would be unclear which one was judged.
        if fields.setdefault("text", text) != text:
            raise Malformed("The text stands in the form twice, and is not the same.", field="text")
    if form.picture is not None and PICTURE in fields:
        raise Malformed("The picture stands in the form twice.", field=PICTURE)
    message = with_picture(message_of(operation.request, fields, own), form.picture)
    return ReceivedRequest(message, sum(map(len, form.fields.values())) + len(form.picture or b""))


async def _with_fetched(fields: dict[str, object], own: Mapping[str, str], fetch: Fetch) -> ReceivedRequest:
    url = fields.pop("image_url")
    if PICTURE in fields:
        raise Malformed("Give image or image_url, not both.", field="image_url")
    message = message_of(JUDGE.request, fields, own)  # report errors in the other fields first
    picture = await picture_at(url, fetch)
    return ReceivedRequest(with_picture(message, picture), len(picture))


def _query_of(request: Request) -> Sequence[tuple[str, str]]:
    """Returns names and values of the query. Raises BadRequest if it is not UTF-8."""
    try:
        # Strictly: Starlette replaces invalid bytes, so that a text that nobody sent would be judged.
        return parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise Malformed("The query is not UTF-8, percent-encoded.") from None


def idempotency_key(request: Request) -> str:
    """Returns the Idempotency-Key header as the request id, with or without quotes of a structured field."""
    key = request.headers.get("idempotency-key", "").strip()
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def _next_event(last: str, operation: Operation) -> str:
    """Returns the position at which a stream resumes after an event id."""
    # The length is limited because Python refuses to parse thousands of digits. Event numbers have 64 bits.
    if not last.isascii() or not last.isdecimal() or len(last) > 19:
        raise BadRequest("Last-Event-ID is an id of an event of this stream.", reason="OUT_OF_RANGE")
    # The id of a review event is already the next entry; that of a trial event is its own number.
    return last if operation.continued_by == "from_entry" else str(int(last) + 1)


def _require_plain(request: Request) -> None:
    """Raises BadRequest if the body is compressed, since its decompressed size is unbounded (BO-1)."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise BadRequest("The body is compressed. Send it without a Content-Encoding.", reason="MEDIA_TYPE_NOT_TAKEN")


def _too_large() -> BadRequest:
    return BadRequest(
        f"The body has more than {BODY_BYTES:,} bytes, which is the most that is taken. A picture in base64 is a third "
        "larger than in a form or by itself.",
        reason="BODY_TOO_LARGE",
    )
