"""Panels of judges of one size: all of them, or a sample if there are too many."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

_LISTED = 20_000
"""Panels that are listed, to draw among them; beyond, panels are drawn one by one."""


def panels_of_size(judges: Sequence[str], size: int, most: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Chooses distinct panels, each with its judges in the order of ``judges``.

    The number of panels of all sizes doubles with each further judge, so at most ``most`` panels of a size are chosen,
    each with the same probability.

    Args:
        most: Maximum number of panels to return; far fewer than 20,000.
    """
    count = math.comb(len(judges), size)
    if count <= _LISTED:
        panels = list(itertools.combinations(judges, size))
        # Sampled without replacement, so that no panel counts twice.
        return panels if count <= most else rng.sample(panels, most)
    # A dictionary, not a set, whose order differs between processes.
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < most:
        # Sorted, so that a panel is the same whatever the order of its judges.
        drawn[tuple(sorted(rng.sample(range(len(judges)), size)))] = None
    return [tuple(judges[place] for place in places) for places in drawn]
