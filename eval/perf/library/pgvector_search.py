"""Whether a search in a database finds what one on disk finds, and how much longer it takes.

A real PostgreSQL with pgvector on this machine, fsync off, its shared buffers larger than all vectors. What is timed is
all of a search as a trial asks for it but the embedding: three exhibits and a tally of 25, with their texts and labels.
Both finders are asked in turns, one query at a time, warm.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.precedents import Findings, MinSimilarity, VoteSettings
from court.verdict import Label
from eval.perf.bench import Result
from eval.perf.postgres import postgres
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings, unit_rows
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import push_library
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder

Floats = NDArray[np.float32]

_SIZE = 100_000
_DIM = 512
_CLUSTERS = 5000
_NOISE = 0.8
_ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_QUERIES = 6
"""For each alpha."""
_BLOCK = 10_000


def measure() -> Result:
    """Runs the benchmark: a minute or two, 2 GB of memory and as much of disk."""
    load = os.getloadavg()[0]
    rows, queries = _drawn(_SIZE, len(_ALPHAS) * _QUERIES)
    encoder = _Remembering(queries)
    with tempfile.TemporaryDirectory(prefix="pgvector-") as directory, postgres(shared_buffers="1536MB") as server:
        library = _library(Path(directory) / "library", rows, encoder.identity)
        del rows
        address = Address(server.url())
        began = time.perf_counter()
        push_library(library, address)
        pushed_s = time.perf_counter() - began
        same, took = asyncio.run(_searched(library, address, encoder))
    ours, theirs = (sorted(times) for times in took)
    return Result(
        name="pgvector",
        figures={
            "same_ids": same,
            "time_over_ours": round(
                statistics.median(there / here for here, there in zip(took[0], took[1], strict=True)), 2
            ),
            "ours_p50_ms": round(1000 * statistics.median(ours), 1),
            "pgvector_p50_ms": round(1000 * statistics.median(theirs), 1),
            "pgvector_worst_ms": round(1000 * theirs[-1], 1),
            "push_s": round(pushed_s, 1),
            "load_before": round(load, 1),
            "load_after": round(os.getloadavg()[0], 1),
        },
        goals={"same_ids": "== 1"},
    )


class _Remembering(Halves):
    """An encoder that knows the vectors of some memes by their numbers, so that no model's time is measured."""

    def __init__(self, vectors: Floats) -> None:
        self._vectors = vectors
        self.identity = EncoderIdentity(
            name="drawn", digest=f"sha256:{0:064x}", text_dim=_DIM, picture_dim=_DIM, text_tokens=1
        )
        self.floors = MinSimilarity(text=0, picture=0)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        numbers = [int(text) for text in texts]
        return TextEmbeddings(self._vectors[numbers, :_DIM], (False,) * len(texts))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> Floats:
        return self._vectors[[int(frames[0]) for frames in pictures], _DIM:]


async def _searched(library: Library, address: Address, encoder: _Remembering) -> tuple[float, list[list[float]]]:
    """The share of queries for which both name the same precedents in the same order, and the seconds of each."""
    from court.meme import Frame

    ours, theirs = LibraryFinder(library, encoder), await PgvectorFinder.open(address, encoder)
    finders: list[LibraryFinder | PgvectorFinder] = [ours, theirs]
    same, took = [], list[list[float]]([[], []])
    try:
        for number in range(len(_ALPHAS) * _QUERIES):
            found: list[Findings] = []
            # The first of each alpha warms and is not timed.
            for finder, seconds in zip(finders, took, strict=True):
                began = time.perf_counter()
                found.append(
                    await finder.find(
                        text=str(number),
                        frames=[Frame(str(number).encode(), 1, 1)],
                        pixels_sha256="",
                        exhibits=3,
                        tally=25,
                        alpha=_ALPHAS[number // _QUERIES],
                    )
                )
                if number % _QUERIES:
                    seconds.append(time.perf_counter() - began)
            # Ids, labels, order and every bit of every similarity.
            same.append(found[0] == found[1])
    finally:
        ours.close()
        theirs.close()
    return sum(same) / len(same), took


def _library(root: Path, rows: Floats, encoder: EncoderIdentity) -> Library:
    memes = (
        LabelledMeme(
            id=f"meme-{number}",
            label=Label.HARMFUL if number % 3 == 0 else Label.NOT_HARMFUL,
            text=f"the words of meme {number}",
            source="drawn",
            has_text=True,
            has_picture=True,
        )
        for number in range(len(rows))
    )
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=25, tau=0.1, prior=0.3),
        floors=MinSimilarity(text=0, picture=0),
        calibration=Calibration(method="defaults", n=0, majority=0.67),
    )
    return Library.create(root, name="drawn", encoder=encoder, memes=memes, rows=rows, tuning=tuning)


def _drawn(size: int, queries: int) -> tuple[Floats, Floats]:
    """Rows and queries, each half of length 1 and of one of the clusters."""
    draw = np.random.default_rng(4)
    centres = [unit_rows(draw.normal(size=(_CLUSTERS, _DIM))) for _ in range(2)]

    def some(count: int) -> Floats:
        halves = [centre[draw.integers(_CLUSTERS, size=count)] for centre in centres]
        noise = [_NOISE * unit_rows(draw.normal(size=half.shape)) for half in halves]
        return np.hstack([unit_rows(half + around) for half, around in zip(halves, noise, strict=True)])

    rows = np.vstack([some(min(_BLOCK, size - start)) for start in range(0, size, _BLOCK)])
    return np.ascontiguousarray(rows), some(queries)
