"""Exact fused search: ``s_i = alpha * sim(t, t_i) + (1 - alpha) * sim(g, g_i)`` as one inner product.

Rows ``[t|g]`` are stored unscaled; the query carries the weight, ``[alpha * q_t ; (1 - alpha) * q_g]``, so that each
query can have its own without a rebuild. One matrix product in float32 scans all rows, and the best are re-scored with
sums in float64 and ordered by ``(-score, row)``, which is deterministic on every machine.

For many rows a :class:`~retrieval.index.candidates.CandidateIndex` selects candidates, which are scored in the same
way. Comparing exact and approximate scores gives the error for this query; unless the last hit is clearly better than
any row outside the candidates could be, more candidates are requested, and finally all rows are scanned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.index.candidates import CandidateIndex

_SPARE = 16
"""Rows fetched in addition to those requested, so that the first pass usually covers ties at the edge."""
_BLOCK = 128
"""Rows re-scored at once; keeps the float64 copies within the CPU cache."""
_GATHERED_SHARE = 0.25
"""Share of allowed rows up to which they alone are copied and multiplied, instead of all rows in their place."""
_GATHERED = 4096
"""Rows copied at once, so that the copies stay small."""
_CANDIDATES_PER_HIT = 8
_TOUCHED = 2**26
"""Bytes read between two reports of warming up."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class ScanPolicy:
    """Policy for choosing between a scan of all rows and candidates; both find the same rows.

    Attributes:
        scanned_share: Share of allowed rows up to which they are scanned: candidates are no faster then, because their
            index can't filter and has to return many times as many.
        asked_share: Share of the rows beyond which candidates are no faster than scanning all rows.
        sure: Safety margin for rows that are not candidates, in standard deviations of the approximate scores' error.
    """

    few: int = 1024
    scanned_share: float = 0.08
    candidates: tuple[int, ...] = (200, 1600)
    asked_share: float = 0.125
    sure: float = 4.0


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows found, best first, ties by row, with cosines of their halves, 0 if either is missing; shapes (found,)."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]
    text: NDArray[np.float64]
    picture: NDArray[np.float64]

    def ranked(self) -> Hits:
        """Returns the hits with the best first, ties by row."""
        return self._at(np.lexsort((self.rows, -self.scores)))

    def first(self, k: int) -> Hits:
        """Returns the first ``k`` hits."""
        return self._at(slice(k))

    def _at(self, places: NDArray[np.int64] | slice) -> Hits:
        return Hits(self.rows[places], self.scores[places], self.text[places], self.picture[places])


class _QueryVector:
    """A query as float64 halves and as one weighted float32 vector."""

    def __init__(self, text: NDArray[np.float64], picture: NDArray[np.float64], alpha: float) -> None:
        self.text, self.picture, self.alpha = text, picture, alpha
        self.query = np.concatenate([alpha * text, (1 - alpha) * picture]).astype(np.float32)


