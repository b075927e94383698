"""The service in a separate process, with a docket on disk and a real socket, and the resources that it uses.

Resources are read from ``/proc`` (Linux): CPU time, memory, handles and threads.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from eval.perf.bench import resident_bytes
from eval.perf.load.clients import JUDGE
from memecourt.v1 import court_pb2 as wire
from retrieval.starter.draw import SCENES, draw_meme

_TICKS = os.sysconf("SC_CLK_TCK")
_READY = "ready"
_LISTENS = "listening on "
_STOP_S = 60.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs the server.

    Attributes:
        address: ``host:port`` where it listens.
        home: Its directory, which contains the docket and the log.
    """

    address: str
    pid: int
    home: Path

    @property
    def docket(self) -> Path:
        """Path of its docket."""
        return self.home / "docket.sqlite"

    def cpu_s(self) -> float:
        """CPU time so far in seconds, without its children."""
        # The process name may contain spaces and parentheses, so fields are counted from after it.
        # utime and stime, fields 14 and 15 of proc(5), are the 12th and 13th from there.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resources(self) -> Resources:
        """Returns the resources of the process."""
        place = Path(f"/proc/{self.pid}")
        return Resources(
            memory=resident_bytes(self.pid) / _MIB,
            handles=sum(1 for _ in (place / "fd").iterdir()),
            threads=sum(1 for _ in (place / "task").iterdir()),
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a process, without its children.

    Attributes:
        memory: Resident memory, in MiB.
        handles: Open files and sockets.
    """

    memory: float
    handles: int
    threads: int


@contextmanager
def served(home: Path, *options: object, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Runs ``memecourt serve`` until the block ends; yields it once it is ready, and stops it with SIGTERM.

    Args:
        home: Directory of its docket and libraries, and of its log, ``serve.log``.
        options: Further command-line options.
        environment: Settings by variable name; they override the defaults of the options.

    Raises:
        RuntimeError: The server exited before it was ready, or did not stop when told to.
    """
    home.mkdir(parents=True, exist_ok=True)
    # Port 0: the system chooses a free one, so that benchmarks and tests can run side by side.
    command = [sys.executable, "-m", "serving.cli", "serve", "--address", "127.0.0.1:0", *map(str, options)]
    # Settings of the user who runs the benchmark must not change the measurement.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
    settings |= {"MEMECOURT_HOME": str(home), "PYTHONUNBUFFERED": "1", **(environment or {})}
    # A file, not a pipe: nothing reads it while the server runs, and a full pipe would block the server.
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=settings, text=True)
    try:
        assert process.stdout is not None
        lines = [line.strip() for line in _until_ready(process.stdout)]
        address = next((line.removeprefix(_LISTENS) for line in lines if line.startswith(_LISTENS)), None)
        if address is None or _READY not in lines:
            raise RuntimeError(f"The server ended before it was ready:\n{_end_of(home / 'serve.log')}")
        yield Process(address, process.pid, home)
        # If the server died, the benchmark has measured something else; that must not pass as a result.
        if process.poll() is not None:
            raise RuntimeError(f"The server ended by itself ({process.returncode}):\n{_end_of(home / 'serve.log')}")
        process.send_signal(signal.SIGTERM)
        if process.wait(_STOP_S) != 0:
            raise RuntimeError(f"The server ended with {process.returncode}:\n{_end_of(home / 'serve.log')}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def served_known(
    memes: int, *options: object, environment: Mapping[str, str] | None = None, directory: str | None = None
) -> Iterator[tuple[Process, list[str], int]]:
    """Runs a server that has already tried some memes; yields it, a request file for each, and the size of an answer.

    Args:
        options: Options as for :func:`served`.
        environment: Environment as for :func:`served`.
        directory: Parent of its temporary directory; the system's default if None.
    """
    with TemporaryDirectory(prefix="memecourt-known-", dir=directory) as folder:
        requests = known_memes(Path(folder), memes)
        with served(Path(folder) / "home", *options, environment=environment) as server:
            yield server, requests, first_answers(server, requests)


def known_memes(place: Path, count: int) -> list[str]:
    """Writes files with one request each, whose text is given."""
    paths = [place / f"request-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        request = wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        path.write_bytes(request.SerializeToString())
    return [str(path) for path in paths]


def first_answers(server: Process, requests: list[str]) -> int:
    """Has all memes tried, so that they are known; returns the size of the last answer when its verdict is reused."""
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        for name in (*requests, requests[-1]):
            answer = judge(Path(name).read_bytes(), timeout=120)
    # Otherwise the load would measure trials, and not the path of a reused verdict.
    if not wire.JudgeResponse.FromString(answer).HasField("reused_from"):
        raise RuntimeError("a meme that was tried before has been tried again")
    return len(answer)


def _until_ready(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        # The lines end by themselves if the server dies before it is ready.
        if line.strip() == _READY:
            return


def _end_of(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-2000:]


def picture(number: int, *, size: tuple[int, int] = (640, 480)) -> bytes:
    """Returns a unique generated meme as JPEG; some 30 to 60 KB at the default size."""
    file = io.BytesIO()
    drawn = draw_meme(sorted(SCENES)[number % len(SCENES)], f"Number {number}\nis like no other", seed=number)
    drawn.resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def settled(process: Process, *, most_s: float = 10.0) -> Resources:
    """Returns the resources of a process after a second without work, or after ``most_s`` seconds."""
    end = time.monotonic() + most_s
    before = process.cpu_s()
    while time.monotonic() < end:
        time.sleep(1.0)
        now = process.cpu_s()
        # Not zero: even an idle server runs its heartbeat and timers.
        if now - before < 0.1:
            break
        before = now
    return process.resources()
