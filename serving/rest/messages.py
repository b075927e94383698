"""Conversion between HTTP and protobuf: bodies and queries to requests, responses to JSON.

JSON follows protobuf's mapping with the original field names. Unknown fields are refused: if a misspelled ``txt`` were
ignored, the text would be read off the picture instead.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from court.backends.pictures.refusals import bad_picture
from court.errors import BadRequest
from serving.errors import Malformed
from serving.rest.operations import PICTURE

_MAX_ERROR_CHARS = 300
_JSON_PARTS = re.compile(rb'([{}])|(?P<text>"(?:[^"\\]++|\\.)*+")\s*+(?P<colon>:?)', re.DOTALL)
"""Braces and texts of JSON; a text before a colon is a name."""
_MOST_JSON_PARTS = 100_000


def response_json(message: Message) -> dict[str, Any]:
    """Converts a message to JSON; fields without presence appear with their default value."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def loaded(body: bytes | bytearray) -> dict[str, Any]:
    """Parses a JSON object. Raises BadRequest if it is invalid, or has a name twice."""
    try:
        _require_single_names(body)
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"The body is no JSON: {error.msg}.") from None
    if not isinstance(found, dict):
        raise Malformed("The body is JSON, and no object.")
    return found


def _require_single_names(body: bytes | bytearray) -> None:
    """Raises BadRequest if an object has a name twice, of which a parser would silently take one."""
    names: list[set[str]] = []
    for count, part in enumerate(_JSON_PARTS.finditer(body)):
        # Few are needed; without a limit, a body of empty objects would take seconds.
        if count > _MOST_JSON_PARTS:
            raise Malformed("The body has too many parts.")
        if part[1] == b"{":
            names.append(set())
        elif part[1] == b"}":
            del names[-1:]
        elif part.end("colon") > part.start("colon") and names:
            # Unescaped, since a name can be written in several ways.
            name = str(orjson.loads(body[part.start("text") : part.end("text")]))
            if name in names[-1]:
                raise Malformed(f"The body has the name {name[:100]} twice.", field=name[:100])
            names[-1].add(name)


def message_of(kind: type[Message], fields: Mapping[str, Any], own: Mapping[str, str] | None = None) -> Message:
    """Converts a JSON object to a request.

    Args:
        own: Fields from the path, which the object may repeat but not contradict.

    Raises:
        BadRequest: A field is unknown, its value has the wrong type, or bytes are not base64.
        BadPicture: The picture has no bytes.
    """
    # A copy, since bytes are removed from it.
    remaining = _by_own_names(kind, fields)
    # JSON's null means an absent field. For a picture it more likely means one that could not be read, so the text must
    # not be judged alone.
    if remaining.get(PICTURE, b"") is None:
        require_bytes(b"")
    files = {
        field.name: from_base64(value, field.name)
        for field in kind.DESCRIPTOR.fields
        if field.type == FieldDescriptor.TYPE_BYTES
        if (value := remaining.pop(field.name, None)) is not None
    }
    for name, value in (own or {}).items():
        if remaining.setdefault(name, value) != value:
            raise BadRequest(
                f"{name} is another than the address's. Leave it out.", reason="ADDRESS_CONTRADICTS", field=name
            )
    message, remaining = kind(), _with_enums(kind.DESCRIPTOR, remaining)
    try:
        json_format.ParseDict(remaining, message)
    except json_format.ParseError as error:
        # The library's message quotes the request and can be as long.
        raise _no_request(kind, str(error).partition("\n")[0].strip()[:_MAX_ERROR_CHARS]) from None
    except (AttributeError, TypeError, ValueError):  # raised by the library for values of the wrong form
        raise _no_request(kind, "a value is not of its field's type.") from None
    for name, data in files.items():
        if name == PICTURE:
            require_bytes(data)
        setattr(message, name, data)
    return message


