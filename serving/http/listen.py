"""HTTP listener, standalone or alongside the gRPC server, which enforces TLS and tokens where they are required."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import uvicorn
from typing_extensions import override

from court.errors import BadRequest
from serving.access.exposure import is_port, only_here, require_guarded
from serving.access.reload import Contents, follow_files, read_all
from serving.http.connections import BODY_S, HEAD_S, GuardedConnection
from serving.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def own_names(host: str, origin: str = "") -> frozenset[str] | None:
    """Returns the allowed names of a listener; None for any."""
    # If reachable from elsewhere it may have any name, which only its operator knows.
    own = {host.strip("[]"), "localhost", "127.0.0.1", "::1"} if only_here(host) else set()
    if origin:
        own.add(urlsplit(origin).hostname or "")
    return frozenset(own) or None


def under(origin: str, scope: Scope) -> Scope:
    """Returns the scope of a request as its sender addressed it, by a public address such as ``https://a.org/court``.

    The proxy may pass the path on or take it off. The application's own addresses begin with the scope's ``root_path``.
    """
    if not origin:
        return scope
    site, inner = urlsplit(origin), scope["path"]
    if site.path and (inner == site.path or inner.startswith(f"{site.path}/")):
        inner = inner[len(site.path) :] or "/"
    return {**scope, "scheme": site.scheme, "root_path": site.path, "path": site.path + inner}


def host_of(scope: Scope) -> str:
    """Returns the name in the Host header without the port; empty if there is none."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    # A malformed header, such as an unmatched bracket, matches no allowed name.
    except ValueError:
        return ""


_COMPLETE = re.compile(rb"(?i:https?)://([^/]+)(/.*)?", re.DOTALL)
_DRAIN_S = 2
"""Seconds for running answers to finish on shutdown."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Name and limits of a listener."""

    name: str
    field: str
    example: str
    at_once: int
    body_s: float = BODY_S

    @property
    def certificate(self) -> str:
        """Description of its certificate, used at the start of messages."""
        return f"The certificate of {self.name[0].lower()}{self.name[1:]}"


