"""Describes a picture's appearance, not its meaning, as a vector; needs no weights, only numpy and Pillow.

Four parts, each centred so that unrelated pictures come out near 0: gradient orientations of the whole picture and of
the picture without its caption bar, colour histogram, coarse colour layout. They and their shares were chosen by
measurement on photographs and drawn memes and their edits (other caption, crop, border, bar, JPEG, resizing, filter).
Mirrored copies are not handled and may or may not be near.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.borders import Box, boxes
from retrieval.embed.encoder import Halves, mean_direction

Array = NDArray[Any]

VERSION: Final = "picture-1"
"""Part of the encoder's identity: change it with every change of the numbers."""
MIN_SIMILARITY: Final = 0.55
"""Similarity below which two pictures have nothing to say about each other: 3 % of pictures come nearer to some
unrelated one of 1140, 96 % of edited copies to their original."""
_WORK_SIDE: Final = 256
"""Longest side on which borders are looked for, in pixels."""
_GRID: Final = 64
"""Side of the square that the parts are taken from, in pixels."""
_CELLS: Final = 8
_ORIENTATIONS: Final = 6
_SHAPE_FLOOR: Final = 15.0
"""Damps the gradients of nearly flat cells."""
_FLAT_FLOOR: Final = 0.5
"""Damps pictures with next to no gradients."""
_CHROMA_SIDE: Final = 4
_CHROMA_FLOOR: Final = 0.3
"""Damps the colour layout of nearly grey pictures."""
_NEUTRAL_BINS: Final = 4
_COLOURED_BINS: Final = 12 * 2 * 3
_NEUTRAL_WEIGHT: Final = 0.5
_HISTOGRAM_MEAN: Final = np.concatenate([np.array([0.26, 0.16, 0.19, 0.44]), np.full(_COLOURED_BINS, 0.029)])
"""Of the square-rooted histogram over ordinary pictures: the neutral bins, dark to light, then any coloured one."""
_WHOLE_SHAPE, _INNER_SHAPE, _COLOURS, _INNER_CHROMA = np.sqrt([0.30, 0.30, 0.30, 0.10])
"""Lengths of the parts; their squares are the shares of the squared length."""

DIM: Final = 2 * _CELLS**2 * _ORIENTATIONS + _NEUTRAL_BINS + _COLOURED_BINS + 2 * _CHROMA_SIDE**2 + 2


def _damped(v: Array, floor: float) -> Array:
    """Scales a vector to a length just under 1, and smoothly towards 0 if it is small compared to the floor."""
    return np.asarray(v / np.sqrt(np.sum(v * v) + floor * floor))


def _shape(luma: Array) -> Array:
    """Histograms, (8, 8, 6), of gradient orientation in cells of a float64 image, (64, 64); centred over the cells."""
    gx, gy = np.zeros_like(luma), np.zeros_like(luma)
    gx[:, 1:-1] = luma[:, 2:] - luma[:, :-2]
    gy[1:-1] = luma[2:] - luma[:-2]
    strength = np.sqrt(np.hypot(gx, gy))
    # Modulo half a turn: dark to light and light to dark are the same edge.
    turn = (np.arctan2(gy, gx) / np.pi % 1.0) * _ORIENTATIONS
    low = np.floor(turn).astype(np.int64)
    part = turn - low
    low %= _ORIENTATIONS
    line = np.arange(_GRID) * _CELLS // _GRID
    cell = (line[:, None] * _CELLS + line[None, :]) * _ORIENTATIONS
    size = _CELLS * _CELLS * _ORIENTATIONS
    # Each gradient is split between its two nearest orientations, so that a slight rotation changes little.
    h = np.bincount((cell + low).ravel(), (strength * (1 - part)).ravel(), size)
    h += np.bincount((cell + (low + 1) % _ORIENTATIONS).ravel(), (strength * part).ravel(), size)
    h = h.reshape(_CELLS, _CELLS, _ORIENTATIONS)
    h = h / np.sqrt(np.sum(h * h, axis=2, keepdims=True) + _SHAPE_FLOOR**2)
    return np.asarray(h - h.mean(axis=(0, 1), keepdims=True))


