"""Between HTTP and the contract's messages: bodies and queries become requests, responses become JSON.

JSON is that of protobuf, with the contract's own names. What is not in the contract is refused: a ``txt`` that was
passed over would have the text read off the picture.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from court.backends.pictures.refusals import bad_picture
from court.errors import BadRequest
from court.verdict import Label, decision
from memecourt.v1 import court_pb2 as wire
from serving.rest.operations import PICTURE
from serving.rpc.listings import LABELS

# Wire type of bytes in protobuf's encoding.
_LENGTH_DELIMITED = 2
_LONGEST_FAULT = 300


def json_of(message: Message) -> dict[str, Any]:
    """The JSON of a message. What has no presence stands there with its default: ``needs_human_review: false``."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def decision_of(verdict: wire.JudgeResponse) -> str:
    """The decision that a verdict of the contract comes to (:func:`court.verdict.decision`)."""
    # A label that this version does not know is for a person to see, and never allowed.
    return decision(LABELS.get(verdict.label, Label.UNDECIDED), needs_review=verdict.needs_human_review)


def response_json(message: Message) -> dict[str, Any]:
    """The JSON that a method is answered with: that of its response, and in a verdict the decision besides."""
    found = json_of(message)
    if isinstance(message, wire.JudgeResponse):
        return {"decision": decision_of(message), **found}
    if isinstance(message, wire.GetVerdictResponse | wire.JudgeStreamResponse) and message.HasField("verdict"):
        return {**found, "verdict": response_json(message.verdict)}
    return found


def loaded(body: bytes | bytearray) -> dict[str, Any]:
    """The object that a JSON text is. Raises BadRequest where it is none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is no JSON: {error.msg}.", reason="MALFORMED_REQUEST") from None
    if not isinstance(found, dict):
        raise BadRequest("The body is JSON, and no object.", reason="MALFORMED_REQUEST")
    return found


def message_of(kind: type[Message], fields: Mapping[str, Any], own: Mapping[str, str] | None = None) -> Message:
    """A request in JSON.

    Args:
        kind: Type of the request.
        fields: JSON object.
        own: Fields that the address gives, which the object may repeat and not contradict.

    Raises:
        BadRequest: A field is not the contract's, or its value is none of its type; bytes that are no base64.
        BadPicture: The picture has no bytes.
    """
    # A copy, for bytes are taken out of it.
    remaining = _by_own_names(kind, fields)
    # JSON's null stands for a field that is not there. For a picture it rather means one that could not be read, and
    # whoever sends it must not have the text judged alone.
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
    message = kind()
    try:
        json_format.ParseDict(remaining, message)
    except json_format.ParseError as error:
        # What the library says quotes the request, and can be as long as that.
        raise _no_request(kind, str(error).partition("\n")[0].strip()[:_LONGEST_FAULT]) from None
    except (AttributeError, TypeError, ValueError):  # what the library lets out where a value has another form
        raise _no_request(kind, "a value is not of its field's type.") from None
    for name, data in files.items():
        if name == PICTURE:
            require_bytes(data)
        setattr(message, name, data)
    return message


def _by_own_names(kind: type[Message], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under the contract's own names. Raises BadRequest where one is there in both spellings.

    json_format takes a second spelling as well (``requestId``), and of both in one object silently the last: a request
    would be another than its Idempotency-Key, or its sender, says.
    """
    known = {field.json_name: field.name for field in kind.DESCRIPTOR.fields}
    found: dict[str, Any] = {}
    for name, value in fields.items():
        own = known.get(name, name)
        if own in found:
            raise BadRequest(f"{own} stands there twice.", reason="MALFORMED_REQUEST", field=own)
        found[own] = value
    return found


def stream_request_of(line: bytes) -> wire.JudgeStreamRequest:
    """The request of a stream that a line of JSON is. Raises as :func:`message_of`."""
    fields = loaded(line)
    request = fields.pop("request", {})
    if not isinstance(request, dict):
        raise BadRequest("request is a JSON object.", reason="MALFORMED_REQUEST", field="request")
    # The request by itself, so that its picture is read as strictly as elsewhere.
    meme, message = message_of(wire.JudgeRequest, request), message_of(wire.JudgeStreamRequest, fields)
    assert isinstance(meme, wire.JudgeRequest)
    assert isinstance(message, wire.JudgeStreamRequest)
    message.request.CopyFrom(meme)
    return message


def _no_request(kind: type[Message], why: str) -> BadRequest:
    return BadRequest(f"The request is no {kind.DESCRIPTOR.full_name}: {why}", reason="MALFORMED_REQUEST")


def from_base64(value: object, field: str) -> bytes:
    """Decodes base64, strictly: json_format would read ``%%%`` as nothing. Raises BadRequest."""
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
    """The JSON object that a query is: dots lead into messages, a list's name may come again.

    Raises:
        BadRequest: A field that is no list comes twice, or there is none of a name.
    """
    # By the descriptor, name for name: what the contract does not have is refused, as in a body.
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
            raise _not_taken(name)  # of messages, only times have a text of their own
        read: Any = value
        if field.type == FieldDescriptor.TYPE_BOOL:
            read = {"true": True, "false": False}.get(value.lower(), value)
        if field.is_repeated:
            place.setdefault(last, []).append(read)
        elif last in place:
            raise BadRequest(f"{name[:100]} stands there twice.", reason="MALFORMED_REQUEST", field=name[:100])
        else:
            place[last] = read
    return found


def _not_taken(name: str) -> BadRequest:
    return BadRequest(
        f"There is no {name[:100]} here that a query could give: see /v1/openapi.json.",
        reason="MALFORMED_REQUEST",
        field=name[:100],
    )


def require_bytes(picture: bytes | bytearray) -> None:
    """Raises BadPicture if a picture that was sent has no bytes: without it, the text would be judged alone."""
    if not picture:
        raise bad_picture("PICTURE_EMPTY", {})


def with_picture(message: Message, picture: bytes | bytearray | None) -> bytes:
    """The bytes of a request whose picture came by itself, in one copy: messages that are joined are merged.

    Raises:
        BadPicture: The picture has no bytes.
    """
    if picture is None:
        return message.SerializeToString()
    require_bytes(picture)
    number = message.DESCRIPTOR.fields_by_name[PICTURE].number
    # Written by hand, as protobuf would: setting the field would hold the picture in memory a second time.
    head = bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(picture))
    return b"".join((message.SerializeToString(), head, picture))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
