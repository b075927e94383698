"""Bound on the head of an answer, shared by who sends the request and who reads from the connection."""

from __future__ import annotations

from contextvars import ContextVar

import httpx2

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of an answer after which no more is read in search of the end of its head. Any number of interim answers, of
status 1xx, may come before the answer: so many bytes of them are read within some hundredths of a second."""


class UnreadableAnswer(httpx2.TransportError):
    """An answer that is compressed although nobody asked for that, or whose head or body is too long."""


head_bytes_left: ContextVar[list[int] | None] = ContextVar("head_bytes_left", default=None)
"""What may still be read in search of the end of a head, while a request waits for one; None while a body is read."""
