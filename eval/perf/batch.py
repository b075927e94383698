"""A long batch job that is killed and taken up again, against the same job that nobody disturbs.

``memecourt-eval run`` judges synthetic memes, as a process of its own: many by ``summary``, fewer by ``full`` before a
stand-in model server. Each job is held twice. The ideal is the time that it takes undisturbed, from the start of the
process to its end. The other one is killed (SIGKILL) after a quarter, a half and three quarters of its memes; its time
is that of its four processes together, so that everything that a resumption costs is in it: starting, loading, looking
up what is there, and what was under way when the process died.

A call is made twice where a process asks for something that the store of calls held before it began. What was on its
way to or from the server when a process died can't have been stored, is asked again, and is counted apart.

The two jobs of a pair run one after the other: on a machine that others use, the ratio is as noisy as the machine.
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
from eval.perf.model_server.replies import scripted_reply
from eval.perf.model_server.server import FakeModelServer, serving
from eval.perf.model_server.settings import Settings
from eval.perf.trials.trials import Speed
from eval.runs.folder import CALLS, PREDICTIONS
from eval.synthetic.make import Layout, make

SIZE_VARIABLE = "MEMECOURT_PERF_BATCH"
"""Memes of the two jobs, ``summary,full``, to try the benchmark with fewer."""
SPEED = Speed(call_s=0.02, output_token_s=0.002)
CAPACITY = 16
KILLED_AT = (0.25, 0.5, 0.75)
"""Shares of the memes that are judged when the process is killed."""
_PRECEDENTS = 40
_PICTURE = (160, 120)  # pixels: what is measured is not how fast pictures are decoded
_ROUNDS = 2
_POLL_S = 0.1
_TAG = re.compile(r"asked[0-9a-f]{16}")
_TAGGED = ("question", "answer", "description", "justification", "rationale")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionCost:
    """A job that was held to its end.

    Attributes:
        wall_s: Seconds of all its processes, from start to end each.
        restart_s: From the start of a process that takes it up again to the first meme that it has judged; mean, 0
            where it was never taken up.
        asked: Calls that reached the server.
        again: Number of those that the store of calls contained when the process began.
        lost: Calls that were asked again because their process died before they were stored.
        tenth: Memory when a tenth of the memes was judged, in bytes; processes that it started included.
        end: Memory when nearly all were done.
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
        summary: Memes of the job by ``summary``, unless the environment says another number.
        full: Memes of the job by ``full``, likewise.

    Raises:
        BadRequest: The environment asks for something else than two numbers.
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
    """Memes of either job from ``summary,full``. Raises BadRequest for anything else."""
    try:
        summary, full = (int(word) for word in words.split(","))
    except ValueError:
        summary = full = 0
    # Memory is read once 95 % of the memes are done: from 20 memes on, that is before the last one.
    if min(summary, full) < 20:
        raise BadRequest(f"{SIZE_VARIABLE} is {words!r}. Give two numbers of at least 20, as in 400,60.")
    return summary, full


def _make(data: Path, memes: int) -> None:
    """A synthetic data set whose memes are tried in so many rounds each."""
    make(data, Layout.HARMEME, train=_PRECEDENTS, val=4, test=memes, size=_PICTURE)
    test = data / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text("utf-8").splitlines()]
    # The stand-in reads the number of rounds off the text.
    test.write_text(
        "".join(json.dumps({**row, "text": f"{row['text']} in {_ROUNDS} rounds"}) + "\n" for row in rows), "utf-8"
    )


