"""What a library of a million memes costs: memory, time until it answers, and changing it while it is searched.

The library is drawn (unit vectors of two halves, texts of a dozen words, no pictures) and written by the same code as
any other; then each figure is measured in a process of its own, which opens it as a court does. The encoder is a
stand-in that gives drawn vectors, so that nothing but the library is measured.

- ``memory_over_vectors``: resident memory of the whole process, Python and its libraries and all memory-mapped pages
  included, after every row was searched, over the bytes of the vectors; ``memory_private_mb`` is what of it is not the
  files themselves. The same with the fast stage of the search in memory, ``memory_with_fast_stage_over_vectors``.
- ``open_to_answer_s``: from the start of opening it, page cache warm, the vectors' digest to be checked later, to the
  first answer, the fast stage of the search read from where it was kept. ``open_to_scanned_answer_s`` is the same
  without one, all rows scanned. ``open_checked_s`` is what opening it takes with every byte checked, as a server
  does before it says that it is ready; where the cache is cold, that is also what warms it.
- ``adds_per_s``: memes put in one by one, each acknowledged when it is on the disk, while 8 searches are always under
  way; ``search_p99_over_undisturbed``: the 99th percentile of these searches over that of as many without a writer, in
  turns. Adds are offered at 600 a second by 16 threads: the question is whether searches suffer from them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from court.precedents import Findings, MinSimilarity, VoteSettings
from court.verdict import Label
from eval.perf.bench import Result
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings
from retrieval.library.library import Check, Library
from retrieval.library.manifest import VECTORS, Calibration, LabelledMeme, Tuning
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder

_MEMES = 1_000_000
_DIM = 512
_CLUSTERS = 5000
_NOISE = 0.8
_BLOCK = 16_384
_SEARCHES = 8
_ADDERS = 16
_OFFERED = 600
"""Adds a second."""
_ROUNDS = 3
_ROUND_S = 15.0
_WORDS = ("cat", "dog", "monday", "coffee", "alarm", "office", "train", "rain", "summer", "week", "meeting", "pizza")


class Drawn(Halves):
    """An encoder that gives vectors by number: a stand-in, so that embedding costs nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.identity = EncoderIdentity(
            name="drawn", digest=f"sha256:{'0' * 64}", text_dim=_DIM, picture_dim=_DIM, text_tokens=100
        )
        self.floors = MinSimilarity(text=0.3, picture=0.5)
        self._vectors = drawn(256, seed)
        self._given = 0

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """The next drawn vectors."""
        self._given += len(texts)
        places = np.arange(self._given, self._given + len(texts)) % len(self._vectors)
        return TextEmbeddings(self._vectors[places, :_DIM], (False,) * len(texts))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """Likewise."""
        return self._vectors[: len(pictures), _DIM:]


def drawn(count: int, seed: int) -> NDArray[np.float32]:
    """Rows, shape (count, 2 * 512), of memes whose halves lie around 5,000 centres each."""
    centres = np.random.default_rng(1).standard_normal((2, _CLUSTERS, _DIM), dtype=np.float32)
    random = np.random.default_rng([2, seed])
    rows = np.empty((count, 2 * _DIM), dtype=np.float32)
    for half in range(2):
        part = random.standard_normal((count, _DIM), dtype=np.float32) * _NOISE
        part += centres[half, random.integers(_CLUSTERS, size=count)]
        rows[:, half * _DIM : (half + 1) * _DIM] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def measure(memes: int = _MEMES, round_s: float = _ROUND_S) -> Result:
    """Runs the benchmark: about ten minutes, 9 GB of disk below the temporary directory, 6 GB of memory."""
    with tempfile.TemporaryDirectory(prefix="memecourt-") as folder:
        figures: dict[str, float] = {"memes": float(memes)}
        began = time.perf_counter()
        _write(Path(folder), memes)
        figures["write_s"] = time.perf_counter() - began
        for part in ("checked", "answer", "scanned", "memory", "changes"):  # the first also makes the fast stage
            print(f"measuring: {part}", file=sys.stderr)
            figures |= _in_process(part, Path(folder) / "library", round_s)
    return Result(
        name="library",
        figures={name: round(value, 4) for name, value in figures.items()},
        goals={
            "memory_over_vectors": "<= 1.15",
            "memory_with_fast_stage_over_vectors": "<= 1.15",
            "open_to_answer_s": "<= 1",
            "adds_per_s": ">= 500",
            "search_p99_over_undisturbed": "<= 2",
        },
    )


