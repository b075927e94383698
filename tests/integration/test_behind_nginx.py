"""Rolling restarts of two servers behind the nginx of docs/proxies.md, with callers that reuse connections (LB-1)."""

import http.client
import json
import threading
from contextlib import ExitStack

import pytest

from tests.support.nginx import free_port, nginx
from tests.support.playing import wait_until
from tests.support.sizes import FULL

RESTARTS = 10 if FULL else 1
CALLERS = 50 if FULL else 4
CONNECTIONS = 1000 if FULL else 40
"""Connections that callers open, each for several requests, at least."""
PER_CONNECTION = 5


class Callers:
    """Threads that send one request after the other, several on each connection, until they are stopped."""

    def __init__(self, port):
        self.answered, self.connections, self.lost = 0, 0, []
        self._port, self._stopping, self._lock = port, threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _call(self, caller):
        number = 0
        while not self._stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
            for _ in range(PER_CONNECTION):
                number += 1
                body = json.dumps({"text": f"a quiet sunday {caller} {number % 7}"})
                headers = {"Content-Type": "application/json", "Idempotency-Key": f"{caller}-{number}"}
                try:
                    connection.request("POST", "/v1/judge", body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                    fault = "" if answer.status == 200 else f"{answer.status} {content[:200]!r}"
                except (OSError, http.client.HTTPException) as error:
                    fault = repr(error)
                with self._lock:
                    self.answered += 1
                    if fault:
                        self.lost.append(fault)
            connection.close()
            with self._lock:
                self.connections += 1


@pytest.mark.promise("LB-1", "10 rolling restarts of two servers behind nginx, 1,000 connections: 0 requests lost")
def test_lb_1_rolling_restarts_behind_nginx_lose_no_request(start, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_DRAIN_DELAY", "2" if FULL else "0.5")
    ports = [free_port(), free_port()]

    def started(number):
        return start(tmp_path / "docket.sqlite", "--http", f"127.0.0.1:{ports[number]}").ready()

    with ExitStack() as stack:
        running = [started(0), started(1)]
        addresses = {f"10.0.0.{number + 1}:8081": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        callers = Callers(stack.enter_context(nginx(tmp_path / "nginx", addresses)))
        stack.callback(callers.stop)
        for _ in range(RESTARTS):
            for number in (0, 1):
                assert running[number].end() == 0
                running[number] = started(number)
            before = callers.connections
            wait_until(lambda before=before: callers.connections > before + CALLERS)
        wait_until(lambda: callers.connections >= CONNECTIONS)
        callers.stop()
        assert callers.lost == [] and callers.answered >= CONNECTIONS * PER_CONNECTION
