"""CPU time in which battles become ratings, beside evalica's; and whether intervals cover what they say.

CPU time of this process, for 10^6 battles of 15 models whose places are known: counting them and fitting
Bradley-Terry's ratings to the last digits. evalica (0.4, Rust) is given the same places as lists, as it takes them, and
asked for a tolerance of 1e-14; the lists are made beforehand. Both in turns, the best of five.

Coverage is that of 95 % intervals over 200 tables, each of 100 memes with 8 tasks of three battles, whose memes suit
models differently (:mod:`eval.arena.ranking.simulation`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from court.errors import NotLoaded
from eval.arena.ranking.battles import Battles, Floats, rated
from eval.arena.ranking.bootstrap import spread
from eval.arena.ranking.bradley_terry import ratings
from eval.arena.ranking.simulation import World, coverage
from eval.perf.bench import Result, in_turns, seconds_of

_MODELS, _MEMES = 15, 500
_TIMES = 5
_RESAMPLES = 500
_WORLD = World(meme_effect=2.0, memes=100, tasks=8)


def ranking(*, battles: int = 1_000_000, tables: int = 200) -> Result:
    """Runs the benchmark: two minutes, most of them for coverage."""
    table = drawn(battles)
    ask_evalica = _evalica(table)

    def ours(_: int) -> float:
        return seconds_of(lambda: ratings(table), time.process_time)

    def theirs(_: int) -> float:
        return seconds_of(ask_evalica, time.process_time)

    # The best of them: whatever disturbs a run only adds to its time.
    cpu_s, evalica_cpu_s = (min(times) for times in zip(*in_turns([ours, theirs], range(_TIMES)), strict=True))
    covered = coverage(_WORLD, tables, resamples=_RESAMPLES)
    return Result(
        figures={
            "cpu_s": cpu_s,
            "evalica_cpu_s": evalica_cpu_s,
            "over_evalica": cpu_s / evalica_cpu_s,
            # To be faster counts only where the ratings are the same.
            "points_apart": float(np.abs(ratings(table) - ask_evalica()).max()),
            "bootstrap_cpu_s": seconds_of(lambda: spread(table).draws, time.process_time),
            "coverage": covered.memes,
            "coverage_of_battles": covered.rows,
        },
        goals={"cpu_s": "<= 0.1", "over_evalica": "<= 1", "points_apart": "<= 1e-06", "coverage": ">= 0.92"},
    )


def drawn(battles: int, seed: int = 0) -> Battles:
    """A table of so many battles, a fifth of them tied."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(0, 0.6, _MODELS)
    left = rng.integers(0, _MODELS, battles)
    # An offset from 1 to one less than the models: none meets itself.
    right = (left + rng.integers(1, _MODELS, battles)) % _MODELS
    score = (rng.random(battles) < 1 / (1 + np.exp(theta[right] - theta[left]))).astype(np.float64)
    score[rng.random(battles) < 0.2] = 0.5
    names = tuple(f"model {place}" for place in range(_MODELS))
    return Battles(
        models=names,
        left=left,
        right=right,
        score=score,
        meme=rng.integers(0, _MEMES, battles),
        weight=np.ones(battles),
    )


def _evalica(table: Battles) -> Callable[[], Floats]:
    try:
        import evalica
    except ImportError:
        raise NotLoaded(
            "This benchmark compares with evalica, which is not installed: pip install evalica.",
            reason="EVALICA_NOT_INSTALLED",
        ) from None
    winners = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    columns = (table.left.tolist(), table.right.tolist(), [winners[score] for score in table.score.tolist()])

    def ask() -> Floats:
        # Solved as closely as ours: less would be quicker.
        solved = evalica.bradley_terry(*columns, tolerance=1e-14, limit=10_000)
        # Its scores are strengths, whose logarithms are log-odds. They are taken by model, however it sorts them.
        return rated(np.log(solved.scores.loc[range(len(table.models))].to_numpy()), None)

    return ask
