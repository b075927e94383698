"""A long batch job that is killed and resumed, compared with the same job left undisturbed.

``memecourt-eval run`` judges synthetic memes in a separate process: many by ``summary``, fewer by ``full`` against a
fake model server. Each job runs twice. The ideal is the time of the undisturbed job, from the start of the process to
its end. The other job is killed (SIGKILL) after a quarter, a half and three quarters of its memes; its time is the sum
over its four processes. That includes all costs of resuming: startup, loading, looking up existing results, and
repeating work that was in flight when the process died.

A call counts as repeated if a process makes it although the call store held its reply before that process started.
Calls in flight when a process is killed cannot have been stored; they are made again and counted separately.

The two jobs of a pair run one after the other, so on a shared machine the ratio is as noisy as the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from court.errors import BadRequest
from eval.perf.bench import Result, resident_bytes
from eval.perf.trials.trials import Speed
from eval.runs.folder import CALLS, PREDICTIONS
from eval.standin.replies import scripted_reply
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from eval.synthetic.make import Layout, make

SIZE_VARIABLE = "MEMECOURT_PERF_BATCH"
"""Memes of the two jobs, ``summary,full``, to try the benchmark with fewer."""
SPEED = Speed(call_s=0.02, output_token_s=0.002)
CAPACITY = 16
KILLED_AT = (0.25, 0.5, 0.75)
"""Shares of the memes that are judged when the process is killed."""
_PRECEDENTS = 40
_PICTURE = (160, 120)  # pixels; small, because decoding speed is not measured here
_ROUNDS = 2
_POLL_S = 0.1
_TAG = re.compile(r"asked[0-9a-f]{16}")
_TAGGED = ("question", "answer", "description", "justification", "rationale")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionCost:
    """A job that ran to completion.

    Attributes:
        wall_s: Total run time of all its processes, in seconds.
        restart_s: Mean time from the start of a resuming process to the first meme that it judges; 0 if the job was
            never resumed.
        asked: Calls that reached the server.
        again: Number of those whose reply was already in the call store when the process started.
        lost: Calls that were repeated because their process died before they were stored.
        tenth: Memory when a tenth of the memes was judged, in bytes, child processes included.
        end: Memory when nearly all memes were judged.
    """

    wall_s: float
    restart_s: float
    asked: int
    again: int
    lost: int
    tenth: int
    end: int


def batch(*, summary: int = 10_000, full: int = 2_000) -> Result:
    """Runs the benchmark.

    Args:
        summary: Memes of the job by ``summary``, unless the environment sets another number.
        full: Memes of the job by ``full``, likewise.

    Raises:
        BadRequest: The environment variable does not hold two numbers.
        RuntimeError: A job ended with an error.
    """
    if words := os.environ.get(SIZE_VARIABLE):
        summary, full = parsed_size(words)
    with TemporaryDirectory(prefix="memecourt-batch-") as directory:
        place = Path(directory)
        _make(place / "data", max(summary, full))
        figures = _pair(place, "summary", summary) | _pair(place, "full", full)
    return Result(
        figures=figures,
        goals={
            "summary_over_ideal": "<= 1.1",
            "summary_memory": "<= 1.1",
            "full_over_ideal": "<= 1.1",
            "full_memory": "<= 1.1",
            "full_calls_twice": "== 0",
        },
    )


def parsed_size(words: str) -> tuple[int, int]:
    """Parses ``summary,full``, the number of memes of each job. Raises BadRequest for anything else."""
    try:
        summary, full = (int(word) for word in words.split(","))
    except ValueError:
        summary = full = 0
    # Memory is read once 95 % of the memes are done: from 20 memes on, that is before the last one.
    if min(summary, full) < 20:
        raise BadRequest(f"{SIZE_VARIABLE} is {words!r}. Give two numbers of at least 20, as in 400,60.")
    return summary, full


def _make(data: Path, memes: int) -> None:
    """Writes a synthetic data set whose memes each take a given number of rounds."""
    make(data, Layout.HARMEME, train=_PRECEDENTS, val=4, test=memes, size=_PICTURE)
    test = data / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text("utf-8").splitlines()]
    # The fake server reads the number of rounds from the text.
    test.write_text(
        "".join(json.dumps({**row, "text": f"{row['text']} in {_ROUNDS} rounds"}) + "\n" for row in rows), "utf-8"
    )


def _pair(place: Path, procedure: str, memes: int) -> dict[str, float]:
    """Returns the figures of an undisturbed job and of one that is killed."""
    ideal, busy = _run_session(place, procedure, memes, ())
    killed, _ = _run_session(place, procedure, memes, KILLED_AT)
    figures: dict[str, float] = {
        f"{procedure}_over_ideal": killed.wall_s / ideal.wall_s,
        f"{procedure}_memory": ideal.end / ideal.tenth,
        f"{procedure}_ideal_s": ideal.wall_s,
        f"{procedure}_restart_s": killed.restart_s,
        f"{procedure}_memory_mib": ideal.end / _MIB,
    }
    if procedure == "full":
        figures["full_calls_twice"] = ideal.again + killed.again
        figures["full_calls_lost"] = killed.lost
        figures["full_calls"] = ideal.asked
        figures["full_of_capacity"] = busy / (CAPACITY * ideal.wall_s)
    return figures


def _run_session(place: Path, procedure: str, memes: int, killed_at: Sequence[float]) -> tuple[SessionCost, float]:
    """Runs the job; returns its cost and the time that the server worked on it, in seconds."""
    name = f"{procedure}-{'killed' if killed_at else 'alone'}"
    # A separate home directory, so that no files of another job are found.
    job = Job(place / name, memes, {**os.environ, "MEMECOURT_HOME": str(place / f"home-{name}")})
    new: tuple[object, ...] = (
        "--dataset",
        "synthetic-harmeme",
        "--data",
        place / "data",
        "--out",
        job.out,
        "--procedure",
        procedure,
    )
    if memes < _count(place / "data" / "test.jsonl"):
        new = (*new, "--limit", memes)
    if procedure == "summary":
        return job.finish(new, (), None, killed_at), 0.0
    counting = Counting()
    with counting.listening() as url:
        finished = job.finish(new, ("--llm-url", url, "--model", "stand-in"), counting, killed_at)
    stats = counting.server.stats
    return finished, stats.answered * SPEED.call_s + stats.output_tokens * SPEED.output_token_s


class Counting:
    """A fake model server in a separate thread that recognises each call and finds its reply in a call store.

    Attributes:
        asked: Keys of the calls, in order of arrival.
    """

    def __init__(self) -> None:
        """Does not listen yet."""
        settings = Settings(
            call_s=SPEED.call_s, output_token_s=SPEED.output_token_s, capacity=CAPACITY, model="stand-in"
        )
        self.server = FakeModelServer(settings, answer=self._answer, odds=self._likely)
        self.asked: list[str] = []
        self._of_mass: dict[float, str] = {}

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Serves while the context lasts; yields the address."""
        ready, end = threading.Event(), asyncio.Event()
        loops: list[tuple[asyncio.AbstractEventLoop, int]] = []

        async def serve() -> None:
            async with serving(self.server) as port:
                loops.append((asyncio.get_running_loop(), port))
                ready.set()
                await end.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), name="stand-in")
        thread.start()
        ready.wait()
        (loop, port) = loops[0]
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            # The event belongs to the other thread's loop, which a plain `set` would not wake up.
            loop.call_soon_threadsafe(end.set)
            thread.join()

    def stored_calls(self, store: Path) -> set[str]:
        """Returns the keys of the calls whose replies are in a store; empty if there is no store."""
        if not store.exists():
            return set()
        with closing(sqlite3.connect(store)) as file:
            bodies = [json.loads(body) for (body,) in file.execute("SELECT body FROM calls")]
        found = {tag for body in bodies for tag in _TAG.findall(body.get("text", ""))}
        # For a log-probability call no text is stored; the probability of its first letter identifies it. The value is
        # sent as a logarithm, so it comes back equal only up to rounding.
        masses = (round(mass, 12) for body in bodies for mass in body.get("masses", ()))
        return found | {self._of_mass[mass] for mass in masses if mass in self._of_mass}

    def _answer(self, body: dict[str, Any]) -> str | None:
        sent = scripted_reply(body)
        if sent is None:
            return None  # the client probes the server's capabilities
        tag = _tag(body)
        self.asked.append(tag)
        reply = json.loads(sent)
        # The reply carries the key, so that the key can be found in the call store afterwards.
        name = next(name for name in _TAGGED if name in reply)
        # Inserted before the final punctuation mark, so that a question remains a question.
        end = "?" if reply[name].endswith("?") else "."
        return json.dumps({**reply, name: f"{reply[name].rstrip('?.')} {tag}{end}"})

    def _likely(self, body: dict[str, Any]) -> Mapping[str, float]:
        """Returns probabilities of the letters; the probability of the first identifies the call."""
        tag = _tag(body)
        # From 0.05 to 0.9, so that the probability left for B is never negative.
        mass = 0.05 + 0.85 * int(tag.removeprefix("asked"), 16) / 2**64
        if "Answer with the letter alone" in json.dumps(body["messages"][-1]):
            self.asked.append(tag)
            self._of_mass[round(mass, 12)] = tag
        # Some probability goes to other tokens, as with real models.
        return {"A": mass, "B": 0.98 - mass}


