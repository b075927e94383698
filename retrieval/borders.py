"""Finds the picture inside plain borders and caption bars."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; the last two are outside."""

_TOLERANCE: Final = 20
"""Levels, of 0 to 255, within which a pixel counts as border."""


def _leading(ok: Array) -> int:
    """Counts the true values before the first false one; ``ok`` has shape (n,)."""
    return len(ok) if ok.all() else int(np.argmin(ok))


def _within_tolerance(strip: Array, colour: Array) -> Array:
    """Returns the mask of pixels of a strip, int16 of shape (lines, pixels, 3), close to a colour, shape (3,)."""
    hit: Array = np.abs(strip[..., 0] - colour[0]) <= _TOLERANCE
    for channel in (1, 2):
        hit &= np.abs(strip[..., channel] - colour[channel]) <= _TOLERANCE
    return hit


def _middle(pixels: Array) -> Array:
    return np.asarray(np.median(pixels, axis=0), dtype=np.int16)


def _trim_borders(a: Array, box: Box) -> Box:
    """Returns the box without plain borders, including nested ones."""
    return peeled(a, peeled(a, box))


def peeled(a: Array, box: Box) -> Box:
    """Returns the box without plain borders: one colour on 98 % of every line, at most 45 % of a side."""
    x0, y0, x1, y1 = box
    for side in range(4):
        if x1 <= x0 or y1 <= y0:
            break
        lines = a[y0:y1, x0:x1]
        lines = lines if side < 2 else lines.transpose(1, 0, 2)
        lines = lines[::-1] if side % 2 else lines
        # The median of the outermost line, which is robust to marks and corners.
        colour = _middle(lines[0])
        # Never beyond the last line: for a side of one pixel, 45 % plus two lines would loop forever.
        limit = min(int(len(lines) * 0.45) + 2, len(lines))
        cut, step = 0, 12
        while cut < limit:  # in steps, as most pictures have no border
            chunk = lines[cut : min(cut + step, limit)]
            got = _leading(_within_tolerance(chunk, colour).mean(axis=1) >= 0.98)
            cut += got
            if got < len(chunk):
                break
        if cut >= limit:
            cut = 0  # a plain field, not a border
        if side == 0:
            y0 += cut
        elif side == 1:
            y1 -= cut
        elif side == 2:
            x0 += cut
        else:
            x1 -= cut
    return x0, y0, x1, y1


def _trim_caption_bars(a: Array, box: Box) -> Box:
    """Returns the box without a white or black caption bar at the top or bottom, and without borders below it."""
    x0, y0, x1, y1 = box
    for side in (0, 1):
        lines = a[y0:y1, x0:x1]
        lines = lines[::-1] if side else lines
        n, width = lines.shape[:2]
        if n < 16 or width < 16:
            continue
        m = max(1, width // 50)
        colour = _middle(np.concatenate([lines[:3, :m].reshape(-1, 3), lines[:3, -m:].reshape(-1, 3)]))
        if not (colour.min() >= 225 or colour.max() <= 30):
            continue
        close = _within_tolerance(lines, colour)
        share = close.mean(axis=1)
        margin = np.maximum(close[:, :m].mean(axis=1), close[:, -m:].mean(axis=1))
        run = _leading((share >= 0.3) & (margin >= 0.9))
        if run < 4 or run > 0.5 * n:
            continue
        # Cut at the last line without text; beyond it, a margin in the bar's colour may belong to the picture.
        clear = np.flatnonzero(share[:run] >= 0.98)
        cut = int(clear[-1]) + 1 if len(clear) else 0
        if side == 0:
            y0 += cut
        else:
            y1 -= cut
    return _trim_borders(a, (x0, y0, x1, y1))


def boxes(a: Array) -> tuple[Box, Box]:
    """Finds the picture within its plain borders, and within caption bars too, as (left, top, right, bottom)."""
    h, w = a.shape[:2]
    all_of_it = (0, 0, w, h)
    if min(h, w) < 16:
        return all_of_it, all_of_it
    outer = _trim_borders(a, all_of_it)
    inner = _trim_caption_bars(a, outer)

    def sane(b: Box) -> Box:
        return b if b[3] - b[1] >= 0.3 * h and b[2] - b[0] >= 0.3 * w else all_of_it

    return sane(outer), sane(inner)