def _write(folder: Path, memes: int) -> None:
    rows = np.lib.format.open_memmap(folder / "drawn.npy", "w+", np.float32, (memes, 2 * _DIM))
    for number, start in enumerate(range(0, memes, _BLOCK)):
        stop = min(start + _BLOCK, memes)
        rows[start:stop] = drawn(stop - start, number + 1)
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=25, tau=0.1, prior=0.5),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    identity = Drawn().identity
    made = (_meme(str(number)) for number in range(memes))
    Library.create(folder / "library", name="drawn", encoder=identity, memes=made, rows=rows, tuning=tuning)
    (folder / "drawn.npy").unlink()


def _meme(id_: str) -> LabelledMeme:
    number = int("".join(filter(str.isdigit, id_)))
    # Not validated: a million of them are written, and each is validated when it is read.
    return LabelledMeme.model_construct(
        id=id_,
        label=Label.HARMFUL if number % 2 else Label.NOT_HARMFUL,
        text=" ".join(_WORDS[(number // 12**place + place) % 12] for place in range(11)) + f" {number}",
        source=f"source {number % 20}",
        bytes_sha256=hashlib.sha256(id_.encode()).hexdigest(),
        pixels_sha256=hashlib.sha256(f"pixels of {id_}".encode()).hexdigest(),
        has_text=True,
        has_picture=True,
    )


def _in_process(part: str, root: Path, round_s: float) -> dict[str, float]:
    command = [sys.executable, "-m", "eval.perf.library.library", part, str(root), str(round_s)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _ask(finder: LibraryFinder) -> Findings:
    return asyncio.run(_find(finder))


async def _find(finder: LibraryFinder) -> Findings:
    from court.meme import Frame

    return await finder.find(
        text="words", frames=(Frame(b"", 1, 1),), pixels_sha256="", exhibits=3, tally=25, alpha=None
    )


def answer(root: Path) -> dict[str, float]:
    """From opening to the first answer, warmed in between."""
    encoder = Drawn()
    began = time.perf_counter()
    library = Library.open(root, encoder.identity, check=Check.LATER)
    opened = time.perf_counter()
    finder = LibraryFinder(library, encoder)
    finder.warm()
    warmed = time.perf_counter()
    found = _ask(finder)
    assert len(found.tally) == 25
    figures = {
        "open_to_answer_s": time.perf_counter() - began,
        "open_s": opened - began,
        "fast_stage_read_s": warmed - opened,
    }
    finder.close()
    return figures


def scanned(root: Path) -> dict[str, float]:
    """From opening to the first answer without warming, and what another then takes."""
    encoder = Drawn()
    began = time.perf_counter()
    finder = LibraryFinder(Library.open(root, encoder.identity, check=Check.LATER), encoder)
    _ask(finder)
    figures = {"open_to_scanned_answer_s": time.perf_counter() - began}
    again = time.perf_counter()
    _ask(finder)
    finder.close()
    return figures | {"scan_s": time.perf_counter() - again}


def checked(root: Path) -> dict[str, float]:
    """Opening with every byte checked, and warming, for which the fast stage is made."""
    encoder = Drawn()
    began = time.perf_counter()
    library = Library.open(root, encoder.identity)
    figures = {"open_checked_s": time.perf_counter() - began}
    finder = LibraryFinder(library, encoder)
    began = time.perf_counter()
    finder.warm()
    finder.close()
    return figures | {"fast_stage_made_s": time.perf_counter() - began}


def memory(root: Path) -> dict[str, float]:
    """Resident memory once all rows were searched, and with the fast stage."""
    encoder = Drawn()
    library = Library.open(root, encoder.identity, check=Check.LATER)
    vectors = library.manifest.files[VECTORS].size
    finder = LibraryFinder(library, encoder)
    for _ in range(5):
        _ask(finder)
    resident = _rollup()
    finder.warm()
    for _ in range(5):
        _ask(finder)
    fast = _rollup()
    finder.close()
    return {
        "memory_over_vectors": resident["Rss"] / vectors,
        "memory_private_mb": (resident["Private_Clean"] + resident["Private_Dirty"] - vectors) / 1e6,
        "memory_with_fast_stage_over_vectors": fast["Rss"] / vectors,
    }


def _rollup() -> dict[str, int]:
    """Memory of this process in bytes, by kind, as the kernel sums it up."""
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        found[name.rstrip(":")] = int(value) * 1024
    return found


def changes(root: Path, round_s: float) -> dict[str, float]:
    """Searches with and without a writer, in turns."""
    encoder = Drawn()
    library = Library.open(root, encoder.identity, check=Check.LATER)
    finder = LibraryFinder(library, encoder)
    finder.warm()
    for _ in range(5):
        _ask(finder)
    writer = LibraryWriter(library)
    ids = iter(range(10**9))
    quiet: list[float] = []
    busy: list[float] = []
    added, taken = 0, 0.0
    for round_ in range(_ROUNDS):
        quiet += asyncio.run(_searched(finder, round_s))
        adding = _Adding(writer, ids, drawn(math.ceil(_OFFERED * round_s), 10**6 + round_))
        began = time.perf_counter()
        busy += asyncio.run(_searched(finder, round_s, writer))
        added += adding.stop()
        taken += time.perf_counter() - began
    now = Library.open(root, encoder.identity, check=Check.LATER)
    assert now.counts.memes == library.counts.memes + added
    assert finder.searched.counts.memes > library.counts.memes
    finder.close()
    return {
        "adds_per_s": added / taken,
        "searches_per_s": len(busy) / (_ROUNDS * round_s),
        "search_p50_ms": 1000 * float(np.percentile(quiet, 50)),
        "search_p99_ms": 1000 * float(np.percentile(quiet, 99)),
        "search_p99_busy_ms": 1000 * float(np.percentile(busy, 99)),
        "search_p99_over_undisturbed": float(np.percentile(busy, 99) / np.percentile(quiet, 99)),
    }


async def _searched(finder: LibraryFinder, seconds: float, writer: LibraryWriter | None = None) -> list[float]:
    """Times of searches, in seconds, 8 always under way; with a writer, what it has written is searched soon after."""
    until = time.perf_counter() + seconds
    times: list[float] = []

    async def search() -> None:
        while (began := time.perf_counter()) < until:
            await _find(finder)
            times.append(time.perf_counter() - began)

    async def follow() -> None:
        while writer is not None and time.perf_counter() < until:
            await asyncio.to_thread(finder.swap, writer.library)
            await asyncio.sleep(0.1)

    await asyncio.gather(follow(), *(search() for _ in range(_SEARCHES)))
    return times


class _Adding:
    """Threads that add memes at the rate that is offered, from when this is made until it is stopped."""

    def __init__(self, writer: LibraryWriter, ids: Iterator[int], vectors: NDArray[np.float32]) -> None:
        """``vectors``: one a meme. Of equal ones a search would look at all, where memes are many and different."""
        self._writer = writer
        self._vectors = vectors
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._ids = ids
        self._began = time.perf_counter()
        self._asked = self._done = 0
        self._threads = [threading.Thread(target=self._add) for _ in range(_ADDERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """How many were added."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self._done

    def _add(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                number = next(self._ids)
                self._asked += 1
                due = self._began + self._asked / _OFFERED
            if self._stop.wait(max(0.0, due - time.perf_counter())):
                return
            vector = self._vectors[number % len(self._vectors)]
            self._writer.add(_meme(f"added {number}"), vector, None, who="the benchmark", why="to measure")
            with self._lock:
                self._done += 1


if __name__ == "__main__":
    _part, _root, _round = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    _parts = {"answer": answer, "checked": checked, "memory": memory, "scanned": scanned}
    print(json.dumps(changes(_root, _round) if _part == "changes" else _parts[_part](_root)))
