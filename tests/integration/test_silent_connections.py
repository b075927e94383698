"""Connections that send nothing, or never finish their request, block no honest request (BO-2).

They come from the same address as honest ones, to every listener of the server.
"""

import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.app import allow_open_files
from serving.rpc.health import LIVENESS
from tests.support.sizes import FULL

SILENT = 2000 if FULL else 300
"""Connections to each listener: more than the console handles at once."""
CLOSED_S = 15 if FULL else 120
"""Seconds after which each must be closed; generous unless at full size, since other tests may delay the check."""
IDLE_S = 75 if FULL else 5
"""Seconds for which connections stay open after an answer: at full size the default."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a TLS handshake."""


@dataclass
class Listener:
    """One port of a server.

    Attributes:
        port: TCP port.
        heads: Bytes that silent connections send first, one of these each.
        ask: Sends an honest request; raises if it gets no answer.
    """

    port: int
    heads: tuple[bytes, ...]
    ask: Callable[[], None]


def fetch(url, context=None):
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        assert answer.status == 200


def check_health(address, credentials=None):
    with grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=LIVENESS), timeout=60)


def listeners_of(server, authority):
    """Returns the listeners of a server with all its services, by name; with TLS if there is an authority."""
    port = int(server.address.rpartition(":")[2])
    console = server.wait_for(lambda line: "console on http" in line).split("console on ")[1].strip()
    console = console.replace("127.0.0.1", "localhost")
    metrics = int(server.wait_for(lambda line: "metrics are served" in line).rpartition("=")[2])
    url = f"http://127.0.0.1:{metrics}/metrics"
    listeners = {"metrics": Listener(metrics, (b"", HALF_A_HEAD), lambda: fetch(url))}
    api = server.wait_for(lambda line: "http on http" in line).split("http on ")[1].strip()
    api = f"{api.replace('127.0.0.1', 'localhost')}/v1/readyz"
    console_port, api_port = (int(url_part.split(":")[2].partition("/")[0]) for url_part in (console, api))
    if authority is None:
        listeners["grpc"] = Listener(port, (b"", PREFACE[:10], PREFACE), lambda: check_health(f"localhost:{port}"))
        listeners["console"] = Listener(console_port, (b"", HALF_A_HEAD), lambda: fetch(console))
        listeners["http"] = Listener(api_port, (b"", HALF_A_HEAD), lambda: fetch(api))
    else:
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        context = ssl.create_default_context()
        authority.configure_trust(context)
        hello = (b"", CLIENT_HELLO)
        listeners["grpc"] = Listener(port, hello, lambda: check_health(f"localhost:{port}", trusted))
        listeners["console"] = Listener(console_port, hello, lambda: fetch(console, context))
        listeners["http"] = Listener(api_port, hello, lambda: fetch(api, context))
    return listeners


def closed(connection):
    """True if the other side has closed; discards the data that it sent before."""
    connection.settimeout(0.0)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def ask_until_closed(listeners, silent, *, within_s, drip):
    """Sends honest requests until each silent connection is closed; fails if one stays open for longer."""
    answered = 0
    while silent or answered < 3 * len(listeners):
        for listener in listeners.values():
            listener.ask()
            answered += 1
        for _, _, number, connection in silent:
            if drip and number % 60 == 0:  # an occasional byte must not extend the deadline
                with suppress(OSError):
                    connection.sendall(b"X")
        now = time.monotonic()
        silent = [entry for entry in silent if not closed(entry[3])]
        late = {name for opened, name, _, _ in silent if now - opened > within_s}
        assert not late, f"still open after {within_s} s: {late}"
        time.sleep(0.5)


@pytest.mark.promise("BO-2", "2,000 silent connections to each listener: 0 honest requests refused; closed within 15 s")
@pytest.mark.parametrize("secured", [False, True], ids=["without TLS", "with TLS"])
def test_silent_connections_block_no_request_and_are_closed(start, tmp_path, secured):
    allow_open_files()
    options, authority = ["--console", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], None
    if secured:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
        options += ["--tls-certificate", str(tmp_path / "certificate.pem"), "--tls-key", str(tmp_path / "key.pem")]
    listeners = listeners_of(start(None, *options).ready(), authority)
    with ExitStack() as stack:
        silent = []
        for number in range(SILENT):
            for name, listener in listeners.items():
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=60))
                connection.sendall(listener.heads[number % len(listener.heads)])
                silent.append((time.monotonic(), name, number, connection))
        ask_until_closed(listeners, silent, within_s=CLOSED_S, drip=True)
    assert len(listeners) == 4
    for listener in listeners.values():
        listener.ask()


@pytest.mark.promise("BO-2", "2,000 idle connections after an answer on each HTTP port: 0 refused; closed within 75 s")
def test_idle_connections_block_no_request_and_are_closed(start, monkeypatch):
    allow_open_files()
    monkeypatch.setenv("MEMECOURT_KEEP_ALIVE", str(IDLE_S))
    options = ["--console", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    listeners = listeners_of(start(None, *options).ready(), None)
    with ExitStack() as stack:
        idle = []
        for number in range(SILENT):
            for name in ("console", "http"):
                connection = socket.create_connection(("127.0.0.1", listeners[name].port), timeout=60)
                stack.enter_context(connection)
                connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert f"keep-alive: timeout={IDLE_S}".encode() in connection.recv(65536)
                idle.append((time.monotonic(), name, number, connection))
        # Seconds of this process's own delay are allowed beyond the time.
        ask_until_closed(listeners, idle, within_s=IDLE_S + (5 if FULL else 100), drip=False)
