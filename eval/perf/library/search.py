"""Search speed among many precedents, and whether every way to search finds what a scan of all rows finds.

``search``: the time of one query at a time, warm, with the ways in turns on the same array, so that a slowdown
affects all of them; the ratios are computed for each query. Vectors are generated: each half belongs to one of 5,000
clusters (mean cosine within a cluster: 0.61), and queries are new memes of the same clusters. Real vectors are MiniLM's
of HarMeme's texts, if its annotations lie beside the checkout; there, two unrelated texts make a meme, because the
pictures are not published.

``pgvector``: whether a search in a database finds what a search on disk finds, and how much longer it takes. A real
PostgreSQL with pgvector on this machine, fsync off, its shared buffers larger than all vectors. The time is that of a
whole search as a trial makes it, except the embedding: three exhibits and a tally of 25, with their texts and labels.
Both finders run in turns, one query at a time, warm.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.meme import Frame
from court.precedents import Findings, MinSimilarity, VoteSettings
from court.verdict import Label
from eval.perf.bench import Result, in_turns, medians, seconds_of
from eval.standin.postgres import postgres
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings
from retrieval.index.candidates import CandidateIndex, one_thread
from retrieval.index.exact import FusedIndex, Hits, ScanPolicy
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import push_library
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder

Floats = NDArray[np.float32]

DIM = 512
"""Numbers of each half of a vector."""
TALLY = 25
_CLUSTERS = 5000
_NOISE = 0.8
_BLOCK = 16_384
# Includes both ends, where one half has no weight.
_ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_REAL_QUERIES = 100
_K = 3
_REAL = Path(__file__).parents[4] / "shared" / "data" / "harmeme"
_WORDS = ("cat", "dog", "monday", "coffee", "alarm", "office", "train", "rain", "summer", "week", "meeting", "pizza")


# Generated memes, and an encoder and a library for them.


def drawn(count: int, seed: int, into: Floats | None = None) -> Floats:
    """Generates rows, float32 of shape (count, 1024), whose halves have length 1 and lie around 5,000 centres each.

    Args:
        seed: Another seed gives other rows around the same centres.
        into: Array for the vectors, such as a memory-mapped file; a new array if None.
    """
    # The same centres for every seed, otherwise queries would lie elsewhere than rows.
    centres = np.random.default_rng(1).standard_normal((2, _CLUSTERS, DIM), dtype=np.float32)
    random = np.random.default_rng([2, seed])
    rows = np.empty((count, 2 * DIM), dtype=np.float32) if into is None else into
    # In blocks: the noise for all rows at once would take as much memory as the rows.
    for start in range(0, count, _BLOCK):
        block = rows[start : start + _BLOCK]
        for half, around in zip((block[:, :DIM], block[:, DIM:]), centres, strict=True):
            part = random.standard_normal(half.shape, dtype=np.float32) * _NOISE
            part += around[random.integers(_CLUSTERS, size=len(half))]
            half[:] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


class KnownVectors(Halves):
    """An encoder that looks up the vectors of memes by number, so that no model's time is measured."""

    def __init__(self, vectors: Floats) -> None:
        self._vectors = vectors
        self.identity = EncoderIdentity(
            name="drawn", digest=f"sha256:{0:064x}", text_dim=DIM, picture_dim=DIM, text_tokens=100
        )
        self.floors = MinSimilarity(text=0, picture=0)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """Returns the vectors of the memes whose numbers are the texts."""
        numbers = [int(text) % len(self._vectors) for text in texts]
        return TextEmbeddings(self._vectors[numbers, :DIM], (False,) * len(texts))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> Floats:
        """Returns the vectors of the memes whose numbers are the first frames."""
        return self._vectors[[int(frames[0]) % len(self._vectors) for frames in pictures], DIM:]


