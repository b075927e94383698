"""The real server as a process of its own, with the embedded default: real OCR, encoder, library, docket and socket."""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest


class Server:
    """``memecourt serve`` as a user starts it; what it says is kept line by line."""

    def __init__(self, home: Path, docket: Path, *options: str) -> None:
        self.docket = docket
        self.anchor = home / f"{uuid.uuid4()}.checkpoints"
        self.log: list[str] = []
        self._grown = threading.Condition()
        command = [sys.executable, "-m", "serving.cli", "serve", "--address", "127.0.0.1:0", "--docket", str(docket)]
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MEMECOURT_HOME": str(home), "MEMECOURT_ANCHOR": str(self.anchor)},
        )
        self._readers = [threading.Thread(target=self._listen, args=(stream,)) for stream in self._streams()]
        for reader in self._readers:
            reader.start()

    def _streams(self):
        return self.process.stdout, self.process.stderr

    def _listen(self, stream) -> None:
        for line in stream:
            with self._grown:
                self.log.append(line.rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for(self, found, seconds: float = 180) -> str:
        """The first line, said or yet to be said, for which ``found`` is true."""
        with self._grown:
            assert self._grown.wait_for(
                lambda: any(map(found, self.log)) or self.process.poll() is not None, seconds
            ), f"not said within {seconds} s:\n" + "\n".join(self.log)
            said = next(filter(found, self.log), None)
            assert said is not None, "the server ended:\n" + "\n".join(self.log)
            return said

    @property
    def address(self) -> str:
        return self.wait_for(lambda line: line.startswith("listening on ")).removeprefix("listening on ")

    def ready(self) -> "Server":
        self.wait_for(lambda line: line == "ready")
        return self

    def announced(self) -> set[tuple[str, int]]:
        """Trial and number of every event that the server has said to have kept."""
        events = set()
        for line in self.log:
            if " event=" in line:
                parts = dict(part.split("=", 1) for part in line.split() if "=" in part)
                events.add((parts["trial"], int(parts["seq"])))
        return events

    def end(self, *, kill: bool = False) -> int:
        """Ends the process this test started, and waits until all that it said has been read."""
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        code = self.process.wait(timeout=200)
        for reader in self._readers:
            reader.join(timeout=60)
        for stream in self._streams():
            stream.close()
        return code


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Where the starter library lies: a copy of one that is made once, before any start is waited for.

    On a busy machine it takes longer to make than a start may take, and the more so where each process makes its own.
    """
    home = tmp_path_factory.mktemp("home")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all processes of this run
    made = shared / "starter"
    with (shared / "starter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            making = shared / "starter.making"
            shutil.rmtree(making, ignore_errors=True)
            words = ["judge", "--text", "a quiet sunday", "--docket", str(making / "docket.sqlite")]
            subprocess.run(
                [sys.executable, "-m", "serving.cli", *words],
                env={**os.environ, "MEMECOURT_HOME": str(making)},
                check=True,
                capture_output=True,
                timeout=280,
            )
            (making / "libraries").rename(made)
    shutil.copytree(made, home / "libraries")
    return home


@pytest.fixture(scope="session")
def server(home, tmp_path_factory):
    running = Server(home, tmp_path_factory.mktemp("docket") / "docket.sqlite").ready()
    yield running
    running.end()


@pytest.fixture
def start(home, tmp_path):
    """Starts further servers, for tests that end theirs."""
    started = []

    def another(docket=None, *options):
        started.append(Server(home, docket or tmp_path / "docket.sqlite", *options))
        return started[-1]

    yield another
    for one in started:
        one.end(kill=True)
