"""The service beside what could be had without it: a bare echo, its encoder alone, its own memory earlier.

``service``: what the service adds to gRPC where the verdict is ready. 64 clients, each over a connection of its own,
ask a server for the verdicts on memes that it knows, and then a bare ``grpc.aio`` echo for as many bytes, in turns: the
same client process for both, so that what the clients cost is on both sides. Once without ids, and once with a new id
in each request: such a request is claimed in the docket, on disk, before it is answered, so that the same id gets the
same verdict ever after. Figures of the latter begin with ``named``; they have no goal, for an echo that keeps nothing
on a disk says little of them. Time on a processor stands beside: it moves less than the clock where the machine does
other work too, and on a machine with few processors the clients take their share of both.

``service-summary``: how much of what its encoder could do a server does, in ``summary`` trials of ever new memes whose
text is given. The encoder alone is given the same texts and pictures, decoded beforehand, one meme at a time as they
come, in a process that does nothing else; the server decodes, searches, judges and keeps besides. What is missing from
1 is that. Which encoder it is matters: the built-in one takes so little that the rest weighs, a CLIP model on a
processor takes nearly all there is. ``MEMECOURT_PERF_ENCODER`` names another than the built-in one, as
``MEMECOURT_ENCODER`` does.

``memory``: whether a server grows with what it has answered, its memory after 100,000 requests over that after 10,000.
Most are known memes under fresh names, one in fifty is a meme that nobody has asked about: caches are full by the first
reading, so what comes later ought to find its place in the room that was there. The server's own process is measured;
those that it starts hold no requests between two calls.
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
from eval.perf.load.process import Process, Resources, known_memes, picture, served, served_known, settled
from retrieval.embed.encoder import Encoder
from retrieval.open import load_encoder_for

ENCODER_VARIABLE = "MEMECOURT_PERF_ENCODER"
"""The encoder to measure with; the built-in one if it is not set."""
_TEXT = "A text that nobody has sent before, with number"
_NEW = 50
"""One in so many requests is about a meme that is new."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """Rate of a server's answers, and CPU time of an answer at the server and at the clients."""

    requests_s: float
    cpu_ms: float
    client_cpu_ms: float


def service(*, memes: int = 64, clients: int = 64, seconds: float = 8.0, turns: int = 3) -> Result:
    """Runs the benchmark.

    Args:
        memes: Known memes.
        clients: Clients that ask at once.
        seconds: Length of a turn.
        turns: Turns of each server.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    with (
        served_known(memes) as (server, requests, answer_bytes),
        # As many bytes as an answer of the service has.
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
            # Without a turn for it: each job warms up by itself.
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
        # At half of what the server can do: at its best rate, latency would only be that of a queue.
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
    # The warming up counts for all: it is asked for at the same rate.
    spent = (process.cpu_s() - before) * job.seconds / (job.seconds + job.warm_s)
    return _Rate(outcome.rate, 1000 * spent / outcome.answered, 1000 * outcome.cpu_s / outcome.answered)


def _at_rate(job: Job, echo_address: str, turns: int) -> dict[str, float]:
    """Latencies at a rate that both can keep up with."""

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
        clients: Clients that ask at once.
        requests: Requests of a turn, at most.
        turn_s: Seconds that a turn takes the encoder alone, about; at most.
        turns: Turns of either.

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
            # Sized by the encoder itself: a CLIP model on a processor is much slower than the built-in one.
            count = min(requests, max(2 * clients, round(turn_s / a_meme)))
            # `most` ends the turn and not `seconds`, so that both do the same number of memes.
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
    """Seconds that the encoder takes for so many memes."""
    run = uuid.uuid4().hex[:16]  # as the clients mark their texts, which are twice as long by it
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
        memes: Known memes.

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
    """Returns the server's resources after that many more answers, when the callers have left."""
    new = count // _NEW
    # Without warming up, and with more seconds than it can take: the number of requests has to be exact.
    for number, text in ((count - new, ""), (new, "A new text with number")):
        # A `most` of 0 would mean no limit.
        if number:
            job = Job(server.address, requests, seconds=36_000.0, warm_s=0.0, most=number, text=text)
            ask(job).require_all_answered()
    return settled(server)
