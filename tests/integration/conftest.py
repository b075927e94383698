"""Fixtures that run the real server as a subprocess, with its default OCR, encoder, library, docket and socket."""

import os
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest


class Server:
    """``memecourt serve`` as a subprocess; ``log`` holds its output line by line."""

    def __init__(self, home: Path, docket: Path, *options: str) -> None:
        self.docket = docket
        self.anchor = home / f"{uuid.uuid4()}.checkpoints"
        self.log: list[str] = []
        self._log_grown = threading.Condition()
        command = [sys.executable, "-m", "serving.cli", "serve", "--address", "127.0.0.1:0", "--docket", str(docket)]
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MEMECOURT_HOME": str(home), "MEMECOURT_ANCHOR": str(self.anchor)},
        )
        self._readers = [threading.Thread(target=self._read_lines, args=(stream,)) for stream in self._streams()]
        for reader in self._readers:
            reader.start()

    def _streams(self):
        return self.process.stdout, self.process.stderr

    def _read_lines(self, stream) -> None:
        for line in stream:
            with self._log_grown:
                self.log.append(line.rstrip("\n"))
                self._log_grown.notify_all()
        with self._log_grown:
            self._log_grown.notify_all()

    def wait_for(self, matches, seconds: float = 180) -> str:
        """Returns the first line, logged already or yet to come, for which ``matches`` is true."""
        with self._log_grown:
            assert self._log_grown.wait_for(
                lambda: any(map(matches, self.log)) or self.process.poll() is not None, seconds
            ), f"no such line within {seconds} s:\n" + "\n".join(self.log)
            line = next(filter(matches, self.log), None)
            assert line is not None, "the server ended:\n" + "\n".join(self.log)
            return line

    @property
    def address(self) -> str:
        return self.wait_for(lambda line: line.startswith("listening on ")).removeprefix("listening on ")

    def ready(self) -> "Server":
        self.wait_for(lambda line: line == "ready")
        return self

    def announced(self) -> set[tuple[str, int]]:
        """Returns trial and sequence number of every event that the server has logged as stored."""
        events = set()
        for line in self.log:
            if " event=" in line:
                parts = dict(part.split("=", 1) for part in line.split() if "=" in part)
                events.add((parts["trial"], int(parts["seq"])))
        return events

    def end(self, *, kill: bool = False) -> int:
        """Ends the process and waits until all its output has been read; returns the exit code."""
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        code = self.process.wait(timeout=200)
        for reader in self._readers:
            reader.join(timeout=60)
        for stream in self._streams():
            stream.close()
        return code


@pytest.fixture(scope="session")
def home(starter, tmp_path_factory):
    """A home folder with a copy of the starter library."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(starter, home / "libraries")
    return home


@pytest.fixture(scope="session")
def server(home, tmp_path_factory):
    running = Server(home, tmp_path_factory.mktemp("docket") / "docket.sqlite").ready()
    yield running
    running.end()


@pytest.fixture
def start(home, tmp_path):
    """Starts additional servers, for tests that stop or kill theirs."""
    started = []

    def start_server(docket=None, *options):
        started.append(Server(home, docket or tmp_path / "docket.sqlite", *options))
        return started[-1]

    yield start_server
    for running in started:
        running.end(kill=True)
