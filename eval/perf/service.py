"""What the service adds to gRPC where the verdict is ready: known memes, asked again under fresh names.

64 clients, each over a connection of its own, ask a server for the verdicts on memes that it knows, and then a bare
``grpc.aio`` echo for as many bytes, in turns: the same client process for both, so that what the clients cost is on
both sides. Each request is claimed in the docket, on disk, before it is answered.

Time on a processor stands beside: it moves less than the clock where the machine does other work too, and on a machine
with few processors the clients take their share of both.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from eval.perf.asking import JUDGE, Job, ask, echo
from eval.perf.bench import Result
from eval.perf.served import Process, picture, served
from memecourt.v1 import court_pb2 as wire


@dataclass(frozen=True, slots=True)
class Size:
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


def measure(size: Size | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    size = size or Size()
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


def _compared(size: Size, server: Process, bare: Process, requests: list[str]) -> dict[str, float]:
    rates, cpu = [], []
    for _ in range(size.turns):
        pair = []
        for process in (server, bare):
            before = process.cpu_s()
            job = Job(process.address, requests, clients=size.clients, seconds=size.seconds)
            told = ask(job).require_all_answered()
            # The warming up counts on both sides: it is asked for at the same rate.
            spent = (process.cpu_s() - before) * size.seconds / (size.seconds + job.warm_s)
            pair.append((told.rate, 1000 * spent / told.answered, 1000 * told.cpu_s / told.answered))
        rates.append((pair[0][0], pair[1][0]))
        cpu.append((pair[0][1], pair[1][1], pair[1][2]))
    rate = statistics.median(ours for ours, _ in rates)
    added = _at_half(size, server, bare, requests, rate / 2)
    return {
        "of_echo": round(statistics.median(ours / echo for ours, echo in rates), 3),
        **added,
        "requests_s": round(rate, 1),
        "echo_requests_s": round(statistics.median(echo for _, echo in rates), 1),
        "cpu_over_echo": round(statistics.median(ours / echo for ours, echo, _ in cpu), 3),
        "cpu_ms": round(statistics.median(ours for ours, _, _ in cpu), 3),
        "echo_cpu_ms": round(statistics.median(echo for _, echo, _ in cpu), 3),
        "client_cpu_ms": round(statistics.median(client for _, _, client in cpu), 3),
        "request_kib": round(Path(requests[0]).stat().st_size / 1024, 1),
    }


def _at_half(size: Size, server: Process, bare: Process, requests: list[str], rate: float) -> dict[str, float]:
    """Latencies at a rate that both can keep up with."""
    turns = []
    for _ in range(size.turns):
        pair = [
            ask(
                Job(process.address, requests, clients=size.clients, seconds=size.seconds, rate=rate)
            ).require_all_answered()
            for process in (server, bare)
        ]
        turns.append(pair)
    return {
        "added_p99_over_echo": round(
            statistics.median((ours.p99_ms - echo.p99_ms) / echo.p99_ms for ours, echo in turns), 3
        ),
        "p99_ms": round(statistics.median(ours.p99_ms for ours, _ in turns), 2),
        "echo_p99_ms": round(statistics.median(echo.p99_ms for _, echo in turns), 2),
        "p50_ms": round(statistics.median(ours.p50_ms for ours, _ in turns), 2),
        "echo_p50_ms": round(statistics.median(echo.p50_ms for _, echo in turns), 2),
        "half_rate": round(rate, 1),
    }
