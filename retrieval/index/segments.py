"""Search over several segments, such as a generation's rows and those added since, as if they were one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from retrieval.index.exact import FusedIndex, Hits


class SegmentedIndex:
    """The concatenated rows of several indexes, some of them hidden.

    Results and their order are those of a single index of all rows, as scores don't depend on the segment.
    """

    def __init__(self, segments: Collection[FusedIndex], hidden: Collection[int] = ()) -> None:
        """``hidden`` are rows that are never found, numbered across all segments."""
        # Empty segments are dropped, so an unchanged library is searched as a single segment.
        self._segments = [segment for segment in segments if len(segment)]
        self._ends = np.cumsum([len(segment) for segment in self._segments])
        self._hidden = frozenset(hidden)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._segments else 0

    def vectors(self, rows: Collection[int]) -> NDArray[np.float32]:
        """Returns the vectors of at least one row, in their order: float32 of shape (n, text_dim + picture_dim)."""
        wanted = np.fromiter(rows, dtype=np.int64)
        of = np.searchsorted(self._ends, wanted, side="right")
        if (of == len(self._segments)).any():
            raise IndexError("there is no such row")
        found = np.empty((wanted.size, self._segments[0].rows.shape[1]), dtype=np.float32)
        for number, (segment, end) in enumerate(zip(self._segments, self._ends, strict=True)):
            here = of == number
            found[here] = segment.rows[wanted[here] - (end - len(segment))]
        return found

    def search(
        self,
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        *,
        alpha: float,
        k: int,
        exclude: Collection[int] = (),
        among: NDArray[np.bool_] | None = None,
    ) -> Hits:
        """Searches as :meth:`retrieval.index.exact.FusedIndex.search`."""
        if among is not None and among.shape != (len(self),):
            raise ValueError(f"a choice among {len(self)} rows can't have shape {among.shape}")
        out = self._hidden.union(exclude) if self._hidden else exclude
        found = []
        for segment, end in zip(self._segments, self._ends, strict=True):
            first = int(end) - len(segment)
            hits = segment.search(
                text,
                picture,
                alpha=alpha,
                # The overall best k are among the best k of each segment.
                k=k,
                exclude=[row - first for row in out if first <= row < end],
                among=None if among is None else among[first:end],
            )
            found.append(Hits(hits.rows + first, hits.scores, hits.text, hits.picture))
        if len(found) == 1:
            return found[0]
        return Hits(
            np.concatenate([hits.rows for hits in found]),
            np.concatenate([hits.scores for hits in found]),
            np.concatenate([hits.text for hits in found]),
            np.concatenate([hits.picture for hits in found]),
        ).ranked().first(k)  # fmt: skip
