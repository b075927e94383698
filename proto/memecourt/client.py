"""A small typed client: ask a MemeCourt service for a verdict.

    >>> with Client("localhost:50051") as court:                              # doctest: +SKIP
    ...     response = court.judge(Path("meme.png").read_bytes(), timeout=30)
    ...     if response.label == wire.LABEL_HARMFUL:
    ...         print(response.rationale)

Only ``LABEL_NOT_HARMFUL`` is an acquittal: an error, ``LABEL_UNDECIDED`` and labels that this client does not know are
not. What needs a person says so in ``response.needs_human_review``.
"""

from __future__ import annotations

from typing import Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub

MESSAGE_BYTES = 16 * 1024 * 1024 + 64 * 1024
"""Largest message that a server takes by default."""

_OPTIONS = [
    ("grpc.max_send_message_length", -1),  # the server says what is too much, and why
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
]


class JudgeError(Exception):
    """The service gave no verdict. Never to be read as "not harmful".

    Attributes:
        code: Of gRPC.
        message: What is wrong and what to do.
        reason: The same for machines; empty where the error did not come from MemeCourt itself (no connection, say).
        field: The field of the request that it is about, or empty.
        retry_after: Seconds to wait before asking again, or None where asking again will not help or nobody can say.
        metadata: Further facts, for example the ``trial_id`` of a trial that failed.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reason = ""
        self.field = ""
        self.retry_after: float | None = None
        self.metadata: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """The error that a call ended in, with its google.rpc details."""
        status = rpc_status.from_call(error)
        told = cls(error.code(), error.details() or "")
        for packed in status.details if status else ():
            info, request, retry = (
                error_details_pb2.ErrorInfo(),
                error_details_pb2.BadRequest(),
                error_details_pb2.RetryInfo(),
            )
            if packed.Unpack(info):
                told.reason, told.metadata = info.reason, dict(info.metadata)
            elif packed.Unpack(request) and request.field_violations:
                told.field = request.field_violations[0].field
            elif packed.Unpack(retry):
                told.retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        return told


def judge_request(
    image: bytes,
    *,
    text: str | None = None,
    language: str = "",
    procedure: wire.Procedure.ValueType = wire.PROCEDURE_UNSPECIFIED,
    request_id: str = "",
    namespace: str = "",
    content_id: str = "",
) -> wire.JudgeRequest:
    """A request; see the fields of ``JudgeRequest`` for what each means."""
    return wire.JudgeRequest(
        request_id=request_id,
        content=wire.Content(namespace=namespace, id=content_id) if namespace or content_id else None,
        image=image,
        text=text,
        language=language,
        procedure=procedure,
    )


class Client:
    """A connection to a service; safe to use from several threads. Close it, or use it in a ``with`` block."""

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.secure_channel(address, credentials, options=_OPTIONS)
            if credentials
            else grpc.insecure_channel(address, options=_OPTIONS)
        )
        self._stub = CourtStub(self._channel)

    def judge(self, image: bytes, *, text: str | None = None, timeout: float = 60.0) -> wire.JudgeResponse:
        """Asks for a verdict on a meme.

        Args:
            image: The picture file: JPEG, PNG, WebP or GIF.
            text: Of the meme; None to have it read off the picture, ``""`` if it has none.
            timeout: Seconds to wait at most; when they have passed, the trial is stopped.

        Raises:
            JudgeError: There is no verdict.
        """
        return self.ask(judge_request(image, text=text), timeout=timeout)

    def ask(self, request: wire.JudgeRequest, *, timeout: float = 60.0) -> wire.JudgeResponse:
        """Like :meth:`judge`, for a request made by :func:`judge_request` or by hand."""
        try:
            return self._stub.Judge(request, timeout=timeout)
        except grpc.RpcError as error:
            raise JudgeError.of(error) from None

    def close(self) -> None:
        """Lets the connection go."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio. Close it, or use it in an ``async with`` block."""

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(address, options=_OPTIONS)
        )
        self._stub = CourtStub(self._channel)

    async def judge(self, image: bytes, *, text: str | None = None, timeout: float = 60.0) -> wire.JudgeResponse:
        """See :meth:`Client.judge`."""
        return await self.ask(judge_request(image, text=text), timeout=timeout)

    async def ask(self, request: wire.JudgeRequest, *, timeout: float = 60.0) -> wire.JudgeResponse:
        """See :meth:`Client.ask`."""
        try:
            return await self._stub.Judge(request, timeout=timeout)
        except grpc.RpcError as error:
            raise JudgeError.of(error) from None

    async def close(self) -> None:
        """Lets the connection go."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
