"""Numbers of things that are linked with each other, directly or by others between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def number_linked(n: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """A number for each of n things, equal for those that are linked, from 0 on in the order of the first of each.

    Args:
        n: Number of things.
        pairs: Places of two that are linked.
    """
    root = list(range(n))

    def root_of(place: int) -> int:
        while root[place] != place:
            # Halves the way for whoever comes next.
            root[place] = place = root[root[place]]
        return place

    for one, other in pairs:
        # The earlier one stays the root, so that numbers follow the order of the things.
        first, second = sorted((root_of(one), root_of(other)))
        root[second] = first
    known: dict[int, int] = {}
    return np.array([known.setdefault(root_of(place), len(known)) for place in range(n)], dtype=np.int64)
