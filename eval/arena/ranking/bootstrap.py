"""Bootstrap over memes: 95 % intervals of ratings.

Battles over one meme share its difficulty and its guideline. Resampling battles as if they were independent gives
intervals that are too narrow; whole memes are drawn instead (a cluster bootstrap: Davison & Hinkley 1997, §3.8). With
few memes, percentiles are still too narrow; they are widened according to Student's t (Hesterberg 2015, "expanded
percentile intervals").
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from eval.arena.ranking.battles import Battles, Floats, Ints, NotRanked, connected, rated, wins_by
from eval.arena.ranking.bradley_terry import K, NoMaximum, elo, fit, ratings, styled
from eval.scores.measure import Figure

RESAMPLES = 1000
LEAST_MEMES = 6
"""Memes from which on an interval on one side of 0 says something: that of fewer lies there wherever all of them point
the same way, which five do by chance in more than 2.5 % of cases, and two in every fourth."""
_AT_ONCE = 1 << 22
"""Numbers held at once, over all resamples: few megabytes."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Ratings, and their spread over resamples."""

    values: Floats
    """Ratings by all battles, float of shape (models,)."""
    low: Floats | None
    """Lower ends of the 95 % intervals, float of shape (models,); None if they could not be computed."""
    high: Floats | None
    without: int
    """Number of resamples without finite ratings, in which a model was undefeated."""
    draws: Floats
    """Ratings of each resample, float of shape (resamples with finite ratings, models)."""

    @property
    def figures(self) -> list[Figure] | list[float]:
        """Ratings with their intervals, if these could be computed."""
        if self.low is None or self.high is None:
            return list(map(float, self.values))
        return [Figure(*map(float, one)) for one in zip(self.values, self.low, self.high, strict=True)]


def draw_memes(memes: int, resamples: int, seed: int) -> Ints:
    """Draws memes; int of shape (resamples, memes): counts of each meme, each row adding up to ``memes``."""
    drawn = np.random.default_rng(seed).integers(0, memes, (resamples, memes), dtype=np.int32)
    # Offset by resample, so that one bincount counts all of them.
    place = drawn + np.arange(resamples, dtype=np.int64)[:, None] * memes
    return np.asarray(np.bincount(place.ravel(), minlength=resamples * memes).reshape(resamples, memes))


def meme_weights(memes: int, resamples: int, seed: int) -> Floats:
    """Counts each meme once, and then in each resample as drawn; float of shape (1 + resamples, memes)."""
    return np.concatenate([np.ones((1, memes)), draw_memes(memes, resamples, seed)])


def tails(memes: int) -> tuple[float, float]:
    """Returns the percentiles that enclose 95 %, widened for small numbers of memes."""
    # Imported here, as it is slow to import.
    from scipy.stats import t

    if memes < 2:
        return 0.0, 100.0
    # The root corrects the bootstrap's variance, which divides by n instead of n - 1. Student's t replaces the normal
    # distribution, in whose percentiles the result is then expressed.
    reach = np.sqrt(memes / (memes - 1)) * float(t.ppf(0.975, memes - 1))
    outside = 100 * NormalDist().cdf(-float(reach))
    return outside, 100 - outside


def over_memes(values: Floats, memes: int) -> Figure:
    """Returns a figure over the actual memes, the first of ``values``, with the interval of those over drawn memes."""
    # A resample may leave a figure without a value.
    low, high = np.percentile(values[1:][~np.isnan(values[1:])], tails(memes))
    return Figure(float(values[0]), float(low), float(high))


def spread(table: Battles, *, anchor: int | None = None, resamples: int = RESAMPLES, seed: int = 0) -> Spread:
    """Computes Bradley-Terry ratings and their spread over memes drawn with replacement.

    Raises NotRanked: The table itself has no finite ratings.
    """
    values = ratings(table, anchor=anchor)
    by_meme = wins_by(table, table.meme, table.memes)
    # Memes without a battle are not drawn: they would inflate the number of clusters.
    there = by_meme.any(axis=(1, 2))
    by_meme = by_meme[there]
    memes, n = len(by_meme), len(table.models)
    drawn = draw_memes(memes, resamples, seed).astype(np.float64)
    flat = by_meme.reshape(memes, n * n)
    # At least one resample, even if a single table exceeds the bound.
    step = max(1, _AT_ONCE // (n * n))
    fitted = []
    for begin in range(0, resamples, step):
        tables = (drawn[begin : begin + step] @ flat).reshape(-1, n, n)
        # fit does not converge on a table in which a model is undefeated.
        tables = tables[connected(tables)]
        if len(tables):
            fitted.append(rated(fit(tables), anchor))
    return _interval(values, np.concatenate(fitted) if fitted else np.zeros((0, n)), memes, resamples)


def spread_of_elo(table: Battles, *, k: float = K, resamples: int = RESAMPLES, seed: int = 0) -> Spread:
    """Computes Elo ratings and their spread over memes drawn with replacement, in the order of the draw."""
    rng = np.random.default_rng(seed)
    # Memes without a battle are not drawn, as in `spread`.
    present = np.unique(table.meme)
    of_meme = [np.flatnonzero(table.meme == meme) for meme in present]
    step = max(1, _AT_ONCE // len(table))
    found = []
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        drawn = rng.integers(0, len(present), (size, len(present)))
        orders = [np.concatenate([of_meme[meme] for meme in row]) for row in drawn]
        # Resamples differ in length; padding with -1 lets all of them be computed at once.
        padded = np.full((size, max(map(len, orders))), -1, dtype=np.int64)
        for row, order in enumerate(orders):
            padded[row, : len(order)] = order
        found.append(elo(table, padded, k=k))
    return _interval(elo(table, k=k), np.concatenate(found), len(present), resamples)


def spread_styled(
    table: Battles, covariates: Floats, *, anchor: int | None = None, resamples: int = 200, seed: int = 0
) -> Spread:
    """Computes ratings controlled for covariates and their spread. Raises NoMaximum, NotRanked as :func:`styled`."""
    values = styled(table, covariates, anchor=anchor)
    places = np.unique(table.meme, return_inverse=True)[1]
    memes = int(places.max()) + 1
    found = []
    for drawn in draw_memes(memes, resamples, seed):
        rows = np.repeat(np.arange(len(table)), drawn[places])
        try:
            found.append(styled(table.at(rows), covariates[rows], anchor=anchor))
        except (NotRanked, NoMaximum):
            # It still counts as failed: _interval subtracts the results found from the resamples requested.
            continue
    return _interval(values, np.array(found).reshape(-1, len(table.models)), memes, resamples)


def _interval(values: Floats, draws: Floats, memes: int, resamples: int) -> Spread:
    without = resamples - len(draws)
    # Resamples without finite ratings are the extreme ones. Percentiles of the others would be too narrow, without any
    # sign of it: beyond 5 % of them there is no telling where 95 % end.
    if without > 0.05 * resamples or memes < 2:
        return Spread(values, low=None, high=None, without=without, draws=draws)
    low, high = np.percentile(draws, tails(memes), axis=0)
    return Spread(values, low=low, high=high, without=without, draws=draws)
