"""Streaming parser for forms with a picture (multipart/form-data), without temporary files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from court.errors import BadRequest
from serving.rest.operations import PICTURE

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
            raise BadRequest(
                "A part of the form has a Content-Transfer-Encoding. Send its bytes as they are.",
                reason="MALFORMED_REQUEST",
            )
        self._header = self._value = b""

    def _headers_end(self) -> None:
        if self._name is None:
            raise _malformed()
        if self._name in self.form.fields or (self._name == PICTURE and self.form.picture is not None):
            raise BadRequest(
                f"The form has the part {self._name[:100]} twice.", reason="MALFORMED_REQUEST", field=self._name[:100]
            )
        if self._name == PICTURE:
            self.form.picture = bytearray()
        elif self._charset not in _UTF_8 and not self._charset.startswith(_ASCII_IN_THEM):
            raise self._not_utf_8()
        # Names are checked when the form has ended: until then, the number and length of fields limit the memory.
        elif len(self.form.fields) == _MOST_FIELDS:
            raise BadRequest(f"The form has more than {_MOST_FIELDS} fields.", reason="MALFORMED_REQUEST")
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
        return BadRequest(f"The part {name} is not UTF-8.", reason="MALFORMED_REQUEST", field=name)

    def _end(self) -> None:
        self._ended = True


def _malformed() -> BadRequest:
    return BadRequest(
        "The body is no multipart/form-data with the boundary that its Content-Type names.", reason="MALFORMED_REQUEST"
    )
