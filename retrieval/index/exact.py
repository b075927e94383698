"""Exact fused search: ``s_i = alpha * sim(t, t_i) + (1 - alpha) * sim(g, g_i)`` as one inner product.

Rows ``[t|g]`` are stored unscaled; the weight is put on the query ``[alpha * q_t ; (1 - alpha) * q_g]``, so that every
query may bring its own without a rebuild. FAISS scans, we re-score: its order of ties is arbitrary and its sums are
float32, ours is ``(-score, row)`` of sums in float64, the same every time and on every machine.

Where there are many rows a :class:`~retrieval.index.candidates.CandidateIndex` names candidates, which are scored in
the same way. Their exact scores tell how far its rough ones are off for this very query; unless the last of the best
lies clear of what a row that was not named could have by that, more candidates are asked for, and at last all rows are
scanned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.index.candidates import CandidateIndex, one_thread

_SPARE = 16
"""Rows fetched beyond those asked for, so that ties at the edge are mostly seen in the first pass."""
_BLOCK = 128
"""Rows re-scored at once: bounds the float64 copies, to what a processor's cache holds."""
_CANDIDATES_PER_HIT = 8
_TOUCHED = 2**26
"""Bytes read between two reports of warming up."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class ScanPolicy:
    """Policy for choosing between a scan of all rows and the fast stage; both find the same.

    Attributes:
        few: Size up to which a choice of rows is scored at once, without FAISS, which looks at each row's bit.
        scanned_share: Share of the rows up to which a choice is scanned: there that is as fast as the fast stage, which
            takes no choice and so has to name many times as many candidates.
        candidates: Numbers of candidates, in sequence: each further one if those before don't suffice.
        asked_share: Share of the rows beyond which asking for candidates is no gain over scanning them all.
        sure: Standard deviations of the rough scores' error that a row which was not named gets the benefit of.
    """

    few: int = 1024
    scanned_share: float = 0.08
    candidates: tuple[int, ...] = (200, 1600)
    asked_share: float = 0.125
    sure: float = 4.0


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

    def ranked(self) -> Hits:
        """Returns the hits with the best first, ties by row."""
        return self._at(np.lexsort((self.rows, -self.scores)))

    def first(self, k: int) -> Hits:
        """The first ``k``."""
        return self._at(slice(k))

    def _at(self, places: NDArray[np.int64] | slice) -> Hits:
        return Hits(self.rows[places], self.scores[places], self.text[places], self.picture[places])


class _QueryVector:
    """A query as it was given, in float64, and as one weighted float32 vector."""

    def __init__(self, text: NDArray[np.float64], picture: NDArray[np.float64], alpha: float) -> None:
        self.text, self.picture, self.alpha = text, picture, alpha
        self.query = np.concatenate([alpha * text, (1 - alpha) * picture]).astype(np.float32)


class FusedIndex:
    """Searches rows that it neither copies nor changes.

    Attributes:
        rows: float32 of shape (n, text_dim + picture_dim), contiguous; each half of a row has length 1 or 0.
        text_dim: Width of the text half.
        fast: Fast stage that names candidates; None to scan all rows.
        plan: Policy for choosing between the two.
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        text_dim: int,
        fast: CandidateIndex | None = None,
        plan: ScanPolicy | None = None,
    ) -> None:
        """Raises ValueError if the rows are not as they must be; that their halves are units is the library's care."""
        if rows.ndim != 2 or rows.dtype != np.float32 or not rows.flags.c_contiguous:
            raise ValueError("an index needs contiguous float32 rows")
        if not 0 < text_dim < rows.shape[1]:
            raise ValueError(f"rows of {rows.shape[1]} values can't have a text half of {text_dim}")
        if fast is not None and (fast.rows, fast.dim, fast.text_dim) != (*rows.shape, text_dim):
            raise ValueError("the fast stage is one of other rows")
        self.rows = rows
        self.text_dim = text_dim
        self.fast = fast
        self.plan = plan or ScanPolicy()

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
            text: Text half of the query, shape (text_dim,), length 1 or 0; None for none.
            picture: Picture half of the query, shape (picture_dim,), length 1 or 0; None for none.
            alpha: Weight of the text, in [0, 1].
            k: Number of rows to find; fewer come back if there are fewer.
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

        query = _QueryVector(query_text, query_picture, alpha)
        hits = None
        if allowed is not None and available <= self.plan.few:
            hits = self._scored(np.flatnonzero(allowed), query).ranked()
        elif self.fast is not None and available > self.plan.scanned_share * len(self):
            hits = self._by_candidates(self.fast, query, k=k, allowed=allowed, available=available)
        if hits is None:
            hits = self._by_scan(query, k, allowed, available)
        return hits.first(k)

    def warm(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads all rows once, so that the first search does not wait for the disk.

        A search by candidates reads rows here and there, and an exact one reads all: from a disk that is slow to find
        its place, either may take a minute where the rows are memory-mapped and were not read before.

        Args:
            progress: Told how many bytes are read, and of how many.
        """
        values = np.asarray(self.rows).reshape(-1)
        step = _PAGE // values.itemsize
        for start in range(0, values.size, _TOUCHED // values.itemsize):
            part = values[start : start + _TOUCHED // values.itemsize]
            # One value of each page brings all of the page in.
            part[::step].max()
            if progress:
                progress((start + part.size) * values.itemsize, values.nbytes)

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
        # A copy: the choice is cached for other searches with the same filter.
        allowed = np.ones(len(self), dtype=np.bool_) if among is None else among.copy()
        allowed[np.fromiter(exclude, dtype=np.int64)] = False
        return allowed

    def _by_candidates(
        self, fast: CandidateIndex, query: _QueryVector, k: int, allowed: NDArray[np.bool_] | None, available: int
    ) -> Hits | None:
        """The best ``k`` and more, or None if the fast stage does not show which they are."""
        for least in self.plan.candidates:
            # The fast stage knows nothing of what is allowed: of the rows that it names only this share will be.
            n = math.ceil(max(least, _CANDIDATES_PER_HIT * k) * len(self) / available)
            if n > self.plan.asked_share * len(self):
                return None
            rows, rough = fast.candidates(query.query, n)
            places = np.arange(rows.size) if allowed is None else np.flatnonzero(allowed[rows])
            # Too few to take the best from, and to measure the error by.
            if rows.size < n or places.size < k + _SPARE:
                continue
            hits = self._scored(rows[places], query)
            # By how much the rough scores are off near the edge: at the top they are off by more and one-sidedly.
            edge = slice(places.size // 2, None)
            errors = hits.scores[edge] - rough[places[edge]]
            # A row that was not named has no rough score above the least of those that were.
            reach = float(rough.min() + errors.mean() + self.plan.sure * errors.std()) + rounding_slack(query.query)
            hits = hits.ranked()
            # Not equal to it: a tie goes by row, and the row that was not named may be the lower one.
            if hits.scores[k - 1] > reach:
                return hits
        return None

    def _by_scan(self, query: _QueryVector, k: int, allowed: NDArray[np.bool_] | None, available: int) -> Hits:
        """The best ``k`` and more."""
        fetch = min(k + _SPARE, available)
        candidates, last = self._scan(query.query, fetch, allowed)
        hits = self._scored(candidates, query).ranked()
        slack = rounding_slack(query.query)
        if fetch < available and last >= hits.scores[k - 1] - slack:
            # A row that was not fetched may tie with, or by float32's rounding beat, one that was: look at all such.
            hits = self._scored(self._scan_above(query.query, hits.scores[k - 1] - slack, allowed), query).ranked()
        return hits

    def _scan(
        self, query: NDArray[np.float32], fetch: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], float]:
        """FAISS's best ``fetch`` rows and the float32 score of the last."""
        import faiss

        scores = np.empty((1, fetch), dtype=np.float32)
        found = np.empty((1, fetch), dtype=np.int64)
        # The function under faiss.knn, which itself takes no selector. The arrays behind the pointers live in this
        # frame until it returns. asarray: a memory-mapped array is passed as the plain array it is.
        rows, (selector, _bits) = np.asarray(self.rows), _selector(allowed)
        with one_thread():
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
        # As an index, -1 is the last row, which would be cited without a word.
        if (found < 0).any():
            raise RuntimeError("FAISS found fewer rows than there are")
        return found[0], float(scores[0, -1])

    def _scan_above(
        self, query: NDArray[np.float32], least: float, allowed: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """All rows whose float32 score lies above this."""
        import faiss

        rows, (selector, _bits) = np.asarray(self.rows), _selector(allowed)
        result = faiss.RangeSearchResult(1)
        with one_thread():
            faiss.range_search_inner_product(
                faiss.swig_ptr(query),
                faiss.swig_ptr(rows),
                query.size,
                1,
                len(self),
                least,
                result,
                selector,
            )
        count = int(faiss.rev_swig_ptr(result.lims, 2)[1])
        # A copy: the labels go with the result.
        found: NDArray[np.int64] = faiss.rev_swig_ptr(result.labels, count).copy()
        return found

    def _scored(self, rows: NDArray[np.int64], query: _QueryVector) -> Hits:
        """Scores these rows exactly, in their order."""
        texts, pictures = np.empty(rows.size), np.empty(rows.size)
        for start in range(0, rows.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            # Of a memory-mapped file this reads the rows that are named and no others.
            block = self.rows[rows[part]].astype(np.float64)
            # Sums along rows, not a matrix product: BLAS may sum equal rows in unequal ways, which would break ties.
            # Clipped: rounding may carry the cosine of equal vectors a hair beyond 1.
            texts[part] = np.clip((block[:, : self.text_dim] * query.text).sum(axis=1), -1, 1)
            pictures[part] = np.clip((block[:, self.text_dim :] * query.picture).sum(axis=1), -1, 1)
        return Hits(rows, query.alpha * texts + (1 - query.alpha) * pictures, texts, pictures)


def rounding_slack(query: NDArray[np.float32]) -> float:
    """Bounds the rounding error of a float32 inner product of this query with a row, for any order of its sum."""
    # n * u * |q| * |row| with u half an epsilon and |row| <= sqrt(2); 8 more roundings for the query's own and for the
    # clipping of cosines.
    unit_roundoff = np.finfo(np.float32).eps / 2
    return float((query.size + 8) * unit_roundoff * max(float(np.linalg.norm(query)), 1e-6) * 2**0.5)


def merged(parts: Sequence[tuple[int, Hits]], k: int) -> Hits:
    """The best ``k`` of several searches, as if all rows had been searched at once.

    Args:
        parts: Place of the first row of each part among all rows, and the best ``k`` of its own.
        k: Number of rows to find.
    """
    together = Hits(
        np.concatenate([first + hits.rows for first, hits in parts]),
        *(np.concatenate([getattr(hits, name) for _, hits in parts]) for name in ("scores", "text", "picture")),
    )
    return together.ranked().first(k)


def _selector(allowed: NDArray[np.bool_] | None) -> tuple[Any, NDArray[np.uint8] | None]:
    """FAISS's selector of these rows, and the bits that it points to: they must be held as long as it is used."""
    import faiss

    if allowed is None:
        return None, None
    # FAISS counts the bits of a byte from the lowest.
    bits = np.packbits(allowed, bitorder="little")
    return faiss.IDSelectorBitmap(bits.size, faiss.swig_ptr(bits)), bits


def _none() -> Hits:
    nothing = np.empty(0)
    return Hits(np.empty(0, dtype=np.int64), nothing, nothing, nothing)
