"""Registry of the console's pages. Only a :class:`Page` is served, and each declares the role it requires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from court.record import TrialRecord
from serving.console.visitors import Role, Session, Sessions, Visitor
from serving.docket.errors import TrialErased, TrialUnknown

if TYPE_CHECKING:
    from court.events import Procedure, VerdictReviewed
    from serving.docket.open import Docket
    from serving.docket.review.corrections import Corrections
    from serving.docket.review.queue import ReviewQueue
    from serving.export.source import PictureSource
    from serving.judging.near_duplicates import NearDuplicateIndex
    from serving.judging.request import TrialRequest

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Form: TypeAlias = ImmutableMultiDict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """An address of the console.

    Attributes:
        path: Path in Starlette's routing syntax: ``/trials/{trial_id}``.
        endpoint: Handler of the page. It is called only for permitted visitors; :func:`visitor_of`, :func:`form_of` and
            :func:`console_of` provide its input.
        role: Required role; None for everybody, even without signing in.
        methods: HTTP methods. Any but GET must come from one of our forms, with its anti-forgery token.
        name: Name of the page in templates (``url_for``).
        files: True if its form has a picture.
    """

    path: str
    endpoint: Endpoint
    role: Role | None
    methods: Sequence[str] = ("GET",)
    name: str = ""
    nav: str = ""
    files: bool = False


@dataclass(frozen=True, slots=True)
class Reviewing:
    """Dependencies of the review pages.

    Attributes:
        corrections: Maker of precedents from overrulings; None if the library can't be changed from here.
        on_reviewed: Called with each review that is stored here, for the server in the same process.
        on_withdrawn: Called after each withdrawal likewise.
    """

    queue: ReviewQueue
    corrections: Corrections | None = None
    duplicates: NearDuplicateIndex | None = None
    blind_first: bool = True
    starter: bool = False
    on_reviewed: Callable[[VerdictReviewed], None] = lambda _: None
    on_withdrawn: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Trying:
    """Court that the memes of visitors are given to.

    Attributes:
        start: Starts a trial; returns its id once it is opened.
    """

    start: Callable[[TrialRequest], Awaitable[str]]
    procedures: Sequence[Procedure]


@dataclass(frozen=True, slots=True)
class Console:
    """Dependencies of the pages.

    Attributes:
        pictures: Pictures of precedents; None if the library can't be read here.
        origin: Public origin such as ``https://console.example.org``; empty if there is none.
    """

    docket: Docket
    sessions: Sessions
    pages: Sequence[Page]
    pictures: PictureSource | None = None
    origin: str = ""
    reviewing: Reviewing | None = None
    trying: Trying | None = None


def console_of(request: Request) -> Console:
    """Returns the page's dependencies."""
    console = request.app.state.console
    assert isinstance(console, Console)
    return console


def root_of(request: Request) -> str:
    """Returns the path of a site that the console stands under; empty if it has the site for itself."""
    return str(request.scope.get("root_path", ""))


def redirect(request: Request, path: str) -> Response:
    """Redirects to a page of the console, after a form too."""
    return RedirectResponse(root_of(request) + path, status_code=303)


def visitor_of(request: Request) -> Visitor:
    """Returns the visitor; only on pages that need a role."""
    visitor = request.state.visitor
    assert isinstance(visitor, Visitor)
    return visitor


def session_of(request: Request) -> Session:
    """Returns the visitor's session; only on pages that need a role."""
    session = request.state.session
    assert isinstance(session, Session)
    return session


def form_of(request: Request) -> Form:
    """Returns the submitted form; empty for a GET."""
    form: Form = request.state.form
    return form


async def trial_of(request: Request, trial_id: str | None = None) -> TrialRecord:
    """Returns the record of the trial in the address, if the visitor may see it.

    Raises:
        TrialUnknown: The trial does not exist, or the visitor may not see it: the two can't be told apart.
        TrialErased: The record was erased; only raised for visitors who may see all namespaces.
    """
    named = request.path_params["trial_id"] if trial_id is None else trial_id
    try:
        record = await console_of(request).docket.trials.record(named)
        if visitor_of(request).sees(record.opened.meme.namespace):
            return record
    except TrialErased:
        # Its namespace is erased too, so it is unknown whether a visitor limited to some namespaces may know of it.
        if visitor_of(request).namespaces is None:
            raise
    except TrialUnknown:
        pass
    raise TrialUnknown("There is no trial of that id here, or it is not for you to see.", field="trial_id")
