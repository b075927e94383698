"""A permutation test for different rankings in different groups of tasks, to run before calling a model weak in one.

The likelihood ratio compares Bradley-Terry models with separate ratings in each group and with the same ratings in all.
Its null distribution comes from permuting the group labels (Good 2005, chapter 3): between whole memes, as battles over
one meme are not independent, and among the tasks of a meme if these are in several groups. To find which models differ
in which group, the difference between a model's ratings there and elsewhere is divided by its own spread over the
permutations. P-values are adjusted for all of these together by the largest statistic of each permutation, step by step
(Westfall & Young 1993, algorithm 2.8), which controls the family-wise error as Holm's method does and needs far fewer
permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.arena.ranking.battles import SCALE, Battles, Floats, Ints
from eval.arena.ranking.bootstrap import draw_memes, tails
from eval.arena.ranking.bradley_terry import fit, quarter_ties

DEALS = 999
# Floats in memory at once: 64 MiB.
_AT_ONCE = 1 << 23


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Difference between a model's rating in a group and in all other groups together.

    Attributes:
        points: Difference between the two ratings, with a quarter of a tied battle added to each pair.
        low: Lower end of its 95 % interval, by bootstrap over memes.
        high: Upper end of the interval.
        p: Probability of so large a difference under permuted groups, adjusted for all models and groups.
    """

    model: str
    group: str
    points: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Interaction:
    """Result of the test.

    Attributes:
        statistic: Twice the logarithm of the likelihood ratio.
        p: Share of permutations, the actual labels included, with a statistic at least as large.
        differences: Difference of each model in each group; with two groups, only in the first, as they mirror each
            other.
        deals: Number of random permutations.
    """

    statistic: float
    p: float
    differences: tuple[GroupDifference, ...]
    deals: int


def interaction(
    table: Battles,
    unit: Ints,
    group: Ints,
    names: Sequence[str],
    *,
    deals: int = DEALS,
    resamples: int = 500,
    seed: int = 0,
) -> Interaction:
    """Tests whether groups of tasks rank models differently.

    Args:
        table: Battles, including their memes.
        unit: Task number of each battle, int of shape (battles,); tasks of different memes have different numbers.
        group: Group of each task, int of shape (tasks,), in [0, groups).
        names: Names of at least two groups; each has a battle.
        deals: Number of random permutations.

    Raises:
        ValueError: There are fewer than two groups.
    """
    if len(names) < 2:
        raise ValueError("a test of groups needs two of them")
    n, tasks, groups = len(table.models), len(group), len(names)
    won = _wins_by_unit(table, unit, tasks)
    meme = np.zeros(tasks, dtype=np.int64)
    meme[unit] = table.meme
    rng = np.random.default_rng(seed)
    labels = np.stack([group, *(_dealt(group, meme, rng) for _ in range(deals))])  # (deals + 1, tasks)
    statistics, differences = _statistics(won, labels, groups, n)
    observed = statistics[0]
    # The tolerance makes a permutation that is lower only by rounding count as equal.
    p = float(np.mean(statistics >= observed - 1e-9 * max(1.0, abs(observed))))
    shown = 1 if groups == 2 else groups
    cells = differences[:, :shown].reshape(len(labels), shown * n)
    # Permutations only, without the actual labels in the first row. A constant cell gets a z of 0 instead of a
    # division by 0.
    spread = cells[1:].std(axis=0)
    z = np.abs(cells) / np.where(spread > 0, spread, np.inf)
    adjusted = step_down(z[0], z[1:])
    low, high = _intervals(won, group, meme, groups, resamples=resamples, seed=seed)
    return Interaction(
        statistic=float(observed),
        p=p,
        differences=tuple(
            GroupDifference(
                model=table.models[place],
                group=names[which],
                points=float(differences[0, which, place]),
                low=float(low[which, place]),
                high=float(high[which, place]),
                p=float(adjusted[which * n + place]),
            )
            for which in range(shown)
            for place in range(n)
        ),
        deals=deals,
    )