@asynccontextmanager
async def open_listener(
    listener: Listener, app: ASGIApp, settings: Settings, address: str, *, stopping: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Serves an application inside the block; yields its URL.

    Args:
        stopping: Event from which on responses end their connections, so that callers open others elsewhere. After the
            drain delay of the settings no connection is accepted, and idle ones are closed.

    Raises:
        BadRequest: The address can't be listened on, or is reachable by other machines without tokens or TLS.
    """
    host, port = split_address(listener, address)
    # Before anything listens (BO-4).
    require_guarded(listener.name, host, settings, field=listener.field)
    named = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    paths = [path for path in named if path is not None] if settings.tls_certificate else []
    # Read before they are used, so that a renewal in between is noticed.
    contents = read_all(paths, listener.certificate)
    with _listening(listener, host, port) as listening:
        app = _Targets(app)
        server = _Server(_config(listener, app, settings), listener.body_s)

        def renew(_: Contents) -> None:
            server.renewed = _config(listener, app, settings, key_password=_NONE).ssl

        serving = asyncio.create_task(server.serve(sockets=[listening]))
        tasks = [serving]
        if paths:
            tasks.append(asyncio.create_task(follow_files(paths, renew, listener.certificate, contents)))
        if stopping is not None:
            tasks.append(asyncio.create_task(server.leave(stopping, settings.drain_delay)))
        try:
            begun = asyncio.create_task(server.begun.wait())
            await asyncio.wait((begun, serving), return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if serving.done():
                # Raises the error of a failed start, which nobody would see otherwise.
                serving.result()
            scheme = "https" if settings.tls_certificate else "http"
            shown = f"[{host}]" if ":" in host else host
            yield f"{scheme}://{shown}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            for task in tasks[1:]:
                task.cancel()
            await asyncio.wait(tasks)


_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""TLS 1.2 ciphers with forward secrecy and authenticated encryption (BSI TR-02102-2, Mozilla "intermediate" less
DHE)."""


_NONE = "none"
"""Password to try on an encrypted key: without one, OpenSSL would prompt at the terminal."""


def _config(listener: Listener, app: ASGIApp, settings: Settings, *, key_password: str | None = None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_config=None,  # the process sets up its own log; access logs would contain trial ids
        access_log=False,
        proxy_headers=False,  # settings, not headers, say how it is reached
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=listener.at_once,
        headers=[("keep-alive", f"timeout={math.floor(settings.keep_alive)}")],
        timeout_keep_alive=math.floor(settings.keep_alive),
        timeout_graceful_shutdown=_DRAIN_S,
        ssl_ciphers=_CIPHERS,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_keyfile_password=key_password,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"{listener.certificate} can't be used: it and its key are PEM files that belong together.",
            reason="CERTIFICATE_UNUSABLE",
            field="tls_certificate",
        ) from error
    return config


class _Targets:
    """Takes requests for complete addresses, as clients send them to a proxy, and HTTP allows to any server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if found := _COMPLETE.fullmatch(scope.get("raw_path", b"")):
            host, path = found[1], found[2] or b"/"
            # The host of the address counts instead of the header (RFC 9112, 3.2.2).
            headers = [(b"host", host), *(header for header in scope["headers"] if header[0] != b"host")]
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn server that leaves signals to its owner, signals when it listens, and can renew TLS."""

    def __init__(self, config: uvicorn.Config, body_s: float) -> None:
        super().__init__(config)
        self._leaving = False
        self._body_s = body_s
        self._sockets: Sequence[socket.socket] = ()
        self.servers: list[asyncio.Server] = []
        self.begun = asyncio.Event()
        self.renewed: ssl.SSLContext | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on the sockets.

        Overridden because uvicorn's TLS handshake timeout of a minute can't be configured.
        """
        self._sockets = sockets or ()
        self.servers = await self._open()
        self.started = True
        self.begun.set()

    @override
    async def on_tick(self, counter: int) -> bool:
        """Runs uvicorn's periodic tick (ten times a second), after switching to renewed TLS."""
        if self.renewed is not None and self._sockets:
            former, used = self.servers, self.config.ssl
            self.config.ssl = self.renewed
            try:
                self.servers = await self._open()
            except OSError:
                # Out of file handles: retry at the next tick, and keep the old listener until then.
                self.config.ssl = used
            else:
                self.renewed = None
                # Existing connections don't belong to the listeners and continue.
                for server in former:
                    server.close()
        ended = await super().on_tick(counter)
        if self._leaving:
            self._end_connections_with_answers()  # since uvicorn has set its own headers again
        return ended

    async def leave(self, stopping: asyncio.Event, delay_s: float) -> None:
        """Lets callers go elsewhere once the server stops, and after a delay refuses further connections.

        A proxy gives a refused connection's request to another server, even where it keeps no copy of the body.
        """
        await stopping.wait()
        self._leaving = True
        self._end_connections_with_answers()
        await asyncio.sleep(delay_s)
        for server in self.servers:
            server.close()
        for each in self._sockets:
            each.close()
        self._sockets = ()
        for connection in self._connections():
            connection.end_when_answered()

    def _end_connections_with_answers(self) -> None:
        self.server_state.default_headers = headers = [(b"connection", b"close")]
        for connection in self._connections():
            connection.use_headers(headers)

    def _connections(self) -> list[GuardedConnection]:
        return [each for each in self.server_state.connections if isinstance(each, GuardedConnection)]

    async def _open(self) -> list[asyncio.Server]:
        """Listens with the current TLS context."""
        # asyncio refuses a handshake timeout without TLS.
        within = HEAD_S if self.config.ssl else None

        def protocol() -> asyncio.Protocol:
            return GuardedConnection(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, body_s=self._body_s
            )

        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(
                protocol,
                # A duplicate, closed with this listener: the accept queue is shared and survives.
                sock=each.dup(),
                ssl=self.config.ssl,
                ssl_handshake_timeout=within,
                backlog=self.config.backlog,
            )
            for each in self._sockets
        ]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _listening(listener: Listener, host: str, port: int) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Including the protocol: asyncio sets TCP_NODELAY only if it is given.
        listening = socket.socket(*found[:3])
        try:
            # Otherwise a restart finds the port occupied by lingering connections.
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
            field=listener.field,
        ) from None
    with listening:
        yield listening


def split_address(listener: Listener, address: str) -> tuple[str, int]:
    """Splits an address into host and port. Raises BadRequest if it is invalid."""
    host, _, port = address.rpartition(":")
    if not host or not is_port(port):
        raise BadRequest(
            f"The address of {listener.name[0].lower()}{listener.name[1:]} is host:port, port 0 for a free one: "
            f"{listener.example}.",
            reason="ADDRESS_UNUSABLE",
            field=listener.field,
        )
    return host.strip("[]"), int(port)
