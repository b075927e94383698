"""The service compared with a bare echo and with its own memory earlier, and the cost of a call of a model.

**Answers.** The overhead of the service over gRPC when the verdict is ready. 64 clients, each over its own connection,
request verdicts on memes that the server knows, and then answers of the same size from a bare ``grpc.aio`` echo, in
turns: the client process is the same for both, so the cost of the clients is on both sides. This is measured once
without ids, and once with a new id in each request: such a request is claimed in the docket, on disk, before it is
answered, so that the same id always gets the same verdict. Figures of the latter begin with ``named``; they have no
goal, because an echo that stores nothing on disk is no fair comparison. CPU time is reported too: it varies less than
wall-clock time on a shared machine; with few processors, the clients take their share of both.

**Growth.** Memory, open files and threads of a server after 100,000 requests over those after 10,000.
Most are known memes under new names, one in fifty is a new meme: caches are full by the first reading, so later
requests should fit into the existing memory. The server's own process is measured; its child processes hold no requests
between two calls.

**Calls of a model.** See :func:`eval.perf.overhead.call_cpu`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class _Rate:
    """Rate of a server's answers, and CPU time per answer of the server and of the clients."""

    requests_s: float
    cpu_ms: float
    client_cpu_ms: float


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
    """Runs the benchmark.

    Args:
        early: Requests before the first reading of a server's memory.
        late: Requests before the second, the early ones included.

    Raises:
        RuntimeError: A server did not start, or a request was not answered.
    """
    answers = _answers(memes=memes, clients=clients, seconds=seconds, turns=turns)
    return answers | _growth(early, late, memes) | call_cpu(calls=calls, trials=trials)


def _answers(*, memes: int, clients: int, seconds: float, turns: int) -> Result:
    """Compares the rate and latency of answers with those of an echo.

    Raises RuntimeError: The server did not start, or a request was not answered.
    """
    with (
        served_known(memes) as (server, requests, answer_bytes),
        # Answers have the same size as the service's.
        echo(answer_bytes) as (address, pid),
    ):
        bare = Process(address, pid, server.home)
        job = Job(server.address, requests, clients=clients, seconds=seconds)
        ways = [
            lambda _: _rate(server, replace(job, named=False)),
            lambda _: _rate(server, job),
            lambda _: _rate(bare, replace(job, address=address)),
        ]
        rates = medians(
            # Without a separate warm-up turn: each job warms up by itself.
            in_turns(ways, range(turns), warm_up=False),
            of_echo=lambda ours, _, echo: ours.requests_s / echo.requests_s,
            named_of_echo=lambda _, named, echo: named.requests_s / echo.requests_s,
            requests_s=lambda ours, *_: ours.requests_s,
            named_requests_s=lambda _, named, __: named.requests_s,
            echo_requests_s=lambda _, __, echo: echo.requests_s,
            cpu_over_echo=lambda ours, _, echo: ours.cpu_ms / echo.cpu_ms,
            named_cpu_over_echo=lambda _, named, echo: named.cpu_ms / echo.cpu_ms,
            cpu_ms=lambda ours, *_: ours.cpu_ms,
            named_cpu_ms=lambda _, named, __: named.cpu_ms,
            echo_cpu_ms=lambda _, __, echo: echo.cpu_ms,
            client_cpu_ms=lambda _, named, __: named.client_cpu_ms,
        )
        # At half of the server's best rate: at full rate, latency would only be queueing time.
        plain = _at_rate(replace(job, named=False, rate=rates["requests_s"] / 2), address, turns)
        named = _at_rate(replace(job, rate=rates["named_requests_s"] / 2), address, turns)
        request_bytes = Path(requests[0]).stat().st_size
    return Result(
        figures={
            **rates,
            **plain,
            **{f"named_{name}": value for name, value in named.items()},
            "request_kib": request_bytes / 1024,
        },
        goals={"of_echo": ">= 0.5", "added_p99_over_echo": "<= 3"},
    )


def _rate(process: Process, job: Job) -> _Rate:
    before = process.cpu_s()
    outcome = ask(job).require_all_answered()
    # The CPU time includes the warm-up, which runs at the same rate.
    spent = (process.cpu_s() - before) * job.seconds / (job.seconds + job.warm_s)
    return _Rate(outcome.rate, 1000 * spent / outcome.answered, 1000 * outcome.cpu_s / outcome.answered)


def _at_rate(job: Job, echo_address: str, turns: int) -> dict[str, float]:
    """Returns latencies at a rate that both can keep up with."""

    def load(address: str) -> LoadOutcome:
        return ask(replace(job, address=address)).require_all_answered()

    measured = in_turns([lambda _: load(job.address), lambda _: load(echo_address)], range(turns), warm_up=False)
    return {
        **medians(
            measured,
            added_p99_over_echo=lambda ours, echo: (ours.p99_ms - echo.p99_ms) / echo.p99_ms,
            p99_ms=lambda ours, _: ours.p99_ms,
            echo_p99_ms=lambda _, echo: echo.p99_ms,
            p50_ms=lambda ours, _: ours.p50_ms,
            echo_p50_ms=lambda _, echo: echo.p50_ms,
        ),
        "half_rate": job.rate,
    }


def _growth(early: int, late: int, memes: int) -> Result:
    with served_known(memes) as (server, requests, _):
        first = _after(server, requests, early)
        last = _after(server, requests, late - early)
    return Result(
        figures={
            "memory_late_over_early": last.memory / first.memory,
            "handles_late_over_early": last.handles / first.handles,
            "threads_late_over_early": last.threads / first.threads,
            "memory_early_mib": first.memory,
            "memory_late_mib": last.memory,
            "requests": late,
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
            job = Job(server.address, requests, seconds=36_000.0, warm_s=0.0, most=number, text=text)
            ask(job).require_all_answered()
    return settled(server)


@contextmanager
def served_known(memes: int) -> Iterator[tuple[Process, list[str], int]]:
    """Runs a server that has already tried some memes; yields it, their request files, and an answer's size."""
    with TemporaryDirectory(prefix="memecourt-known-") as folder:
        requests = known_memes(Path(folder), memes)
        with served(Path(folder) / "home") as server:
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
