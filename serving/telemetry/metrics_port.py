"""The port on which Prometheus finds metrics: a thread for each connection, few of them, none for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from court.errors import BadRequest

SCRAPE_S = 10.0
"""Seconds that a connection may last."""
_AT_ONCE = 64
"""Connections that stand at once: beyond, the oldest gives way. A scrape takes milliseconds."""


class MetricsPort:
    """Answers scrapes until it is closed."""

    def __init__(self, registry: CollectorRegistry, address: str) -> None:
        """Listens, in a thread.

        Args:
            address: ``host:port``, or a port alone for this machine; port 0 for a free one.

        Raises:
            BadRequest: The address can't be listened on.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = _listening(host.strip("[]") or "127.0.0.1", int(port))
        except (OSError, ValueError, OverflowError):
            raise BadRequest(
                f"Metrics can't be served at {address}: it is taken, or no address of this machine. Give host:port, "
                "or leave metrics out.",
                reason="METRICS_ADDRESS_UNUSABLE",
                field="metrics",
            ) from None
        self._server.set_app(_only_metrics(make_wsgi_app(registry)))
        self.address, self.port = str(self._server.server_address[0]), self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listening(host: str, port: int) -> _Server:
    family, *_, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = type("_Server", (_Server,), {"address_family": family})
    server: _Server = kind((str(bound[0]), port), _Scrape)  # getaddrinfo takes ports modulo 65,536
    return server


class _Server(ThreadingMixIn, WSGIServer):
    """Closes connections that have stood for too long, and the oldest where too many stand."""

    daemon_threads = True
    # By itself five: where more connect at once, others wait for seconds until they are let in.
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: Callable[..., WSGIRequestHandler]) -> None:
        self._standing: dict[socket.socket, float] = {}  # oldest first, with the time since when
        self._changing = threading.Lock()
        super().__init__(address, handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            # The oldest and not the newest: connections that send nothing must not shut a scrape out (BO-2).
            if len(self._standing) >= _AT_ONCE:
                self._break_off(next(iter(self._standing)))
            self._standing[request] = time.monotonic()
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            # It may have been taken out already, by `_break_off`.
            self._standing.pop(request, None)
        super().shutdown_request(request)

    @override
    def service_actions(self) -> None:
        """Called by the loop of the server at least twice a second."""
        begun_before = time.monotonic() - SCRAPE_S
        with self._changing:
            # A list, for `_break_off` takes each of them out.
            for each in [each for each, since in self._standing.items() if since < begun_before]:
                self._break_off(each)

    def _break_off(self, request: socket.socket) -> None:
        """Ends a connection for its thread, which closes it."""
        del self._standing[request]
        # The caller may have closed it in the same moment.
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Scrape(WSGIRequestHandler):
    """One connection, which may end at any moment."""

    @override
    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: addresses of callers are nobody's business."""


def _only_metrics(app: WSGIApplication) -> WSGIApplication:
    """Answers ``/metrics``, and 404 under any other path: what asks for it is meant for somebody else."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == "/metrics":
            return app(environ, start)
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"Metrics are at /metrics.\n"]

    return answer
