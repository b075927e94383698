"""The approximate first stage of a search, which selects candidate rows for exact scoring from compressed vectors.

A product quantizer, three values in 4 bits, scanned by FAISS with look-up tables in registers (André et al., "Quicker
ADC", 2019): a twenty-fourth of the vectors' size, and about fifteen times as fast as scanning them. Its scores are
approximate and internal: :class:`retrieval.index.exact.FusedIndex` scores the candidates exactly, and falls back to
scanning all rows if they may not suffice.

It is a cache that can be rebuilt from the vectors at any time. A sidecar file names the vectors it was built from and
the SHA-256 of the index. FAISS does not detect flipped bits, so the digest is checked before loading, and any mismatch
is rejected.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from court.values import Value

logger = logging.getLogger(__name__)

EXACT_UP_TO = 300_000
"""Rows up to which a library is scanned exactly: a scan then takes less than 0.1 s, and two stages gain nothing."""

FORMAT = 1
"""Version of the cache; caches of other versions are rebuilt."""

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
_SUM_MAX = 2**16 - 1
_ENTRY_MAX = 2**8 - 1


class UnfitCandidateIndex(Exception):
    """The index file is missing, damaged, or belongs to other vectors. It can be rebuilt."""


class _Sidecar(Value):
    format: int
    faiss: str
    """Version of FAISS that wrote the file."""
    vectors: str
    """Digest of the vectors that it was built from, as given by the caller."""
    rows: int = Field(ge=1)
    dim: int = Field(ge=2)
    text_dim: int = Field(ge=1)
    sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the fields above and of the file."""

    def digest(self, path: Path) -> str:
        """Returns the expected SHA-256 of a file together with this sidecar. Raises OSError."""
        hashed = hashlib.sha256(self.model_copy(update={"sha256": ""}).model_dump_json().encode())
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashed).hexdigest()


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

        Args:
            rows: float32 of shape (n, dim), n at least 1; may be memory-mapped, is read in blocks.

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

    def save(self, path: Path, vectors_digest: str) -> None:
        """Writes the file and its sidecar.

        Raises:
            OSError: The file can't be written.
        """
        # Each is written atomically. If two processes write concurrently, file and sidecar may not match, and the next
        # process to open them rebuilds both.
        import faiss

        # Invalidates the old file first.
        _sidecar_path(path).unlink(missing_ok=True)
        content = _Sidecar(
            format=FORMAT,
            faiss=faiss.__version__,
            vectors=vectors_digest,
            rows=self.rows,
            dim=self.dim,
            text_dim=self.text_dim,
            sha256="",
        )
        with _replacing(path) as temporary:
            try:
                faiss.write_index(self._index, str(temporary))
            except RuntimeError as error:
                raise OSError("the fast stage of the search can't be written") from error
            sidecar = content.model_copy(update={"sha256": content.digest(temporary)})
        # The sidecar is written last: without it the file is not used.
        with _replacing(_sidecar_path(path)) as temporary:
            temporary.write_text(sidecar.model_dump_json(indent=2) + "\n", "utf-8")

    @classmethod
    def open(cls, path: Path, expected_digest: str) -> Self:
        """Reads what :meth:`save` wrote.

        Raises:
            UnfitCandidateIndex: The file is missing, altered, or belongs to other vectors.
        """
        import faiss

        try:
            sidecar = _Sidecar.model_validate_json(_sidecar_path(path).read_bytes())
            # Another version of FAISS may read the file differently.
            if sidecar.format != FORMAT or sidecar.faiss != faiss.__version__:
                raise UnfitCandidateIndex("it was made by another version")
            if sidecar.vectors != expected_digest:
                raise UnfitCandidateIndex("it was made from other vectors")
            if sidecar.digest(path) != sidecar.sha256:
                raise UnfitCandidateIndex("it is not what it was when written")
            index = faiss.read_index(str(path))
        except FileNotFoundError:
            raise UnfitCandidateIndex("it is not there") from None
        except ValidationError:
            raise UnfitCandidateIndex("what is said of it can't be understood") from None
        except (OSError, RuntimeError) as error:
            raise UnfitCandidateIndex("it can't be read") from error
        # The digest only proves that the bytes are unchanged, not that we wrote them.
        dims = _filled(sidecar.text_dim) + _filled(sidecar.dim - sidecar.text_dim) + _PART
        if not isinstance(index, faiss.IndexPQFastScan) or (index.ntotal, index.d) != (sidecar.rows, dims):
            raise UnfitCandidateIndex("it holds something else")
        return cls(index, sidecar.dim, sidecar.text_dim)

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


def load_or_build(
    path: Path, rows: NDArray[np.float32], text_dim: int, vectors_digest: str, progress: Progress | None = None
) -> CandidateIndex:
    """Loads the candidate index of these rows, or builds and saves it if there is no matching file.

    Raises:
        RuntimeError: FAISS failed.
    """
    try:
        stage = CandidateIndex.open(path, vectors_digest)
        if (stage.rows, stage.dim, stage.text_dim) == (*rows.shape, text_dim):
            return stage
        raise UnfitCandidateIndex("it was made from other vectors")
    except UnfitCandidateIndex as unfit:
        logger.info("The fast stage of the search is built: %s.", unfit)
    stage = CandidateIndex.build(rows, text_dim, progress)
    try:
        stage.save(path, vectors_digest)
    except OSError as error:
        # The index in memory works all the same; only the next start has to build it again.
        logger.warning(
            "The fast stage of the search could not be kept (%s): it is built at each start.", error.strerror or error
        )
    return stage


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


def _sidecar_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file that replaces ``path`` at the end. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
