"""Answers of servers that we call are bounded, whatever their status and encoding (BO-1)."""

import ast
import asyncio

import pytest

from court.backends.chat.client import ChatCompletions
from court.backends.http import MAX_ANSWER_BYTES, MAX_ERROR_BYTES, MAX_HEAD_BYTES
from court.errors import ModelRefused, Unavailable
from court.ports import ChatRequest
from tests.support.http import BOMB
from tests.support.paths import ROOT

REQUEST = ChatRequest(system="s", parts=("x",), reply_schema=None, max_tokens=1)


class Hostile:
    """Answers every request with a head and a body; without a body, sends ``endless`` until the client stops reading.

    Without a status, ``endless`` takes the place of the head.
    """

    def __init__(self, status, body=None, *, encoding="", endless=bytes(65536)):
        self.head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n" if status else ""
        self.head += f"Content-Encoding: {encoding}\r\n" if encoding else ""
        self.head += "\r\n" if status and body is None else ""
        self.body = body
        self.endless = endless
        self.asked_for = b""
        self.sent = 0

    async def answer(self, reader, writer):
        try:
            self.asked_for = await reader.readuntil(b"\r\n\r\n")
            if self.body is not None:
                writer.write(f"{self.head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body)
                await writer.drain()
            else:
                writer.write(self.head.encode())
                while True:
                    writer.write(self.endless)
                    await writer.drain()
                    self.sent += len(self.endless)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def call_model(server, call):
    async def work():
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m", attempts=1)
        try:
            await call(model)
        finally:
            await model.aclose()
            listening.close()

    asyncio.run(work())


WAYS = {
    "chat": lambda model: model.reply(REQUEST, within_s=60),
    "models": lambda model: model.listed(within_s=60),
    "tokenize": lambda model: model._token_id("a", 60),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_answers_are_never_decompressed(way, status, encoding):
    server = Hostile(status, BOMB, encoding=encoding)
    with pytest.raises(Unavailable) as caught:
        call_model(server, WAYS[way])
    assert caught.value.reason == "MODEL_GARBLED"
    assert b"accept-encoding: identity" in server.asked_for.lower()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("status", "kind", "limit"),
    [(200, Unavailable, MAX_ANSWER_BYTES), (400, ModelRefused, MAX_ERROR_BYTES), (500, Unavailable, MAX_ERROR_BYTES)],
)
def test_an_endless_answer_is_read_up_to_a_limit(way, status, kind, limit):
    server = Hostile(status)
    with pytest.raises(kind):
        call_model(server, WAYS[way])
    # Bytes in the sockets' buffers were sent, but not read.
    assert server.sent <= limit + 16 * 2**20


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
HEADS = {
    "interim answers": INTERIM * 1000,
    "long interim answers": INTERIM.replace(b"</a>", b"<" + b"a" * 20_000 + b">"),
    "headers": b"X-Header: 1\r\n" * 1000,
    "one header": b"a" * 65536,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HEADS)
def test_an_endless_head_is_read_up_to_a_limit(way, kind):
    endless = HEADS[kind]
    server = Hostile(None if endless.startswith(b"HTTP") else 200, endless=endless)
    server.head = server.head.removesuffix("\r\n")  # the head goes on
    with pytest.raises(Unavailable) as caught:
        call_model(server, WAYS[way])
    assert caught.value.reason == "MODEL_GARBLED"
    assert server.sent <= MAX_HEAD_BYTES + 16 * 2**20


@pytest.mark.parametrize("way", WAYS)
def test_a_few_interim_answers_are_accepted(way):
    body = b'{"error": "busy"}'
    server = Hostile(503, body)
    server.head = (INTERIM * 20).decode() + server.head
    with pytest.raises(Unavailable) as caught:
        call_model(server, WAYS[way])
    assert caught.value.reason != "MODEL_GARBLED"


CLIENTS = {"Client", "AsyncClient", "AsyncHTTPTransport", "urlopen", "HTTPConnection"}


def test_all_outgoing_http_uses_the_bounded_client():
    """No module creates a client of its own, except benchmarks, which call what they started themselves."""
    makers = {
        str(path.relative_to(ROOT))
        for package in ("court", "retrieval", "serving", "eval", "proto/memecourt")
        for path in (ROOT / package).rglob("*.py")
        if "perf" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in CLIENTS
        and ast.unparse(node.func).split(".")[0] in {"httpx2", "urllib", "http", "request"}
    }
    # Model weights are larger than any answer; the download bounds and checks them itself.
    assert makers == {"court/backends/http.py", "court/backends/download.py"}
