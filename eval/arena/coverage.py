"""Pairing of models by combinatorial coverage.

Comparing all answers to a task with each other grows with the square of the targets. So only a few targets meet on each
task, in all their pairs. They are drawn so that, over all tasks, first every pair and then every combination comes up
equally often, as far as the number of tasks allows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

_MOST = 200_000
"""Combinations that are listed; beyond, some of them are drawn for each task."""


def meetings(targets: Sequence[str], tasks: int, size: int, seed: int) -> list[tuple[str, ...]]:
    """Chooses the models that meet on each task, in no particular order.

    Every combination is used n times before any is used n+1 times; among the unused ones, the one whose pairs have met
    least so far is chosen.

    Raises:
        ValueError: There are fewer targets than ``size``.
    """
    if size > len(targets):
        raise ValueError(f"{size} of {len(targets)} targets can't meet")
    rng = random.Random(f"meetings {seed}")
    # Pairs are in alphabetical order, here and below.
    met = dict.fromkeys(itertools.combinations(sorted(targets), 2), 0)
    fresh: list[tuple[str, ...]] = []
    chosen = []
    for _ in range(tasks):
        if not fresh:
            # Sorted before the shuffle, so that the draw does not depend on the order in which targets are listed.
            fresh = _combinations(sorted(targets), size, rng)
            rng.shuffle(fresh)
        # Ties go to the first in shuffled order, so that they are random instead of favouring the front of the
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
    """Counts earlier meetings of the pairs: the sum of squares, then the sum.

    Squares come first, so that one pair that met far too often weighs more than two that met slightly too often.
    """
    counts = [met[pair] for pair in itertools.combinations(meeting, 2)]
    return sum(count * count for count in counts), sum(counts)


def _combinations(targets: Sequence[str], size: int, rng: random.Random) -> list[tuple[str, ...]]:
    import math

    if math.comb(len(targets), size) <= _MOST:
        return list(itertools.combinations(targets, size))
    # Too many to enumerate: a sample is drawn, and another one once it is used up.
    drawn = {tuple(sorted(rng.sample(list(targets), size))) for _ in range(2000)}
    # The order of a set of strings differs between processes; the shuffle that follows needs a fixed one.
    return sorted(drawn)
