"""A way to a server on which connections can freeze: as where a machine loses power, nobody is told of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Way:
    """``address`` leads to a server. ``connections`` counts those there ever were."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Connections that there are stay open and carry nothing any more; new ones do."""
        before, self._frozen = self._frozen, threading.Event()
        before.set()

    def cut(self) -> None:
        """Ends connections that there are, so that both ends know."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Ends all of it."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        host, _, port = self._server.rpartition(":")
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.create_connection((host, int(port)))
                self._sockets += near, far
                for each in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=(*each, self._frozen), daemon=True).start()


def _carry(source: socket.socket, to: socket.socket, frozen: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if not frozen.is_set():
                to.sendall(data)
        if not frozen.is_set():
            to.shutdown(socket.SHUT_WR)


@contextmanager
def a_way(server: str) -> Iterator[Way]:
    """One that is there for as long."""
    way = Way(server)
    try:
        yield way
    finally:
        way.close()
