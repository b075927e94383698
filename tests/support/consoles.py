"""A console over a real docket, for tests of its pages: in this process, or listening on a port for a browser."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from court.events import AnyEvent
from court.meme import Picture
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.access.tokens import Tokens
from serving.console.app import create_app
from serving.console.serve import open_console
from serving.docket.open import Docket
from serving.docket.store.reviews import SqlReviewStore
from serving.docket.store.transactions import Transactions
from serving.settings import Settings
from tests.support.dockets import append_all
from tests.support.shown_trials import DrawnPrecedents

PEOPLE = {"vera": Scope.VIEW, "ruth": Scope.REVIEW, "ada": Scope.ADMIN, "pipe": Scope.JUDGE}
"""Who has a token, and what it is good for."""


class NotingReviews(SqlReviewStore):
    """Remembers who looked at what; may be told that it can't store that."""

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(transactions)
        self.looked: list[dict[str, Any]] = []
        self.refuses: Exception | None = None

    async def note_access(self, trial_id: str, **values: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.looked.append({"trial_id": trial_id, **values})
        await super().note_access(trial_id, **values)


def noting_docket(place: Path) -> Docket:
    """The docket at a place, which remembers here who looked at what."""
    docket = Docket.open(place)
    return replace(docket, reviews=NotingReviews(docket.transactions))


def fill(place: Path, trials: Sequence[Sequence[AnyEvent]], pictures: Sequence[Picture] = ()) -> Path:
    """A docket with these trials, kept and closed."""

    async def work() -> None:
        docket = Docket.open(place)
        try:
            for picture in pictures:
                await docket.writer.keep_picture(picture)
            # All at once: what comes together is kept in one commit.
            await asyncio.gather(*(append_all(docket, events) for events in trials))
        finally:
            await docket.close()

    # In a thread of its own: a browser's driver may have the event loop of this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work()).result()
    return place


def tokens_for(folder: Path, people: Mapping[str, Scope] = PEOPLE, **namespaces: list[str]) -> dict[str, str]:
    """A file of tokens in that folder, and each person's token."""
    path = folder / "tokens.toml"
    return {name: token_file.add(path, name, [scope], namespaces.get(name)) for name, scope in people.items()}


def app_of(docket: Docket, folder: Path | None, **options: Any) -> Any:
    """The application; with the file of tokens in that folder, or open to this machine."""
    tokens = None if folder is None else Tokens.of(folder / "tokens.toml")
    return create_app(docket, tokens=tokens, **{"pictures": DrawnPrecedents(), **options})


class Visit:
    """A browser without a screen, signed in with a token."""

    def __init__(self, app: Any, token: str | None = None, **options: Any) -> None:
        self.client = TestClient(app, base_url="http://127.0.0.1", **options)
        if token is not None:
            self.sign_in(token)

    def sign_in(self, token: str) -> Any:
        page = self.client.get("/sign-in")
        return self.client.post("/sign-in", data={"proof": proof_in(page.text), "token": token, "next": "/"})

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    @property
    def proof(self) -> str:
        """What this visitor's forms send along."""
        return proof_in(self.client.get("/").text)

    def post(self, path: str, data: Mapping[str, str] | None = None, **options: Any) -> Any:
        return self.client.post(path, data={"proof": self.proof, **(data or {})}, **options)


def proof_in(page: str) -> str:
    found = re.search(r'name="proof" value="(\w+)"', page)
    assert found is not None
    return found[1]


class Listening:
    """A console that listens; its docket can be written to meanwhile.

    Attributes:
        url: Where.
        docket: Whose trials it shows.
    """

    def __init__(self, url: str, docket: Docket, loop: asyncio.AbstractEventLoop) -> None:
        self.url, self.docket, self._loop = url, docket, loop

    def do(self, work: Any) -> Any:
        """Has something done where the docket lives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def append(self, events: Sequence[AnyEvent]) -> None:
        self.do(append_all(self.docket, events))


@contextmanager
def listening(
    place: Path,
    folder: Path | None = None,
    *,
    parts: Callable[[Docket], Mapping[str, object]] | None = None,
    **options: Any,
) -> Iterator[Listening]:
    """Serves a console in a thread of its own: a browser's driver has the event loop of this one."""
    ready: list[Listening] = []
    failed: list[BaseException] = []
    told, done = threading.Event(), threading.Event()

    async def work() -> None:
        docket = noting_docket(place)
        tokens = None if folder is None else Tokens.of(folder / "tokens.toml")
        given = {"pictures": DrawnPrecedents(), "parts": parts(docket) if parts else None, **options}
        try:
            async with open_console(docket, Settings(), "127.0.0.1:0", tokens=tokens, **given) as url:
                ready.append(Listening(url, docket, asyncio.get_running_loop()))
                told.set()
                await asyncio.to_thread(done.wait)
        finally:
            await docket.close()

    def serve() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)
            told.set()

    thread = threading.Thread(target=serve, name="console")
    thread.start()
    told.wait(120)
    try:
        if failed:
            raise failed[0]
        yield ready[0]
    finally:
        done.set()
        thread.join(30)
