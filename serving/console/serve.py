"""Serves the console over HTTP, standalone or alongside the gRPC server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from court.errors import BadRequest
from retrieval.library.postgres.address import Address
from retrieval.library.storage import CURRENT
from serving.access.exposure import only_here
from serving.access.tokens import Tokens
from serving.console.app import create_app
from serving.console.registry import Reviewing
from serving.docket.open import Docket
from serving.export.source import PictureSource
from serving.http.listen import Listener, open_listener, split_address
from serving.settings import Settings
from serving.views.blur import LibraryPictures

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
) -> AsyncIterator[str]:
    """Serves the console inside the block; yields its URL.

    Args:
        address: ``host:port``; port 0 for a free one.
        tokens: Tokens of visitors; None to allow everybody on this machine and nobody else.
        reviewing: Dependencies of the review pages; None for a console that is opened to read.

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
