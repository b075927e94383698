"""What the service adds to gRPC where the verdict is ready: known memes, asked again.

64 clients, each over a connection of its own, ask a server for the verdicts on memes that it knows, and then a bare
``grpc.aio`` echo for as many bytes, in turns: the same client process for both, so that what the clients cost is on
both sides. Once without ids, and once with a new id in each request: such a request is claimed in the docket, on disk,
before it is answered, so that the same id gets the same verdict ever after. Figures of the latter begin with ``named``;
they have no goal, for an echo that keeps nothing on a disk says little of them.

Time on a processor stands beside: it moves less than the clock where the machine does other work too, and on a machine
with few processors the clients take their share of both.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from eval.perf.bench import Result
from eval.perf.load.clients import JUDGE, Job, Outcome, ask, echo
from eval.perf.load.process import Process, picture, served
from memecourt.v1 import court_pb2 as wire


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        memes: Known ones.
        clients: That ask at once.
        seconds: Of a turn.
        turns: Of each server.
    """

    memes: int = 64
    clients: int = 64
    seconds: float = 8.0
    turns: int = 3


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    size = size or Scale()
    with TemporaryDirectory(prefix="memecourt-service-") as directory:
        place = Path(directory)
        requests = known_memes(place, size.memes)
        with served(place / "home") as server:
            answer = first_answers(server, requests)
            with echo(answer) as (address, pid):
                figures = _compared(size, server, Process(address, pid, place), requests)
    figures["loadavg"] = round(os.getloadavg()[0], 2)
    return Result(
        name="service",
        figures=figures,
        goals={"of_echo": ">= 0.5", "added_p99_over_echo": "<= 3"},
    )


def known_memes(place: Path, count: int) -> list[str]:
    """Files with a request each, whose text is given."""
    paths = [place / f"request-{number}" for number in range(count)]
    for number, path in enumerate(paths):
        request = wire.JudgeRequest(image=picture(number), text=f"Meme number {number} of those that are known")
        path.write_bytes(request.SerializeToString())
    return [str(path) for path in paths]


def first_answers(server: Process, requests: list[str]) -> int:
    """Has all memes tried, so that they are known; the bytes of the last answer where it is given again."""
    with grpc.insecure_channel(server.address) as channel:
        judge: Any = channel.unary_unary(JUDGE, None, None)
        for name in (*requests, requests[-1]):
            answer = judge(Path(name).read_bytes(), timeout=120)
    if not wire.JudgeResponse.FromString(answer).HasField("reused_from"):
        raise RuntimeError("a meme that was tried before has been tried again")
    return len(answer)


def _compared(size: Scale, server: Process, bare: Process, requests: list[str]) -> dict[str, float]:
    turns = [
        (
            _rate(size, server, requests, named=False),
            _rate(size, server, requests, named=True),
            _rate(size, bare, requests, named=True),
        )
        for _ in range(size.turns)
    ]

    def median(of: Callable[[_Rate, _Rate, _Rate], float]) -> float:
        return round(statistics.median(of(*turn) for turn in turns), 3)

    rate = statistics.median(ours.requests_s for ours, *_ in turns)
    named_rate = statistics.median(named.requests_s for _, named, _ in turns)
    at_half = _at_half(size, server, bare, requests, rate / 2, named=False)
    named_at_half = _at_half(size, server, bare, requests, named_rate / 2, named=True)
    return {
        "of_echo": median(lambda ours, _, echo: ours.requests_s / echo.requests_s),
        "named_of_echo": median(lambda _, named, echo: named.requests_s / echo.requests_s),
        **at_half,
        **{f"named_{name}": value for name, value in named_at_half.items()},
        "requests_s": round(rate, 3),
        "named_requests_s": round(named_rate, 3),
        "echo_requests_s": median(lambda _, __, echo: echo.requests_s),
        "cpu_over_echo": median(lambda ours, _, echo: ours.cpu_ms / echo.cpu_ms),
        "named_cpu_over_echo": median(lambda _, named, echo: named.cpu_ms / echo.cpu_ms),
        "cpu_ms": median(lambda ours, *_: ours.cpu_ms),
        "named_cpu_ms": median(lambda _, named, __: named.cpu_ms),
        "echo_cpu_ms": median(lambda _, __, echo: echo.cpu_ms),
        "client_cpu_ms": median(lambda _, named, __: named.client_cpu_ms),
        "request_kib": round(Path(requests[0]).stat().st_size / 1024, 1),
    }


@dataclass(frozen=True, slots=True)
class _Rate:
    requests_s: float
    cpu_ms: float
    client_cpu_ms: float


def _rate(size: Scale, process: Process, requests: list[str], *, named: bool) -> _Rate:
    before = process.cpu_s()
    job = Job(process.address, requests, clients=size.clients, seconds=size.seconds, named=named)
    told = ask(job).require_all_answered()
    # The warming up counts for all: it is asked for at the same rate.
    spent = (process.cpu_s() - before) * size.seconds / (size.seconds + job.warm_s)
    return _Rate(told.rate, 1000 * spent / told.answered, 1000 * told.cpu_s / told.answered)


def _at_half(
    size: Scale, server: Process, bare: Process, requests: list[str], rate: float, *, named: bool
) -> dict[str, float]:
    """Latencies at a rate that both can keep up with."""
    job = Job(server.address, requests, clients=size.clients, seconds=size.seconds, rate=rate, named=named)
    turns = [
        (ask(job).require_all_answered(), ask(replace(job, address=bare.address)).require_all_answered())
        for _ in range(size.turns)
    ]

    def median(of: Callable[[Outcome, Outcome], float]) -> float:
        return round(statistics.median(of(*turn) for turn in turns), 3)

    return {
        "added_p99_over_echo": median(lambda ours, echo: (ours.p99_ms - echo.p99_ms) / echo.p99_ms),
        "p99_ms": median(lambda ours, _: ours.p99_ms),
        "echo_p99_ms": median(lambda _, echo: echo.p99_ms),
        "p50_ms": median(lambda ours, _: ours.p50_ms),
        "echo_p50_ms": median(lambda _, echo: echo.p50_ms),
        "half_rate": round(rate, 1),
    }
