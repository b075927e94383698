"""Connected components (union-find)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def number_linked(n: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Returns the component number of each of n items, from 0 in the order of first occurrence."""
    root = list(range(n))

    def root_of(index: int) -> int:
        while root[index] != index:
            # Path halving, which speeds up later look-ups.
            root[index] = index = root[root[index]]
        return index

    for one, other in pairs:
        # The earlier item stays the root, so that numbers follow the order of the items.
        first, second = sorted((root_of(one), root_of(other)))
        root[second] = first
    known: dict[int, int] = {}
    return np.array([known.setdefault(root_of(index), len(known)) for index in range(n)], dtype=np.int64)
