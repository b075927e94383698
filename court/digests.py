"""Digests of settings, prompts and policies: the same value gives the same digest, and the digest says how."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces, as UTF-8. Raises ValueError for NaN and infinity."""
    return _encode(value).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, as ``sha256:…``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()
