"""PDQ: a 256-bit perceptual hash that is robust to scaling, compression, blur and loss of colour.

By Facebook (https://github.com/facebook/ThreatExchange, ``pdq``), computed by ``pdqhash``. The bits are signs of low
DCT coefficients of the luma, so rotating or mirroring a picture permutes and flips them in a known way, and the hashes
of all eight positions cost no more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import ModuleType
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from court.errors import NotLoaded

Hash = NDArray[np.uint8]
"""A hash: uint8 of shape (32,), its 256 bits as numpy.packbits has them."""
BITS: Final = 256
BYTES: Final = BITS // 8
QUALITY_FLOOR: Final = 50
"""Minimum PDQ quality, of 0 to 100; PDQ advises against using hashes below it."""
_SIDE: Final = 960
"""Longest side, in pixels, at which a picture is hashed; larger ones are scaled down first. PDQ averages pictures down
to 64 x 64 anyway, and holds the GIL meanwhile."""


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


POSITIONS: Final = len(Position)
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
    """Returns pixels of shape (height, width, 3) in a position: turned counter-clockwise, mirrored left to right."""
    return np.ascontiguousarray(_TURNS[position](pixels))


def hashes_of(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """Computes the hashes of a picture in its eight positions, and their quality.

    Args:
        pixels: Upright RGB, of shape (height, width, 3). Anything else (CMYK, palette indices, EXIF-rotated pixels)
            gives wrong hashes; decode a :class:`court.meme.Frame`.

    Raises:
        NotLoaded: ``pdqhash`` is not installed.
    """
    bits, quality = _pdqhash().compute_dihedral(_reduced(pixels))
    return np.packbits(np.stack(bits).astype(np.uint8), axis=1), int(quality)


def _reduced(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    by = _SIDE / max(height, width)
    # Enlarging a small picture would add no information.
    if by >= 1:
        return np.ascontiguousarray(pixels)
    size = max(1, round(width * by)), max(1, round(height * by))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def distance(one: Hash, other: Hash) -> int:
    """Hamming distance of two hashes, of 256 bits. For unrelated pictures about 128, plus or minus 8."""
    return int(np.bitwise_count(one ^ other).sum())


def _pdqhash() -> ModuleType:
    try:
        import pdqhash
    except ImportError:
        raise pdq_missing() from None
    module: ModuleType = pdqhash
    return module


def pdq_missing() -> NotLoaded:
    """Returns the error for an installation without ``pdqhash``."""
    return NotLoaded(
        "Known memes are found by PDQ, which is not installed: pip install 'memecourt[server]'.", reason="PDQ_MISSING"
    )
