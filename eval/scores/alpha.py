"""Krippendorff's alpha: agreement of any number of people, some of whom judged some of the items.

Krippendorff 2004, chapter 11, and 2011, "Computing Krippendorff's Alpha-Reliability". Written here, and held against
the package ``krippendorff`` in the tests: that one is under the GPL, which a library that others build on can't depend
on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from eval.scores.metrics import Figure, share_figure
from eval.scores.resampling import Floats, interval

RESAMPLES = 2000


class Scale(StrEnum):
    """Scale of what people say of an item."""

    NOMINAL = "nominal"
    """Names: any two that differ, differ as much."""
    ORDINAL = "ordinal"
    """Ordered scores: the more scores were given between two, the more they differ."""


def alpha(items: Sequence[Sequence[Any]], scale: Scale = Scale.ORDINAL) -> float | None:
    """Krippendorff's alpha; None where it is not defined, as where everybody says the same.

    Args:
        items: Judgements of each item, which can be sorted; items with fewer than two are left out.
        scale: Scale of the judgements.
    """
    shares = _coincidences(items)
    if shares is None:
        return None
    # Never NaN: two values at least were given.
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
    # A resample in which everybody says the same has none.
    low, high = interval(alphas[~np.isnan(alphas)])
    if low == high:
        # As of a share of items, from the alpha of nothing but the largest disagreement to 1: few items that all agree
        # make nothing certain.
        total = shares.sum(axis=0)[None]
        distance, expected = _distances(total.sum(axis=2), scale), _expected(total.sum(axis=2), scale)
        worst = 1 - float(distance.max() * total.sum() / expected[0])
        share = share_figure((value - worst) / (1 - worst), np.zeros(1), n)
        low, high = (worst + (1 - worst) * end for end in (share.low, share.high))
    return Figure(value, low, high)


def _coincidences(items: Sequence[Sequence[Hashable]]) -> Floats | None:
    """Coincidences of each item: each pair of its judgements counts one over their number less one.

    Returns:
        float of shape (items with two judgements or more, values, values); None where fewer than two values were given.
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
    # No judgement is paired with itself.
    pairs[:, diagonal, diagonal] -= counts
    return np.asarray(pairs / (counts.sum(axis=1) - 1)[:, None, None])


def _alphas(coincidences: Floats, scale: Scale) -> Floats:
    """Alpha of tables of coincidences, float of shape (tables, values, values); NaN where it is not defined."""
    counts = coincidences.sum(axis=2)
    observed, expected = (coincidences * _distances(counts, scale)).sum(axis=(1, 2)), _expected(counts, scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(expected > 0, 1 - observed / expected, np.nan))


def _distances(counts: Floats, scale: Scale) -> Floats:
    """Distances of values, of shape (tables, values, values), from how often each was given."""
    if scale is Scale.ORDINAL:
        # The number of all scores between two, half of their own included, squared.
        upto = np.cumsum(counts, axis=1) - counts / 2
        return np.asarray((upto[:, :, None] - upto[:, None, :]) ** 2)
    values = counts.shape[1]
    return np.broadcast_to(1 - np.eye(values), (len(counts), values, values))


def _expected(counts: Floats, scale: Scale) -> Floats:
    """Disagreement by chance, of shape (tables,)."""
    pairs = counts[:, :, None] * counts[:, None, :] * _distances(counts, scale)
    # Less one, since no judgement is paired with itself by chance either.
    return np.asarray(pairs.sum(axis=(1, 2)) / (counts.sum(axis=1) - 1))
