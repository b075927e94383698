"""Pairing of models by combinatorial coverage.

To have every answer of every target compared with every other grows with the square of the targets. Of each task only
a few meet, all pairs of them; which ones is drawn so that, over all tasks, every combination comes up equally often as
far as the number of tasks allows, and before that every pair.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

_MOST = 200_000
"""Combinations that are listed; beyond, some of them are drawn for each task."""


def meetings(targets: Sequence[str], tasks: int, size: int, seed: int) -> list[tuple[str, ...]]:
    """Chooses for each task the models that meet, in an order without meaning.

    Every combination is used n times before any is used n+1 times; among those that are next, the one is taken whose
    pairs have met least so far.

    Args:
        targets: All of them.
        tasks: Number of tasks.
        size: Number of targets that meet in each.
        seed: Seed of the draws.

    Raises:
        ValueError: There are fewer targets than are to meet.
    """
    if size > len(targets):
        raise ValueError(f"{size} of {len(targets)} targets can't meet")
    rng = random.Random(f"meetings {seed}")
    # Pairs are named in the order of the alphabet, here and below.
    met = dict.fromkeys(itertools.combinations(sorted(targets), 2), 0)
    fresh: list[tuple[str, ...]] = []
    chosen = []
    for _ in range(tasks):
        if not fresh:
            # In alphabetical order before the shuffle, so that the draw does not depend on the order in which targets
            # are named.
            fresh = _combinations(sorted(targets), size, rng)
            rng.shuffle(fresh)
        # Of equals the first one in the shuffled order, so that ties are drawn and do not favour the front of the
        # alphabet.
        place = min(range(len(fresh)), key=lambda at: _often(fresh[at], met))
        meeting = fresh.pop(place)
        for pair in itertools.combinations(meeting, 2):
            met[pair] += 1
        shown = list(meeting)
        rng.shuffle(shown)
        chosen.append(tuple(shown))
    return chosen


def _often(meeting: tuple[str, ...], met: dict[tuple[str, str], int]) -> tuple[int, int]:
    """Counts the former meetings of its pairs.

    Squares come first, so that one pair far too often weighs more than two a little.
    """
    counts = [met[pair] for pair in itertools.combinations(meeting, 2)]
    return sum(count * count for count in counts), sum(counts)


def _combinations(targets: Sequence[str], size: int, rng: random.Random) -> list[tuple[str, ...]]:
    import math

    if math.comb(len(targets), size) <= _MOST:
        return list(itertools.combinations(targets, size))
    # Too many to list: some are drawn, and others when these are used up.
    drawn = {tuple(sorted(rng.sample(list(targets), size))) for _ in range(2000)}
    # A set of strings has another order in each process; the shuffle that follows must start from the same one.
    return sorted(drawn)
