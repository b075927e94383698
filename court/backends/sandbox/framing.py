"""Wire format between a guarded worker and its parent: length-prefixed JSON, followed by binary payloads.

::

    message = size of the header (4 bytes, big-endian) + header (JSON object) + payloads
    header["sizes"] = size of each payload, in bytes

No pickle: whoever subverts a decoder may say what he likes, but can't make his reader run it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

PREFIX = struct.Struct(">I")
MAX_HEADER = 1 << 20
"""Size of a header, in bytes."""


def pack(header: Mapping[str, Any], payloads: Sequence[bytes]) -> list[bytes]:
    """The pieces of a message, to be written in order."""
    head = json.dumps({**header, "sizes": [len(payload) for payload in payloads]}).encode()
    return [PREFIX.pack(len(head)), head, *payloads]


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]] | None:
    """The next message of a sender that is trusted, or None where the stream ends (for a child: its parent is gone)."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    header = json.loads(stream.read(PREFIX.unpack(prefix)[0]) or b"null")
    if header is None:
        return None
    payloads = [stream.read(size) for size in header["sizes"]]
    # The stream ended in the middle of a payload: the parent is gone.
    if [len(payload) for payload in payloads] != header["sizes"]:
        return None
    return header, payloads
