"""Digests of settings, prompts and policies: the same value gives the same digest, and the digest says how."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

HASHED_AT_ONCE = 256 * 1024
"""Bytes up to which a file is digested where the call is; for larger ones, the others would have to wait."""

# Digests on record depend on these options: with others, the same value would have another digest.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces, as UTF-8. Raises ValueError for NaN and infinity."""
    return _encode(value).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as ``sha256:…``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


async def digest_of_file(data: bytes) -> bytes:
    """SHA-256 of a file; nobody waits for that of a large one but the caller."""
    if len(data) <= HASHED_AT_ONCE:
        return hashlib.sha256(data).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
