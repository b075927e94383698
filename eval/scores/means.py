"""The bootstrap (Efron & Tibshirani 1993, chapter 13): memes drawn with replacement, and figures with intervals.

A draw is the number of times that each meme occurs, so that one matrix product computes a figure in all resamples.
Resamples in which a figure is undefined (only one class, no decided meme) are left out of its interval.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from eval.scores.measure import Figure, Floats, interval, share_figure

RESAMPLES_OF_MEANS = 2000
MemeValues = Sequence[tuple[str, float]]
"""Pairs of a meme's id and a value; a meme's values are drawn together."""


class ResampledMeans:
    """Draws of memes with replacement; figures over the same draws can be compared as pairs."""

    def __init__(self, memes: Iterable[str], resamples: int, seed: int) -> None:
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