def step_down(observed: Floats, drawn: Floats) -> Floats:
    """Returns p-values of many statistics, adjusted by the step-down maximum over each draw.

    Args:
        observed: float of shape (statistics,); larger is less likely by chance.
        drawn: float of shape (draws, statistics), under the null hypothesis.

    Returns:
        float of shape (statistics,).
    """
    order = np.argsort(-observed, kind="stable")
    # Maximum over a statistic and all with smaller observed values: larger ones are decided already.
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    # The actual data count as one more draw.
    p = (1 + (largest >= observed[order] - 1e-9).sum(axis=0)) / (1 + len(drawn))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(p)
    return np.asarray(adjusted)


def _wins_by_unit(table: Battles, unit: Ints, tasks: int) -> Floats:
    n = len(table.models)
    at = (unit * n + table.left) * n + table.right
    won = np.bincount(at, weights=table.weight * table.score, minlength=tasks * n * n).reshape(tasks, n, n)
    fought = np.bincount(at, weights=table.weight, minlength=tasks * n * n).reshape(tasks, n, n)
    return np.asarray((won + (fought - won).transpose(0, 2, 1)).reshape(tasks, n * n))


def _dealt(group: Ints, meme: Ints, rng: np.random.Generator) -> Ints:
    """Permutes labels: a meme's labels go, in random order, to a meme with equally many tasks."""
    order = np.argsort(meme, kind="stable")
    starts = np.flatnonzero(np.r_[True, meme[order][1:] != meme[order][:-1]])
    sizes = np.diff(np.r_[starts, len(meme)])
    dealt = np.empty_like(group)
    # Only memes with equally many tasks swap labels, or a permutation would change how many tasks a label has.
    for size in np.unique(sizes):
        places = order[starts[sizes == size][:, None] + np.arange(size)]  # (memes of this size, tasks)
        dealt[places] = rng.permuted(group[places][rng.permutation(len(places))], axis=1)
    return dealt


def _statistics(won: Floats, labels: Ints, groups: int, n: int) -> tuple[Floats, Floats]:
    """Returns likelihood ratios, float of shape (deals,), and differences in points, (deals, groups, models)."""
    # The same in every permutation, so that the test keeps its level.
    prior = quarter_ties(n)
    everything = won.sum(axis=0).reshape(n, n) + prior
    # The same in every permutation, which moves tasks between groups but never out of all of them.
    together = _likelihood(everything[None], fit(everything[None]))[0]
    # For each permutation of a batch, the membership of all tasks and the tables of all groups are in memory at once.
    step = max(1, _AT_ONCE // (groups * (len(won) + n * n)))
    ratios, differences = [], []
    for begin in range(0, len(labels), step):
        part = labels[begin : begin + step]
        member = (part[:, None, :] == np.arange(groups)[None, :, None]).astype(np.float64)
        tables = (member.reshape(-1, member.shape[-1]) @ won).reshape(len(part), groups, n, n)
        others = tables.sum(axis=1, keepdims=True) - tables
        own = fit(tables + prior)
        ratios.append(2 * (_likelihood(tables + prior, own).sum(axis=1) - together))
        differences.append(SCALE * (own - fit(others + prior)))
    return np.concatenate(ratios), np.concatenate(differences)


def _intervals(
    won: Floats, group: Ints, meme: Ints, groups: int, *, resamples: int, seed: int
) -> tuple[Floats, Floats]:
    """Returns both ends of the intervals of the differences, each float of shape (groups, models)."""
    n = int(np.sqrt(won.shape[1]))
    prior = quarter_ties(n)
    place = np.unique(meme, return_inverse=True)[1]
    # All tasks of a meme get its weight, as memes are what is resampled.
    drawn = draw_memes(int(place.max()) + 1, resamples, seed)[:, place]  # (resamples, tasks)
    found = []
    for which in range(groups):
        inside = (drawn * (group == which)) @ won
        outside = (drawn * (group != which)) @ won
        found.append(SCALE * (fit(inside.reshape(-1, n, n) + prior) - fit(outside.reshape(-1, n, n) + prior)))
    low, high = np.percentile(np.stack(found, axis=1), tails(int(place.max()) + 1), axis=0)
    return np.asarray(low), np.asarray(high)


def _likelihood(tables: Floats, theta: Floats) -> Floats:
    difference = theta[..., :, None] - theta[..., None, :]
    return np.asarray((tables * -np.logaddexp(0.0, -difference)).sum(axis=(-2, -1)))
