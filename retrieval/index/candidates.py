"""The approximate first stage of a search, which selects candidate rows for exact scoring from compressed vectors.

A product quantizer, three values in 4 bits, scanned by FAISS with look-up tables in registers (André et al., "Quicker
ADC", 2019): a twenty-fourth of the vectors' size, and about fifteen times as fast as scanning them. Its scores are
approximate and internal: :class:`retrieval.index.exact.FusedIndex` scores the candidates exactly, and falls back to
scanning all rows if they may not suffice.

It is kept in a file beside the vectors, which begins with a key of what it was built from and a digest of the rest, as
FAISS does not detect flipped bits. A file that does not fit is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger(__name__)

EXACT_UP_TO = 300_000
"""Rows up to which a library is scanned exactly: a scan then takes less than 0.1 s, and two stages gain nothing."""

_FORMAT = 2
"""Version of the file; those of other versions are made anew."""

Progress = Callable[[int, int], None]
"""Progress callback: amount done and total."""

_PART = 3
"""Values encoded together in 4 bits. With two, a scan takes 1.5 times as long; with four, the need for more candidates
outweighs the gain."""
_CENTROIDS = 16
_SAMPLE = 4096
"""Rows used to learn the centroids, 256 for each; four times as many do not reduce the error."""
_BLOCK = 16_384
"""Rows encoded at once: bounds the copies."""
_DIGEST = 32
_SUM_MAX = 2**16 - 1
_ENTRY_MAX = 2**8 - 1


class CandidateIndex:
    """Approximate scores of all rows of one library; immutable and thread-safe."""

    def __init__(self, index: Any, dim: int, text_dim: int) -> None:
        self._index = index
        self.rows = int(index.ntotal)
        self.dim = dim
        self.text_dim = text_dim
        # The last part is the guard's, see _guard.
        self._centroids = _centroids(index)[:-1]

    @classmethod
    def build(cls, rows: NDArray[np.float32], text_dim: int, progress: Progress | None = None) -> Self:
        """Learns centroids from the rows and encodes them, on all processors.

        Raises:
            ValueError: There are no rows, or ``text_dim`` does not fit them.
            RuntimeError: FAISS failed.
        """
        import faiss

        n, dim = rows.shape
        if n == 0 or not 0 < text_dim < dim:
            raise ValueError(f"no fast stage for {n} rows of {dim} values with a text half of {text_dim}")
        tell: Progress = progress or (lambda done, total: None)
        centroids = _learn(rows, text_dim)
        guarded = np.concatenate([centroids, _guard_part()])
        index = faiss.IndexPQFastScan(_PART * len(guarded), len(guarded), 4, faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(guarded.ravel(), index.pq.centroids)
        # We set our own centroids, with an exact zero in each part, which FAISS's training would not preserve.
        index.is_trained = True
        tell(0, n)
        for start in range(0, n, _BLOCK):
            index.add(_laid_out(rows[start : start + _BLOCK], text_dim, guard=True))
            tell(min(start + _BLOCK, n), n)
        return cls(index, dim, text_dim)

    @classmethod
    def load_or_build(
        cls, path: Path, rows: NDArray[np.float32], text_dim: int, vectors_digest: str, progress: Progress | None = None
    ) -> Self:
        """Loads the index of these rows, or builds it and keeps it in a file.

        Raises:
            RuntimeError: FAISS failed.
        """
        import faiss

        # Another version of FAISS may read a file differently.
        key = f"{_FORMAT} {faiss.__version__} {vectors_digest} {rows.shape} {text_dim}\n".encode()
        with contextlib.suppress(OSError):
            raw = path.read_bytes()
            head, data = len(key) + _DIGEST, memoryview(raw)[len(key) + _DIGEST :]
            if raw[:head] == key + hashlib.sha256(data).digest():
                return cls(faiss.deserialize_index(np.frombuffer(data, np.uint8)), rows.shape[1], text_dim)
        found = cls.build(rows, text_dim, progress)
        data = faiss.serialize_index(found._index).data
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                temporary = Path(file.name)
                file.writelines((key, hashlib.sha256(data).digest(), data))
            # Atomic: of two processes that build it, the second replaces the same content.
            temporary.replace(path)
        except OSError as error:
            # The index in memory works all the same; only the next start has to build it again.
            _log.warning(
                "The candidates of the search could not be kept: they are chosen anew at each start (%s).",
                error.strerror,
            )
        return found

    def candidates(self, query: NDArray[np.float32], n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the best ``n`` rows and their approximate scores, for a query weighted as for the exact scan."""
        laid_out = _laid_out(query[np.newaxis, :], self.text_dim, guard=True)
        laid_out[0, -_PART] = self._guard(laid_out[0, :-_PART])
        with one_thread():
            scores, found = self._index.search(laid_out, min(n, self.rows))
        # FAISS fills unused places with -1, which as an index would be the last row.
        there = found[0] >= 0
        return found[0][there], scores[0][there]

    def _guard(self, query: NDArray[np.float32]) -> float:
        # FAISS sums one byte per part in 16 bits without checking for overflow. It scales the table's largest span to
        # 255, so for a query whose weight is spread evenly over more than 257 parts, the sums of the best rows overflow
        # and these rows are lost. An additional part, in which all rows are zero, makes the largest span big enough for
        # the sum of all. Each entry is rounded (half a unit a part); two entries are kept in reserve.
        products = np.einsum("pcv,pv->pc", self._centroids, query.reshape(-1, _PART))
        spans = products.max(axis=1) - products.min(axis=1)
        room = _SUM_MAX - 2 * _ENTRY_MAX - len(spans) / 2
        return max(float(spans.sum()) * _ENTRY_MAX / room, float(np.finfo(np.float32).tiny * 2**24))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits FAISS to the calling thread within the context; other threads are not affected."""
    # For a single query, further OpenMP threads would only spin, at the expense of concurrent searches.
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _learn(rows: NDArray[np.float32], text_dim: int) -> NDArray[np.float32]:
    """Learns centroids, float32 of shape (parts, 16, values of a part), from evenly spaced rows."""
    import faiss

    # Unique, as places repeat if the library is smaller than the sample.
    places = np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64))
    sample = _laid_out(rows[places], text_dim)
    # FAISS requires at least as many rows as centroids.
    learnt_from = np.resize(sample, (max(len(sample), _CENTROIDS), sample.shape[1]))
    quantizer = faiss.ProductQuantizer(sample.shape[1], sample.shape[1] // _PART, 4)
    quantizer.cp.min_points_per_centroid = 1
    quantizer.cp.max_points_per_centroid = _SAMPLE // _CENTROIDS
    with one_thread():  # the problems are so small that a second thread only waits
        quantizer.train(learnt_from)
    centroids: NDArray[np.float32] = faiss.vector_to_array(quantizer.centroids).reshape(-1, _CENTROIDS, _PART).copy()
    # A missing half is all zeros and scores 0. With centroids that are merely near zero, all such rows would be off by
    # the same amount, which can crowd out better ones if the other values lie to one side.
    nearest = np.argmin((centroids**2).sum(axis=2), axis=1)
    centroids[np.arange(len(centroids)), nearest] = 0
    return centroids


def _guard_part() -> NDArray[np.float32]:
    """Returns the guard's centroids, shape (1, 16, values of a part): all rows use the first, none uses the last."""
    part = np.zeros((1, _CENTROIDS, _PART), dtype=np.float32)
    part[0, -1, 0] = 1
    return part


def _filled(dim: int) -> int:
    """Returns the width of a half padded to whole parts, so that no part spans both halves."""
    return math.ceil(dim / _PART) * _PART


def _laid_out(rows: NDArray[np.float32], text_dim: int, *, guard: bool = False) -> NDArray[np.float32]:
    """Returns a copy with each half zero-padded to whole parts, and with the guard's part if wanted."""
    picture_dim = rows.shape[1] - text_dim
    start = _filled(text_dim)
    wide = np.zeros((len(rows), start + _filled(picture_dim) + _PART * guard), dtype=np.float32)
    wide[:, :text_dim] = rows[:, :text_dim]
    wide[:, start : start + picture_dim] = rows[:, text_dim:]
    return wide


def _centroids(index: Any) -> NDArray[np.float32]:
    import faiss

    flat: NDArray[np.float32] = faiss.vector_to_array(index.pq.centroids)
    return flat.reshape(-1, _CENTROIDS, _PART)
