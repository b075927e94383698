"""A host on the internet, played by a server of this process to which connections are led."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpcore2
import pytest
import trustme

from court.backends import http_addresses

Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]

PUBLIC = "93.184.215.14"


class AnsweringServer:
    """Answers each request with raw bytes; records requests and the addresses that were to be connected to."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[tuple[str, str]] = []
        self.connected: list[tuple[str, int]] = []
        self.port = 0
        self.ca_file = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            sizes = [line[15:] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            self.requests.append((head, (await reader.readexactly(int(sizes[0]) if sizes else 0)).decode()))
            await self._answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[AnsweringServer]:
    """Serves an answer on a free port."""
    server = AnsweringServer(answer)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


@asynccontextmanager
async def tls_host(folder: Path, answer: Answer, *names: str) -> AsyncIterator[AnsweringServer]:
    """Serves an answer over TLS under the given names."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(context)
    async with listening(answer, context) as server:
        server.ca_file = str(folder / "authority.pem")
        yield server


def lead_here(monkeypatch: pytest.MonkeyPatch, server: AnsweringServer, resolved: Mapping[str, Sequence[str]]) -> None:
    """Resolves names as given, and has every connection of the product's HTTP client end at the server."""
    connect = httpcore2.AnyIOBackend.connect_tcp

    async def resolve(host: str, port: int) -> list[str]:
        return [host] if host[0].isdigit() or ":" in host else list(resolved[host])

    async def connect_tcp(self: Any, host: str, port: int, **options: Any) -> Any:
        server.connected.append((host, port))
        return await connect(self, "127.0.0.1", server.port, **options)

    monkeypatch.setattr(http_addresses, "resolve", resolve)
    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)


def answering(body: Any = b"", status: str = "200 OK", *headers: str, length: int | None = None) -> Answer:
    """Returns a handler for an answer; a body that is not bytes is sent as JSON."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(sent) if length is None else length}", *headers]
        writer.write("\r\n".join([*head, "", ""]).encode())
        # In parts: CPython's TLS has crashed on a busy machine with 20 MB written at once.
        for start in range(0, len(sent), 65536):
            writer.write(sent[start : start + 65536])
            await writer.drain()
        await writer.drain()

    return answer


def endless(start: bytes, piece: bytes = b"a" * 65536, pause_s: float = 0.0) -> Answer:
    """Returns a handler that never stops sending."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer
