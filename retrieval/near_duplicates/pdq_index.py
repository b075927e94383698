"""Exact search among PDQ hashes by Hamming distance."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.index.candidates import one_thread
from retrieval.near_duplicates.pdq import BITS, BYTES


class PdqIndex:
    """Exact index from hashes to row numbers. Immutable, so any number of threads may search it.

    To add hashes, create a new index with :meth:`with_more` and replace the old one in a single assignment: FAISS
    crashes if an index is modified during a search. Both share existing blocks.
    """

    def __init__(self, hashes: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Copies the hashes.

        Args:
            hashes: Hashes to index, shape (n, 32).
            rows: n row numbers to return for them; several hashes may share one.
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

        Args:
            hashes: Hashes to search, such as those of one picture in all positions; shape (n, 32).
            radius: Largest distance, in bits of 256.
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
