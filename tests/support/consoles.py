"""A console on a real docket, for tests of its pages: in this process, or on a port for a browser."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from court.events import AnyEvent
from court.meme import Picture
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.access.tokens import Tokens
from serving.console.app import create_app, open_console
from serving.console.registry import Reviewing
from serving.docket.open import Docket
from serving.docket.store.reviews import ReviewStore
from serving.docket.store.transactions import Transactions
from serving.settings import Settings
from tests.support.dockets import append_all
from tests.support.shown_trials import DrawnPrecedents

PEOPLE = {"vera": Scope.VIEW, "ruth": Scope.REVIEW, "ada": Scope.ADMIN, "pipe": Scope.JUDGE}
"""Scope of each person's token."""


class RecordingReviewStore(ReviewStore):
    """Records who unblurred which picture; ``refuses`` makes storing that fail."""

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(transactions)
        self.looked: list[dict[str, Any]] = []
        self.refuses: Exception | None = None

    async def record_access(self, trial_id: str, **values: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.looked.append({"trial_id": trial_id, **values})
        await super().record_access(trial_id, **values)


def open_recording_docket(place: Path) -> Docket:
    """Opens a docket whose store of reviews records who unblurred which picture."""
    docket = Docket.open(place)
    return replace(docket, reviews=RecordingReviewStore(docket.transactions))


def create_docket(place: Path, trials: Sequence[Sequence[AnyEvent]], pictures: Sequence[Picture] = ()) -> Path:
    """Creates a docket with trials and pictures; returns its place."""

    async def work() -> None:
        docket = Docket.open(place)
        try:
            for picture in pictures:
                await docket.writer.keep_picture(picture)
            # Concurrently, so that many events share one commit.
            await asyncio.gather(*(append_all(docket, events) for events in trials))
        finally:
            await docket.close()

    # In another thread, as a browser's driver may run an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work()).result()
    return place


def tokens_for(folder: Path, people: Mapping[str, Scope] = PEOPLE, **namespaces: list[str]) -> dict[str, str]:
    """Writes a file of tokens to a folder; returns the tokens by person."""
    path = folder / "tokens.toml"
    return {name: token_file.add(path, name, [scope], namespaces.get(name)) for name, scope in people.items()}


def app_of(docket: Docket, folder: Path | None, **options: Any) -> Any:
    """Returns the application, with the file of tokens in a folder; without a folder it needs no token."""
    tokens = None if folder is None else Tokens.of(folder / "tokens.toml")
    return create_app(docket, tokens=tokens, **{"pictures": DrawnPrecedents(), **options})


class ConsoleVisitor:
    """An HTTP client that acts as a browser, signed in if given a token."""

    def __init__(self, app: Any, token: str | None = None, **options: Any) -> None:
        self.client = TestClient(app, base_url="http://127.0.0.1", **options)
        if token is not None:
            self.sign_in(token)

    def sign_in(self, token: str) -> Any:
        page = self.client.get("/sign-in")
        return self.client.post("/sign-in", data={"proof": form_proof_in(page.text), "token": token, "next": "/"})

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    @property
    def proof(self) -> str:
        """Anti-forgery token of this visitor's forms."""
        return form_proof_in(self.client.get("/").text)

    def post(self, path: str, data: Mapping[str, str] | None = None, **options: Any) -> Any:
        return self.client.post(path, data={"proof": self.proof, **(data or {})}, **options)


def form_proof_in(page: str) -> str:
    found = re.search(r'name="proof" value="(\w+)"', page)
    assert found is not None
    return found[1]


class RunningConsole:
    """A running console whose docket can be written to.

    Attributes:
        url: Base URL of the console.
        docket: Docket whose trials it shows.
    """

    def __init__(self, url: str, docket: Docket, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.docket, self._loop = url, docket, loop

    def do(self, work: Any) -> Any:
        """Runs an awaitable in the event loop of the docket; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def append(self, events: Sequence[AnyEvent]) -> None:
        self.do(append_all(self.docket, events))


@contextmanager
def running_console(
    place: Path,
    folder: Path | None = None,
    *,
    reviewing: Callable[[Docket], Reviewing] | None = None,
    origin: str | None = None,
    **options: Any,
) -> Iterator[RunningConsole]:
    """Serves a console in another thread, as a browser's driver runs an event loop in this one."""
    ready: list[RunningConsole] = []
    failed: list[BaseException] = []
    started, done = threading.Event(), threading.Event()

    async def work() -> None:
        docket = open_recording_docket(place)
        tokens = None if folder is None else Tokens.of(folder / "tokens.toml")
        app_options = {"pictures": DrawnPrecedents(), "reviewing": reviewing(docket) if reviewing else None, **options}
        try:
            async with open_console(
                docket, Settings(console_origin=origin), "127.0.0.1:0", tokens=tokens, **app_options
            ) as url:
                ready.append(RunningConsole(url, docket, asyncio.get_running_loop()))
                started.set()
                await asyncio.to_thread(done.wait)
        finally:
            await docket.close()

    def serve() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=serve, name="console")
    thread.start()
    assert started.wait(120) or failed, "the console does not listen"
    try:
        if failed:
            raise failed[0]
        yield ready[0]
    finally:
        done.set()
        thread.join(120)


def signed_in(url: str) -> httpx2.Client:
    """Returns an HTTP client signed in to a console that needs no token."""
    visitor = httpx2.Client(base_url=url, follow_redirects=True, timeout=120)
    page = visitor.get("/sign-in")
    visitor.post("/sign-in", data={"proof": form_proof_in(page.text), "next": "/"})
    return visitor


AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
"""Options of axe-core: its default rules, and the rule of WCAG 2.2 AA that is off by default."""


_CHANGING = (
    (re.compile(r'(name="proof" value=)"\w+"'), r'\1"PROOF"'),
    (re.compile(r"\b[0-9a-f]{40,}\b"), "DIGEST"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"), "TIME"),
    (re.compile(r"(<time [^>]*>)[^<]*"), r"\1AGE"),
    (re.compile(r"<svg.*?</svg>", re.S), "<svg/>"),
    (re.compile(r"\b\d+ ms\b"), "MS"),
    (re.compile(r'(root <span class="mono">)\w+'), r"\1ROOT"),
    (re.compile(r"data:[\w/;+-]+,[A-Za-z0-9+/=%]+"), "data:PICTURE"),
)


def stable_page(html: str) -> str:
    """Returns a page without what differs between two runs, and without empty lines and indentation."""
    for pattern, replacement in _CHANGING:
        html = pattern.sub(replacement, html)
    return "".join(f"{line.strip()}\n" for line in html.splitlines() if line.strip())
