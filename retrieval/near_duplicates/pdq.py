"""PDQ: 256 bits that stay nearly the same when a picture is scaled, compressed, blurred or loses its colours.

By Facebook (https://github.com/facebook/ThreatExchange, ``pdq``), computed by ``pdqhash``. The bits are signs of low
DCT coefficients of the luma, so turning or mirroring a picture permutes and flips them in a known way: the hashes of
all eight positions come at the price of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import ModuleType
from typing import Any, Final

import cv2
import faiss
import numpy as np
from numpy.typing import NDArray

from court.errors import NotLoaded
from retrieval.index.candidates import one_thread

Hash = NDArray[np.uint8]
"""A hash: uint8 of shape (32,), its 256 bits as numpy.packbits has them."""
BITS: Final = 256
BYTES: Final = BITS // 8
QUALITY_FLOOR: Final = 50
"""PDQ's own measure of how much there is to go by, of 0 to 100; below this it says not to use the hash."""
_SIDE: Final = 960
"""Longest side, in pixels, at which a picture is hashed: what is larger is made smaller first. PDQ averages a picture
down to 64 x 64 anyway, and nothing else of Python runs while it does."""


class Position(StrEnum):
    """The eight ways in which a picture can be turned and mirrored, in the order of :func:`hashes_of`."""

    UPRIGHT = "UPRIGHT"
    TURNED_90 = "TURNED_90"
    TURNED_180 = "TURNED_180"
    TURNED_270 = "TURNED_270"
    UPSIDE_DOWN = "UPSIDE_DOWN"
    MIRRORED = "MIRRORED"
    TRANSPOSED = "TRANSPOSED"
    TRANSVERSED = "TRANSVERSED"


_TURNS: Mapping[Position, Callable[[NDArray[Any]], NDArray[Any]]] = {
    Position.UPRIGHT: lambda a: a,
    Position.TURNED_90: lambda a: np.rot90(a, 1),
    Position.TURNED_180: lambda a: np.rot90(a, 2),
    Position.TURNED_270: lambda a: np.rot90(a, 3),
    Position.UPSIDE_DOWN: np.flipud,
    Position.MIRRORED: np.fliplr,
    Position.TRANSPOSED: lambda a: np.swapaxes(a, 0, 1),
    Position.TRANSVERSED: lambda a: np.swapaxes(np.rot90(a, 2), 0, 1),
}


def turned(pixels: NDArray[np.uint8], position: Position) -> NDArray[np.uint8]:
    """The pixels, of shape (height, width, 3), brought into a position; counter-clockwise, mirrored left to right."""
    return np.ascontiguousarray(_TURNS[position](pixels))


def hashes_of(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """The hashes of a picture in its eight positions, and its quality.

    Args:
        pixels: Upright RGB, of shape (height, width, 3). Anything else (CMYK, palette indices, pixels as a camera
            turned them) gives hashes of another picture: :class:`court.meme.Frame` is what to decode.

    Returns:
        uint8 of shape (8, 32), in the order of :class:`Position`; the quality, 0 to 100.

    Raises:
        NotLoaded: ``pdqhash`` is not installed.
    """
    bits, quality = _pdqhash().compute_dihedral(_reduced(pixels))
    return np.packbits(np.stack(bits).astype(np.uint8), axis=1), int(quality)


def _reduced(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    by = _SIDE / max(height, width)
    if by >= 1:
        return np.ascontiguousarray(pixels)
    size = max(1, round(width * by)), max(1, round(height * by))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def distance(one: Hash, other: Hash) -> int:
    """In how many of 256 bits two hashes differ. Of unrelated pictures about 128, give or take 8."""
    return int(np.bitwise_count(one ^ other).sum())


def _pdqhash() -> ModuleType:
    try:
        import pdqhash
    except ImportError:
        raise NotLoaded(
            "Known memes are found by PDQ, which is not installed: pip install 'memecourt[server]'.",
            reason="PDQ_MISSING",
        ) from None
    module: ModuleType = pdqhash
    return module


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
        kept = [(block.hashes[block.rows >= row], block.rows[block.rows >= row]) for block in self._blocks]
        return PdqIndex(
            np.concatenate([np.empty((0, BYTES), np.uint8), *(hashes for hashes, _ in kept)]),
            np.concatenate([np.empty(0, np.int64), *(rows for _, rows in kept)]),
        )

    def near(self, hashes: NDArray[np.uint8], radius: int) -> dict[int, int]:
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
        near: dict[int, int] = {}
        for block in self._blocks if len(hashes) else ():
            for row, bits in block.near(hashes, radius):
                near[row] = min(bits, near.get(row, bits))
        return near


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

    def near(self, hashes: NDArray[np.uint8], radius: int) -> list[tuple[int, int]]:
        with one_thread():
            # FAISS finds what is nearer than the radius, not what is at it.
            _, distances, places = self._index.range_search(np.ascontiguousarray(hashes), radius + 1)
        return list(zip(self.rows[places].tolist(), distances.astype(np.int64).tolist(), strict=True))
