"""The interface of a call, independent of its transport.

The names are those of gRPC, whose own context satisfies the interface without a wrapper. HTTP calls
(:mod:`serving.rest.http_call`) implement it too, and so use the same methods and interceptors: scopes, memory, metrics,
traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Never, Protocol

import grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message


class ServiceCall(Protocol):
    """The parts of a call that methods and interceptors use.

    A transport that knows a request's length in advance gives it in ``announced_bytes``, to reserve just that.
    """

    def peer(self) -> str:
        """Returns the connection of the call."""
        ...

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """Returns metadata of the request as lower-case names and values; a name may occur twice."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None if there is none."""
        ...

    async def read(self) -> object:
        """Reads the next request as bytes; ``grpc.aio.EOF`` at the end."""
        ...

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        """Sends the initial metadata."""
        ...

    async def write(self, message: Message | bytes) -> None:
        """Sends a response of a stream, once flow control allows it."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> Never:
        """Ends the call with a status by raising the transport's exception; details are in the metadata."""
        ...

    def code(self) -> object:
        """Returns the status that the call ended with, by name or number; 0 or None if it has not ended."""
        ...
