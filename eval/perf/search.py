"""Search among many precedents, and the cost of a library of a million memes.

``search``: the time of one query at a time, warm, with the ways in turns on the same array, so that a slowdown
affects all of them; the ratios are computed for each query. Vectors are generated: each half belongs to one of 5,000
clusters (mean cosine within a cluster: 0.61), and queries are new memes of the same clusters.

``library``, its second part: memory, time to the first answer, and changing it while it is searched. The library is
generated (unit vectors of two halves, texts of a dozen words, no pictures) and written by the same code as any other.
Each figure is then measured in a separate process, which opens the library as a court does. The encoder knows the
vectors of all queries, so that only the library is measured.

- ``memory_over_vectors``: resident memory of the whole process after every row was searched, over the bytes of the
  vectors; it includes Python, its libraries and all memory-mapped pages. ``memory_with_fast_stage_over_vectors`` is the
  same with the fast stage of the search in memory.
- ``open_to_answer_over_numpy``: from the start of opening it, with a warm page cache and the check of the vectors'
  digest deferred, to the first answer, with the fast stage of the search read from its file, over the time in which
  numpy maps the same vectors and scans them once, one right after the other in the same process, median of several.
- ``adds_over_appends``: memes added one by one, each acknowledged once it is on disk, while 8 searches are always in
  flight, over the number of records of the same size that one thread can append to a plain file next to the same
  searches, each followed by an fsync: like our writer, it waits for the disk, a processor and the interpreter.
  ``search_p99_over_undisturbed``: the 99th percentile of searches during adds over that of as many without. In turns.
"""

import asyncio
import hashlib
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from court.meme import Frame
from court.precedents import Findings, MinSimilarity, VoteSettings
from court.verdict import Label
from eval.perf.bench import Result, in_turns, medians, seconds_of
from eval.standin.process import in_fresh_process
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings
from retrieval.index.candidates import CandidateIndex, one_thread
from retrieval.index.exact import FusedIndex, Hits
from retrieval.library.library import Check, Library
from retrieval.library.manifest import VECTORS, Calibration, LabelledMeme, Tuning
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder

Floats = NDArray[np.float32]

DIM = 512
"""Numbers of each half of a vector."""
TALLY = 25
_CLUSTERS = 5000
_NOISE = 0.8
_BLOCK = 16_384
_WORDS = ("cat", "dog", "monday", "coffee", "alarm", "office", "train", "rain", "summer", "week", "meeting", "pizza")


def drawn(count: int, seed: int, into: Floats | None = None) -> Floats:
    """Generates rows, float32 of shape (count, 1024), whose halves have length 1 and lie around 5,000 centres each."""
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


async def find(finder: LibraryFinder, number: int) -> Findings:
    """Searches as a trial does, for the meme that the encoder knows by this number."""
    # The encoder treats the number as the meme: no picture is decoded.
    frames = (Frame(str(number).encode(), 1, 1),)
    return await finder.find(text=str(number), frames=frames, pixels_sha256="", exhibits=3, tally=TALLY, alpha=None)


_SEARCHES = 8
_ADDERS = 16
_OFFERED = 600
"""Adds a second, at most."""
_ROUNDS = 3


def library(*, memes: int, seconds: float) -> Result:
    """Measures a library: about ten minutes, 9 GB of disk below the temporary directory, 6 GB of memory."""
    with tempfile.TemporaryDirectory(prefix="memecourt-") as folder:
        root = Path(folder) / "library"
        write(root, memes)
        opened = statistics.median(in_fresh_process(open_to_answer, root) for _ in range(3))
        figures = in_fresh_process(memory, root) | in_fresh_process(changes, root, seconds)
    return Result(
        figures={"open_to_answer_over_numpy": opened, **figures},
        goals={
            "memory_over_vectors": "<= 1.15",
            "memory_with_fast_stage_over_vectors": "<= 1.15",
            "open_to_answer_over_numpy": "<= 2",
            "adds_over_appends": ">= 0.5",
            "search_p99_over_undisturbed": "<= 2",
        },
    )


def write(root: Path, memes: int) -> None:
    """Builds a library of generated memes, with the file of the search's fast stage."""
    file, encoder = root.with_name("drawn.npy"), _encoder()
    # On disk: a million rows are 4 GB, which this process should not hold in memory while others are measured.
    rows = np.lib.format.open_memmap(file, "w+", np.float32, (memes, 2 * DIM))
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=TALLY, tau=0.1, prior=0.5),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    Library.create(
        root,
        name="drawn",
        encoder=encoder.identity,
        memes=map(drawn_meme, range(memes)),
        rows=drawn(memes, seed=0, into=rows),
        tuning=tuning,
    )
    file.unlink()
    finder = _opened(root)
    finder.warm()
    finder.close()


