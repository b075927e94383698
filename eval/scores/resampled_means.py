"""Means over memes that are drawn anew, many figures over the same draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from eval.scores.metrics import Figure, share_figure
from eval.scores.resampling import Floats, interval

RESAMPLES = 2000
MemeValues = Sequence[tuple[str, float]]
"""A meme's id and a value of it; a meme may have several, which are drawn together."""


class ResampledMeans:
    """Draws of memes with replacement; figures over the same draws can be compared pair by pair."""

    def __init__(self, memes: Iterable[str], resamples: int, seed: int) -> None:
        """Draws them.

        Args:
            memes: Ids of all memes, at least one; each counts once, however often it comes.
            resamples: Number of resamples.
            seed: Seed of the generator.
        """
        # One place for a meme with several values, so that they are drawn together.
        self._places = {meme: place for place, meme in enumerate(dict.fromkeys(memes))}
        n = len(self._places)
        # Counts of memes and not their places, so that any mean over all resamples is one product of matrices.
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
        self._drawn = drawn.astype(np.float64)  # (resamples, memes)

    def of(self, values: MemeValues) -> tuple[float, Floats]:
        """The mean of values, and over the resamples; NaN where a resample has none of their memes.

        Args:
            values: At least one.
        """
        sums, counts = np.zeros(len(self._places)), np.zeros(len(self._places))  # float of shape (memes,)
        for meme, value in values:
            sums[self._places[meme]] += value
            counts[self._places[meme]] += 1
        # 0 / 0 is the NaN that is promised.
        with np.errstate(invalid="ignore"):
            means = (self._drawn @ sums) / (self._drawn @ counts)
        return float(sums.sum() / counts.sum()), np.asarray(means)


def mean_of(values: MemeValues, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """A mean, and where it lies when the memes are drawn anew; None where there are no values.

    Args:
        values: A meme's id and a value of it; a meme may have several, which are drawn together.
        resamples: Number of resamples.
        seed: Seed of the generator.
    """
    if not values:
        return None
    # Over the memes that have a value: so no resample is without one.
    means = ResampledMeans((meme for meme, _ in values), resamples, seed)
    value, drawn = means.of(values)
    return Figure(value, *interval(drawn))


def share_of(values: MemeValues, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """A mean of shares, as :func:`mean_of`; where all memes are alike, with the exact interval of a share of them."""
    if not values:
        return None
    memes = list(dict.fromkeys(meme for meme, _ in values))
    value, drawn = ResampledMeans(memes, resamples, seed).of(values)
    return share_figure(value, drawn, len(memes))


def difference_of(values: MemeValues, less: MemeValues, *, resamples: int = RESAMPLES, seed: int = 0) -> Figure | None:
    """The difference of two means, both over the same drawn memes; None where one of them has no values.

    Args:
        values: A meme's id and a value of it, as for :func:`mean_of`.
        less: Values whose mean is taken away.
        resamples: Number of resamples.
        seed: Seed of the generator.
    """
    if not values or not less:
        return None
    # Of the memes of both: the same draws, so that what is hard in one is hard in the other.
    means = ResampledMeans((meme for meme, _ in (*values, *less)), resamples, seed)
    (one, drawn), (other, other_drawn) = means.of(values), means.of(less)
    differences = drawn - other_drawn
    there = differences[~np.isnan(differences)]
    return Figure(one - other, *interval(there)) if there.size else None
