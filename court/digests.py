"""Canonical digests of settings, prompts and policies, with the algorithm as a prefix."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

HASHED_AT_ONCE = 256 * 1024
"""Largest file, in bytes, that is digested on the event loop; larger ones would block it and use a thread."""

# Recorded digests depend on these options: changing them would change all digests.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def digest(value: Any) -> str:
    """SHA-256 of JSON with sorted keys and no spaces, as ``sha256:…``. Raises ValueError for NaN and infinity."""
    return "sha256:" + hashlib.sha256(_encode(value).encode()).hexdigest()


async def digest_of_file(data: bytes) -> bytes:
    """SHA-256 of a file; a large one is digested in a thread, so that the event loop is not blocked."""
    if len(data) <= HASHED_AT_ONCE:
        return hashlib.sha256(data).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