def _encoder() -> KnownVectors:
    return KnownVectors(drawn(256, seed=1))


def _opened(root: Path) -> LibraryFinder:
    encoder = _encoder()
    return LibraryFinder(Library.open(root, encoder.identity, check=Check.LATER), encoder)


def _ask(finder: LibraryFinder, number: int = 0) -> None:
    # Otherwise a search that finds too little would pass for a fast one.
    assert len(asyncio.run(find(finder, number)).tally) == TALLY


def open_to_answer(root: Path) -> float:
    """Returns the time of opening, warming and a first answer over that of mapping and scanning the same vectors."""
    encoder = _encoder()
    vectors = Library.open(root, encoder.identity, check=Check.LATER).directory / VECTORS
    query = drawn(1, seed=1)[0]
    numpy_s = seconds_of(lambda: np.argpartition(np.load(vectors, mmap_mode="r") @ query, -TALLY)[-TALLY:])
    began = time.perf_counter()
    finder = LibraryFinder(Library.open(root, encoder.identity, check=Check.LATER), encoder)
    finder.warm()
    _ask(finder)
    ours_s = time.perf_counter() - began
    finder.close()
    return ours_s / numpy_s


def memory(root: Path) -> dict[str, float]:
    """Measures resident memory once all rows were searched, and with the fast stage."""
    finder = _opened(root)
    vectors = finder.searched.manifest.files[VECTORS].size
    resident = []
    for with_fast_stage in (False, True):
        if with_fast_stage:
            finder.warm()
        # Each search scans all rows, so that every page of the vectors is in memory when the figures are read.
        for number in range(5):
            _ask(finder, number)
        resident.append(psutil.Process().memory_info().rss)
    finder.close()
    names = ("memory_over_vectors", "memory_with_fast_stage_over_vectors")
    return {name: rss / vectors for name, rss in zip(names, resident, strict=True)}


