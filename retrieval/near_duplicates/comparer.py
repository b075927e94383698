"""Hashes, finds and compares pictures: the first and the last in sandboxed workers with limits on time and memory.

The work depends on untrusted pixels: finding borders, hashing, matching features and comparing tiles. In a thread of
the server it could not be killed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.backends.sandbox.process import Death, Guard, GuardedWorkers, JobFailed, Reply, Untrusted, WorkerDied
from court.errors import NotLoaded, Unavailable
from court.meme import Picture
from retrieval.index.candidates import one_thread
from retrieval.near_duplicates.match import Agreement, MatchThresholds
from retrieval.near_duplicates.pdq import BITS, BYTES, POSITIONS, pdq_missing

_log = logging.getLogger(__name__)

MEMORY_BYTES = 1024**3
"""Address space of a worker; numpy and OpenCV reserve a large part of it at start."""
CPU_S = 10.0
"""CPU time of one job, in seconds: far more than the largest pictures need."""
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Each thread of these libraries would reserve its own address space."""
_MOST_VIEWS = 64


class _Compared(Untrusted):
    same: bool


class GuardedComparer:
    """Computes hashes of pictures and tells whether two are the same; safe to call concurrently.

    Both methods raise Unavailable if the process crashed (``COMPARER_FAILED``) or was killed from outside
    (``COMPARER_KILLED``), and Overrun on a timeout.
    """

    def __init__(self, *, workers: int = 2, cpu_s: float = CPU_S, wall_s: float = 30.0) -> None:
        """Starts nothing yet; each of the ``workers`` loads numpy and OpenCV."""
        guard = Guard(
            cpu_s=cpu_s,
            wall_s=wall_s,
            memory_bytes=MEMORY_BYTES,
            max_reply_bytes=_MOST_VIEWS * POSITIONS * BYTES,
            environment=_THREADS,
        )
        self._workers = GuardedWorkers(
            "retrieval.near_duplicates.worker", guard, name="picture comparer", workers=workers
        )

    async def hashes(self, picture: Picture) -> NDArray[np.uint8]:
        """Hashes all frames with and without borders, in eight positions: uint8 of shape (n, 8, 32), perhaps empty."""
        # A job without known frames asks for hashes: the same worker does both.
        reply = await self._run({"known": 0}, [frame.png for frame in picture.frames])
        try:
            # A process that has decoded untrusted data is not trusted, so its reply is checked.
            (hashes,) = reply.payloads
            return np.frombuffer(hashes, np.uint8).reshape(-1, POSITIONS, BYTES)
        except ValueError as error:
            raise _failed(error) from None

    async def is_same(
        self, known: Sequence[bytes], picture: Picture, nearness: MatchThresholds, agreement: Agreement
    ) -> bool:
        """True if no tile differs in any frame from the ``known`` ones, our own PNGs (:func:`pictures_match`)."""
        job = {"known": len(known), "nearness": dataclasses.asdict(nearness), "agreement": agreement.value}
        reply = await self._run(job, [*known, *(frame.png for frame in picture.frames)])
        try:
            return _Compared.model_validate(reply.body).same
        except ValidationError as error:
            raise _failed(error) from None

    async def warm(self) -> None:
        """Starts a process, so that the first meme does not wait for it."""
        await self._workers.warm()

    async def aclose(self) -> None:
        """Ends the processes."""
        await self._workers.aclose()

    async def _run(self, job: Mapping[str, Any], frames: Sequence[bytes]) -> Reply:
        try:
            return await self._workers.run(job, frames)
        except WorkerDied as died:
            # Not caused by the picture, as when the machine is short of memory: a retry may succeed.
            if died.death is Death.KILLED:
                raise Unavailable(
                    "The process that compared the picture was killed from outside before it was done. Ask again.",
                    reason="COMPARER_KILLED",
                ) from None
            raise _failed(died) from None
        except JobFailed as failed:
            # Only the worker imports pdqhash and can find out that it is missing.
            if failed.kind == NotLoaded.__name__:
                raise pdq_missing() from None
            raise _failed(failed) from None