class FusedIndex:
    """Exact search over rows, which are neither copied nor changed; ``fast`` selects candidates, if given."""

    def __init__(
        self,
        rows: NDArray[np.float32],
        text_dim: int,
        fast: CandidateIndex | None = None,
        plan: ScanPolicy | None = None,
    ) -> None:
        """Raises ValueError if shape or type of the rows is wrong; the library ensures unit length of halves."""
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
        """Returns the best ``k`` rows.

        Args:
            among: Boolean mask of shape (n,) of the rows that may be found; None for all.

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
        """Reads all rows once, so that the first search does not wait for the disk."""
        # A search by candidates reads scattered rows, and an exact one reads all: on a disk with slow seeks, either may
        # take a minute if the memory-mapped rows are not cached yet.
        values = np.asarray(self.rows).reshape(-1)
        step = _PAGE // values.itemsize
        for start in range(0, values.size, _TOUCHED // values.itemsize):
            part = values[start : start + _TOUCHED // values.itemsize]
            # Reading one value loads its whole page.
            part[::step].max()
            if progress:
                progress((start + part.size) * values.itemsize, values.nbytes)

    def _half(self, vector: NDArray[np.float32] | None, dim: int, name: str) -> NDArray[np.float64]:
        if vector is None:
            return np.zeros(dim)
        if vector.shape != (dim,):
            raise ValueError(f"the {name} of a query has {dim} values, not shape {vector.shape}")
        if not np.isfinite(vector).all():
            raise ValueError(f"the {name} of a query is not finite")
        return vector.astype(np.float64)

    def _allowed(self, exclude: Collection[int], among: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if among is not None and among.shape != (len(self),):
            raise ValueError(f"a choice among {len(self)} rows can't have shape {among.shape}")
        if not exclude:
            return among
        # A copy, as the mask is cached for other searches with the same filter.
        allowed = np.ones(len(self), dtype=np.bool_) if among is None else among.copy()
        allowed[np.fromiter(exclude, dtype=np.int64)] = False
        return allowed

    def _by_candidates(
        self, fast: CandidateIndex, query: _QueryVector, k: int, allowed: NDArray[np.bool_] | None, available: int
    ) -> Hits | None:
        """Returns the best ``k`` rows and more, or None if the candidates do not suffice to determine them."""
        for least in self.plan.candidates:
            # The candidate index can't filter: only this share of its rows will be allowed.
            n = math.ceil(max(least, _CANDIDATES_PER_HIT * k) * len(self) / available)
            if n > self.plan.asked_share * len(self):
                return None
            rows, rough = fast.candidates(query.query, n)
            places = np.arange(rows.size) if allowed is None else np.flatnonzero(allowed[rows])
            # Too few to select the best from and to estimate the error.
            if rows.size < n or places.size < k + _SPARE:
                continue
            hits = self._scored(rows[places], query)
            # Error of the approximate scores near the edge; at the top it is larger and biased.
            edge = slice(places.size // 2, None)
            errors = hits.scores[edge] - rough[places[edge]]
            # A row that is not a candidate has no approximate score above the lowest of the candidates.
            reach = float(rough.min() + errors.mean() + self.plan.sure * errors.std()) + rounding_slack(query.query)
            hits = hits.ranked()
            # Strictly greater: ties are ordered by row, and a non-candidate may have the lower row.
            if hits.scores[k - 1] > reach:
                return hits
        return None

    def _by_scan(self, query: _QueryVector, k: int, allowed: NDArray[np.bool_] | None, available: int) -> Hits:
        rough = self._rough_scores(query.query, allowed)
        fetch = min(k + _SPARE, available)
        best = np.argpartition(rough, rough.size - fetch)[-fetch:]
        hits = self._scored(best, query).ranked()
        least = hits.scores[k - 1] - rounding_slack(query.query)
        if fetch < available and rough[best].min() >= least:
            # A row that was not fetched may tie with a fetched one, or beat it after float32 rounding, so all such rows
            # are scored.
            hits = self._scored(np.flatnonzero(rough >= least), query).ranked()
        return hits

    def _rough_scores(self, query: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        """Returns float32 scores of all rows; minus infinity for those that are not allowed."""
        # As a plain array: a product with a memory-mapped one is slower.
        rows = np.asarray(self.rows)
        if allowed is None or allowed.mean() > _GATHERED_SHARE:
            scores: NDArray[np.float32] = rows @ query
            if allowed is not None:
                scores[~allowed] = -np.inf
            return scores
        scores = np.full(len(self), -np.inf, dtype=np.float32)
        places = np.flatnonzero(allowed)
        for start in range(0, places.size, _GATHERED):
            part = places[start : start + _GATHERED]
            scores[part] = rows[part] @ query
        return scores

    def _scored(self, rows: NDArray[np.int64], query: _QueryVector) -> Hits:
        """Scores these rows exactly, in their order."""
        texts, pictures = np.empty(rows.size), np.empty(rows.size)
        for start in range(0, rows.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            # Of a memory-mapped file this reads only the named rows.
            block = self.rows[rows[part]].astype(np.float64)
            # Sums along rows, not a matrix product: BLAS may sum equal rows differently, which would break ties.
            # Clipped, as rounding may push the cosine of equal vectors slightly beyond 1.
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
    """Merges searches of parts, each by the number of its first row, into the best ``k`` of all rows."""
    together = Hits(
        np.concatenate([first + hits.rows for first, hits in parts]),
        *(np.concatenate([getattr(hits, name) for _, hits in parts]) for name in ("scores", "text", "picture")),
    )
    return together.ranked().first(k)


def _none() -> Hits:
    nothing = np.empty(0)
    return Hits(np.empty(0, dtype=np.int64), nothing, nothing, nothing)


class SegmentedIndex:
    """Concatenated rows of several indexes, some hidden; results are those of one index of all rows."""

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
        """Searches as :meth:`FusedIndex.search`."""
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
