"""Time to a single verdict while a batch keeps a real vLLM busy, with and without request priorities.

vLLM works on few requests at once here, so that a queue forms. Callers ask for single verdicts one after the other:
first with the server idle, then in turns next to a batch, with and without priorities. The batch keeps a constant
number of trials in flight. Every trial is about a new meme and takes the same number of rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from court.backends.pictures.reader import GuardedPictureReader
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from eval.perf.bench import Result
from eval.perf.trials.trials import unwatched
from eval.perf.vllm.court import Recorded, court_before, drawn_case
from eval.perf.vllm.server import tiny_vllm, vllm_python

AT_ONCE = 4
"""Requests that the engine works on at once."""
_ROUNDS = 2
_SETTINGS = TrialSettings(rounds_min=_ROUNDS, rounds_max=_ROUNDS, reply_chars=160)


def vllm_priorities(*, turns: int = 2, verdicts: int = 4, batch: int = 6) -> Result:
    """Runs the benchmark.

    Args:
        turns: Number of times that each way is measured.
        verdicts: Single verdicts per turn.
        batch: Trials of the batch in flight at any time.
    """
    alone, ranked, unranked = asyncio.run(_measured(turns, verdicts, batch))
    return result(alone, ranked, unranked, batch)


def result(alone: Sequence[float], ranked: Sequence[float], unranked: Sequence[float], batch: int) -> Result:
    """Returns the figures, from times to single verdicts in seconds.

    Args:
        alone: Without a batch.
        ranked: Next to a batch, with priorities.
        unranked: Next to a batch, without.
        batch: Trials of the batch in flight at any time.
    """
    p99_alone, p99_ranked, p99_unranked = (float(np.percentile(times, 99)) for times in (alone, ranked, unranked))
    figures = {
        "p99_beside_batch_over_alone": p99_ranked / p99_alone,
        "p99_without_ranks_over_alone": p99_unranked / p99_alone,
        "p99_without_ranks_over_with": p99_unranked / p99_ranked,
        "median_without_ranks_over_with": statistics.median(unranked) / statistics.median(ranked),
        "p99_alone_s": p99_alone,
        "p99_beside_batch_s": p99_ranked,
        "p99_without_ranks_s": p99_unranked,
        "verdicts": len(ranked),
        "batch": batch,
        "at_once": AT_ONCE,
        "rounds": _ROUNDS,
    }
    # The bound is on the median: with so few verdicts, the 99th percentile is hardly more than the slowest one.
    return Result(figures, {"median_without_ranks_over_with": ">= 1.2"})


async def _measured(turns: int, verdicts: int, batch: int) -> tuple[list[float], list[float], list[float]]:
    """Returns times to single verdicts in seconds: alone, next to a batch with priorities, and next to one without."""
    alone: list[float] = []
    beside: dict[bool, list[float]] = {True: [], False: []}
    reader = GuardedPictureReader(workers=1)
    numbers = itertools.count()
    try:
        async with (
            tiny_vllm(vllm_python(), "--max-num-seqs", str(AT_ONCE)) as server,
            court_before(server, _SETTINGS) as (court, model),
        ):
            assert model.capabilities.priorities, "this vLLM has no ranks"
            await court.hear(await drawn_case(reader, next(numbers)), unwatched)  # caches the shared prefix
            for turn in range(turns):
                alone += await _single(court, reader, numbers, verdicts)
                # The order changes with each turn, so that a slowdown of the machine favours neither.
                for ranks in (True, False) if turn % 2 == 0 else (False, True):
                    _rank(model, ranks)
                    async with _batch(court, reader, numbers, batch):
                        beside[ranks] += await _single(court, reader, numbers, verdicts)
                _rank(model, True)
    finally:
        await reader.aclose()
    return alone, beside[True], beside[False]


def _rank(model: Recorded, ranks: bool) -> None:
    # The client sends priorities only if it believes that the server supports them.
    model.capabilities = replace(model.capabilities, priorities=ranks)


async def _single(court: Court, reader: GuardedPictureReader, numbers: Iterator[int], verdicts: int) -> list[float]:
    """Returns the times of trials that are run one after the other."""
    times = []
    for _ in range(verdicts):
        case = await drawn_case(reader, next(numbers))
        began = time.perf_counter()
        await court.hear(case, unwatched)
        times.append(time.perf_counter() - began)
    return times


@asynccontextmanager
async def _batch(court: Court, reader: GuardedPictureReader, numbers: Iterator[int], count: int) -> AsyncIterator[None]:
    """Keeps ``count`` trials of a batch in flight while the block lasts."""

    async def keep_on() -> None:
        while True:
            case: TrialCase = await drawn_case(reader, next(numbers))
            await court.hear(replace(case, batch=True), unwatched)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keep_on()) for _ in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
