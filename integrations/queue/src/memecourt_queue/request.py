"""Conversion of messages to requests, and of verdicts to answers, in the JSON of ``POST /v1/judge``."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from google.protobuf import json_format
from grpc import StatusCode as Code

from memecourt.errors import JudgeError
from memecourt.result import Result
from memecourt.v1 import court_pb2 as wire
from memecourt_queue.source import QueueAnswer, QueuedMeme

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Function that fetches the picture at an https address."""

_PARTS = frozenset({"request", "image", "text"})
_MAX_ERROR_CHARS = 300


def fault(
    reason: str, message: str, code: Code = Code.INVALID_ARGUMENT, retry_after: float | None = None
) -> JudgeError:
    """Builds the error of a message that gets no verdict; by default, the same message would fail again."""
    error = JudgeError(code, message)
    error.reason, error.retry_after = reason, retry_after
    return error


def request_of(meme: QueuedMeme) -> tuple[wire.JudgeRequest, object]:
    """Parses the request in a message; also returns the address of its picture, or None. Raises JudgeError."""
    parts = meme.parts
    for name in parts.keys() - _PARTS:
        raise _malformed(f"A message has the parts request (JSON), image and text; {name[:100]} is none of them.")
    if not parts:
        raise _malformed("The message has no parts.")
    fields = _by_own_names(_loaded(parts["request"])) if "request" in parts else {}
    if ("image" in parts) + ("image" in fields) + ("image_url" in fields) > 1:
        raise _malformed("The picture stands in the message twice.")
    if "text" in parts and fields.setdefault("text", text := _text_of(parts["text"])) != text:
        raise _malformed("The text stands in the message twice.")
    # Taken out before the rest is parsed: the protobuf message has no field for an address, and json_format reads
    # invalid base64 as nothing.
    picture, url = parts.get("image"), None
    if "image_url" in fields and (url := fields.pop("image_url")) is None:
        raise _malformed("image_url is an address, as text.")
    if "image" in fields:
        # Null means a picture that could not be read rather than none, so the text must not be judged alone.
        picture = b"" if fields["image"] is None else _from_base64(fields["image"], "image")
        del fields["image"]
    if fields.get("client_token") is not None:
        _from_base64(fields["client_token"], "client_token")
    request = wire.JudgeRequest()
    try:
        json_format.ParseDict(fields, request)
    except json_format.ParseError as error:
        # The library's message quotes the request and can be as long.
        raise _malformed(str(error).partition("\n")[0].strip()[:_MAX_ERROR_CHARS]) from None
    except (AttributeError, TypeError, ValueError, RecursionError):  # raised by the library for values of another form
        raise _malformed("A value is not of its field's type.") from None
    # The same for each delivery, so that the court recognises the request and tries nothing twice.
    request.request_id = request.request_id or meme.request_id
    if picture is not None:
        request.image = _required(picture)
    return request, url


def answer_of(meme: QueuedMeme, verdict: wire.JudgeResponse) -> QueueAnswer:
    """Converts a verdict to an answer."""
    how: Any = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    body = json.dumps(json_format.MessageToDict(verdict, **how), ensure_ascii=False, separators=(",", ":"))
    return QueueAnswer(meme.id, verdict.request_id, Result(verdict).decision, body.encode())


async def picture_at(url: object, fetch: Fetch) -> bytes:
    """Returns the picture of a ``data:`` or https address. Raises JudgeError."""
    if not isinstance(url, str):
        raise _malformed("image_url is an address, as text.")
    if not url.startswith("data:"):
        return _required(await fetch(url))
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise fault("BAD_DATA_URL", 'image_url is a data: address, and not of the form "data:image/png;base64,…".')
    return _required(_from_base64(data, "image_url"))


def _required(picture: bytes) -> bytes:
    if not picture:
        raise fault("PICTURE_EMPTY", "The picture has no bytes. To have the text judged alone, leave it out.")
    return picture


def _loaded(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _malformed("The request is no JSON, or names a field twice.") from None
    if not isinstance(found, dict):
        raise _malformed("The request is JSON, and no object.")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # By default the last value of a name given twice would count.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _no_number(_: str) -> NoReturn:
    raise ValueError


def _by_own_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    # json_format also accepts camel case, and silently uses the last of both spellings.
    known = {field.json_name: field.name for field in wire.JudgeRequest.DESCRIPTOR.fields}
    found: dict[str, Any] = {}
    for name, value in fields.items():
        own = known.get(name, name)
        if own in found:
            raise _malformed(f"{own} stands in the request twice.")
        found[own] = value
    return found


def _text_of(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise _malformed("The part text is not UTF-8.") from None


def _from_base64(value: object, field: str) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "%", validate=True)
    except ValueError:
        raise fault("BAD_BASE64", f"{field} is bytes in base64, with padding and without line breaks.") from None


def _malformed(message: str) -> JudgeError:
    return fault("MALFORMED_REQUEST", message)
