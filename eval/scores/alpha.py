"""Krippendorff's alpha: agreement between any number of raters, each of whom may have rated only some items.

Krippendorff 2004, chapter 11, and 2011, "Computing Krippendorff's Alpha-Reliability". Implemented here and checked
against the package ``krippendorff`` in the tests: that package is under the GPL, so a library that others build on
can't depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from eval.scores.bootstrap import Figure, Floats, interval, share_figure

RESAMPLES = 2000


class Scale(StrEnum):
    """Measurement scale of ratings."""

    NOMINAL = "nominal"
    """Names: any two different values are equally far apart."""
    ORDINAL = "ordinal"
    """Ordered scores: the more ratings lie between two values, the further apart they are."""


def alpha(items: Sequence[Sequence[Any]], scale: Scale = Scale.ORDINAL) -> float | None:
    """Krippendorff's alpha; None if it is undefined, for example if all ratings are equal.

    Args:
        items: Ratings of each item, of a sortable type; items with fewer than two ratings are ignored.
    """
    shares = _coincidences(items)
    if shares is None:
        return None
    # Never NaN: there are at least two distinct values.
    (value,) = _alphas(shares.sum(axis=0)[None], scale).tolist()
    return float(value)


def alpha_figure(
    items: Sequence[Sequence[Any]], scale: Scale, *, resamples: int = RESAMPLES, seed: int = 0
) -> Figure | None:
    """Krippendorff's alpha with its interval by bootstrap over items; None as for :func:`alpha`."""
    value, shares = alpha(items, scale), _coincidences(items)
    if value is None or shares is None:
        return None
    n = len(shares)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    resampled = (drawn @ shares.reshape(n, -1)).reshape(resamples, *shares.shape[1:])
    alphas = _alphas(resampled, scale)
    # Alpha is undefined in a resample in which all ratings are equal.
    low, high = interval(alphas[~np.isnan(alphas)])
    if low == high:
        # The interval of a share of items, scaled to run from the alpha of maximal disagreement to 1: a few items that
        # all agree prove little.
        total = shares.sum(axis=0)[None]
        distance, expected = _distances(total.sum(axis=2), scale), _expected(total.sum(axis=2), scale)
        worst = 1 - float(distance.max() * total.sum() / expected[0])
        share = share_figure((value - worst) / (1 - worst), np.zeros(1), n)
        low, high = (worst + (1 - worst) * end for end in (share.low, share.high))
    return Figure(value, low, high)


def _coincidences(items: Sequence[Sequence[Hashable]]) -> Floats | None:
    """Coincidence matrix of each item: each pair of its m ratings has the weight 1 / (m - 1).

    Returns float of shape (items with two ratings or more, values, values); None if there are fewer than two values.
    """
    paired = [judgements for judgements in items if len(judgements) > 1]
    values = sorted({value for judgements in paired for value in judgements})  # type: ignore[type-var]
    if len(values) < 2:
        return None
    place = {value: number for number, value in enumerate(values)}
    counts = np.zeros((len(paired), len(values)))
    for row, judgements in enumerate(paired):
        for value in judgements:
            counts[row, place[value]] += 1
    pairs = counts[:, :, None] * counts[:, None, :]
    diagonal = np.arange(len(values))
    # No rating is paired with itself.
    pairs[:, diagonal, diagonal] -= counts
    return np.asarray(pairs / (counts.sum(axis=1) - 1)[:, None, None])


def _alphas(coincidences: Floats, scale: Scale) -> Floats:
    """Alpha of coincidence matrices, float of shape (tables, values, values); NaN where it is undefined."""
    counts = coincidences.sum(axis=2)
    observed, expected = (coincidences * _distances(counts, scale)).sum(axis=(1, 2)), _expected(counts, scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected > 0, 1 - observed / expected, np.nan))


def _distances(counts: Floats, scale: Scale) -> Floats:
    """Distances between values, of shape (tables, values, values), from the frequency of each value."""
    if scale is Scale.ORDINAL:
        # The squared number of ratings between two values, counting half of the ratings at the values themselves.
        upto = np.cumsum(counts, axis=1) - counts / 2
        return np.asarray((upto[:, :, None] - upto[:, None, :]) ** 2)
    values = counts.shape[1]
    return np.broadcast_to(1 - np.eye(values), (len(counts), values, values))


def _expected(counts: Floats, scale: Scale) -> Floats:
    """Disagreement expected by chance, of shape (tables,)."""
    pairs = counts[:, :, None] * counts[:, None, :] * _distances(counts, scale)
    # Minus one, since no rating is paired with itself by chance either.
    return np.asarray(pairs.sum(axis=(1, 2)) / (counts.sum(axis=1) - 1))
