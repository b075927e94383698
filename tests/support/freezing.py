"""A TCP proxy whose connections can freeze silently, as when a machine loses power."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class FreezingProxy:
    """A proxy at ``address`` to a server; ``connections`` counts all connections ever accepted."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Freezes the existing connections: they stay open but carry no more data; new ones work."""
        before, self._frozen = self._frozen, threading.Event()
        before.set()

    def cut(self) -> None:
        """Closes the existing connections, which both ends notice."""
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        """Closes the proxy and all its connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        host, _, port = self._server.rpartition(":")
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                upstream = socket.create_connection((host, int(port)))
                self._sockets += client, upstream
                for direction in ((client, upstream), (upstream, client)):
                    threading.Thread(target=_carry, args=(*direction, self._frozen), daemon=True).start()


def _carry(source: socket.socket, to: socket.socket, frozen: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if not frozen.is_set():
                to.sendall(data)
        if not frozen.is_set():
            to.shutdown(socket.SHUT_WR)


@contextmanager
def freezing_proxy(server: str) -> Iterator[FreezingProxy]:
    """Runs a proxy to a server for as long as the context lasts."""
    way = FreezingProxy(server)
    try:
        yield way
    finally:
        way.close()
