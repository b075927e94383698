"""Wire format between a sandboxed worker and its parent: length-prefixed JSON, followed by binary payloads.

::

    message = size of the header (4 bytes, big-endian) + header (JSON object) + payloads
    header["sizes"] = size of each payload, in bytes

No pickle: a compromised worker may send anything, but can't make the parent execute it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

PREFIX = struct.Struct(">I")
MAX_HEADER = 1 << 20


def pack(header: Mapping[str, Any], payloads: Sequence[bytes]) -> list[bytes]:
    """Returns the pieces of a message, to be written in order."""
    head = json.dumps({**header, "sizes": [len(payload) for payload in payloads]}).encode()
    return [PREFIX.pack(len(head)), head, *payloads]


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]] | None:
    """Reads the next message of a trusted sender; None at the end of the stream, when the parent has exited."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    header = json.loads(stream.read(PREFIX.unpack(prefix)[0]) or b"null")
    if header is None:
        return None
    payloads = [stream.read(size) for size in header["sizes"]]
    # The stream ended in the middle of a payload: the parent has exited.
    if [len(payload) for payload in payloads] != header["sizes"]:
        return None
    return header, payloads
