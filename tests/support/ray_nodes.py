"""A Ray cluster of local processes with its own token; Ray is not loaded into this process."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from serving.models.vllm import free_port

_log = logging.getLogger("memecourt.perf")

_READY = "Ray runtime started"
_STARTS_S = 240.0
_TRIES = 3
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
_STORE_BYTES = 80_000_000


class NodeDown(RuntimeError):
    """A node did not start; includes the end of its output."""


@dataclass(slots=True)
class RayNodes:
    """Nodes of a cluster.

    Attributes:
        place: Private directory with a short name: the path of a socket below it may have 107 characters.
        processors: Number of processors that each node offers.
        env: Environment for processes that connect to the cluster.
        nodes: Processes of its nodes, the head first.
    """

    place: Path
    processors: int = 1
    address: str = field(init=False)
    env: dict[str, str] = field(init=False)
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A private directory, so that files left behind by workers can be counted.
        self.tmp.mkdir()
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        # Each process of Ray imports jsonschema, and that imports a grammar of addresses if it is there, which takes
        # seconds to compile. A node waits 30 s for its agents, which is not configurable: too few on a busy machine.
        modules = self.place / "modules"
        modules.mkdir()
        (modules / "rfc3987_syntax.py").write_text("raise ImportError")
        path = os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH"))))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        own = {"TMPDIR": str(self.tmp), "RAY_DISABLE_MEMORY_MONITOR": "1", "PYTHONPATH": path}
        self.env = {**os.environ, **token, **own}

    @property
    def tmp(self) -> Path:
        """Directory for temporary files of the nodes and of the processes that connect to them."""
        return self.place / "tmp"

    def start(self, count: int) -> None:
        """Starts ``count`` nodes. Raises NodeDown if one does not start."""
        port = self.address.rpartition(":")[2]
        head = ("--head", f"--port={port}", f"--temp-dir={self.place / 'ray'}", "--include-dashboard=false")
        client = ("--ray-client-server-port", str(free_port("127.0.0.1")))
        for number in range(count):
            self._start_node(number, *((*head, *client) if number == 0 else (f"--address={self.address}",)))

    def workers(self) -> list[int]:
        """Returns the process ids of workers that hold a court."""
        # Found by the process name that Ray gives a worker when it begins to judge.
        return [
            pid for pid in sorted(_below(node.pid for node in self.nodes)) if _command(pid).startswith(b"ray::Judge")
        ]

    def remove(self) -> None:
        """Kills all processes of the nodes and deletes their directory."""
        self.kill(*self.nodes)
        shutil.rmtree(self.place, ignore_errors=True)

    def kill(self, *nodes: subprocess.Popen[bytes]) -> None:
        """Kills nodes with all their processes."""
        # At once and one by one: Ray's orderly shutdown takes half a minute.
        roots = [node.pid for node in nodes]
        for pid in roots + sorted(_below(roots)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in nodes:
            node.wait()

    def _start_node(self, number: int, *options: str) -> None:
        log = self.place / f"node-{number}.log"
        words = (*_RAY, f"--num-cpus={self.processors}", f"--object-store-memory={_STORE_BYTES}", *options)
        # A file, not a pipe: nothing reads a pipe while the node works, and a full one would block it.
        with log.open("wb") as log_file:
            node = subprocess.Popen(
                words, env=self.env, stdout=log_file, stderr=log_file, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.nodes.append(node)
        end = time.monotonic() + _STARTS_S
        while _READY not in log.read_text("utf-8", "replace"):
            if node.poll() is not None or time.monotonic() > end:
                raise NodeDown(f"A node of Ray did not come up:\n{log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.05)


@contextmanager
def ray_nodes(count: int, *, processors: int = 1) -> Iterator[RayNodes]:
    """Runs a cluster of ``count`` nodes while the context lasts. Raises NodeDown if none starts."""
    cluster = _started(count, processors)
    try:
        yield cluster
    finally:
        cluster.remove()


def _started(count: int, processors: int) -> RayNodes:
    # Ray gives a node half a minute, which is not configurable, and a head whose state store stalls or finds its port
    # taken never starts. A new head, in another directory and on another port, does.
    for _ in range(_TRIES - 1):
        try:
            return _started_once(count, processors)
        except NodeDown as error:
            _log.warning("starting another Ray cluster: %s", error)
    return _started_once(count, processors)


def _started_once(count: int, processors: int) -> RayNodes:
    cluster = RayNodes(Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")), processors)
    try:
        cluster.start(count)
    except BaseException:
        cluster.remove()
        raise
    return cluster


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just exited
        return b""


def _below(roots: Iterable[int]) -> set[int]:
    """Returns all descendants of these processes."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    # Down to the last grandchild: workers are not direct children of the nodes.
    first = set(roots)
    found = set(first)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - first