def _pair(place: Path, procedure: str, memes: int) -> dict[str, float]:
    """Figures of a job that is left alone and of one that is killed."""
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
    """The job, and seconds that the server worked on it."""
    name = f"{procedure}-{'killed' if killed_at else 'alone'}"
    # With a home of its own, where it finds nothing that another job has left.
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
    """A stand-in in a thread of its own that knows each call again, and finds its reply in a store of calls.

    Attributes:
        server: The stand-in.
        asked: Keys of the calls, in order of arrival.
    """

    def __init__(self) -> None:
        """Listens to nothing yet."""
        settings = Settings(
            call_s=SPEED.call_s, output_token_s=SPEED.output_token_s, capacity=CAPACITY, model="stand-in"
        )
        self.server = FakeModelServer(settings, answer=self._answer, odds=self._likely)
        self.asked: list[str] = []
        self._of_mass: dict[float, str] = {}

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Answers for as long as the context lasts; gives its address."""
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
            # The event belongs to the loop of the other thread, which would not wake up for a plain `set`.
            loop.call_soon_threadsafe(end.set)
            thread.join()

    def stored_calls(self, store: Path) -> set[str]:
        """Which calls a store holds the replies of; none where there is no store."""
        if not store.exists():
            return set()
        with closing(sqlite3.connect(store)) as file:
            bodies = [json.loads(body) for (body,) in file.execute("SELECT body FROM calls")]
        found = {tag for body in bodies for tag in _TAG.findall(body.get("text", ""))}
        # Of a call for odds no text is stored: the mass of its first letter identifies it. On its way the mass is a
        # logarithm, so it comes back equal only to so many digits.
        masses = (round(mass, 12) for body in bodies for mass in body.get("masses", ()))
        return found | {self._of_mass[mass] for mass in masses if mass in self._of_mass}

    def _answer(self, body: dict[str, Any]) -> str | None:
        sent = scripted_reply(body)
        if sent is None:
            return None  # the client asks what the server can do
        tag = _tag(body)
        self.asked.append(tag)
        reply = json.loads(sent)
        # The key goes into the reply and with it into the store of calls, where it is searched for afterwards.
        name = next(name for name in _TAGGED if name in reply)
        # Before the last mark, so that a question stays one.
        end = "?" if reply[name].endswith("?") else "."
        return json.dumps({**reply, name: f"{reply[name].rstrip('?.')} {tag}{end}"})

    def _likely(self, body: dict[str, Any]) -> Mapping[str, float]:
        """Returns probabilities of the letters; that of the first identifies the call."""
        tag = _tag(body)
        # From 0.05 to 0.9, so that what is left for B is never negative.
        mass = 0.05 + 0.85 * int(tag.removeprefix("asked"), 16) / 2**64
        if "Answer with the letter alone" in json.dumps(body["messages"][-1]):
            self.asked.append(tag)
            self._of_mass[round(mass, 12)] = tag
        # A little of the mass goes to other tokens, as with real models.
        return {"A": mass, "B": 0.98 - mass}


def _tag(body: Mapping[str, Any]) -> str:
    """Returns a key of a call. A picture counts by its id: its bytes are sent only if the server lacks it."""

    def plain(part: Any) -> Any:
        return part["uuid"] if isinstance(part, dict) and part.get("uuid") else part

    messages = [
        [message["role"], [plain(part) for part in message["content"]]] for message in body["messages"]
    ]  # a text is a sequence of letters here, which serves as well
    known = json.dumps([messages, body.get("response_format"), body.get("logprobs")], sort_keys=True)
    return "asked" + hashlib.sha256(known.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Job:
    """A run as processes of its own.

    Attributes:
        out: Its folder.
        memes: Number of memes to judge.
        environment: Environment of its processes.
        program: Program that is called with the options.
    """

    out: Path
    memes: int
    environment: Mapping[str, str]
    program: Sequence[str] = (sys.executable, "-m", "eval", "run")
    _memory: list[tuple[int, int]] = field(default_factory=list)  # memes judged, bytes
    _first: list[float] = field(default_factory=list)  # seconds to the first meme, per process that took it up

    def finish(
        self, new: Sequence[object], servers: Sequence[str], counting: Counting | None, killed_at: Sequence[float]
    ) -> SessionCost:
        """Held to its end.

        Args:
            new: Options that begin it.
            servers: Options that each of its processes needs.
            counting: The server, if it asks one.
            killed_at: Shares of its memes after which its process is killed, in rising order.

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
                # Those that the store had when this process began, and those that it sent twice itself.
                again += len(before & set(fresh)) + len(fresh) - len(set(fresh))
                before = counting.stored_calls(self.out / CALLS)
                lost += len(set(fresh) - before) if share is not None else 0
            begin = ("--resume", self.out)
        after_tenth = [(done / self.memes, used) for done, used in self._memory if done / self.memes >= 0.1]
        # A short job may go on to more than that between two looks: the first one after it has to do.
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
        """One process, to its end or until so many memes are judged; the seconds that it lived."""
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
                # Also where the benchmark is interrupted: the job must not go on without it.
                process.kill()
                process.wait()
        # A killed process has another code than 0, one that was left alone has 0: anything else is an error of the job.
        if (process.returncode == 0) is (until is not None):
            tail = log.read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"The job {self.out.name} ended with exit code {process.returncode}:\n{tail}")
        # Only for a process that took the job up, and not for the first.
        if already and first is not None:
            self._first.append(first)
        return wall


class OutputLines:
    """Counts the lines of a file that grows, or is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._at, self._lines = 0, 0, 0

    def count(self) -> int:
        """Returns the number of lines now; 0 if there is no file."""
        try:
            with self._path.open("rb") as file:
                # Of the open file and not of its path: between two calls by path it could be replaced.
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
    """Bytes of a process and of all that it started which are in memory (Linux); 0 for one that has ended."""
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
