"""Bound on the head of an answer, shared by who sends the request and who reads from the connection."""

from __future__ import annotations

from contextvars import ContextVar

import httpx2

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of an answer after which no more is read in search of the end of its head. Any number of interim answers, of
status 1xx, may come before the answer; a head of ours has some hundred bytes."""


class UnreadableAnswer(httpx2.TransportError):
    """An answer that is compressed although nobody asked for that, or whose head or body is too long."""


head_bytes_left: ContextVar[list[int] | None] = ContextVar("head_bytes_left", default=None)
"""Bytes that may still be read in search of the end of a head, by a request that waits for one; None for others. In a
list of one, for the connection counts down what whoever sent the request has set."""
