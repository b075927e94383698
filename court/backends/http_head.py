"""Limit on the head of an answer, shared by the sender of the request and the reader of the connection."""

from __future__ import annotations

from contextvars import ContextVar

import httpx2

MAX_HEAD_BYTES = 64 * 1024
"""Maximum bytes read while waiting for the end of the head, including any interim (1xx) answers; typical heads have a
few hundred bytes."""


class UnreadableAnswer(httpx2.TransportError):
    """An answer that is compressed although that was not requested, or whose head or body is too long."""


head_bytes_left: ContextVar[list[int] | None] = ContextVar("head_bytes_left", default=None)
"""Remaining bytes for the head of the current request; None if it is not waiting for a head. A one-element list, so
that the connection can count down the sender's value."""