def _colours(picture: Image.Image) -> Array:
    """Square-rooted histogram of 4 neutral and 12 x 2 x 3 coloured bins, centred by a fixed mean: shape (76,)."""
    # Nearest neighbour, as the mean of two hues may be neither of them.
    hsv = np.asarray(picture.convert("HSV").resize((_GRID, _GRID), Image.Resampling.NEAREST), dtype=np.int64)
    h, s, v = hsv[..., 0].ravel(), hsv[..., 1].ravel(), hsv[..., 2].ravel()
    coloured = 4 + (h * 12 // 256) * 6 + np.minimum((s - 48) // 104, 1) * 3 + np.minimum((v - 40) // 72, 2)
    # The hue of pale or dark pixels is noise, so they count by brightness alone.
    bins = np.where((s < 48) | (v < 40), v // 64, coloured)
    root = np.sqrt(np.bincount(bins, minlength=76) / bins.size) - _HISTOGRAM_MEAN
    root[:4] *= _NEUTRAL_WEIGHT
    return np.asarray(root / np.linalg.norm(root))


def _chroma(ycc: Array) -> Array:
    """Low 4 x 4 DCT coefficients of Cb and Cr, weighted by frequency^0.5, the constant by 0.3: shape (2, 4, 4)."""
    k = np.arange(_GRID)
    basis = np.cos(np.pi * (2 * k[None, :] + 1) * np.arange(_CHROMA_SIDE)[:, None] / (2 * _GRID)) * np.sqrt(2 / _GRID)
    basis[0] /= np.sqrt(2)
    weight = np.sqrt(np.hypot(*np.mgrid[0:_CHROMA_SIDE, 0:_CHROMA_SIDE]))
    weight[0, 0] = 0.3
    return np.stack([basis @ ((ycc[..., c] - 128.0) / 128.0) @ basis.T * weight for c in (1, 2)])


def describe(rgb: Image.Image) -> NDArray[np.float32]:
    """The descriptor of a picture: float32 of shape (DIM,), length 1; compare by inner product."""
    # Copies and edits come out near 1, the same scene with another caption in between, unrelated pictures near 0. A
    # picture without gradients puts the share of each shape part on a separate coordinate, so that plain pictures
    # resemble each other by colour and nothing else. Deterministic for the same pixels.
    rgb = rgb if rgb.mode == "RGB" else rgb.convert("RGB")
    scale = _WORK_SIDE / max(rgb.size)
    if scale < 1:
        # At least one pixel: the short side of a long strip could be rounded to zero.
        size = (max(1, round(rgb.width * scale)), max(1, round(rgb.height * scale)))
        rgb = rgb.resize(size, Image.Resampling.BOX)
    outer, inner = boxes(np.asarray(rgb, dtype=np.int16))
    ycc = rgb.convert("YCbCr")

    def grid(box: Box) -> Array:
        return np.asarray(ycc.resize((_GRID, _GRID), Image.Resampling.BOX, box=box), dtype=np.float64)

    whole = grid(outer)
    inside = whole if inner == outer else grid(inner)
    whole_shape = _shape(whole[..., 0])
    inner_shape = whole_shape if inside is whole else _shape(inside[..., 0])
    # Captions on the picture are at its top and bottom, so the rows between weigh more.
    rows = 0.3 + 0.7 * np.sin(np.pi * (np.arange(_CELLS) + 0.5) / _CELLS)
    whole_shape = _damped(whole_shape, _FLAT_FLOOR).ravel()
    inner_shape = _damped(inner_shape * rows[:, None, None], _FLAT_FLOOR).ravel()
    # Rounding may leave a tiny negative value under the root.
    flat = [np.sqrt(max(0.0, 1.0 - float(part @ part))) for part in (whole_shape, inner_shape)]
    parts = np.concatenate(
        [
            _WHOLE_SHAPE * whole_shape,
            _INNER_SHAPE * inner_shape,
            _COLOURS * _colours(rgb.crop(outer)),
            _INNER_CHROMA * _damped(_chroma(inside), _CHROMA_FLOOR).ravel(),
            np.array([_WHOLE_SHAPE * flat[0], _INNER_SHAPE * flat[1]]),
        ]
    )
    return np.asarray(parts / np.linalg.norm(parts), dtype=np.float32)


class DescribedPictures(Halves):
    """Base of encoders that use this descriptor for pictures, in the caller's thread."""

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """One vector per picture, the mean direction of its frames: float32 of shape (n, :data:`DIM`)."""
        rows = np.zeros((len(pictures), DIM), dtype=np.float32)
        for number, frames in enumerate(pictures):
            if not frames:
                raise ValueError(f"picture {number} has no frame")
            rows[number] = mean_direction(np.stack([_describe_png(frame) for frame in frames]))
        return rows


def _describe_png(png: bytes) -> NDArray[np.float32]:
    # Safe to open: these bytes are our own encoding of what the sandboxed reader decoded.
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        return describe(picture.convert("RGB"))
