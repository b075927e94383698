"""Engine steps that a full trial takes on a real vLLM, over those that its longest chain of calls needs.

vLLM generates in steps; in each, every running request gets one token, and the step that computes a prompt yields the
first token of its reply. So a call takes as many steps as its reply has tokens, and the floor of a trial is
``D + R (q + a) + s + J`` in tokens of the record, by the slower side; a ruling that was repaired counts twice. Steps
are those that ``/metrics`` counts (``vllm:iteration_tokens_total``, one observation for each step that yielded a
token). If a chain waits for us while the other side's replies are generated, the steps exceed the floor. To validate
the count, it is compared with the naive order too: nothing runs concurrently there, and each token is one step.

Both orders run the same number of rounds, on separate memes and in turns; the model writes nonsense up to the maximum
length of a reply, so replies are nearly but not quite equally long: seconds per token are reported next to seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from court.backends.pictures.reader import GuardedPictureReader
from court.settings import TrialSettings
from eval.perf.bench import Result, medians
from eval.perf.trials.overhead import naive
from eval.perf.trials.trials import Speed, Times, times, unwatched
from eval.perf.vllm.court import court_before, drawn_case
from eval.perf.vllm.server import figure, metrics, tiny_vllm, vllm_python
from serving.models.vllm import VllmServer

STEPS = Speed(output_token_s=1.0, repairs=True)
"""A clock that ticks once a step."""
ROUNDS = 6
"""Those of the shorter of the paper's two examples, as in ``trial-naive``."""
_SETTINGS = TrialSettings(rounds_min=ROUNDS, rounds_max=ROUNDS, reply_chars=600)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineUse:
    """Engine use of one trial.

    Attributes:
        wall_s: From its start to its verdict, in seconds.
    """

    wall_s: float
    steps: int
    tokens: int

    @property
    def a_token(self) -> float:
        """Seconds per token of a reply."""
        return self.wall_s / self.tokens


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trials, one right after the other.

    Attributes:
        naive: In the order of Algorithm 1 as printed.
        ours: In our order.
        needed: The calls of ours, in steps.
    """

    naive: EngineUse
    ours: EngineUse
    needed: Times


def vllm_steps(*, pairs: int = 4) -> Result:
    """Runs the benchmark."""
    return result(asyncio.run(_pairs(pairs)))


def result(pairs: Sequence[Pair]) -> Result:
    """Returns the figures of pairs of trials."""
    over_floor = [pair.ours.steps / pair.needed.floor for pair in pairs]
    rows = [(pair.naive, pair.ours, pair.needed) for pair in pairs]
    figures = {
        **medians(rows, steps_over_floor=lambda _, ours, needed: ours.steps / needed.floor),
        "best": min(over_floor),
        "worst": max(over_floor),
        **medians(
            rows,
            floor_steps=lambda _, __, needed: needed.floor,
            naive_over_ours=lambda naive, ours, _: naive.wall_s / ours.wall_s,
            naive_over_ours_a_token=lambda naive, ours, _: naive.a_token / ours.a_token,
            by_lengths=lambda _, __, needed: needed.naive / needed.floor,
            ours_s=lambda _, ours, __: ours.wall_s,
            naive_s=lambda naive, *_: naive.wall_s,
            ours_tokens=lambda _, ours, __: ours.tokens,
            naive_tokens=lambda naive, *_: naive.tokens,
        ),
        "naive_steps_over_tokens": sum(pair.naive.steps for pair in pairs) / sum(pair.naive.tokens for pair in pairs),
        "rounds": ROUNDS,
    }
    goals = {
        "steps_over_floor": "<= 1.10",
        "naive_over_ours": ">= 2",
        "naive_steps_over_tokens": "== 1",
    }
    return Result(figures, goals)


async def _pairs(count: int) -> list[Pair]:
    reader = GuardedPictureReader(workers=1)
    try:
        cases = [await drawn_case(reader, number) for number in range(2 * count + 1)]
    finally:
        await reader.aclose()
    pairs = []
    async with tiny_vllm(vllm_python()) as server, court_before(server, _SETTINGS) as (court, _):
        await court.hear(cases.pop(), unwatched)  # from here on, the prefix that all trials share is cached
        # A separate meme for each trial, so that neither hits the cache thanks to the other.
        for one, other in zip(cases[::2], cases[1::2], strict=True):
            rounds, plain = await _counted(server, naive(court, one))
            assert rounds == (ROUNDS, ROUNDS), "not of the rounds that were meant"
            record, ours = await _counted(server, court.hear(other, unwatched))
            needed = times(record, STEPS)
            assert {side.rounds for side in needed.sides} == {ROUNDS}, "not of the rounds that were meant"
            assert needed.needed == ours.tokens, "the record's tokens are not those that the server wrote"
            pairs.append(Pair(plain, ours, needed))
    return pairs


async def _counted(server: VllmServer, trial: Awaitable[T]) -> tuple[T, EngineUse]:
    """Runs a trial; returns its result and its use of the engine."""
    before = await _counters(server)
    began = time.perf_counter()
    result = await trial
    wall_s = time.perf_counter() - began
    # No other client uses this server: everything it counted in the meantime belongs to this trial.
    steps, tokens = (now - then for then, now in zip(before, await _counters(server), strict=True))
    return result, EngineUse(wall_s, steps, tokens)


async def _counters(server: VllmServer) -> tuple[int, int]:
    """Returns engine steps and reply tokens since the server started."""
    counters = await metrics(server)
    names = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total")
    steps, tokens = (int(figure(counters, name)) for name in names)
    return steps, tokens
