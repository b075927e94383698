"""Figures of resampled memes: the bootstrap (Efron & Tibshirani 1993, chapter 13), for all resamples at once.

A figure that depends on the cells of a confusion matrix only is resampled by drawing the cells: how often each cell
comes up among n memes that are drawn with replacement is multinomial, so nothing is lost. Figures that depend on scores
are resampled by drawing memes.

Where a figure has no value in a resample (there is nobody to be told apart, nobody was decided), that resample is left
out of its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_AT_ONCE = 1 << 18
"""Drawn memes held in memory at once, over all resamples: few megabytes, which is also quicker than many."""


def draw_cells(cells: Ints, resamples: int, seed: int) -> Ints:
    """Counts of cells when memes are resampled.

    Args:
        cells: Counts, int of any shape; at least one meme.
        resamples: Number of resamples.
        seed: Seed of the generator.

    Returns:
        int of shape (resamples, *cells.shape); each sums up to the number of memes.
    """
    n = int(cells.sum())
    # Empty cells are left out of the drawing: by rounding, a probability of zero could come out a trifle above it.
    there = np.flatnonzero(cells)
    drawn = np.zeros((resamples, cells.size), dtype=np.int64)
    drawn[:, there] = np.random.default_rng(seed).multinomial(n, cells.ravel()[there] / n, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def draw_weights(
    groups: NDArray[np.int64] | None, memes: int, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draws how often each meme comes up when memes, or whole groups of them, are drawn with replacement.

    Args:
        groups: int64 of shape (memes,), number of each meme's group from 0 on; None where each meme is its own.
        memes: Number of memes.
        resamples: Number of resamples.
        rng: Source of the draws.

    Returns:
        float64 of shape (resamples, memes).
    """
    units = memes if groups is None else int(groups.max()) + 1
    drawn = rng.integers(0, units, (resamples, units)) + units * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * units).reshape(resamples, units)
    # A meme comes up as often as its group.
    return (counts if groups is None else counts[:, groups]).astype(np.float64)