def _tag(body: Mapping[str, Any]) -> str:
    """Returns a key of a call. A picture counts by its id, because its bytes are sent only if the server lacks it."""

    def plain(part: Any) -> Any:
        return part["uuid"] if isinstance(part, dict) and part.get("uuid") else part

    messages = [
        [message["role"], [plain(part) for part in message["content"]]] for message in body["messages"]
    ]  # a text is iterated letter by letter here, which works as well
    known = json.dumps([messages, body.get("response_format"), body.get("logprobs")], sort_keys=True)
    return "asked" + hashlib.sha256(known.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Job:
    """A run in separate processes."""

    out: Path
    memes: int
    environment: Mapping[str, str]
    program: Sequence[str] = (sys.executable, "-m", "eval", "run")
    _memory: list[tuple[int, int]] = field(default_factory=list)  # memes judged, bytes
    _first: list[float] = field(default_factory=list)  # seconds to the first meme, for each resuming process

    def finish(
        self, new: Sequence[object], servers: Sequence[str], counting: Counting | None, killed_at: Sequence[float]
    ) -> SessionCost:
        """Runs the job to completion.

        Args:
            new: Options that start the job.
            servers: Options that each of its processes needs.
            counting: The model server, if the job uses one.
            killed_at: Shares of its memes after which its process is killed, in ascending order.

        Raises:
            RuntimeError: A process ended before it was killed, or with an error.
        """
        wall, calls, again, lost = 0.0, 0, 0, 0
        begin = new
        before: set[str] = set()
        for share in (*killed_at, None):
            since = len(counting.asked) if counting else 0
            wall += self._process([*begin, *servers], None if share is None else int(share * self.memes))
            if counting is not None:
                fresh = counting.asked[since:]
                calls += len(fresh)
                # Calls whose reply the store held when this process started, and calls that it sent twice itself.
                again += len(before & set(fresh)) + len(fresh) - len(set(fresh))
                before = counting.stored_calls(self.out / CALLS)
                lost += len(set(fresh) - before) if share is not None else 0
            begin = ("--resume", self.out)
        after_tenth = [(done / self.memes, used) for done, used in self._memory if done / self.memes >= 0.1]
        # A short job may pass that point between two samples; then the first sample after it is used.
        tenth = [used for share, used in after_tenth if share < 0.15] or [used for _, used in after_tenth[:1]]
        end = [used for done, used in self._memory if done / self.memes >= 0.95]
        return SessionCost(
            wall_s=wall,
            restart_s=sum(self._first) / max(len(self._first), 1),
            asked=calls,
            again=again,
            lost=lost,
            tenth=max(tenth, default=0),
            end=max(end, default=0),
        )

    def _process(self, options: Sequence[object], until: int | None) -> float:
        """Runs one process to its end, or kills it once ``until`` memes are judged; returns its run time in seconds."""
        judged = OutputLines(self.out / PREDICTIONS)
        already = judged.count()
        command = [*self.program, *map(str, options)]
        log = self.out.with_name(f"{self.out.name}.log")
        first: float | None = None
        with log.open("ab") as log_file:
            began = time.perf_counter()
            process = subprocess.Popen(command, stdout=log_file, stderr=log_file, env=self.environment)
            try:
                while process.poll() is None:
                    done = judged.count()
                    if first is None and done > already:
                        first = time.perf_counter() - began
                    if until is not None and done >= until:
                        # SIGKILL: no handler runs and nothing is flushed, as when memory has run out.
                        process.kill()
                        process.wait()
                        break
                    if done < self.memes:
                        self._memory.append((done, _memory_of(process.pid)))
                    time.sleep(_POLL_S)
                wall = time.perf_counter() - began
            finally:
                # Also when the benchmark is interrupted: the job must not keep running without it.
                process.kill()
                process.wait()
        # A killed process exits with a code other than 0, an undisturbed one with 0; anything else is an error.
        if (process.returncode == 0) is (until is not None):
            tail = log.read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"The job {self.out.name} ended with exit code {process.returncode}:\n{tail}")
        # Only for a process that resumed the job, not for the first one.
        if already and first is not None:
            self._first.append(first)
        return wall


class OutputLines:
    """Counts the lines of a file that grows or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._at, self._lines = 0, 0, 0

    def count(self) -> int:
        """Returns the number of lines now; 0 if there is no file."""
        try:
            with self._path.open("rb") as file:
                # From the open file, not from its path: between two calls by path the file could be replaced.
                about = os.fstat(file.fileno())
                if about.st_ino != self._file or about.st_size < self._at:
                    self._file, self._at, self._lines = about.st_ino, 0, 0
                file.seek(self._at)
                new = file.read()
        except FileNotFoundError:
            return 0
        self._at += len(new)
        self._lines += new.count(b"\n")
        return self._lines


def _count(path: Path) -> int:
    return OutputLines(path).count()


def _memory_of(pid: int) -> int:
    """Resident memory of a process and all its descendants, in bytes (Linux); 0 for one that has ended."""
    try:
        own = resident_bytes(pid)
        children = [
            int(child)
            # A thread's file names only the children that this thread started.
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return own + sum(_memory_of(child) for child in children)
