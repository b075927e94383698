"""Search speed among many precedents, and whether every way to search finds what a scan of all rows finds.

``search``: the time of one query at a time, warm, with the ways in turns on the same array, so that a slowdown
affects all of them; the ratios are computed for each query. Vectors are generated: each half belongs to one of 5,000
clusters (mean cosine within a cluster: 0.61), and queries are new memes of the same clusters.

Its second part measures a library of as many memes: :mod:`eval.perf.library`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from eval.perf.bench import Result, in_turns, medians, seconds_of
from eval.perf.library import DIM, Floats, drawn, library
from retrieval.index.candidates import CandidateIndex, one_thread
from retrieval.index.exact import FusedIndex, Hits

# Includes both ends, where one half has no weight.
_ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_K = 3


def search(*, memes: int = 1_000_000, queries: int = 6, seconds: float = 15.0) -> Result:
    """Runs the benchmark: a quarter of an hour, 6 GB of memory and 9 GB of disk.

    Args:
        memes: Number of memes; called 10^6 in the names of figures, and a tenth of them 10^5.
    """
    return _searched(memes, queries) | library(memes=memes, seconds=seconds)


def _searched(memes: int, queries: int) -> Result:
    rows, drawn_queries = drawn(memes, seed=0), drawn(len(_ALPHAS) * queries, seed=1)
    figures = _among_some(rows[: memes // 10], drawn_queries[:queries]) | _among_many(rows, drawn_queries)
    recalls = [name for name in figures if name.startswith("recall_")]
    return Result(
        figures=figures,
        goals={
            "numpy_over_ours_100k": ">= 0.91",
            "exact_over_knn_1m": "<= 1.1",
            "two_stage_over_knn_1m": "<= 0.09",
            **dict.fromkeys(recalls, ">= 0.99"),
        },
    )


def recall(found: Hits, exact: Hits) -> float:
    """Returns the share of the best rows that were found; rows of equal score are interchangeable."""
    return float(np.mean(found.scores >= exact.scores))


def _among_some(rows: Floats, queries: Floats) -> dict[str, float]:
    index, alpha = FusedIndex(rows, DIM), 0.5

    def numpy(query: Floats) -> object:
        scores = rows @ _weighted(query, alpha)
        best = np.argpartition(scores, -_K)[-_K:]
        return best[np.argsort(-scores[best])]

    ways: list[Callable[[Floats], object]] = [partial(_search, index, alpha=alpha), numpy]
    return medians(_timed_in_turns(ways, queries), numpy_over_ours_100k=lambda ours, with_numpy: with_numpy / ours)


def _among_many(rows: Floats, queries: Floats) -> dict[str, float]:
    exact, fast = FusedIndex(rows, DIM), FusedIndex(rows, DIM, CandidateIndex.build(rows, DIM))
    recalls: dict[str, float] = {}
    times: list[tuple[float, ...]] = []
    for alpha, batch in zip(_ALPHAS, np.split(queries, len(_ALPHAS)), strict=True):
        found: tuple[list[Hits], list[Hits]] = ([], [])
        ways: list[Callable[[Floats], object]] = [
            partial(_search, fast, alpha=alpha, into=found[0]),
            partial(_search, exact, alpha=alpha, into=found[1]),
            partial(_knn, rows, alpha=alpha),
        ]
        times += _timed_in_turns(ways, batch)
        recalls[f"recall_{alpha}"] = statistics.mean(recall(*both) for both in zip(*found, strict=True))
    return {
        **medians(
            times,
            exact_over_knn_1m=lambda _, scanned, knn: scanned / knn,
            two_stage_over_knn_1m=lambda ours, _, knn: ours / knn,
            two_stage_ms_1m=lambda ours, *_: 1000 * ours,
        ),
        **recalls,
    }


def _weighted(query: Floats, alpha: float) -> Floats:
    # A Python float times float32 stays float32: a float64 query would make numpy convert all rows.
    return np.concatenate([alpha * query[:DIM], (1 - alpha) * query[DIM:]])


def _search(index: FusedIndex, query: Floats, alpha: float, into: list[Hits] | None = None) -> Hits:
    hits = index.search(query[: index.text_dim], query[index.text_dim :], alpha=alpha, k=_K)
    if into is not None:
        into.append(hits)
    return hits


def _knn(rows: Floats, query: Floats, alpha: float) -> object:
    import faiss

    with one_thread():
        # Called as ours is: one query gives a second thread nothing to do.
        return faiss.knn(_weighted(query, alpha)[np.newaxis, :], rows, _K, faiss.METRIC_INNER_PRODUCT)


def _timed_in_turns(ways: Sequence[Callable[[Floats], object]], queries: Floats) -> list[tuple[float, ...]]:
    """Returns the seconds that each way took for each query."""

    def timed(way: Callable[[Floats], object]) -> Callable[[Floats], float]:
        return lambda query: seconds_of(lambda: way(query))

    return in_turns([timed(way) for way in ways], queries)
