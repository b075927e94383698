"""CPU time to turn battles into ratings, compared with evalica, and to check a table, compared with pandas.

CPU time of this process for 10^6 battles of 15 models, given by their indices: counting them and fitting Bradley-Terry
ratings to full precision. evalica (0.4, Rust) gets the same indices as lists, its input format, with a tolerance of
1e-14; the lists are made in advance. Both run in turns, best of five.

The table has 150,000 rows of id, text, label and split; it is read and checked as by ``datasets check``, and described
as by ``datasets describe``. pandas only reads it. In turns, best of five as well.
"""

import asyncio
import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from court.errors import NotLoaded
from eval.arena.ranking.battles import Battles, Floats, rated
from eval.arena.ranking.bradley_terry import ratings
from eval.datasets.check import check
from eval.datasets.plain_table import read_plain_table
from eval.datasets.record_files import keep_tables
from eval.perf.bench import Result, least_cpu
from eval.reports.description import describe

_MODELS, _MEMES = 15, 500
_TIMES = 5


def ranking(*, battles: int = 1_000_000, rows: int = 150_000) -> Result:
    """Runs the benchmark."""
    return _ranked(battles) | _checked(rows)


def _checked(rows: int) -> Result:
    try:
        import pandas
    except ImportError:
        raise NotLoaded(
            "This benchmark compares with pandas, which is not installed: pip install pandas.",
            reason="PANDAS_NOT_INSTALLED",
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memes.csv"
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("id", "text", "label", "split"))
            words = np.random.default_rng(0).choice(["tea", "rain", "bus", "garden", "happy, warm"], (rows, 12))
            sides, splits = ("hateful", "not hateful"), (*["train"] * 8, "dev", "test")
            table.writerows((n, " ".join(row), sides[n % 2], splits[n % 10]) for n, row in enumerate(words))

        ways = (lambda: _check(path), lambda: _describe(path), lambda: pandas.read_csv(path))
        cpu_s, described_cpu_s, pandas_cpu_s = least_cpu(*ways, turns=_TIMES)
    return Result(
        figures={"table_over_pandas": cpu_s / pandas_cpu_s, "described_over_pandas": described_cpu_s / pandas_cpu_s},
        goals={"table_over_pandas": "<= 20", "described_over_pandas": "<= 25"},
    )


def _check(path: Path) -> None:
    with keep_tables():
        table = read_plain_table(path)
        asyncio.run(check(table.card, table.data))


def _describe(path: Path) -> None:
    with keep_tables():
        table = read_plain_table(path, two_sided=False)
        asyncio.run(describe(table.card, table.data, in_parts=True))


def _ranked(battles: int) -> Result:
    table = drawn(battles)
    ask_evalica = _evalica(table)
    cpu_s, evalica_cpu_s = least_cpu(lambda: ratings(table), ask_evalica, turns=_TIMES)
    return Result(
        figures={
            "over_evalica": cpu_s / evalica_cpu_s,
            # Being faster counts only if the ratings are the same.
            "points_apart": float(np.abs(ratings(table) - ask_evalica()).max()),
        },
        goals={"over_evalica": "<= 1", "points_apart": "<= 1e-06"},
    )


def drawn(battles: int, seed: int = 0) -> Battles:
    """Generates a table of that many battles, a fifth of them tied."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(0, 0.6, _MODELS)
    left = rng.integers(0, _MODELS, battles)
    # An offset from 1 to the number of models minus one, so that no model meets itself.
    right = (left + rng.integers(1, _MODELS, battles)) % _MODELS
    score = (rng.random(battles) < 1 / (1 + np.exp(theta[right] - theta[left]))).astype(np.float64)
    score[rng.random(battles) < 0.2] = 0.5
    names = tuple(f"model {place}" for place in range(_MODELS))
    return Battles(names, left, right, score, meme=rng.integers(0, _MEMES, battles))


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
        # Solved to the same precision as ours: less would be faster.
        solved = evalica.bradley_terry(*columns, tolerance=1e-14, limit=10_000)
        # Its scores are strengths, whose logarithms are log-odds. Looked up by model, whatever evalica's order.
        return rated(np.log(solved.scores.loc[range(len(table.models))].to_numpy()), None)

    return ask
