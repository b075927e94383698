"""Programs of ours in separate processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_READY = "ready"
_LISTENS = "listening on "
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs the server."""

    address: str
    """``host:port`` where it listens."""
    pid: int


def in_fresh_process(work: Callable[..., T], *arguments: Any) -> T:
    """Calls a function of a module in a process of its own, whose memory, imports and caches belong to it alone."""
    # Spawned: a forked process would inherit all that this one has loaded.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


@contextmanager
def running_module(module: str, arguments: Sequence[object]) -> Iterator[Any]:
    """Runs one of our modules as a server; yields the JSON line that it prints first."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def model_server(*flags: str) -> Iterator[str]:
    """Runs a fake model server (:mod:`eval.standin.server`); yields its URL without ``/v1``."""
    with running_module("eval.standin.server", ["--port", 0, *flags]) as ready:
        yield f"http://127.0.0.1:{ready['port']}"


@contextmanager
def served(
    home: Path,
    *options: object,
    program: Sequence[str] = (sys.executable, "-m", "serving.cli"),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Runs ``memecourt serve`` until the block ends; yields it once it is ready, and stops it with SIGTERM.

    Raises RuntimeError: The server exited before it was ready, or did not stop when told to.
    """
    home.mkdir(parents=True, exist_ok=True)
    # Port 0: the system chooses a free one, so that benchmarks and tests can run side by side.
    command = [*program, "serve", "--address", "127.0.0.1:0", *map(str, options)]
    # Settings of the user who runs the benchmark must not change the measurement.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("MEMECOURT_")}
    settings |= {"MEMECOURT_HOME": str(home), "PYTHONUNBUFFERED": "1", **(environment or {})}
    output = home / "serve.log"

    def failed(how: str) -> RuntimeError:
        return RuntimeError(f"The server {how}:\n{output.read_text('utf-8', 'replace')[-2000:]}")

    # A file, not a pipe: nothing reads it while the server runs, and a full pipe would block the server.
    with (
        output.open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=settings, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            address = ""
            # The lines end by themselves if the server dies before it is ready.
            for line in map(str.strip, process.stdout):
                if line == _READY:
                    break
                if line.startswith(_LISTENS):
                    address = line.removeprefix(_LISTENS)
            else:
                raise failed("ended before it was ready")
            yield Process(address, process.pid)
            # If the server died, the benchmark has measured something else; that must not pass as a result.
            if process.poll() is not None:
                raise failed(f"ended by itself ({process.returncode})")
            process.send_signal(signal.SIGTERM)
            if process.wait(_STOP_S) != 0:
                raise failed(f"ended with {process.returncode}")
        finally:
            process.kill()
