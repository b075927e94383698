"""nginx as a subprocess, with the configuration that docs/proxies.md shows."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.playing import wait_until

DOCUMENTED = Path(__file__).parents[2] / "docs" / "proxies.md"
AROUND = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{inside}
}}
"""


def documented(changes: Mapping[str, str]) -> str:
    """Returns the configuration of the documentation with what is local to its example changed; each must be there."""
    whole, *locations = re.findall(r"^```nginx\n(.*?)^```", DOCUMENTED.read_text(), re.DOTALL | re.MULTILINE)
    assert whole.endswith("\n}\n")
    found = whole.removesuffix("}\n") + "".join(locations) + "}\n"
    for written, used in changes.items():
        assert written in found, f"{DOCUMENTED.name} does not say {written}"
        found = found.replace(written, used)
    return found


@contextmanager
def nginx(folder: Path, changes: Mapping[str, str], port: int | None = None) -> Iterator[int]:
    """Runs the documented nginx in front of the servers that ``changes`` names; yields its port."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    port = port or free_port()
    inside = documented({"listen 443 ssl;": f"listen 127.0.0.1:{port};", **changes})
    inside = re.sub(r"^ *ssl_certificate.*\n", "", inside, flags=re.MULTILINE)
    folder.mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(AROUND.format(folder=folder, inside=inside))
    command = [program, "-p", str(folder), "-c", str(configuration)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
    try:
        wait_until(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def listens(port: int) -> bool:
    """True if somebody listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True
