"""Helpers of tests of index."""

import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

DIM = 4


# Unit vectors whose products are exact in any order of summation, so that equal scores are exactly equal.
UNITS = [
    *(sign * np.eye(DIM, dtype=np.float32)[axis] for axis in range(DIM) for sign in (1, -1)),
    *(np.array([a, b, c, d], np.float32) / 2 for a in (1, -1) for b in (1, -1) for c in (1, -1) for d in (1, -1)),
    np.zeros(DIM, np.float32),
]


half = st.sampled_from(range(len(UNITS)))


def reference(
    rows: NDArray[np.float32], text: NDArray[np.float32], picture: NDArray[np.float32], alpha: float, allowed: list[int]
) -> list[tuple[float, int]]:
    """Computes the definition one row at a time, sorted by (-score, row)."""
    scores = []
    for row in allowed:
        by_text = math.fsum(float(a) * float(b) for a, b in zip(text, rows[row, : text.size], strict=True))
        by_picture = math.fsum(float(a) * float(b) for a, b in zip(picture, rows[row, text.size :], strict=True))
        scores.append((alpha * by_text + (1 - alpha) * by_picture, row))
    return sorted(scores, key=lambda pair: (-pair[0], pair[1]))
