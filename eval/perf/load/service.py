"""The service compared with its lower bounds: a bare echo, its encoder alone, and its own memory earlier.

``service``: the overhead of the service over gRPC when the verdict is ready. 64 clients, each over its own connection,
request verdicts on memes that the server knows, and then answers of the same size from a bare ``grpc.aio`` echo, in
turns: the client process is the same for both, so the cost of the clients is on both sides. This is measured once
without ids, and once with a new id in each request: such a request is claimed in the docket, on disk, before it is
answered, so that the same id always gets the same verdict. Figures of the latter begin with ``named``; they have no
goal, because an echo that stores nothing on disk is no fair comparison. CPU time is reported too: it varies less than
wall-clock time on a shared machine; with few processors, the clients take their share of both.

``service-summary``: the share of its encoder's throughput that a server reaches in ``summary`` trials of ever new memes
whose text is given. The encoder alone gets the same texts and pictures, decoded in advance, one meme at a time
as they come, in a process that does nothing else; the server also decodes, searches, judges and stores, which is the
difference from 1. The choice of encoder matters: the built-in one is so fast that the rest dominates, a CLIP model on
a CPU takes nearly all the time. ``MEMECOURT_PERF_ENCODER`` selects another than the built-in one, as
``MEMECOURT_ENCODER`` does.

``memory``: whether a server grows with the number of answers: its memory after 100,000 requests over that after 10,000.
Most are known memes under new names, one in fifty is a new meme: caches are full by the first reading, so later
requests should fit into the existing memory. The server's own process is measured; its child processes hold no requests
between two calls.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from court.backends.pictures.reader import GuardedPictureReader
from court.meme import Picture
from eval.perf.bench import Result, in_turns, medians
from eval.perf.load.clients import Job, LoadOutcome, ask, echo
from eval.perf.load.known import known_memes, picture, served_known, settled
from eval.standin.process import Process, Resources, served
from retrieval.embed.encoder import Encoder
from retrieval.open import load_encoder_for

ENCODER_VARIABLE = "MEMECOURT_PERF_ENCODER"
"""The encoder to measure with; the built-in one if it is not set."""
_TEXT = "A text that nobody has sent before, with number"
_NEW = 50
"""One in so many requests is about a meme that is new."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """Rate of a server's answers, and CPU time per answer of the server and of the clients."""

    requests_s: float
    cpu_ms: float
    client_cpu_ms: float


def service(*, memes: int = 64, clients: int = 64, seconds: float = 8.0, turns: int = 3) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
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


def service_summary(
    *, pictures: int = 32, clients: int = 16, requests: int = 300, turn_s: float = 10.0, turns: int = 7
) -> Result:
    """Runs the benchmark.

    Args:
        pictures: Different pictures; every text is new.
        requests: Requests of a turn, at most.
        turn_s: Approximate seconds that a turn takes the encoder alone; at most.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    named = os.environ.get(ENCODER_VARIABLE) or None
    encoder = load_encoder_for(None, named)
    decoded = asyncio.run(_decoded(pictures))
    with TemporaryDirectory(prefix="memecourt-summary-") as directory:
        place = Path(directory)
        files = known_memes(place, pictures)
        with served(place / "home", environment={"MEMECOURT_ENCODER": named} if named else None) as server:
            _alone(encoder, decoded, clients)  # warms up
            a_meme = _alone(encoder, decoded, clients) / clients
            # Sized by the speed of the encoder: a CLIP model on a CPU is much slower than the built-in one.
            count = min(requests, max(2 * clients, round(turn_s / a_meme)))
            # The turn is limited by `most` and not by `seconds`, so that both process the same number of memes.
            job = Job(server.address, files, clients=clients, seconds=600.0, most=count, text=_TEXT)
            taken = [(count / _alone(encoder, decoded, count), ask(job).require_all_answered()) for _ in range(turns)]
    return Result(
        figures={
            **medians(
                taken,
                of_encoder=lambda alone, outcome: outcome.rate / alone,
                requests_s=lambda _, outcome: outcome.rate,
                encoder_s=lambda alone, _: alone,
                p99_ms=lambda _, outcome: outcome.p99_ms,
            ),
            "requests_a_turn": count,
        },
        goals={"of_encoder": ">= 0.6"},
    )


async def _decoded(count: int) -> Sequence[Picture]:
    reader = GuardedPictureReader(workers=1)
    try:
        return [await reader.read(picture(number)) for number in range(count)]
    finally:
        await reader.aclose()


def _alone(encoder: Encoder, pictures: Sequence[Picture], count: int) -> float:
    """Returns the seconds that the encoder takes for ``count`` memes."""
    run = uuid.uuid4().hex[:16]  # as the clients mark their texts, which this makes twice as long
    began = time.perf_counter()
    for number in range(count):
        encoder.embed_texts([f"{_TEXT} {run}-{number}"])
        encoder.embed_pictures([[frame.png for frame in pictures[number % len(pictures)].frames]])
    return time.perf_counter() - began


def memory(*, early: int = 10_000, late: int = 100_000, memes: int = 64) -> Result:
    """Runs the benchmark.

    Args:
        early: Requests before the first reading.
        late: Requests before the second, the early ones included.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    with served_known(memes) as (server, requests, _):
        first = _after(server, requests, early)
        last = _after(server, requests, late - early)
    return Result(
        figures={
            "late_over_early": last.memory / first.memory,
            "early_mib": first.memory,
            "late_mib": last.memory,
            "more_handles": last.handles - first.handles,
            "more_threads": last.threads - first.threads,
            "requests": late,
        },
        goals={"late_over_early": "<= 1.1"},
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