def _by_own_names(kind: type[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Normalises field names to the original ones. Raises BadRequest if a field occurs in both spellings.

    json_format also accepts camel case (``requestId``), and with both in one object silently uses the last: the request
    would differ from its Idempotency-Key, or from what its sender meant.
    """
    known = {field.json_name: field.name for field in kind.DESCRIPTOR.fields}
    found: dict[str, Any] = {}
    for name, value in fields.items():
        own = known.get(name, name)
        if own in found:
            raise Malformed(f"{own} stands there twice.", field=own)
        found[own] = value
    return found


def _with_enums(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces values of enums, accepted in any case and without prefix, by their names. Raises BadRequest."""

    def named(field: FieldDescriptor, value: Any) -> Any:
        if isinstance(value, list):
            return [one if isinstance(one, list) else named(field, one) for one in value]
        if isinstance(value, dict) and field.message_type is not None:
            return _with_enums(field.message_type, value)
        if field.enum_type is None or not isinstance(value, str):
            return value
        names = field.enum_type.values_by_name
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        for name in (value.upper(), prefix + value.upper()):
            if name in names:
                return name
        taken = ", ".join(name.removeprefix(prefix).lower() for name in names if not name.endswith("_UNSPECIFIED"))
        raise BadRequest(
            f"{field.name} is none of the values that it takes: {taken}.", reason="UNKNOWN_VALUE", field=field.name
        )

    known = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    return {name: named(known[name], value) if name in known else value for name, value in fields.items()}


def _no_request(kind: type[Message], why: str) -> BadRequest:
    return Malformed(f"The request is no {kind.DESCRIPTOR.full_name}: {why}")


def from_base64(value: object, field: str) -> bytes:
    """Decodes base64 strictly: json_format would decode ``%%%`` to nothing. Raises BadRequest."""
    try:
        if not isinstance(value, str):
            raise ValueError
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise BadRequest(
            f"{field} is bytes in base64, as RFC 4648 has it: with padding, without line breaks.",
            reason="BAD_BASE64",
            field=field,
        ) from None


def object_of(kind: Descriptor, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Converts a query to a JSON object: dots address nested messages, and list fields may repeat.

    Raises:
        BadRequest: A field that is not a list occurs twice, or a name is unknown.
    """
    # Checked against the descriptor name by name: unknown fields are refused, as in a body.
    found: dict[str, Any] = {}
    for name, value in pairs:
        place, within, (*outer, last) = found, kind, name.split(".")
        for part in outer:
            field = within.fields_by_name.get(part)
            if field is None or field.message_type is None or field.is_repeated:
                raise _not_taken(name)
            place, within = place.setdefault(part, {}), field.message_type
        field = within.fields_by_name.get(last)
        if field is None or (field.message_type is not None and field.message_type.file is kind.file):
            raise _not_taken(name)  # of message types, only timestamps have a text form
        read: Any = value
        if field.type == FieldDescriptor.TYPE_BOOL:
            read = {"true": True, "false": False}.get(value.lower(), value)
        if field.is_repeated:
            place.setdefault(last, []).append(read)
        elif last in place:
            raise Malformed(f"{name[:100]} stands there twice.", field=name[:100])
        else:
            place[last] = read
    return found


def _not_taken(name: str) -> BadRequest:
    return Malformed(f"There is no {name[:100]} here that a query could give: see /v1/openapi.json.", field=name[:100])


def require_bytes(picture: bytes | bytearray) -> None:
    """Raises BadPicture if a sent picture is empty: otherwise the text would be judged alone."""
    if not picture:
        raise bad_picture("PICTURE_EMPTY", {})


def with_picture(message: Message, picture: bytes | bytearray | None) -> Message:
    """Sets the picture of a request, if one was sent separately. Raises BadPicture if it has no bytes."""
    if picture is not None:
        require_bytes(picture)
        setattr(message, PICTURE, bytes(picture))
    return message