def changes(root: Path, seconds: float) -> dict[str, float]:
    """Runs searches without a writer, during adds, and during plain appends of as many bytes, in turns."""
    finder = _opened(root)
    finder.warm()
    for number in range(5):
        _ask(finder, number)
    writer = LibraryWriter(finder.searched)
    before = writer.library.counts.memes
    numbers = itertools.count(before)
    # Each added vector is another one: among equal vectors, a search would look at all.
    vectors = drawn(round(_OFFERED * seconds * _ROUNDS) + _ADDERS, seed=2)

    def add() -> None:
        number = next(numbers)
        writer.add(drawn_meme(number), vectors[number % len(vectors)], None, who="the benchmark", why="to measure")

    def append() -> None:
        plain.write(record)
        os.fsync(plain.fileno())

    quiet: list[float] = []
    busy: list[float] = []
    adds: list[float] = []
    appends: list[float] = []
    with root.with_name("plain").open("ab", buffering=0) as plain:
        for _ in range(_ROUNDS):
            quiet += asyncio.run(_searched(finder, seconds))
            times, rate = _while_repeating(add, finder, seconds, writer, threads=_ADDERS, pause_s=_ADDERS / _OFFERED)
            busy += times
            adds.append(rate)
            # The average size that one add writes to the journal.
            record = bytes(writer.library.pointer.journal_size // (writer.library.counts.memes - before))
            appends.append(_while_repeating(append, finder, seconds)[1])
    # Reopened: acknowledged adds must be on disk and not only in this process.
    now = Library.open(root, finder.searched.manifest.encoder, check=Check.LATER)
    assert now.counts.memes == next(numbers)
    assert finder.searched.counts.memes > before
    finder.close()
    p99, p99_busy = (float(np.percentile(times, 99)) for times in (quiet, busy))
    return {"adds_over_appends": sum(adds) / sum(appends), "search_p99_over_undisturbed": p99_busy / p99}


async def _searched(finder: LibraryFinder, seconds: float, writer: LibraryWriter | None = None) -> list[float]:
    """Returns the times of searches in seconds, 8 always in flight; a writer's changes become searchable soon after."""
    until = time.perf_counter() + seconds
    times: list[float] = []
    numbers = itertools.count()

    async def search() -> None:
        while (began := time.perf_counter()) < until:
            await find(finder, next(numbers))
            times.append(time.perf_counter() - began)

    async def follow() -> None:
        while writer is not None and time.perf_counter() < until:
            await asyncio.to_thread(finder.swap, writer.library)
            await asyncio.sleep(0.1)

    await asyncio.gather(follow(), *(search() for _ in range(_SEARCHES)))
    return times


def _while_repeating(
    work: Callable[[], None],
    finder: LibraryFinder,
    seconds: float,
    writer: LibraryWriter | None = None,
    *,
    threads: int = 1,
    pause_s: float = 0.0,
) -> tuple[list[float], float]:
    """Searches while threads repeat some work; returns the times of searches, and how often a second it was done."""
    stop, began = threading.Event(), time.perf_counter()

    def repeat() -> int:
        done = 0
        while not stop.wait(pause_s):
            work()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        repeating = [pool.submit(repeat) for _ in range(threads)]
        try:
            times = asyncio.run(_searched(finder, seconds, writer))
        finally:
            stop.set()
    # An error in a thread is raised here: its work would be missing from the rate.
    return times, sum(each.result() for each in repeating) / (time.perf_counter() - began)


# Includes both ends, where one half has no weight.
_ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_K = 3


def search(*, memes: int = 1_000_000, queries: int = 6, seconds: float = 15.0) -> Result:
    """Runs the benchmark: a quarter of an hour, 6 GB of memory and 9 GB of disk.

    Args:
        memes: Number of memes; called 10^6 in the names of figures, and a tenth of them 10^5.
    """
    return _compared(memes, queries) | library(memes=memes, seconds=seconds)


def _compared(memes: int, queries: int) -> Result:
    rows, targets = drawn(memes, seed=0), drawn(len(_ALPHAS) * queries, seed=1)
    some = rows[: memes // 10]
    timed = _timed([partial(nearest, FusedIndex(some, DIM)), partial(_product, some)], targets[:queries], alpha=0.5)
    figures = medians(timed, numpy_over_ours_100k=lambda ours, product: product[0] / ours[0])
    fast = partial(nearest, FusedIndex(rows, DIM, CandidateIndex.build(rows, DIM)))
    ways = [fast, partial(nearest, FusedIndex(rows, DIM)), partial(knn, rows)]
    many: list[Sequence[Any]] = []
    recalls: dict[str, float] = {}
    for alpha, batch in zip(_ALPHAS, np.split(targets, len(_ALPHAS)), strict=True):
        timed = _timed(ways, batch, alpha)
        recalls[f"recall_{alpha}"] = statistics.mean(recall(ours[1], scanned[1]) for ours, scanned, _ in timed)
        many += timed
    figures |= medians(
        many,
        exact_over_knn_1m=lambda _, scanned, by_knn: scanned[0] / by_knn[0],
        two_stage_over_knn_1m=lambda ours, _, by_knn: ours[0] / by_knn[0],
    )
    return Result(
        figures={**figures, **recalls},
        goals={
            "numpy_over_ours_100k": ">= 0.91",
            "exact_over_knn_1m": "<= 1.1",
            "two_stage_over_knn_1m": "<= 0.09",
            **dict.fromkeys(recalls, ">= 0.99"),
        },
    )


def _timed(ways: Sequence[Callable[[Floats, float], Any]], queries: Floats, alpha: float) -> list[tuple[Any, ...]]:
    """Returns for each query a pair of each way: the seconds that it took, and what it found."""

    def timed(way: Callable[[Floats, float], Any], query: Floats) -> tuple[float, Any]:
        began = time.perf_counter()
        found = way(query, alpha)
        return time.perf_counter() - began, found

    return in_turns([partial(timed, way) for way in ways], queries)


def recall(found: Hits, exact: Hits) -> float:
    """Returns the share of the best rows that were found; rows of equal score are interchangeable."""
    return float(np.mean(found.scores >= exact.scores))


def nearest(index: FusedIndex, query: Floats, alpha: float) -> Hits:
    """Searches in our way."""
    return index.search(query[:DIM], query[DIM:], alpha=alpha, k=_K)


def knn(rows: Floats, query: Floats, alpha: float) -> Any:
    """Searches by faiss, called as ours is: one query gives a second thread nothing to do."""
    import faiss

    with one_thread():
        return faiss.knn(_weighted(query, alpha)[np.newaxis, :], rows, _K, faiss.METRIC_INNER_PRODUCT)


def _product(rows: Floats, query: Floats, alpha: float) -> Any:
    scores = rows @ _weighted(query, alpha)
    best = np.argpartition(scores, -_K)[-_K:]
    return best[np.argsort(-scores[best])]


def _weighted(query: Floats, alpha: float) -> Floats:
    # A Python float times float32 stays float32: a float64 query would make numpy convert all rows.
    return np.concatenate([alpha * query[:DIM], (1 - alpha) * query[DIM:]])
