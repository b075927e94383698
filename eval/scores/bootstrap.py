"""The bootstrap (Efron & Tibshirani 1993, chapter 13): memes drawn with replacement, and figures with intervals.

A draw is the number of times that each meme occurs, so that one matrix product computes a figure in all resamples.
Resamples in which a figure is undefined (only one class, no decided meme) are left out of its interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

RESAMPLES_OF_MEANS = 2000
MemeValues = Sequence[tuple[str, float]]
"""Pairs of a meme's id and a value; a meme's values are drawn together."""


class ResampledMeans:
    """Draws of memes with replacement; figures over the same draws can be compared as pairs."""

    def __init__(self, memes: Iterable[str], resamples: int, seed: int) -> None:
        """Draws the resamples."""
        # A meme with several values has one place, so that they are drawn together.
        self._places = {meme: place for place, meme in enumerate(dict.fromkeys(memes))}
        n = len(self._places)
        # Counts instead of places, so that a mean over all resamples is one matrix product.
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
        self._drawn = drawn.astype(np.float64)  # (resamples, memes)

    def of(self, values: MemeValues) -> tuple[float, Floats]:
        """The mean of values, and the means over the resamples; NaN if a resample has none of their memes."""
        sums, counts = np.zeros(len(self._places)), np.zeros(len(self._places))  # float of shape (memes,)
        for meme, value in values:
            sums[self._places[meme]] += value
            counts[self._places[meme]] += 1
        # 0 / 0 gives the documented NaN.
        with np.errstate(invalid="ignore"):
            means = (self._drawn @ sums) / (self._drawn @ counts)
        return float(sums.sum() / counts.sum()), np.asarray(means)


def mean_of(values: MemeValues, resamples: int = RESAMPLES_OF_MEANS, seed: int = 0) -> Figure | None:
    """A mean with its bootstrap interval over memes; None if there are no values."""
    if not values:
        return None
    # Only draws memes that have a value, so that no resample is empty.
    means = ResampledMeans((meme for meme, _ in values), resamples, seed)
    value, drawn = means.of(values)
    return Figure(value, *interval(drawn))


def share_of(values: MemeValues, resamples: int = RESAMPLES_OF_MEANS, seed: int = 0) -> Figure | None:
    """A mean of shares, as :func:`mean_of`; if all memes have the same value, with the exact interval of a share."""
    if not values:
        return None
    memes = list(dict.fromkeys(meme for meme, _ in values))
    value, drawn = ResampledMeans(memes, resamples, seed).of(values)
    return share_figure(value, drawn, len(memes))


def difference_of(
    values: MemeValues, less: MemeValues, *, resamples: int = RESAMPLES_OF_MEANS, seed: int = 0
) -> Figure | None:
    """The difference of two means over the same drawn memes; None if one of them has no values."""
    if not values or not less:
        return None
    # Both means use the same draws of the memes of both, so that the difference is paired.
    means = ResampledMeans((meme for meme, _ in (*values, *less)), resamples, seed)
    (one, drawn), (other, other_drawn) = means.of(values), means.of(less)
    differences = drawn - other_drawn
    there = differences[~np.isnan(differences)]
    return Figure(one - other, *interval(there)) if there.size else None


@dataclass(frozen=True, slots=True)
class RepeatedFigure:
    """A figure over all repeats."""

    values: tuple[float | None, ...]
    mean: float | None
    sd: float | None
    """Standard deviation with n − 1 degrees of freedom; None with fewer than two values."""


def repeated(values: Sequence[float | None]) -> RepeatedFigure:
    """Mean and spread of a figure's values."""
    there = [value for value in values if value is not None]
    return RepeatedFigure(tuple(values), fmean(there) if there else None, stdev(there) if len(there) > 1 else None)


Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
_AT_ONCE = 1 << 21
"""Drawn memes held in memory at once, over all resamples: sixteen mebibytes."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its bootstrap interval."""

    value: float
    low: float
    """2.5th percentile over the resamples; the exact lower bound for a share on which all resamples agree, and for
    other figures at 0 or 1."""
    high: float
    """97.5th percentile over the resamples, or the exact upper bound in the same cases."""


def draws_among(memes: NDArray[np.bool_], groups: Ints | None) -> int:
    """Counts the independent draws among the marked memes (bool of shape (memes,)): the memes, or their groups."""
    return int(memes.sum()) if groups is None else len(np.unique(groups[memes]))


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


def weights_of(groups: Ints | None, memes: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Floats]:
    """Draws all resamples, in parts of float64 of shape (resamples of the part, memes)."""
    rng = np.random.default_rng(seed)
    # At least one resample at a time, even if a single one exceeds the bound.
    step = max(1, _AT_ONCE // memes)
    for start in range(0, resamples, step):
        yield draw_weights(groups, memes, min(step, resamples - start), rng)


def interval(resampled: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of a figure's values, float of shape (resamples with a value,)."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


def _figure(value: float, resampled: Floats) -> Figure:
    return Figure(value, *interval(resampled))


def share_figure(value: float, resampled: Floats, n: int) -> Figure:
    """A share of ``n`` memes; if all resamples agree, with the exact interval of Clopper and Pearson (1934).

    The bootstrap interval of identical outcomes has no width: one correctly judged meme would be an accuracy of exactly
    1. If whole groups are drawn, ``n`` is their number: a group is one draw, however many memes it has.
    """
    low, high = interval(resampled)
    if low == high:
        # Rounded: a mean of zeros and ones times n may miss the whole number by its last bit.
        exact = binomtest(round(value * n), n).proportion_ci(confidence_level=0.95, method="exact")
        low, high = float(exact.low), float(exact.high)
    return Figure(value, low, high)


def edge_figure(value: float, resampled: Floats, n: int) -> Figure:
    """A figure in [0, 1] that is not a share, such as an F1: at 0 and 1 it gets the interval of a share of ``n``.

    Resamples may also agree on another value, for example because all scores are equal; then nothing varies. But a
    single draw always agrees with itself.
    """
    return share_figure(value, resampled, n) if (value in (0.0, 1.0) and n) or n == 1 else _figure(value, resampled)


def error_figure(value: float, resampled: Floats, *, n: int, largest: float) -> Figure:
    """A mean error in steps, at most ``largest``; at 0 and ``largest`` it gets the interval of a share of ``n``."""
    share = edge_figure(value / largest, resampled / largest, n)
    return Figure(value, share.low * largest, share.high * largest)
