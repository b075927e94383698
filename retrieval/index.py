"""Exact fused search: ``s_i = alpha * sim(t, t_i) + (1 - alpha) * sim(g, g_i)`` as one inner product.

Rows ``[t|g]`` are stored unscaled; the weight is put on the query ``[alpha * q_t ; (1 - alpha) * q_g]``, so that every
query may bring its own without a rebuild. FAISS scans, we re-score: its order of ties is arbitrary and its sums are
float32, ours is ``(-score, row)`` of sums in float64, the same every time and on every machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SPARE = 16
"""Rows fetched beyond those asked for, so that ties at the edge are mostly seen in the first pass."""
_BLOCK = 1024
"""Rows re-scored at once: bounds the float64 copies."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows found, best first, ties by row. All arrays have shape (found,), and ``found`` may be less than asked for.

    Attributes:
        rows: Places in the library.
        scores: The fused similarities.
        text: Cosines of the text halves; 0 where either has none.
        picture: Cosines of the picture halves; 0 where either has none.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    text: NDArray[np.float64]
    picture: NDArray[np.float64]


class FusedIndex:
    """Searches rows that it neither copies nor changes.

    Attributes:
        rows: float32 of shape (n, text_dim + picture_dim), contiguous; each half of a row has length 1 or 0.
        text_dim: Where the text half ends.
    """

    def __init__(self, rows: NDArray[np.float32], text_dim: int) -> None:
        """Raises ValueError if the rows are not as they must be; that their halves are units is the library's care."""
        if rows.ndim != 2 or rows.dtype != np.float32 or not rows.flags.c_contiguous:
            raise ValueError("an index needs contiguous float32 rows")
        if not 0 < text_dim < rows.shape[1]:
            raise ValueError(f"rows of {rows.shape[1]} values can't have a text half of {text_dim}")
        self.rows = rows
        self.text_dim = text_dim

    def __len__(self) -> int:
        return int(self.rows.shape[0])

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
        """The best ``k`` rows.

        Args:
            text: Of the query, shape (text_dim,), length 1 or 0; None for none.
            picture: Of the query, shape (picture_dim,), length 1 or 0; None for none.
            alpha: Weight of the text, in [0, 1].
            k: How many to find; fewer come back where there are fewer.
            exclude: Rows that must not be found.
            among: Boolean of shape (n,): the only rows that may be found; None for all.

        Raises:
            ValueError: The query is not finite or of the wrong shape, alpha is outside [0, 1] or k below 1.
            RuntimeError: FAISS failed.
        """
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1], not {alpha}")
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query_text = self._half(text, self.text_dim, "text")
        query_picture = self._half(picture, self.rows.shape[1] - self.text_dim, "picture")
        allowed = self._allowed(exclude, among)
        available = len(self) if allowed is None else int(allowed.sum())
        k = min(k, available)
        if k == 0:
            return _none()

        query = np.concatenate([alpha * query_text, (1 - alpha) * query_picture]).astype(np.float32)
        fetch = min(k + _SPARE, available)
        candidates, last = self._scan(query, fetch, allowed)
        hits = self._rescore(candidates, query_text, query_picture, alpha)
        if fetch < available and last >= hits.scores[k - 1] - self._slack(query):
            # A row that was not fetched may tie with, or by float32's rounding beat, one that was: look at all such.
            rough = self.rows @ query
            close = rough >= hits.scores[k - 1] - self._slack(query)
            hits = self._rescore(
                np.flatnonzero(close if allowed is None else close & allowed), query_text, query_picture, alpha
            )
        return Hits(hits.rows[:k], hits.scores[:k], hits.text[:k], hits.picture[:k])

    def _half(self, vector: NDArray[np.float32] | None, dim: int, name: str) -> NDArray[np.float64]:
        if vector is None:
            return np.zeros(dim)
        if vector.shape != (dim,):
            raise ValueError(f"the {name} of a query has {dim} values, not shape {vector.shape}")
        if not np.isfinite(vector).all():
            # FAISS would answer such a query with row -1, which as an index is the last precedent.
            raise ValueError(f"the {name} of a query is not finite")
        return vector.astype(np.float64)

    def _allowed(self, exclude: Collection[int], among: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if among is not None and among.shape != (len(self),):
            raise ValueError(f"a choice among {len(self)} rows can't have shape {among.shape}")
        if not exclude:
            return among
        allowed = np.ones(len(self), dtype=np.bool_) if among is None else among.copy()
        allowed[np.fromiter(exclude, dtype=np.int64)] = False
        return allowed

    def _slack(self, query: NDArray[np.float32]) -> float:
        # How far a float32 inner product may be off: n * u * |q| * |row| with u half an epsilon and |row| <= sqrt(2),
        # whatever the order of its sum; 8 more roundings for the query's own and for the clipping of cosines.
        unit_roundoff = np.finfo(np.float32).eps / 2
        return float((query.size + 8) * unit_roundoff * max(float(np.linalg.norm(query)), 1e-6) * 2**0.5)

    def _scan(
        self, query: NDArray[np.float32], fetch: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], float]:
        """FAISS's best ``fetch`` rows and the float32 score of the last."""
        import faiss

        scores = np.empty((1, fetch), dtype=np.float32)
        found = np.empty((1, fetch), dtype=np.int64)
        # The function under faiss.knn, which itself takes no selector. The arrays behind the pointers live in this
        # frame until it returns. asarray: a memory-mapped array is passed as the plain array it is.
        rows, selector = np.asarray(self.rows), None
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(bits.size, faiss.swig_ptr(bits))
        faiss.knn_inner_product(
            faiss.swig_ptr(query),
            faiss.swig_ptr(rows),
            query.size,
            1,
            len(self),
            fetch,
            faiss.swig_ptr(scores),
            faiss.swig_ptr(found),
            selector,
        )
        if (found < 0).any():
            raise RuntimeError("FAISS found fewer rows than there are")
        return found[0], float(scores[0, -1])

    def _rescore(
        self, rows: NDArray[np.int64], text: NDArray[np.float64], picture: NDArray[np.float64], alpha: float
    ) -> Hits:
        """These rows with their scores, sorted."""
        texts, pictures = np.empty(rows.size), np.empty(rows.size)
        for start in range(0, rows.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            block = self.rows[rows[part]].astype(np.float64)
            # Sums along rows, not a matrix product: BLAS may sum equal rows in unequal ways, which would break ties.
            texts[part] = np.clip((block[:, : self.text_dim] * text).sum(axis=1), -1, 1)
            pictures[part] = np.clip((block[:, self.text_dim :] * picture).sum(axis=1), -1, 1)
        scores = alpha * texts + (1 - alpha) * pictures
        order = np.lexsort((rows, -scores))
        return Hits(rows[order], scores[order], texts[order], pictures[order])


def _none() -> Hits:
    nothing = np.empty(0)
    return Hits(np.empty(0, dtype=np.int64), nothing, nothing, nothing)
