"""Figures of resampled memes: the bootstrap (Efron & Tibshirani 1993, chapter 13), for all resamples at once.

A figure that depends only on the cells of a confusion matrix is resampled by drawing cell counts: the counts among n
memes drawn with replacement are multinomial, so the result is exact. Figures that depend on scores are resampled by
drawing memes.

Resamples in which a figure is undefined (only one class, no decided meme) are left out of its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_AT_ONCE = 1 << 18
"""Drawn memes held in memory at once, over all resamples: a few megabytes, which is also faster than more."""


def draw_cells(cells: Ints, resamples: int, seed: int) -> Ints:
    """Cell counts of resampled memes.

    Args:
        cells: Counts, int of any shape; at least one meme.

    Returns:
        int of shape (resamples, *cells.shape); each sums up to the number of memes.
    """
    n = int(cells.sum())
    # Empty cells are excluded: rounding could make their probability of zero slightly positive.
    there = np.flatnonzero(cells)
    drawn = np.zeros((resamples, cells.size), dtype=np.int64)
    drawn[:, there] = np.random.default_rng(seed).multinomial(n, cells.ravel()[there] / n, size=resamples)
    return drawn.reshape(resamples, *cells.shape)


def draw_weights(
    groups: NDArray[np.int64] | None, memes: int, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draws the number of times that each meme occurs when memes or whole groups are drawn with replacement.

    Args:
        groups: int64 of shape (memes,), number of each meme's group, from 0; None if each meme is its own group.

    Returns:
        float64 of shape (resamples, memes).
    """
    units = memes if groups is None else int(groups.max()) + 1
    drawn = rng.integers(0, units, (resamples, units)) + units * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * units).reshape(resamples, units)
    # A meme occurs as often as its group.
    return (counts if groups is None else counts[:, groups]).astype(np.float64)


def draw_group_cells(places: Ints, shape: tuple[int, ...], groups: Ints, *, resamples: int, seed: int) -> Ints:
    """Cell counts of resampled groups of memes.

    Args:
        places: Flat index of each meme's cell, int of shape (memes,).
        shape: Shape of the counts.
        groups: Number of each meme's group, from 0, int of shape (memes,).

    Returns:
        int of shape (resamples, *shape); sums differ if groups differ in size.
    """
    units, cells, rng = int(groups.max()) + 1, int(np.prod(shape)), np.random.default_rng(seed)
    in_group = np.bincount(groups * cells + places, minlength=units * cells).reshape(units, cells)
    # At least one resample, even if it alone exceeds the bound.
    step = max(1, _AT_ONCE // units)
    drawn = [
        rng.multinomial(units, np.full(units, 1 / units), size=min(step, resamples - start)) @ in_group
        for start in range(0, resamples, step)
    ]
    return np.concatenate(drawn).reshape(resamples, *shape)


def interval(resampled: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of a figure's values, float of shape (resamples with a value,)."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class DrawnRates:
    """Rates over resamples; each array is float of shape (resamples with a value,).

    Attributes:
        accuracy: Share of hits.
        macro_f1: Mean of both classes' F1.
        precision: Precision per class, not harmful first.
        recall: Recall per class.
        f1: F1 per class; 0 if the class is neither present nor predicted.
    """

    accuracy: Floats
    macro_f1: Floats
    precision: tuple[Floats, Floats]
    recall: tuple[Floats, Floats]
    f1: tuple[Floats, Floats]


def rates(drawn: Ints) -> DrawnRates:
    """Rates of confusion matrices.

    Args:
        drawn: int of shape (resamples, 2, outcomes), gold x outcome, not harmful first. Columns beyond the second are
            memes without a class: misses of their gold class, but not predictions of the other.
    """
    # Summed per resample: the same everywhere if cells are whole matrices, but possibly smaller and even 0
    # where columns were cut off.
    n = drawn.sum(axis=(1, 2))
    hits = np.stack([drawn[:, 0, 0], drawn[:, 1, 1]])
    predicted = drawn[:, :, :2].sum(axis=1).T
    gold = drawn.sum(axis=2).T
    # 0 / 0, if a class is neither present nor predicted, counts as 0, as in scikit-learn.
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
        groups: int of shape (memes,), number of each meme's group, to resample whole groups; None to resample memes.

    Returns:
        AUROC, float of shape (resamples with both classes,), and Brier score, float of shape (resamples,).
    """
    n = len(gold)
    rng = np.random.default_rng(seed)
    # Only a meme's score and class matter, so a resample is the number of times that each such pair was drawn.
    values, place = np.unique(scores, return_inverse=True)
    pair, pairs = place + len(values) * gold, 2 * len(values)
    # A resample needs n drawn memes and one count per pair: the larger number sets the limit.
    # At least one resample, even if it alone exceeds the bound.
    step = max(1, _AT_ONCE // max(n, pairs))
    if groups is not None:
        order = np.argsort(pair, kind="stable")
        there, starts = np.unique(pair[order], return_index=True)
    aurocs, briers = [], []
    for done in range(0, resamples, step):
        size = min(step, resamples - done)
        if groups is None:
            # Offset by resample, so that one bincount counts all of them.
            drawn = pair[rng.integers(0, n, (size, n), dtype=np.int32)] + pairs * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * pairs).reshape(size, 2, len(values))
        else:
            weights = draw_weights(groups, n, size, rng).astype(np.int64)
            flat = np.zeros((size, pairs), dtype=np.int64)
            # Adds up memes with the same score and class.
            flat[:, there] = np.add.reduceat(weights[:, order], starts, axis=1)
            counts = flat.reshape(size, 2, len(values))
        benign, harmful = counts[:, 0], counts[:, 1]
        # A resample of one class has nothing to rank.
        both = benign.sum(axis=1) * harmful.sum(axis=1)
        # Twice the number of benign memes that each score outranks (ties count half), so that all are integers.
        outranked = 2 * benign.cumsum(axis=1) - benign
        aurocs.append(np.einsum("rv,rv->r", harmful, outranked)[both > 0] / (2 * both[both > 0]))
        briers.append((harmful @ (1 - values) ** 2 + benign @ values**2) / counts.sum(axis=(1, 2)))
    return np.concatenate(aurocs), np.concatenate(briers)


def mmae(cells: NDArray[np.int64]) -> Floats:
    """Macro-averaged mean absolute error: the mean error at each gold level, averaged over the levels that occur.

    Baccianella, Esuli & Sebastiani 2009, "Evaluation Measures for Ordinal Regression", equation 4.

    Args:
        cells: int of shape (resamples, levels, levels), gold x predicted.

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
