"""How fast precedents are found among many, and whether candidates find what a scan of all rows finds.

All times are of one query at a time, warm, the ways in turns on the same array, so that a machine that slows down slows
all of them; the ratios are formed query by query. Vectors are drawn: each half belongs to one of 5,000 clusters (mean
cosine within one: 0.61), and queries are new memes of the same clusters. Real ones are MiniLM's of HarMeme's texts, if
its annotations lie beside the checkout; there two texts that have nothing to do with each other make a meme, since the
pictures are not published.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.perf.bench import Result
from retrieval.index.candidates import CandidateIndex, one_thread
from retrieval.index.exact import FusedIndex, Hits, ScanPolicy

Floats = NDArray[np.float32]

_DIM = 512
_MANY, _SOME = 1_000_000, 100_000
_CLUSTERS = 5000
_NOISE = 0.8
_ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_QUERIES = 6
"""For each alpha."""
_REAL_QUERIES = 100
_BLOCK = 16_384
_K = 3
_REAL = Path(__file__).parents[4] / "shared" / "data" / "harmeme"


def measure() -> Result:
    """Runs the benchmark: some minutes, and 5 GB of memory."""
    rows, queries = _drawn(_MANY, len(_ALPHAS) * _QUERIES)
    figures = _among_some(rows[:_SOME], queries) | _among_many(rows, queries)
    del rows
    figures |= _among_real()
    recalls = [name for name in figures if name.startswith(("recall_", "real_recall_"))]
    return Result(
        name="search",
        figures={name: round(value, 4) for name, value in figures.items()},
        goals={
            "exact_over_knn_100k": "<= 1.1",
            "exact_over_knn_1m": "<= 1.1",
            "two_stage_over_knn_1m": "<= 0.09",
            **{name: ">= 0.99" for name in recalls},
        },
    )


def paper_loop(rows: Floats, query: Floats, alpha: float, k: int) -> list[int]:
    """The rows that Algorithm 2 finds as it is printed: one similarity after the other."""
    text, picture = query[:_DIM], query[_DIM:]
    scores = [alpha * float(text @ row[:_DIM]) + (1 - alpha) * float(picture @ row[_DIM:]) for row in rows]
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:k]


def recall(found: Hits, exact: Hits) -> float:
    """Share of the best rows that were found; any of equal score will do."""
    return float(np.mean(found.scores >= exact.scores))


def _among_some(rows: Floats, queries: Floats) -> dict[str, float]:
    index, alpha = FusedIndex(rows, _DIM), 0.5

    def numpy(query: Floats) -> object:
        scores = rows @ _weighted(query, alpha)
        best = np.argpartition(scores, -_K)[-_K:]
        return best[np.argsort(-scores[best])]

    ours, knn, with_numpy, loop = _in_turns(
        [
            partial(_search, index, alpha=alpha),
            partial(_knn, rows, alpha=alpha),
            numpy,
            partial(paper_loop, rows, alpha=alpha, k=_K),
        ],
        queries[:_QUERIES],
    )
    return {
        "exact_over_knn_100k": _ratio(ours, knn),
        "paper_loop_over_ours_100k": _ratio(loop, ours),
        "numpy_over_ours_100k": _ratio(with_numpy, ours),
        "paper_loop_ms_100k": _ms(loop),
        "numpy_ms_100k": _ms(with_numpy),
        "knn_ms_100k": _ms(knn),
        "ours_ms_100k": _ms(ours),
    }


def _among_many(rows: Floats, queries: Floats) -> dict[str, float]:
    began = time.perf_counter()
    stage = CandidateIndex.build(rows, _DIM)
    built_s = time.perf_counter() - began
    exact, fast = FusedIndex(rows, _DIM), FusedIndex(rows, _DIM, stage)
    recalls: dict[str, float] = {}
    times: tuple[list[float], ...] = ([], [], [])
    for place, alpha in enumerate(_ALPHAS):
        found: tuple[list[Hits], list[Hits]] = ([], [])
        took = _in_turns(
            [
                partial(_search, fast, alpha=alpha, into=found[0]),
                partial(_search, exact, alpha=alpha, into=found[1]),
                partial(_knn, rows, alpha=alpha),
            ],
            queries[place * _QUERIES : (place + 1) * _QUERIES],
        )
        for all_, some in zip(times, took, strict=True):
            all_ += some
        recalls[f"recall_{alpha}"] = statistics.mean(recall(*both) for both in zip(*found, strict=True))
    ours, scanned, knn = times
    return {
        "exact_over_knn_1m": _ratio(scanned, knn),
        "two_stage_over_knn_1m": _ratio(ours, knn),
        "knn_ms_1m": _ms(knn),
        "exact_ms_1m": _ms(scanned),
        "two_stage_ms_1m": _ms(ours),
        "two_stage_worst_ms_1m": 1000 * max(ours),
        "fast_stage_s_1m": built_s,
        **recalls,
    }


def _among_real() -> dict[str, float]:
    if not _REAL.is_dir():
        print(
            f"No annotations of HarMeme beside the checkout ({_REAL.name}): no figures of real texts.", file=sys.stderr
        )
        return {}
    rows, queries = _of_harmeme("train"), _of_harmeme("val")[:_REAL_QUERIES]
    dim = rows.shape[1] // 2
    # A library of this size is scanned; here candidates are asked for all the same.
    fast = FusedIndex(rows, dim, CandidateIndex.build(rows, dim), ScanPolicy(candidates=(200, 700)))
    exact = FusedIndex(rows, dim)
    return {
        "real_rows": float(len(rows)),
        **{
            f"real_recall_{alpha}": statistics.mean(
                recall(_search(fast, query, alpha), _search(exact, query, alpha)) for query in queries
            )
            for alpha in _ALPHAS
        },
    }


def _of_harmeme(split: str) -> Floats:
    from retrieval.embed.builtin import BuiltinEncoder
    from retrieval.library.readers import read_source
    from retrieval.library.sources import Source

    texts = {row.text for path in sorted(_REAL.glob(f"*/{split}.jsonl")) for row in read_source(Source(path)).good}
    vectors = BuiltinEncoder().embed_texts(sorted(texts)).vectors
    vectors = np.random.default_rng(3).permutation(vectors[vectors.any(axis=1)])
    return np.hstack([vectors, np.roll(vectors, 1, axis=0)])


def _drawn(n: int, queries: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(1)
    centres = [random.standard_normal((_CLUSTERS, _DIM), dtype=np.float32) for _ in range(2)]
    # In blocks: at once, the noise alone would take as much memory as the rows.
    drawn = np.empty((n + queries, 2 * _DIM), dtype=np.float32)
    for start in range(0, len(drawn), _BLOCK):
        part = drawn[start : start + _BLOCK]
        for half, centre in zip((part[:, :_DIM], part[:, _DIM:]), centres, strict=True):
            half[:] = random.standard_normal(half.shape, dtype=np.float32)
            half *= _NOISE
            half += centre[random.integers(_CLUSTERS, size=len(half))]
            half /= np.linalg.norm(half, axis=1, keepdims=True)
    return drawn[:n], drawn[n:]


def _weighted(query: Floats, alpha: float) -> Floats:
    # A Python float times float32 stays float32: a float64 query would make numpy convert all rows.
    return np.concatenate([alpha * query[:_DIM], (1 - alpha) * query[_DIM:]])


def _search(index: FusedIndex, query: Floats, alpha: float, into: list[Hits] | None = None) -> Hits:
    hits = index.search(query[: index.text_dim], query[index.text_dim :], alpha=alpha, k=_K)
    if into is not None:
        into.append(hits)
    return hits


def _knn(rows: Floats, query: Floats, alpha: float) -> object:
    import faiss

    with one_thread():
        return faiss.knn(_weighted(query, alpha)[np.newaxis, :], rows, _K, faiss.METRIC_INNER_PRODUCT)


def _in_turns(ways: Sequence[Callable[[Floats], object]], queries: Floats) -> list[list[float]]:
    """Seconds that each way took for each query."""
    for way in ways:
        way(queries[0])
    took: list[list[float]] = [[] for _ in ways]
    for query in queries:
        for way, seconds in zip(ways, took, strict=True):
            began = time.perf_counter()
            way(query)
            seconds.append(time.perf_counter() - began)
    return took


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _ms(seconds: Sequence[float]) -> float:
    return 1000 * statistics.median(seconds)
