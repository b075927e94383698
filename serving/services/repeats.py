"""Requests that ask the same again: what was found out about one need not be found out about the next.

Most of what a known meme costs is to look at the request: to check it, to digest its parts, to say it all back. All of
that is the same for requests that differ by their id alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from court.digests import HASHED_AT_ONCE
from memecourt.v1 import court_pb2 as wire
from serving.reception.request import Given
from serving.services.convert import duration


@dataclass(frozen=True, slots=True)
class Repeat:
    """How a request was answered that may come again.

    Attributes:
        given: The verdict.
        own: What the response said of the request besides, its id and its timings aside, as it is sent.
        whose: The namespace of the content that the trial was held for, which that tells.
    """

    given: Given
    own: bytes
    whose: str

    @classmethod
    def of(cls, given: Given, own: wire.JudgeResponse) -> Repeat:
        """Of an answer, and what was said of its request."""
        rest = wire.JudgeResponse()
        rest.CopyFrom(own)
        rest.ClearField("request_id")
        rest.ClearField("timings")
        return cls(given, rest.SerializeToString(), own.reused_from.content.namespace)

    def with_its_own(self, request_id: str, seconds: float) -> bytes:
        """What the response to another such request says of it, as it is sent."""
        timings = wire.Timings(total=duration(seconds), picture=_NONE, text=_NONE, precedents=_NONE)
        return self.own + wire.JudgeResponse(request_id=request_id, timings=timings).SerializeToString()


def likeness(request: wire.JudgeRequest) -> bytes | None:
    """The same for requests that differ by their id alone; None for large ones, which are not digested where calls run.

    Not the same in the next version of protobuf, perhaps: it is for keeping in memory.
    """
    if len(request.image) > HASHED_AT_ONCE:
        return None
    request_id = request.request_id
    request.ClearField("request_id")
    data = request.SerializeToString(deterministic=True)
    request.request_id = request_id
    return hashlib.sha256(data).digest()


_NONE = duration(0.0)
