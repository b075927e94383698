"""Panels of judges of one size: all of them, or a draw of those that are too many to look at."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

_LISTED = 20_000
"""Panels that are listed, to draw among them; beyond, panels are drawn one by one."""


def panels_of_size(judges: Sequence[str], size: int, most: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Chooses different panels, each with its judges in the order in which they are named.

    The number of all panels of all sizes doubles with each further judge, so that no more than ``most`` are taken of a
    size, each with the same chance.

    Args:
        judges: All judges.
        size: Judges of a panel.
        most: Number of panels to return at most; far fewer than 20,000.
        rng: Draws where there are more.
    """
    count = math.comb(len(judges), size)
    if count <= _LISTED:
        panels = list(itertools.combinations(judges, size))
        # Without repeats, so that no panel counts twice.
        return panels if count <= most else rng.sample(panels, most)
    # A dictionary and no set, whose order would be another in each process.
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < most:
        # Sorted: a panel is the same in whatever order its judges were drawn.
        drawn[tuple(sorted(rng.sample(range(len(judges)), size)))] = None
    return [tuple(judges[place] for place in places) for places in drawn]
