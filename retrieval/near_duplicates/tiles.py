"""Tile comparison: aligns two pictures and rejects them if any tile differs.

A hash of the whole picture hardly changes when one word of a caption does. Here the second picture is aligned with the
first in position, size and colours (crops, scaling, filters, grey copies), and the remaining difference is examined
tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""RGB, of shape (height, width, 3)."""
_Map = NDArray[np.float32]
"""Affine map of shape (2, 3) from positions in the known picture to those in the new one, in pixels."""
_Array = NDArray[Any]

SIDE: Final = 512
"""Longest side at which pictures are compared, in pixels: that of a library's thumbnails."""
SMALLEST: Final = 200
"""Longest side, in pixels, below which captions can't be distinguished."""
TILE: Final = 12
"""Side of a tile, in pixels: one or two letters of a caption. Tiles overlap: there is one around every pixel."""
_GRID: Final = 256
"""Longest side at which pictures are aligned, in pixels."""
_UNTIL: Final = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 1e-5)
"""Maximum iterations of the alignment (ECC), and the gain at which it stops."""
_WELL_LAID: Final = 0.8
"""Correlation from which no other alignment is tried."""
_SHARPEST: Final = 0.8
"""Width of the blur applied to both, in pixels, which hides a remaining shift of half a pixel."""
_BLURS: Final = (1.0, 1.7, 2.5)
"""Additional blurs, in pixels, of which the best match is applied to the sharper picture."""
_CLOSE_ENOUGH: Final = 25.0
"""Mean squared difference, in squared levels, below which no blur is tried."""
_SPARSE: Final = 101
"""Sampling interval of the pixels used to fit the change of colours."""
_OFF_AT_MOST: Final = 900.0
"""Cap on a pixel's squared difference when choosing a blur, so that a changed caption does not dominate."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance of the comparison.

    Attributes:
        cut: Maximum share of height or width of either picture outside the other on one side. Many memes have small
            text at the edge, and cropped parts are not compared.
    """

    tile: float = 30.0
    cut: float = 0.03
    blur: float = 1.7


def tiles_match(known: Pixels, new: Pixels, tolerance: Tolerance = Tolerance()) -> bool:
    """Compares two pictures tile by tile. Deterministic: equal pixels give equal answers."""
    side = min(SIDE, max(known.shape[:2]), max(new.shape[:2]))
    # Too small to tell captions apart.
    if side < SMALLEST or min(*known.shape[:2], *new.shape[:2]) < 16:
        return False
    known, new = _scaled(known, side), _scaled(new, side)
    over = _laid_over(known, new)
    # In both directions, as either picture may show something that the other lacks.
    if over is None or max(_lacking(over, known, new), _lacking(_back(over), new, known)) > tolerance.cut:
        return False
    height, width = known.shape[:2]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    laid = np.asarray(
        cv2.warpAffine(new, over, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE), dtype=np.uint8
    )
    there = cv2.warpAffine(np.full(new.shape[:2], 255, np.uint8), over, (width, height), flags=flags) == 255
    # Without the rim, where the aligned picture is blended with the area outside it.
    there = cv2.erode(there.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    samples = np.flatnonzero(there.ravel())[::_SPARSE]
    one, other, blur = _equally_blurred(known, laid, samples)
    # Each is predicted from the other's colours and the better prediction counts: a grey copy follows from its
    # original, not the other way round.
    return blur <= tolerance.blur and (
        _worst_tile(one, other, samples, there) <= tolerance.tile
        or _worst_tile(other, one, samples, there) <= tolerance.tile
    )


def _scaled(pixels: Pixels, side: int) -> Pixels:
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale == 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _grey(pixels: Pixels, scale: float) -> Pixels:
    small = _scaled(pixels, round(max(pixels.shape[:2]) * scale))
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def _laid_over(known: Pixels, new: Pixels) -> _Map | None:
    """Aligns the new picture with the known one; None if that fails."""
    scale = _GRID / max(*known.shape[:2], *new.shape[:2])
    small = (_grey(known, scale), _grey(new, scale))
    best, most = None, 0.0
    # Features are only used if scaling alone does not align them well.
    for find in (_stretched, _by_features):
        start = find(*small)
        if start is None or most >= _WELL_LAID:
            continue
        try:
            likeness, over = cv2.findTransformECC(*small, start, cv2.MOTION_AFFINE, _UNTIL)
        except cv2.error:
            continue  # no convergence: one of them has no gradients, or they are too different
        if likeness > most:
            best, most = np.asarray(over, dtype=np.float32), likeness
    if best is None or not _is_likely(best):
        return None
    # Maps centres of large pixels to small ones, across, and back. Each side has its own scale, as sizes are whole
    # pixels.
    full = _scaling(small[1], new) @ np.vstack([best, [0, 0, 1]]) @ _scaling(known, small[0])
    return np.asarray(full[:2], dtype=np.float32)


def _scaling(source: _Array, target: _Array) -> _Array:
    """Returns the map from positions in a picture to those in its scaled copy, of shape (3, 3)."""
    x, y = target.shape[1] / source.shape[1], target.shape[0] / source.shape[0]
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])


def _stretched(known: Pixels, new: Pixels) -> _Map:
    return np.asarray(_scaling(known, new)[:2], dtype=np.float32)


