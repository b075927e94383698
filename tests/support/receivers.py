"""Webhook receivers on real ports, and settings that name them."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from court.events import TrialFailed
from court.verdict import Review, ReviewReason
from serving.docket.store.hooks import NOTHING
from serving.judging.heartbeat import Heartbeat
from serving.settings import WebhookSettings
from serving.telemetry import SILENT
from serving.webhooks.attempts import Receiver
from serving.webhooks.sender import HookSender
from serving.webhooks.signing import make_secret
from tests.support.dockets import NOON, events_of

HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class ReceiverServer:
    """A receiver that stores each request; ``answer`` maps a request to status and headers of the response."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answer: Callable[[ReceivedRequest], tuple[int, Mapping[str, str]]] = lambda _: (204, {})
        self.connections = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                receiver.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                taken = ReceivedRequest({name.lower(): value for name, value in self.headers.items()}, body)
                receiver.requests.append(taken)
                status, headers = receiver.answer(taken)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def messages(self, event: str = "") -> list[Any]:
        """Returns the received messages whose type ends with ``event``."""
        return [request.message for request in self.requests if request.message["type"].endswith(event)]

    def wait_for(self, count: int, seconds: float = 60.0) -> list[ReceivedRequest]:
        deadline = time.monotonic() + seconds
        while len(self.requests) < count:
            assert time.monotonic() < deadline, f"{len(self.requests)} of {count} requests came"
            time.sleep(0.02)
        return self.requests

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def running_receiver() -> Iterator[ReceiverServer]:
    """Runs a receiver for as long as the context lasts."""
    receiver = ReceiverServer()
    try:
        yield receiver
    finally:
        receiver.close()


def hook_settings(url: str, folder: Path, name: str = "queue", **settings: Any) -> WebhookSettings:
    """Returns settings for a receiver on this machine, with a secret of its own."""
    file = folder / f"{name}.secret"
    if not file.exists():
        make_secret(file, ed25519=False)
    return WebhookSettings(**{"name": name, "url": url, "secret_file": file, "allow_private": True, **settings})


@pytest.fixture
def receiver():
    with running_receiver() as server:
        yield server


def decided(trial_id, *, label=None, review=False, namespace="forum"):
    """Returns the events of a trial with a verdict, which may request a review."""
    opened, *others, verdict_event = events_of(trial_id, NOON)
    meme = opened.meme.model_copy(update={"namespace": namespace, "content_id": f"content-{trial_id}"})
    opened = opened.model_copy(update={"meme": meme, "request_id": f"request-{trial_id}"})
    reasons = (Review(reason=ReviewReason.TEXT_UNSURE, detail="a detail of Blueland"),) if review else ()
    verdict = verdict_event.verdict.model_copy(update={"review": reasons})
    return [opened, *others, verdict_event.model_copy(update={"verdict": verdict})]


def failed(trial_id):
    opened = decided(trial_id)[0]
    return [
        opened,
        TrialFailed(trial_id=trial_id, seq=1, at=NOON, step="text", reason="GONE", message="Blueland", retryable=True),
    ]


@asynccontextmanager
async def sending(docket, hook, *, clock=None, name="s1", metrics=SILENT.metrics):
    """Registers a receiver, and yields a sender to it that works only on request."""
    await docket.hooks.register([hook.name])
    receiver = Receiver(hook, **({"clock": clock} if clock else {}))
    heartbeat = Heartbeat(docket.heartbeats, name)
    options = {"clock": clock} if clock else {}
    try:
        yield HookSender(receiver, docket, heartbeat, metrics=metrics, **options)
    finally:
        await receiver.aclose()


async def hooks_of(docket):
    return [*(await docket.deliveries.states()).hooks.values()]


async def backlog_of(docket, name):
    return (await docket.deliveries.states()).backlogs.get(name, NOTHING)


async def until_idle(hook_sender):
    while await hook_sender.work():
        pass
