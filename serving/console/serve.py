"""Serves the console over HTTP: by itself, or beside the gRPC server."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import uvicorn

from court.errors import BadRequest
from retrieval.library.postgres.address import Address
from retrieval.library.storage import CURRENT
from serving.access.exposure import only_here, require_guarded
from serving.access.tokens import Tokens
from serving.console.app import create_app
from serving.console.connections import HEAD_S, ConsoleProtocol
from serving.docket.open import Docket
from serving.export.source import PictureSource
from serving.settings import Settings
from serving.views.blur import LibraryPictures

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_LAST_S = 2
"""Seconds that pages which are on their way have when the console is told to stop."""
_AT_ONCE = 256
"""Connections that are answered at once; beyond, a browser is told to come again."""

_log = logging.getLogger("memecourt.console")


@asynccontextmanager
async def open_console(
    docket: Docket,
    settings: Settings,
    address: str,
    *,
    tokens: Tokens | None,
    pictures: PictureSource | None = None,
    parts: Mapping[str, object] | None = None,
) -> AsyncIterator[str]:
    """The console, served while the block lasts; gives its URL.

    Args:
        docket: Docket whose trials are shown.
        settings: TLS, and the name that it is reached under.
        address: ``host:port``; port 0 for a free one.
        tokens: Tokens of visitors; None for everybody on this machine, and nobody else.
        pictures: Pictures of precedents.
        parts: See :func:`serving.console.app.create_app`.

    Raises:
        BadRequest: The address can't be listened on; or it is for others than this machine, and tokens or TLS lack.
    """
    host, port = _split(address)
    if tokens is None and not only_here(host):
        raise BadRequest(
            "Others than this machine could open the console, and nobody would be asked who they are. Give it a file "
            "of tokens (--tokens), or listen on 127.0.0.1.",
            reason="TOKENS_NEEDED",
            field="console",
        )
    if tokens is None:
        _log.warning("the console asks nobody who they are: all users of this machine can read and review")
    require_guarded("The console", host, settings, field="console")
    app = create_app(
        docket,
        tokens=tokens,
        host=host,
        origin=settings.console_origin or "",
        pictures=pictures,
        parts={"fonts": settings.fonts, **(parts or {})},
    )
    with _listening(host, port) as listening:
        server = _Server(_config(app, settings))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            begun = asyncio.create_task(server.begun.wait())
            await asyncio.wait((begun, serving), return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if serving.done():
                serving.result()
            scheme = "https" if settings.tls_certificate else "http"
            shown = f"[{host}]" if ":" in host else host
            yield f"{scheme}://{shown}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait((serving,))


def pictures_of(settings: Settings) -> PictureSource | None:
    """Pictures of precedents without an encoder; None where the library is in a database.

    Without a library of its own it is the starter library that has been used here.
    """
    if isinstance(settings.library, Address):
        return None
    if settings.library is not None:
        return LibraryPictures((settings.library,))
    made = [path.parent for path in (settings.home / "libraries").glob(f"starter-*/{CURRENT}")]
    return LibraryPictures(sorted(made, key=lambda path: (path / CURRENT).stat().st_mtime, reverse=True))


_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy, and authenticated encryption alone (BSI TR-02102-2, Mozilla "intermediate" less DHE)."""


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_config=None,  # the log is set up by whoever serves; lines of access would hold ids of trials
        access_log=False,
        proxy_headers=False,  # whom it is reached by is said by the settings, and not by a header
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=_AT_ONCE,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=_LAST_S,
        ssl_ciphers=_CIPHERS,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            "The console's certificate can't be used: it and its key are PEM files that belong together.",
            reason="CERTIFICATE_UNUSABLE",
            field="tls_certificate",
        ) from error
    return config


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it: beside it others must hear them too; and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on these sockets.

        uvicorn would wait a minute for the TLS handshake of each connection, and can't be told otherwise.
        """
        within = HEAD_S if self.config.ssl else None

        def protocol() -> asyncio.Protocol:
            return ConsoleProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol, sock=each, ssl=self.config.ssl, ssl_handshake_timeout=within, backlog=self.config.backlog
            )
            for each in sockets or ()
        ]
        self.started = True
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(found[0], found[1])
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
        except OSError:
            listening.close()
            raise
    except OSError:
        raise BadRequest(
            f"Can't listen on {host}:{port}: it is taken, or no address of this machine. Give host:port, port 0 for a "
            "free one.",
            reason="ADDRESS_UNUSABLE",
            field="console",
        ) from None
    with listening:
        yield listening


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise BadRequest(
            "The console's address is host:port, port 0 for a free one: 127.0.0.1:8080.",
            reason="ADDRESS_UNUSABLE",
            field="console",
        )
    return host.strip("[]"), int(port)
