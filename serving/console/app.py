"""The console as an ASGI application: pages, static files and errors; and its listener."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from court.errors import BadInput, BadRequest, CourtError, NotLoaded, Unavailable
from retrieval.library.postgres.address import Address
from retrieval.library.storage import CURRENT
from serving.access.callers import NotAllowed
from serving.access.exposure import only_here
from serving.access.tokens import Tokens
from serving.console import exports
from serving.console import pictures as picture_pages
from serving.console.guard import RequestGuard, guarded
from serving.console.pages import overview, signin, trial, trials
from serving.console.pages import trying as try_pages
from serving.console.registry import Console, Page, Reviewing, Trying
from serving.console.rendering import render
from serving.console.review import case, queue, similar
from serving.console.visitors import Sessions
from serving.docket.errors import NotDecided, TrialUnknown
from serving.docket.open import Docket
from serving.docket.review.locks import CaseError
from serving.export.source import PictureSource
from serving.http.listen import Listener, open_listener, own_names, split_address
from serving.settings import Settings
from serving.views.blur import LibraryPictures

PAGES: Sequence[Page] = tuple(
    page
    for module in (signin, overview, trials, try_pages, trial, picture_pages, queue, case, similar, exports)
    for page in module.PAGES
)
"""All pages, in the order of the navigation."""

_STATIC = Path(__file__).with_name("static")
_STATUS: Sequence[tuple[type[CourtError], HTTPStatus]] = (
    (TrialUnknown, HTTPStatus.NOT_FOUND),
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (BadInput, HTTPStatus.BAD_REQUEST),
    (NotDecided, HTTPStatus.CONFLICT),
    (CaseError, HTTPStatus.CONFLICT),
    (NotLoaded, HTTPStatus.SERVICE_UNAVAILABLE),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)


def create_app(
    docket: Docket,
    *,
    tokens: Tokens | None,
    host: str = "127.0.0.1",
    origin: str = "",
    pictures: PictureSource | None = None,
    reviewing: Reviewing | None = None,
    trying: Trying | None = None,
) -> Starlette:
    """Builds the console's ASGI application.

    Args:
        origin: Public address (``https://example.org/court``), if it differs.

    Raises:
        ValueError: The console is reachable from outside this machine, and there are no tokens.
    """
    # Also checked here, so that embedding this application can't expose it by mistake (BO-4).
    if tokens is None and not only_here(host):
        raise ValueError("without tokens the console is for this machine alone")
    routes: list[BaseRoute] = [
        Route(page.path, guarded(page), methods=list(page.methods), name=page.name or None) for page in PAGES
    ]
    routes.append(Mount("/static", _Files(directory=_STATIC), name="static"))
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestGuard, hosts=own_names(host, origin), origin=origin)],
        exception_handlers={CourtError: _refusal, HTTPException: _http_error},
    )
    app.state.console = Console(
        docket=docket,
        sessions=Sessions(tokens),
        pages=PAGES,
        pictures=pictures,
        origin=origin.removesuffix(urlsplit(origin).path),
        reviewing=reviewing,
        trying=trying,
    )
    return app


class _Files(StaticFiles):
    """Static files, which only change with the version."""

    async def get_response(self, path: str, scope: object) -> Response:
        response = await super().get_response(path, scope)  # type: ignore[arg-type]
        # Set before the guard's no-store: browsers may cache these files but must revalidate them, so that they match
        # the pages after an upgrade.
        response.headers.setdefault("cache-control", "no-cache")
        return response


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, CourtError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    return _error_page(request, status, error.message)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = {
        HTTPStatus.NOT_FOUND: "There is no such page.",
        HTTPStatus.INTERNAL_SERVER_ERROR: "Something went wrong here; the log of the console says what.",
    }.get(status, f"{status.phrase}.")
    return _error_page(request, status, message)


def _error_page(request: Request, status: HTTPStatus, message: str) -> Response:
    return render(request, "error.html", status=status, title=status.phrase, said=message)


_LISTENER = Listener("The console", field="console", example="127.0.0.1:8080", at_once=256)

_log = logging.getLogger("memecourt.console")


@asynccontextmanager
async def open_console(
    docket: Docket,
    settings: Settings,
    address: str,
    *,
    tokens: Tokens | None,
    pictures: PictureSource | None = None,
    reviewing: Reviewing | None = None,
    trying: Trying | None = None,
) -> AsyncIterator[str]:
    """Serves the console inside the block; yields its URL.

    Args:
        address: ``host:port``; port 0 for a free one.

    Raises:
        BadRequest: The address can't be listened on, or is reachable by other machines without tokens or TLS.
    """
    host, _ = split_address(_LISTENER, address)
    if tokens is None and not only_here(host):
        raise BadRequest(
            "Others than this machine could open the console, and nobody would be asked who they are. Give it a file "
            "of tokens (--tokens), or listen on 127.0.0.1.",
            reason="TOKENS_NEEDED",
            field="console",
        )
    if tokens is None:
        # Logged each time: on a shared machine, "this machine" is not a single person.
        _log.warning("the console asks nobody who they are: all users of this machine can read and review")
    app = create_app(
        docket,
        tokens=tokens,
        host=host,
        origin=settings.console_origin or "",
        pictures=pictures,
        reviewing=reviewing,
        trying=trying,
    )
    async with open_listener(_LISTENER, app, settings, address) as url:
        yield url


def pictures_of(settings: Settings) -> PictureSource | None:
    """Opens the pictures of precedents without an encoder; None if the library is in a database.

    Without a configured library, uses the starter libraries on this machine.
    """
    if isinstance(settings.library, Address):
        return None
    if settings.library is not None:
        return LibraryPictures((settings.library,))
    made = [path.parent for path in (settings.home / "libraries").glob(f"starter-*/{CURRENT}")]
    # The one written last is in use, so it comes first.
    return LibraryPictures(sorted(made, key=lambda path: (path / CURRENT).stat().st_mtime, reverse=True))