def _failed(error: Exception) -> Unavailable:
    # Only the type: the message comes from a process that has decoded untrusted bytes, and may contain some (PR-1).
    _log.warning("the picture comparer failed by %s", type(error).__name__)
    return Unavailable(
        "The picture could not be compared with memes tried before. Try again later.", reason="COMPARER_FAILED"
    )


class PdqIndex:
    """Exact index from hashes to row numbers. Immutable, so any number of threads may search it.

    To add hashes, create a new index with :meth:`with_more` and replace the old one in a single assignment: FAISS
    crashes if an index is modified during a search. Both share existing blocks.
    """

    def __init__(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Copies hashes of shape (n, 32) and their n row numbers; several hashes may share one.

        Raises:
            ValueError: Their numbers differ.
        """
        self._blocks = (_Block(hashes, rows),) if len(hashes) or len(rows) else ()

    def __len__(self) -> int:
        return sum(len(block.rows) for block in self._blocks)

    def with_more(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> PdqIndex:
        """Returns an index with these added. Adding n hashes one by one copies each about log2(n) times."""
        blocks = [*self._blocks, _Block(hashes, rows)]
        # Like the carry of a binary counter: each block stays larger than the next, so there are few to search.
        while len(blocks) > 1 and len(blocks[-2].rows) <= len(blocks[-1].rows):
            last = blocks.pop()
            blocks[-1] = _Block(
                np.concatenate([blocks[-1].hashes, last.hashes]), np.concatenate([blocks[-1].rows, last.rows])
            )
        more = PdqIndex(np.empty((0, BYTES), np.uint8), [])
        more._blocks = tuple(blocks)
        return more

    def without_below(self, row: int) -> PdqIndex:
        """Returns an index without the rows below a number; copies the remaining ones."""
        blocks = [(block.hashes[block.rows >= row], block.rows[block.rows >= row]) for block in self._blocks]
        return PdqIndex(
            np.concatenate([np.empty((0, BYTES), np.uint8), *(hashes for hashes, _ in blocks)]),
            np.concatenate([np.empty(0, np.int64), *(rows for _, rows in blocks)]),
        )

    def within(self, hashes: NDArray[np.uint8], radius: int) -> dict[int, int]:
        """Returns rows with a hash within ``radius`` bits of one of these, each with its smallest distance.

        Raises:
            ValueError: The hashes or the radius are invalid.
        """
        if hashes.ndim != 2 or hashes.shape[1] != BYTES or hashes.dtype != np.uint8:
            raise ValueError(f"PDQ hashes are uint8 of shape (n, 32), not {hashes.dtype} of shape {hashes.shape}")
        if not 0 <= radius <= BITS:
            raise ValueError(f"a radius is 0 to {BITS} bits, not {radius}")
        distances: dict[int, int] = {}
        for block in self._blocks if len(hashes) else ():
            for row, bits in block.within(hashes, radius):
                distances[row] = min(bits, distances.get(row, bits))
        return distances


class _Block:
    def __init__(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> None:
        if hashes.dtype != np.uint8 or hashes.shape != (len(rows), BYTES):
            raise ValueError(f"{len(rows)} rows need uint8 of shape ({len(rows)}, {BYTES}), not {hashes.shape}")
        self.rows = np.array(rows, dtype=np.int64)
        self._index = faiss.IndexBinaryFlat(BITS)
        self._index.add(np.ascontiguousarray(hashes))

    @property
    def hashes(self) -> NDArray[np.uint8]:
        """Copy of the hashes, which only FAISS stores."""
        return np.asarray(faiss.vector_to_array(self._index.xb)).reshape(-1, BYTES)  # type: ignore[attr-defined]

    def within(self, hashes: NDArray[np.uint8], radius: int) -> list[tuple[int, int]]:
        with one_thread():
            # FAISS excludes hits at exactly the radius.
            _, distances, places = self._index.range_search(np.ascontiguousarray(hashes), radius + 1)
        return list(zip(self.rows[places].tolist(), distances.astype(np.int64).tolist(), strict=True))