def drawn_meme(number: int) -> LabelledMeme:
    """Builds the stored description of a generated meme: a label, and a text of a dozen words."""
    # Not validated: a million are written, and each is validated when it is read.
    return LabelledMeme.model_construct(
        id=f"meme-{number}",
        label=Label.HARMFUL if number % 2 else Label.NOT_HARMFUL,
        text=" ".join(_WORDS[(number // 12**place + place) % 12] for place in range(11)) + f" {number}",
        source=f"source {number % 20}",
        bytes_sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        pixels_sha256=hashlib.sha256(f"pixels of {number}".encode()).hexdigest(),
        has_text=True,
        has_picture=True,
    )


def drawn_library(root: Path, rows: Floats, encoder: EncoderIdentity) -> Library:
    """Builds a library of generated memes."""
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=TALLY, tau=0.1, prior=0.5),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    memes = map(drawn_meme, range(len(rows)))
    return Library.create(root, name="drawn", encoder=encoder, memes=memes, rows=rows, tuning=tuning)


async def find(finder: LibraryFinder | PgvectorFinder, number: int, alpha: float | None = None) -> Findings:
    """Searches as a trial does, for the meme that the encoder knows by this number."""
    # The encoder treats the number as the meme: no picture is decoded.
    frames = (Frame(str(number).encode(), 1, 1),)
    return await finder.find(text=str(number), frames=frames, pixels_sha256="", exhibits=3, tally=TALLY, alpha=alpha)


# Searching the vectors.


def search(*, memes: int = 1_000_000, queries: int = 6) -> Result:
    """Runs the benchmark: some minutes, and 5 GB of memory.

    Args:
        memes: Number of memes; called 10^6 in the names of figures, and a tenth of them 10^5.
    """
    rows, drawn_queries = drawn(memes, seed=0), drawn(len(_ALPHAS) * queries, seed=1)
    figures = _among_some(rows[: memes // 10], drawn_queries[:queries]) | _among_many(rows, drawn_queries)
    # Frees 4 GB, which the next part does not need.
    del rows
    figures |= _among_real()
    recalls = [name for name in figures if name.startswith(("recall_", "real_recall_"))]
    return Result(
        figures=figures,
        goals={
            "numpy_over_ours_100k": ">= 0.91",
            "exact_over_knn_1m": "<= 1.1",
            "two_stage_over_knn_1m": "<= 0.09",
            **{name: ">= 0.99" for name in recalls},
        },
    )


def paper_loop(rows: Floats, query: Floats, alpha: float, k: int) -> list[int]:
    """Returns the rows that Algorithm 2 finds as printed in the paper: one similarity after the other."""
    text, picture = query[:DIM], query[DIM:]
    scores = [alpha * float(text @ row[:DIM]) + (1 - alpha) * float(picture @ row[DIM:]) for row in rows]
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:k]


def recall(found: Hits, exact: Hits) -> float:
    """Returns the share of the best rows that were found; rows of equal score are interchangeable."""
    return float(np.mean(found.scores >= exact.scores))


def _among_some(rows: Floats, queries: Floats) -> dict[str, float]:
    index, alpha = FusedIndex(rows, DIM), 0.5

    def numpy(query: Floats) -> object:
        scores = rows @ _weighted(query, alpha)
        best = np.argpartition(scores, -_K)[-_K:]
        return best[np.argsort(-scores[best])]

    ways: list[Callable[[Floats], object]] = [
        partial(_search, index, alpha=alpha),
        partial(_knn, rows, alpha=alpha),
        numpy,
        partial(paper_loop, rows, alpha=alpha, k=_K),
    ]
    return medians(
        _timed_in_turns(ways, queries),
        exact_over_knn_100k=lambda ours, knn, *_: ours / knn,
        paper_loop_over_ours_100k=lambda ours, _, __, loop: loop / ours,
        numpy_over_ours_100k=lambda ours, _, with_numpy, __: with_numpy / ours,
        paper_loop_ms_100k=lambda _, __, ___, loop: 1000 * loop,
        numpy_ms_100k=lambda _, __, with_numpy, ___: 1000 * with_numpy,
        knn_ms_100k=lambda _, knn, *__: 1000 * knn,
        ours_ms_100k=lambda ours, *_: 1000 * ours,
    )


def _among_many(rows: Floats, queries: Floats) -> dict[str, float]:
    began = time.perf_counter()
    stage = CandidateIndex.build(rows, DIM)
    built_s = time.perf_counter() - began
    exact, fast = FusedIndex(rows, DIM), FusedIndex(rows, DIM, stage)
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
            knn_ms_1m=lambda _, __, knn: 1000 * knn,
            exact_ms_1m=lambda _, scanned, __: 1000 * scanned,
            two_stage_ms_1m=lambda ours, *_: 1000 * ours,
        ),
        "two_stage_worst_ms_1m": 1000 * max(ours for ours, *_ in times),
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
    # A library of this size would be scanned; here the candidate stage is forced.
    fast = FusedIndex(rows, dim, CandidateIndex.build(rows, dim), ScanPolicy(candidates=(200, 700)))
    exact = FusedIndex(rows, dim)
    return {
        "real_rows": len(rows),
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
    # Sorted: a set of texts has another order in each process.
    vectors = BuiltinEncoder().embed_texts(sorted(texts)).vectors
    vectors = np.random.default_rng(3).permutation(vectors[vectors.any(axis=1)])
    return np.hstack([vectors, np.roll(vectors, 1, axis=0)])


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


# Searching in a database.


def pgvector(*, memes: int = 100_000, queries: int = 6) -> Result:
    """Runs the benchmark: a minute or two, 2 GB of memory and as much of disk.

    Args:
        queries: Queries for each alpha; the first one warms up and is not timed.
    """
    load = os.getloadavg()[0]
    encoder = KnownVectors(drawn(len(_ALPHAS) * queries, seed=1))
    with tempfile.TemporaryDirectory(prefix="pgvector-") as directory, postgres(shared_buffers="1536MB") as server:
        library = drawn_library(Path(directory) / "library", drawn(memes, seed=0), encoder.identity)
        address = Address(server.url())
        pushed_s = seconds_of(lambda: push_library(library, address))
        same, took = asyncio.run(_query_both(library, address, encoder, queries))
    return Result(
        figures={
            "same_ids": same,
            **medians(
                took,
                time_over_ours=lambda ours, theirs: theirs / ours,
                ours_p50_ms=lambda ours, _: 1000 * ours,
                pgvector_p50_ms=lambda _, theirs: 1000 * theirs,
            ),
            "pgvector_worst_ms": 1000 * max(theirs for _, theirs in took),
            "push_s": pushed_s,
            "load_before": load,
            "load_after": os.getloadavg()[0],
        },
        goals={"same_ids": "== 1"},
    )


async def _query_both(
    library: Library, address: Address, encoder: KnownVectors, queries: int
) -> tuple[float, list[tuple[float, float]]]:
    """Returns the share of queries with the same precedents in the same order in both, and the seconds of each."""
    ours, theirs = LibraryFinder(library, encoder), await PgvectorFinder.open(address, encoder)
    same, took = [], []
    try:
        for number in range(len(_ALPHAS) * queries):
            alpha = _ALPHAS[number // queries]
            began = time.perf_counter()
            here = await find(ours, number, alpha)
            between = time.perf_counter()
            there = await find(theirs, number, alpha)
            ended = time.perf_counter()
            # Compares ids, labels, order and every bit of every similarity.
            same.append(here == there)
            # The first query of each weight is a warm-up.
            if number % queries:
                took.append((between - began, ended - between))
    finally:
        ours.close()
        theirs.close()
    return sum(same) / len(same), took
