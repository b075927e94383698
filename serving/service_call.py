"""A call of a service's method, whichever transport it came by.

The names are those of gRPC, so that its own context of a call is one as it is, with nothing of ours in between. HTTP's
(:mod:`serving.rest.http_call`) has the same, so that its calls pass through the same methods, and through what stands
in front of them: scopes, memory, metrics, traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Never, Protocol

import grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message


class ServiceCall(Protocol):
    """Parts of a call that methods, and what stands in front of them, use.

    A transport that knows beforehand how long a request is says so in ``announced_bytes``: as much is then reserved.
    """

    def peer(self) -> str:
        """The connection that it came over."""
        ...

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """Names, in lower case, and values that came besides the request; a name may come twice."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None where the caller gave none."""
        ...

    async def read(self) -> object:
        """The next request, as bytes; ``grpc.aio.EOF`` where there is none to come."""
        ...

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        """Sends what stands before the responses."""
        ...

    async def write(self, message: Message | bytes) -> None:
        """Sends a response of many, once flow control lets it go."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> Never:
        """Ends the call with a status, by raising what the transport knows; the status's details in the metadata."""
        ...

    def code(self) -> object:
        """The status that it was ended with, by name or number; none yet is 0 or None."""
        ...
