"""The fast first stage of a search: which rows are worth scoring exactly, from half a byte for three values.

A product quantizer, three values in 4 bits, scanned by FAISS with look-up tables in registers (André et al., "Quicker
ADC", 2019): a twenty-fourth of the vectors' size, and some fifteen times as fast as scanning them. Its scores are
rough, so they never leave the search: :class:`retrieval.index.exact.FusedIndex` scores exactly what is found here, and
scans all rows where it can't be sure that this is enough.

It is a cache of the vectors and can be made from them again at any time. Its file stands beside a small one that names
the vectors it was made from and its own SHA-256; FAISS reads flipped bits without a word, so that nothing is read
before that is checked, and whatever does not fit is refused.
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
from pydantic import BaseModel, ConfigDict, Field, ValidationError

logger = logging.getLogger(__name__)

EXACT_UP_TO = 300_000
"""Rows up to which a library is scanned exactly: below a tenth of a second there is nothing to gain from two stages."""

FORMAT = 1
"""Version of the cache; one of another version is made again."""

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

_PART = 3
"""Values that are encoded together, in 4 bits. Of two, a scan takes half as long again; of four, more candidates are
needed more often than is gained."""
_CENTROIDS = 16
_SAMPLE = 4096
"""Rows that the centroids are chosen by: 256 for each; four times as many leave no less of an error."""
_BLOCK = 16_384
"""Rows encoded at once: bounds the copies."""
_SUM_MAX = 2**16 - 1
_ENTRY_MAX = 2**8 - 1


class UnfitCandidateIndex(Exception):
    """The file of a fast stage is missing, damaged, or of other vectors. Nothing is lost: it can be made again."""


class _Sidecar(BaseModel):
    """Sidecar: description of the index file beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    faiss: str
    """Version of what wrote the file."""
    vectors: str
    """Digest of the vectors that it was made from, as the caller names it."""
    rows: int = Field(ge=1)
    dim: int = Field(ge=2)
    text_dim: int = Field(ge=1)
    sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")
    """Of all that is said above and of the file."""

    def digest(self, path: Path) -> str:
        """Returns the expected SHA-256 of a file together with this sidecar. Raises OSError."""
        hashed = hashlib.sha256(self.model_copy(update={"sha256": ""}).model_dump_json().encode())
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashed).hexdigest()


class CandidateIndex:
    """Rough scores of all rows of one library; never changed, and safe to ask from several threads.

    Attributes:
        rows: Number of indexed rows.
        dim: Values of a row.
        text_dim: Width of the text half of a row.
    """

    def __init__(self, index: Any, dim: int, text_dim: int) -> None:
        """Takes an index as :meth:`build` makes it."""
        self._index = index
        self.rows = int(index.ntotal)
        self.dim = dim
        self.text_dim = text_dim
        # The last part is the guard's, see _guard.
        self._centroids = _centroids(index)[:-1]

    @classmethod
    def build(cls, rows: NDArray[np.float32], text_dim: int, progress: Progress | None = None) -> Self:
        """Learns from the rows and encodes them, on all processors.

        Args:
            rows: float32 of shape (n, dim), n at least 1; may be memory-mapped, is read in blocks.
            text_dim: Width of the text half.
            progress: Told how many rows are encoded, and of how many.

        Raises:
            ValueError: The rows are none or have no such half.
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
        # The centroids are ours, each part's with an exact zero among them, which FAISS's own training would not keep.
        index.is_trained = True
        tell(0, n)
        for start in range(0, n, _BLOCK):
            index.add(_laid_out(rows[start : start + _BLOCK], text_dim, guard=True))
            tell(min(start + _BLOCK, n), n)
        return cls(index, dim, text_dim)

    def save(self, path: Path, vectors_digest: str) -> None:
        """Writes the file and, beside it, what must be known to trust it.

        Each of the two appears whole or not at all. Should two processes write at once, file and sidecar may be of
        different ones: then they don't fit, and the next that opens them makes them again.

        Args:
            path: Path of the file; the sidecar has the suffix ``.json`` in addition.
            vectors_digest: Digest of the vectors that it was built from.

        Raises:
            OSError: The disk will not have it.
        """
        import faiss

        # Whatever stood there is not vouched for any more.
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
        # The sidecar last: without it the file is not read.
        with _replacing(_sidecar_path(path)) as temporary:
            temporary.write_text(sidecar.model_dump_json(indent=2) + "\n", "utf-8")

    @classmethod
    def open(cls, path: Path, expected_digest: str) -> Self:
        """Reads what :meth:`save` wrote.

        Args:
            path: Path of the file.
            expected_digest: Digest of the vectors that will be searched.

        Raises:
            UnfitFastStage: The file is missing, altered, or of other vectors.
        """
        import faiss

        try:
            sidecar = _Sidecar.model_validate_json(_sidecar_path(path).read_bytes())
            # Nobody promises that another version of FAISS reads the file in the same way.
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
        # The digest says that the bytes are those that were written, not that they were written by us.
        dims = _filled(sidecar.text_dim) + _filled(sidecar.dim - sidecar.text_dim) + _PART
        if not isinstance(index, faiss.IndexPQFastScan) or (index.ntotal, index.d) != (sidecar.rows, dims):
            raise UnfitCandidateIndex("it holds something else")
        return cls(index, sidecar.dim, sidecar.text_dim)

    def candidates(self, query: NDArray[np.float32], n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows that look best, in no order that could be relied upon.

        Args:
            query: Finite, shape (dim,), weighted as the exact scan's.
            n: Number of candidates; fewer come back if there are fewer.

        Returns:
            Rows and their rough scores, both of shape (found,), the best first.
        """
        laid_out = _laid_out(query[np.newaxis, :], self.text_dim, guard=True)
        laid_out[0, -_PART] = self._guard(laid_out[0, :-_PART])
        with one_thread():
            scores, found = self._index.search(laid_out, min(n, self.rows))
        # Places that FAISS could not fill hold -1, which as an index is the last row.
        there = found[0] >= 0
        return found[0][there], scores[0][there]

    def _guard(self, query: NDArray[np.float32]) -> float:
        # FAISS adds up one byte a part in 16 bits and does not look whether they suffice: the table's largest span is
        # made 255, so that a query whose weight lies evenly on more than 257 parts makes the sums of its very best rows
        # overflow, and these are lost. One more part that no row has anything in makes the largest span as large as
        # the sum of all needs. Each entry is rounded (half a unit a part); two entries are kept in reserve.
        products = np.einsum("pcv,pv->pc", self._centroids, query.reshape(-1, _PART))
        spans = products.max(axis=1) - products.min(axis=1)
        room = _SUM_MAX - 2 * _ENTRY_MAX - len(spans) / 2
        return max(float(spans.sum()) * _ENTRY_MAX / room, float(np.finfo(np.float32).tiny * 2**24))


