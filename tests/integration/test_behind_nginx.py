"""LB-1: rolling restarts of two servers behind nginx, with callers that reuse their connections."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from tests.integration.conftest import Server
from tests.support.playing import wait_until
from tests.support.sizes import FULL

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RESTARTS = 10 if FULL else 1
CALLERS = 100 if FULL else 4
CONNECTIONS = 1000 if FULL else 40
"""Connections that callers open, each for several requests, at least."""
PER_CONNECTION = 5
CONFIGURATION = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream court {{ {servers} keepalive 16; keepalive_timeout 60s; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://court; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_request_buffering off; proxy_read_timeout 300s;
      proxy_next_upstream error timeout http_503 non_idempotent;
    }}
  }}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def nginx():
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        why = "nginx is not installed: apt-get install nginx-light"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    return found


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


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/readyz", timeout=30) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.promise("LB-1", "1,000 reused connections, 10 restarts of two servers behind nginx: 0 requests lost")
def test_lb_1_rolling_restarts_behind_nginx_lose_no_request(nginx, home, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_DRAIN_DELAY", "2")
    ports = [free_port(), free_port()]
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{each} max_fails=0;" for each in ports)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path, servers=servers, port=port))

    def started(number):
        server = Server(home, tmp_path / "docket.sqlite", "--http", f"127.0.0.1:{ports[number]}")
        return server.ready()

    running = [started(0), started(1)]
    proxy = subprocess.Popen([nginx, "-p", str(tmp_path), "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_ready(port))
        callers = Callers(port)
        try:
            for restart in range(RESTARTS):
                for number in (0, 1):
                    assert running[number].end() == 0
                    running[number] = started(number)
                before = callers.connections
                wait_until(lambda before=before: callers.connections > before + CALLERS)
                if restart == RESTARTS - 1:
                    wait_until(lambda: callers.connections >= CONNECTIONS)
        finally:
            callers.stop()
        assert callers.lost == [] and callers.answered >= CONNECTIONS * PER_CONNECTION
    finally:
        proxy.terminate()
        proxy.wait()
        for server in running:
            server.end(kill=True)
