"""The service compared with a bare echo and with its own memory earlier, and the cost of a call of a model.

**Answers.** The overhead of the service over gRPC when the verdict is ready. 64 clients, each over its own connection,
request verdicts on memes that the server knows, and then answers of the same size from a bare ``grpc.aio`` echo, in
turns: the client process is the same for both, so the cost of the clients is on both sides.

**Growth.** Memory, open files and threads of a server after 100,000 requests over those after 10,000.
Most are known memes under new ids, one in fifty is a new meme: caches are full by the first reading, so later
requests should fit into the existing memory. The server's own process is measured; its child processes hold no requests
between two calls.

**Calls of a model.** See :func:`eval.perf.overhead.call_cpu`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from eval.perf.bench import Result, in_turns, medians
from eval.perf.clients import JUDGE, Job, LoadOutcome, ask, echo
from eval.perf.overhead import call_cpu
from eval.standin.process import Process, Resources, served
from eval.synthetic.scenes import SCENES, draw_meme
from memecourt.v1 import court_pb2 as wire

_NEW = 50
"""One in so many requests is about a meme that is new."""


def service(
    *,
    memes: int = 64,
    clients: int = 64,
    seconds: float = 8.0,
    turns: int = 3,
    early: int = 10_000,
    late: int = 100_000,
    calls: int = 300,
    trials: int = 16,
) -> Result:
    """Runs the benchmark. Raises RuntimeError: A server did not start, or a request was not answered."""
    answers = _answers(memes=memes, clients=clients, seconds=seconds, turns=turns)
    return answers | _growth(early, late, memes) | call_cpu(calls=calls, trials=trials)


def _answers(*, memes: int, clients: int, seconds: float, turns: int) -> Result:
    """Compares the rate and latency of answers with those of an echo.

    Raises RuntimeError: The server did not start, or a request was not answered.
    """
    with (
        served_known(memes) as (server, requests, answer_bytes),
        # Answers have the same size as the service's.
        echo(answer_bytes) as (address, _),
    ):
        job = Job(server.address, requests, clients=clients, seconds=seconds)
        rates = medians(
            _in_turns(job, address, turns),
            of_echo=lambda ours, echo: ours.rate / echo.rate,
            requests_s=lambda ours, _: ours.rate,
        )
        # At half of the server's best rate: at full rate, latency would only be queueing time.
        latencies = medians(
            _in_turns(replace(job, rate=rates["requests_s"] / 2), address, turns),
            added_p99_over_echo=lambda ours, echo: (ours.p99_ms - echo.p99_ms) / echo.p99_ms,
            p99_ms=lambda ours, _: ours.p99_ms,
        )
    return Result({**rates, **latencies}, goals={"of_echo": ">= 0.5", "added_p99_over_echo": "<= 3"})


def _in_turns(job: Job, echo_address: str, turns: int) -> list[tuple[LoadOutcome, ...]]:
    jobs = [job, replace(job, address=echo_address)]
    # Without a separate warm-up turn: each job warms up by itself.
    return in_turns([partial(_run_job, job) for job in jobs], range(turns), warm_up=False)


def _run_job(job: Job, _turn: int) -> LoadOutcome:
    return ask(job).require_all_answered()


def _growth(early: int, late: int, memes: int) -> Result:
    with served_known(memes) as (server, requests, _):
        first = _after(server, requests, early)
        last = _after(server, requests, late - early)
    return Result(
        figures={
            "memory_late_over_early": last.memory / first.memory,
            "handles_late_over_early": last.handles / first.handles,
            "threads_late_over_early": last.threads / first.threads,
            "memory_late_mib": last.memory,
        },
        goals={f"{name}_late_over_early": "<= 1.1" for name in ("memory", "handles", "threads")},
    )


def _after(server: Process, requests: list[str], count: int) -> Resources:
    """Returns the server's resources after ``count`` answers in total, once the callers have left."""
    new = count // _NEW
    # Without warm-up, and with a generous time limit: the number of requests has to be exact.
    for number, text in ((count - new, ""), (new, "A new text with number")):
        # Skipped when 0: a `most` of 0 would mean no limit.
        if number:
            job = Job(server.address, requests, seconds=36_000.0, warm_s=0.0, most=number, named=True, text=text)
            ask(job).require_all_answered()
    return _settled(server)


@contextmanager
def served_known(memes: int) -> Iterator[tuple[Process, list[str], int]]:
    """Runs a server that has already tried some memes; yields it, their request files, and an answer's size."""
    with TemporaryDirectory(prefix="memecourt-known-") as folder:
        requests = _known_memes(Path(folder), memes)
        with served(Path(folder) / "home") as server:
            yield server, requests, _first_answers(server, requests)


def _known_memes(place: Path, count: int) -> list[str]:
    """Writes files with one request each, whose text is given."""
    paths = [place / f"request-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        request = wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        path.write_bytes(request.SerializeToString())
    return [str(path) for path in paths]


def _first_answers(server: Process, requests: list[str]) -> int:
    """Has all memes tried, so that they are known; returns the size of the last answer when its verdict is reused."""
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        for name in (*requests, requests[-1]):
            answer = judge(Path(name).read_bytes(), timeout=120)
    # Otherwise the load would measure trials, and not the path of a reused verdict.
    if not wire.JudgeResponse.FromString(answer).HasField("reused_from"):
        raise RuntimeError("a meme that was tried before has been tried again")
    return len(answer)


def picture(number: int, *, size: tuple[int, int] = (640, 480)) -> bytes:
    """Returns a unique generated meme as JPEG; some 30 to 60 KB at the default size."""
    file = io.BytesIO()
    drawn = draw_meme(sorted(SCENES)[number % len(SCENES)], f"Number {number}\nis like no other", seed=number)
    drawn.resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()


def _settled(process: Process, *, most_s: float = 10.0) -> Resources:
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