def _by_features(known: Pixels, new: Pixels) -> _Map | None:
    finder = cv2.ORB.create(nfeatures=600, fastThreshold=8)
    (places, marks), (other_places, other_marks) = (finder.detectAndCompute(p, None) for p in (known, new))
    if marks is None or other_marks is None:
        return None
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(marks, other_marks)
    if len(pairs) < 8:
        return None
    source = np.array([places[pair.queryIdx].pt for pair in pairs], dtype=np.float32)
    target = np.array([other_places[pair.trainIdx].pt for pair in pairs], dtype=np.float32)
    over, agreeing = cv2.estimateAffinePartial2D(source, target, method=cv2.RANSAC, ransacReprojThreshold=2.0)
    if over is None or int(agreeing.sum()) < 8:
        return None
    return np.asarray(over, dtype=np.float32)


def _is_likely(over: _Map) -> bool:
    """True if the map has almost no rotation and scales both directions equally."""
    # Rotations and mirrorings were undone before, so one found here is a false match.
    (a, b, _), (c, d, _) = over.tolist()
    return bool(0.7 < a < 1.43 and 0.7 < d < 1.43 and abs(b) < 0.05 and abs(c) < 0.05 and 0.9 < a / d < 1.1)


def _back(over: _Map) -> _Map:
    return np.asarray(cv2.invertAffineTransform(over), dtype=np.float32)


def _lacking(over: _Map, known: Pixels, new: Pixels) -> float:
    """Returns the largest share of the known picture's height or width outside the new one on one side."""
    height, width = known.shape[:2]
    # Positions refer to pixel centres; the edges of a picture lie half a pixel beyond.
    (x0, y0), (x1, y1) = (np.array([[-0.5, -0.5, 1], [width - 0.5, height - 0.5, 1]]) @ over.T).tolist()
    across = max(-0.5 - x0, x1 - new.shape[1] + 0.5) / max(x1 - x0, 1e-6)
    down = max(-0.5 - y0, y1 - new.shape[0] + 0.5) / max(y1 - y0, 1e-6)
    return float(max(0.0, across, down))


def _equally_blurred(known: Pixels, laid: Pixels, samples: _Array) -> tuple[_Array, _Array, float]:
    """Returns both pictures, the sharper one with the best matching blur, and the width of that blur in pixels."""
    one, other = _blurred(known, _SHARPEST), _blurred(laid, _SHARPEST)
    best, off, blur_of_best = (one, other), _colours(one, other, samples)[0], 0.0
    if off <= _CLOSE_ENOUGH:
        return one, other, 0.0
    for soften_known in (True, False):
        for blur in _BLURS:
            width = float(np.hypot(_SHARPEST, blur))
            tried = (_blurred(known, width), other) if soften_known else (one, _blurred(laid, width))
            so_off = _colours(*tried, samples)[0]
            # Blurs are ascending: if one is too wide, all later ones are.
            if so_off >= off:
                break
            best, off, blur_of_best = tried, so_off, blur
    return *best, blur_of_best


def _worst_tile(source: _Array, target: _Array, samples: _Array, there: _Array) -> float:
    left = _predicted(source, _colours(source, target, samples)[1]) - target
    squared = cv2.transform(left * left, np.full((1, 3), 1 / 3, np.float32))
    tiles = cv2.boxFilter(np.where(there, squared, 0.0), -1, (TILE, TILE), borderType=cv2.BORDER_REFLECT)
    return float(np.sqrt(tiles.max()))


def _blurred(pixels: Pixels, sigma: float) -> _Array:
    return np.asarray(cv2.GaussianBlur(pixels, (0, 0), sigma).astype(np.float32))


def _colours(source: _Array, target: _Array, samples: _Array) -> tuple[float, _Array]:
    """Fits the best change of colours; returns the residual of the samples and the change, shape (7, 3)."""
    # Each channel of the target is a quadratic of those of the source (brightness, contrast, gamma, tints, grey), by
    # least squares, and then once more without what fits worst, so that another caption does not bend it.
    flat, wanted = source.reshape(-1, 3)[samples] / 255.0, target.reshape(-1, 3)[samples]
    features = np.concatenate([flat, flat * flat, np.ones((len(flat), 1), np.float32)], axis=1).astype(np.float64)
    # Clipped pixels are ignored unless there are too few others.
    use = np.flatnonzero(((wanted > 3) & (wanted < 252)).all(axis=1))
    if len(use) < 0.02 * len(flat):
        use = np.arange(len(flat))
    for _ in range(2):
        of = features[use]
        # A tiny ridge penalty: equal channels of a grey picture make the system singular.
        change = np.linalg.solve(of.T @ of + 1e-6 * len(of) * np.eye(7), of.T @ wanted[use])
        off = ((of @ change - wanted[use]) ** 2).mean(axis=1)
        use = use[off <= np.quantile(off, 0.8)]
    off = ((np.clip(features @ change, 0, 255) - wanted) ** 2).mean(axis=1)
    return float(np.minimum(off, _OFF_AT_MOST).mean()), change


def _predicted(source: _Array, change: _Array) -> _Array:
    unit = source / np.float32(255)
    linear = np.concatenate([change[:3], change[6:]]).T.astype(np.float32)
    square = change[3:6].T.astype(np.float32)
    return np.asarray(np.clip(cv2.transform(unit, linear) + cv2.transform(unit * unit, square), 0, 255))