def draw_group_cells(places: Ints, shape: tuple[int, ...], groups: Ints, *, resamples: int, seed: int) -> Ints:
    """Counts of cells when whole groups of memes are resampled.

    Args:
        places: Cell of each meme, int of shape (memes,): its place among all cells in order.
        shape: Shape of the counts.
        groups: Number of each meme's group from 0 on, int of shape (memes,).
        resamples: Number of resamples.
        seed: Seed of the generator.

    Returns:
        int of shape (resamples, *shape); their sums differ where groups are of different sizes.
    """
    units, cells, rng = int(groups.max()) + 1, int(np.prod(shape)), np.random.default_rng(seed)
    in_group = np.bincount(groups * cells + places, minlength=units * cells).reshape(units, cells)
    # One resample at least, even where it alone is above the bound.
    step = max(1, _AT_ONCE // units)
    drawn = [
        rng.multinomial(units, np.full(units, 1 / units), size=min(step, resamples - start)) @ in_group
        for start in range(0, resamples, step)
    ]
    return np.concatenate(drawn).reshape(resamples, *shape)


def interval(resampled: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of a figure over the resamples that have one; float of shape (those,)."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class DrawnRates:
    """Rates over resamples; each array is float of shape (resamples that have one,).

    Attributes:
        accuracy: Share of hits.
        macro_f1: Mean of both classes' F1.
        precision: Per class, not harmful first.
        recall: Recall of the class; float of shape (resamples,).
        f1: F1 of the class; 0 if the class is neither present nor predicted.
    """

    accuracy: Floats
    macro_f1: Floats
    precision: tuple[Floats, Floats]
    recall: tuple[Floats, Floats]
    f1: tuple[Floats, Floats]


def rates(drawn: Ints) -> DrawnRates:
    """Rates of confusion matrices.

    Args:
        drawn: int of shape (resamples, 2, said), gold x said, not harmful first. Columns beyond the second are memes
            without a class: misses of their gold class, and no prediction of the other.
    """
    # Drawn for each resample: it is the same everywhere where cells are whole matrices, and may be 0
    # where columns were cut off.
    n = drawn.sum(axis=(1, 2))
    hits = np.stack([drawn[:, 0, 0], drawn[:, 1, 1]])
    predicted = drawn[:, :, :2].sum(axis=1).T
    gold = drawn.sum(axis=2).T
    # 0 / 0, where a class is neither there nor said, counts 0, as in scikit-learn.
    f1 = 2 * hits / np.maximum(predicted + gold, 1)
    return DrawnRates(
        accuracy=_shares(hits.sum(axis=0), n),
        macro_f1=np.asarray(f1.mean(axis=0)[n > 0]),
        precision=(_shares(hits[0], predicted[0]), _shares(hits[1], predicted[1])),
        recall=(_shares(hits[0], gold[0]), _shares(hits[1], gold[1])),
        f1=(f1[0][n > 0], f1[1][n > 0]),
    )


def _shares(part: Ints, whole: Ints) -> Floats:
    return np.asarray(part[whole > 0] / whole[whole > 0], dtype=np.float64)


def auroc_and_brier(
    gold: NDArray[np.bool_], scores: Floats, resamples: int, seed: int, *, groups: Ints | None = None
) -> tuple[Floats, Floats]:
    """Area under the ROC curve (ties count half, as by mid-ranks) and Brier score of resampled memes.

    Args:
        gold: bool of shape (memes,).
        scores: float of shape (memes,), probabilities of harm.
        resamples: Number of resamples.
        seed: Seed of the generator.
        groups: int of shape (memes,), number of each meme's group, to resample whole groups; None for memes.

    Returns:
        AUROC, float of shape (resamples with both classes,), and Brier score, float of shape (resamples,).
    """
    n = len(gold)
    rng = np.random.default_rng(seed)
    # All that counts of a meme is its score and its class, so a resample is how often each such pair was drawn.
    values, place = np.unique(scores, return_inverse=True)
    pair, pairs = place + len(values) * gold, 2 * len(values)
    # A resample takes n drawn memes and as many counts as there are pairs: the larger one sets the limit.
    # At least one resample, even where it alone is above the bound.
    step = max(1, _AT_ONCE // max(n, pairs))
    if groups is not None:
        order = np.argsort(pair, kind="stable")
        there, starts = np.unique(pair[order], return_index=True)
    aurocs, briers = [], []
    for done in range(0, resamples, step):
        size = min(step, resamples - done)
        if groups is None:
            # Numbered apart by resample, so that one bincount counts all of them.
            drawn = pair[rng.integers(0, n, (size, n), dtype=np.int32)] + pairs * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * pairs).reshape(size, 2, len(values))
        else:
            weights = draw_weights(groups, n, size, rng).astype(np.int64)
            flat = np.zeros((size, pairs), dtype=np.int64)
            # Memes that have score and class in common, added up.
            flat[:, there] = np.add.reduceat(weights[:, order], starts, axis=1)
            counts = flat.reshape(size, 2, len(values))
        benign, harmful = counts[:, 0], counts[:, 1]
        # A resample of one class has nothing to rank.
        both = benign.sum(axis=1) * harmful.sum(axis=1)
        # Twice the number of benign memes that each score outranks, equal ones counted half: all whole numbers.
        outranked = 2 * benign.cumsum(axis=1) - benign
        aurocs.append(np.einsum("rv,rv->r", harmful, outranked)[both > 0] / (2 * both[both > 0]))
        briers.append((harmful @ (1 - values) ** 2 + benign @ values**2) / counts.sum(axis=(1, 2)))
    return np.concatenate(aurocs), np.concatenate(briers)


def mmae(cells: NDArray[np.int64]) -> Floats:
    """Macro-averaged mean absolute error: the mean error at each gold level, averaged over the levels that are there.

    Baccianella, Esuli & Sebastiani 2009, "Evaluation Measures for Ordinal Regression", equation 4.

    Args:
        cells: int of shape (resamples, levels, levels), gold x said.

    Returns:
        float of shape (resamples with a meme,).
    """
    levels = np.arange(cells.shape[1])
    errors = (cells * np.abs(levels[:, None] - levels)).sum(axis=2)
    there = cells.sum(axis=2)
    # Levels without a meme add 0 here and are not counted below.
    mean = errors / np.maximum(there, 1)
    present = (there > 0).sum(axis=1)
    return np.asarray(mean.sum(axis=1)[present > 0] / present[present > 0], dtype=np.float64)