def load_or_build(
    path: Path, rows: NDArray[np.float32], text_dim: int, vectors_digest: str, progress: Progress | None = None
) -> CandidateIndex:
    """The fast stage of these rows: read where there is one that fits, else built and kept for the next time.

    Args:
        path: Path of its present or future file.
        rows: Rows to index, as for :meth:`CandidateIndex.build`.
        text_dim: Width of the text half.
        vectors_digest: Digest of the rows.
        progress: Told how many rows are encoded, if any are.

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
        # What was built serves as well; only the next start will take as long again.
        logger.warning(
            "The fast stage of the search could not be kept (%s): it is built at each start.", error.strerror or error
        )
    return stage


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """FAISS on the calling thread alone; for this thread only, and as it was afterwards.

    One query gives a second OpenMP thread nothing to do but to spin, at the expense of whatever else is searched.
    """
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _learn(rows: NDArray[np.float32], text_dim: int) -> NDArray[np.float32]:
    """Centroids, float32 of shape (parts, 16, values of a part), chosen by rows that lie evenly over all."""
    import faiss

    # Each once: of a smaller library than the sample, places repeat.
    places = np.unique(np.linspace(0, len(rows) - 1, _SAMPLE).astype(np.int64))
    sample = _laid_out(rows[places], text_dim)
    # FAISS wants as many rows as there are centroids.
    learnt_from = np.resize(sample, (max(len(sample), _CENTROIDS), sample.shape[1]))
    quantizer = faiss.ProductQuantizer(sample.shape[1], sample.shape[1] // _PART, 4)
    quantizer.cp.min_points_per_centroid = 1
    quantizer.cp.max_points_per_centroid = _SAMPLE // _CENTROIDS
    with one_thread():  # the problems are so small that a second thread only waits
        quantizer.train(learnt_from)
    centroids: NDArray[np.float32] = faiss.vector_to_array(quantizer.centroids).reshape(-1, _CENTROIDS, _PART).copy()
    # A half that is not there is zeros and scores 0. Encoded by centroids that are merely near zero, all such rows
    # would be off by the same amount, enough to crowd out better ones where the values of the others lie to one side.
    nearest = np.argmin((centroids**2).sum(axis=2), axis=1)
    centroids[np.arange(len(centroids)), nearest] = 0
    return centroids


def _guard_part() -> NDArray[np.float32]:
    """The guard's centroids, shape (1, 16, values of a part): rows, zeros there, have the first; none has the last."""
    part = np.zeros((1, _CENTROIDS, _PART), dtype=np.float32)
    part[0, -1, 0] = 1
    return part


def _filled(dim: int) -> int:
    """Values of a half that is filled up to whole parts, so that none has values of both halves."""
    return math.ceil(dim / _PART) * _PART


def _laid_out(rows: NDArray[np.float32], text_dim: int, *, guard: bool = False) -> NDArray[np.float32]:
    """A copy with zeros behind each half where it does not end with a part, and a part for the guard."""
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
    """A new file beside this one, which takes its place when it is written. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
