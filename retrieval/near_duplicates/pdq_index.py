"""Exact search among PDQ hashes by the bits in which they differ."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.candidates import one_thread
from retrieval.near_duplicates.pdq import BITS, BYTES


class PdqIndex:
    """Hashes and the rows that they belong to, searched exactly. Immutable, so any number of threads may search it.

    To add, make a new one by :meth:`with_more` and put it in the place of the old in one assignment: FAISS crashes
    when something is added to an index that is being searched. Old and new share the block of what was there.
    """

    def __init__(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Keeps a copy.

        Args:
            hashes: Hashes to index, shape (n, 32).
            rows: The n numbers to be told for them; one may stand at several hashes.

        Raises:
            ValueError: They don't fit each other.
        """
        self._blocks = (_Block(hashes, rows),) if len(hashes) or len(rows) else ()

    def __len__(self) -> int:
        return sum(len(block.rows) for block in self._blocks)

    def with_more(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> PdqIndex:
        """Another index, of these as well. Adding n hashes one by one copies each about log2(n) times."""
        blocks = [*self._blocks, _Block(hashes, rows)]
        # As a binary counter carries: each block stays larger than the next, so that a search goes through few of them.
        while len(blocks) > 1 and len(blocks[-2].rows) <= len(blocks[-1].rows):
            last = blocks.pop()
            blocks[-1] = _Block(
                np.concatenate([blocks[-1].hashes, last.hashes]), np.concatenate([blocks[-1].rows, last.rows])
            )
        more = PdqIndex(np.empty((0, BYTES), np.uint8), [])
        more._blocks = tuple(blocks)
        return more

    def without_below(self, row: int) -> PdqIndex:
        """Another index, without the rows below a number: a copy of all that is left."""
        blocks = [(block.hashes[block.rows >= row], block.rows[block.rows >= row]) for block in self._blocks]
        return PdqIndex(
            np.concatenate([np.empty((0, BYTES), np.uint8), *(hashes for hashes, _ in blocks)]),
            np.concatenate([np.empty(0, np.int64), *(rows for _, rows in blocks)]),
        )

    def within(self, hashes: NDArray[np.uint8], radius: int) -> dict[int, int]:
        """Rows of which a hash differs from one of these in at most ``radius`` bits, and in how many the nearest does.

        Args:
            hashes: Hashes of one picture in all its positions, say: shape (n, 32).
            radius: Largest distance, in bits of 256.

        Raises:
            ValueError: The hashes or the radius are none.
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
        """A copy: FAISS has its own, and there is no second one to keep."""
        return np.asarray(faiss.vector_to_array(self._index.xb)).reshape(-1, BYTES)  # type: ignore[attr-defined]

    def within(self, hashes: NDArray[np.uint8], radius: int) -> list[tuple[int, int]]:
        with one_thread():
            # FAISS finds what is nearer than the radius, not what is at it.
            _, distances, places = self._index.range_search(np.ascontiguousarray(hashes), radius + 1)
        return list(zip(self.rows[places].tolist(), distances.astype(np.int64).tolist(), strict=True))
