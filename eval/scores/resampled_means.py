"""Means over resampled memes, with many figures sharing the same draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from eval.scores.bootstrap import Figure, Floats, interval, share_figure

RESAMPLES = 2000
MemeValues = Sequence[tuple[str, float]]
"""Pairs of a meme's id and a value; a meme's values are drawn together."""


class ResampledMeans:
    """Draws of memes with replacement; figures over the same draws can be compared as pairs."""

    def __init__(self, memes: Iterable[str], resamples: int, seed: int) -> None:
        """Draws the resamples.

        Args:
            memes: Ids of all memes, at least one; duplicates count once.
        """
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


def mean_of(values: MemeValues, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """A mean with its bootstrap interval over memes; None if there are no values.

    Args:
        values: Pairs of a meme's id and a value; a meme's values are drawn together.
    """
    if not values:
        return None
    # Only draws memes that have a value, so that no resample is empty.
    means = ResampledMeans((meme for meme, _ in values), resamples, seed)
    value, drawn = means.of(values)
    return Figure(value, *interval(drawn))


def share_of(values: MemeValues, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """A mean of shares, as :func:`mean_of`; if all memes have the same value, with the exact interval of a share."""
    if not values:
        return None
    memes = list(dict.fromkeys(meme for meme, _ in values))
    value, drawn = ResampledMeans(memes, resamples, seed).of(values)
    return share_figure(value, drawn, len(memes))


def difference_of(values: MemeValues, less: MemeValues, *, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """The difference of two means over the same drawn memes; None if one of them has no values.

    Args:
        values: Pairs of a meme's id and a value, as for :func:`mean_of`.
    """
    if not values or not less:
        return None
    # Both means use the same draws of the memes of both, so that the difference is paired.
    means = ResampledMeans((meme for meme, _ in (*values, *less)), resamples, seed)
    (one, drawn), (other, other_drawn) = means.of(values), means.of(less)
    differences = drawn - other_drawn
    there = differences[~np.isnan(differences)]
    return Figure(one - other, *interval(there)) if there.size else None
