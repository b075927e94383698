"""Connections that say nothing shut nobody out, from the same address as honest ones (BO-2)."""

import socket
import time
import urllib.request
from contextlib import ExitStack, suppress

import pytest

from serving.console import connections
from serving.settings import Settings
from serving.telemetry import metrics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SILENT = 400
"""More than the console answers at once."""


def open_silent(stack, port, count, head=b""):
    opened = []
    for _ in range(count):
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        if head:
            one.sendall(head)
        opened.append(one)
    return opened


def closed(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def status_of(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status


@pytest.fixture
def served(start):
    server = start(None, "--console", "127.0.0.1:0").ready()
    line = server.wait_for(lambda said: "console on http" in said)
    return server, line.split("console on ")[1].strip()


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_silent_connections_shut_nobody_out_of_the_console(served, head):
    _, url = served
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        opened = open_silent(stack, port, SILENT, head)
        for _ in range(20):
            assert status_of(url) == 200
        end = time.monotonic() + connections.HEAD_S + 5
        waiting = opened
        while waiting and time.monotonic() < end:
            # A byte now and then buys no time.
            for one in waiting[:5]:
                with suppress(OSError):
                    one.sendall(b"X")
            time.sleep(1)
            waiting = [one for one in waiting if not closed(one)]
        assert not waiting
        assert status_of(url) == 200


def test_silent_connections_to_the_metrics_end(monkeypatch):
    monkeypatch.setattr(metrics, "_SCRAPE_S", 1.0)
    served = metrics.Metrics(Settings())
    end = served.serve("127.0.0.1:0")
    try:
        with ExitStack() as stack:
            opened = open_silent(stack, served.port, 100, b"GET /metrics HTTP/1.1\r\n")
            assert status_of(f"http://127.0.0.1:{served.port}/metrics") == 200
            time.sleep(2)
            assert all(map(closed, opened))
    finally:
        end()
