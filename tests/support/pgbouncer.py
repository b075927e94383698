"""pgbouncer in transaction mode as a subprocess: each transaction may get another session of the server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from eval.standin.postgres import AS_STRANGER
from tests.support.nginx import free_port, listens
from tests.support.playing import wait_until


@contextmanager
def pgbouncer(url: str) -> Iterator[str]:
    """Runs a pooler in front of a server that listens on a socket; yields the URL by which it is reached."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (Debian: pgbouncer)")
    parts = urlsplit(url)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "users").write_text(f'"{parts.username}" ""\n')
        configuration = Path(folder) / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host={parse_qs(parts.query)['host'][0]}\n[pgbouncer]\npool_mode = transaction\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {folder}/users\ndefault_pool_size = 10\n"
            # The newest session is used last, so that transactions of one client meet several.
            "server_round_robin = 1\n"
        )
        # It refuses to run as root; files of root may be closed to others, as the umask says.
        for path in Path(folder).iterdir():
            path.chmod(0o644)
        user = AS_STRANGER if os.geteuid() == 0 else ()
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen([*user, program, "-q", configuration], stderr=file)
        try:
            wait_until(lambda: process.poll() is not None or listens(port))
            assert process.poll() is None, f"pgbouncer does not start: {log.read_text()}"
            yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable&gssencmode=disable"
        finally:
            process.terminate()
            process.wait()
