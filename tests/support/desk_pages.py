"""The console's review desk on a docket, and people who use its pages without a browser."""

import html
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx2

from court.events import VerdictReviewed
from retrieval.library.postgres.address import Address
from retrieval.library.writer import LibraryWriter
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.access.tokens import Tokens
from serving.console.app import create_app
from serving.console.registry import Reviewing
from serving.docket.open import Docket
from serving.docket.review.corrections import Corrections, Overrulings
from serving.judging.near_duplicates import NearDuplicateIndex
from serving.settings import Settings
from tests.support.desks import NO_SAMPLING, ReviewDesk
from tests.support.encoders import picture_of, png_of
from tests.support.libraries import ENCODER, drawn_library

T = TypeVar("T")

PEOPLE = {
    "ada": (Scope.REVIEW, None),
    "bea": (Scope.REVIEW, None),
    "cy": (Scope.REVIEW, None),
    "vic": (Scope.VIEW, None),
    "root": (Scope.ADMIN, None),
    "forum": (Scope.REVIEW, frozenset({"forum"})),
}
PICTURE = picture_of(png_of((5, 250, 5), (5, 5, 250)))


class Person:
    """A reviewer with a browser that runs no scripts."""

    def __init__(self, client: httpx2.AsyncClient, token: str) -> None:
        self.client = client
        self.token = token

    async def sign_in(self) -> None:
        """Signs in with the token."""
        page = await self.client.get("/sign-in")
        answer = await self.client.post("/sign-in", **form_of(page.text, {"token": self.token, "next": "/"}))
        assert answer.status_code == 303, answer.text

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        """Returns a page."""
        return await self.client.get(path, **options)

    async def post(self, path: str, fields: Mapping[str, str] = {}, *, page: str = "/try") -> httpx2.Response:
        """Sends a form of a page."""
        return await self.client.post(path, **form_of((await self.client.get(page)).text, fields))

    async def decides(self, trial_id: str, label: str, **more_fields: str) -> httpx2.Response:
        """Takes a case, looks at it and decides it; releases the next one. Returns the page of the decided case."""
        case_path = f"/desk/cases/{trial_id}"
        taken = await self.post(f"{case_path}/take", {"again": "yes"})
        assert taken.status_code == 303, taken.text
        fields = {"label": label, "clause": "4", "other_clause": "4", "reason": "I looked.", **more_fields}
        await self.view_all(trial_id)
        answer = await self.post(f"{case_path}/review", fields, page=case_path)
        if answer.status_code != 303:
            return answer
        onward = answer.headers["location"]
        following = re.split("[?#]", onward)[0]
        if following == case_path:
            return await self.get(onward)
        await self.post(f"{following}/release")
        return await self.get(case_path)

    async def view_all(self, trial_id: str) -> None:
        """Has everything of a case shown, without which it can't be decided."""
        shown = await self.post(f"/trials/{trial_id}/show", {"of": "all", "back": "case"})
        assert shown.status_code == 303, shown.text


def form_of(page: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body and headers that a browser sends for a form of a page."""
    proof = re.search(r'name="proof" value="(\w+)"', page)
    assert proof is not None, page
    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    return {"content": urlencode({"proof": proof[1], **fields}), "headers": headers}


def page_text(page: httpx2.Response) -> str:
    """Returns the text of a page without markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


class DeskPages(ReviewDesk):
    """A review desk with the console."""

    app: Any
    tokens: Mapping[str, str]
    writer: LibraryWriter
    stack: AsyncExitStack
    corrections: Corrections | None = None
    announced: Callable[[VerdictReviewed], None] = staticmethod(lambda _: None)

    def on_reviewed(self, event: VerdictReviewed) -> None:
        """Passes a stored review on to whom a test names."""
        self.announced(event)

    async def minute_over(self) -> None:
        """Lets the minute for an undo pass, and the library follow the reviews."""
        self.clock.turn(minutes=1, seconds=6)
        assert self.corrections is not None
        await self.corrections.catch_up(self.desk)

    async def person(self, name: str) -> Person:
        """Returns a person who is signed in."""
        transport = httpx2.ASGITransport(app=self.app)
        client = httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")
        await self.stack.enter_async_context(client)
        person = Person(client, self.tokens[name])
        await person.sign_in()
        return person


@asynccontextmanager
async def desk_pages(
    path: Path,
    *,
    blind_first: bool = True,
    overrulings: Overrulings = Overrulings.CHOSEN,
    library: bool = False,
    place: Path | Address | None = None,
) -> AsyncIterator[DeskPages]:
    """Opens a docket, a review queue, a library and the console."""
    async with AsyncExitStack() as stack:
        docket = Docket.open(place or path / "docket.sqlite")
        stack.push_async_callback(docket.close)
        await docket.writer.keep_picture(PICTURE)
        near_duplicates = NearDuplicateIndex(
            fingerprints=docket.fingerprints,
            trials=docket.trials,
            index=docket.index,
            settings=Settings(home=path, reuse="everywhere"),
        )
        stack.push_async_callback(near_duplicates.close)
        pages = DeskPages(docket, NO_SAMPLING)
        pages.stack = stack
        file = path / "tokens.toml"
        pages.tokens = {name: token_file.add(file, name, [scope], names) for name, (scope, names) in PEOPLE.items()}
        corrections = None
        if library:
            pages.writer = LibraryWriter(drawn_library(path / "library", 5, 12))
            corrections = Corrections(lambda: nullcontext(pages.writer), lambda: ENCODER, docket.trials, overrulings)
        pages.corrections = corrections
        reviewing = Reviewing(
            pages.desk, corrections, near_duplicates, blind_first=blind_first, on_reviewed=pages.on_reviewed
        )
        pages.app = create_app(docket, tokens=Tokens.of(file), reviewing=reviewing)
        yield pages
