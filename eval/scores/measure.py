"""Figures of one system: metrics over all memes, with intervals over shared resamples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from eval.scores.bootstrap import (
    RESAMPLES,
    Bools,
    Figure,
    Floats,
    Ints,
    draws_among,
    edge_figure,
    error_figure,
    interval,
    share_figure,
    weights_of,
)
from eval.scores.label_metrics import (
    OF_SCORES,
    Metric,
    TaskArrays,
    counted_memes,
    metric_of,
    right_answers,
    strict_name,
    value_of,
)

_OVER_LABELS = frozenset({"macro-f1", "binary-macro-f1", "mean-binary-macro-f1", "weighted-binary-macro-f1"})
"""Means that stay below 1 if no meme, or every meme, has some label."""


def measure(
    arrays: TaskArrays,
    names: Sequence[str],
    groups: Ints | None,
    *,
    only: Bools | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Figure | None]:
    """Figures by the names of their metrics; None if undefined.

    All metrics share the same draws, so that figures of one run can be compared.

    Args:
        groups: Number of each meme's group, int of shape (memes,), to draw whole groups; None to draw memes.
        only: Memes that count, bool of shape (memes,); how many they are varies with the draw. None for all.
    """
    only = np.ones_like(arrays.answered) if only is None else only
    if not only.any():
        return dict.fromkeys(names)
    part = arrays.at(only)
    # A strict form differs from its metric only if memes are missing; a bootstrap of thousands takes seconds.
    complete = {strict_name(name): name for name in names if counted_memes(name, part) == len(part.answered)}
    computed = list(dict.fromkeys(complete.get(name, name) for name in names))
    metrics = [partial(_within, metric_of(name, arrays.labels), only) for name in computed]
    (drawn,) = resampled(metrics, [arrays], groups, resamples=resamples, seed=seed)
    counts = _draws_of(part, None if groups is None else groups[only])
    found: dict[str, Figure | None] = {}
    for name, over in zip(computed, drawn, strict=True):
        value = value_of(metric_of(name, arrays.labels), part)
        # A metric may be undefined in a resample (a label that was not drawn), which says nothing about the interval.
        over = over[~np.isnan(over)]
        n = counts.get(name, counts[""])
        found[name] = None if value is None or not over.size else _with_interval(name, value, over, part, n=n)
    return {name: found[complete.get(name, name)] for name in names}


def resampled(
    metrics: Sequence[Metric],
    systems: Sequence[TaskArrays],
    groups: Ints | None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Values of metrics of some systems over the same resamples, NaN if undefined.

    Returns float of shape (systems, metrics, resamples).
    """
    parts = [
        [[metric(arrays, weights) for metric in metrics] for arrays in systems]
        for weights in weights_of(groups, len(systems[0].answered), resamples=resamples, seed=seed)
    ]
    return np.concatenate(parts, axis=2)


def _within(metric: Metric, only: Bools, arrays: TaskArrays, weights: Floats) -> Floats:
    """A metric over some of the memes; NaN if none of them was drawn."""
    if only.all():
        return metric(arrays, weights)
    inside = weights[:, only]
    return np.asarray(np.where(inside.any(axis=1), metric(arrays.at(only), inside), np.nan))


def _with_interval(name: str, value: float, over: Floats, arrays: TaskArrays, n: int) -> Figure:
    """A figure with its percentiles, or the exact interval of a share of ``n`` draws if all resamples agree."""
    kind = name.partition(":")[0]
    # It does not depend on the answers, and annotators may all agree.
    if kind == "agreement-ceiling":
        return Figure(value, *interval(over))
    if kind in ("mmae", "mmae-strict"):
        return error_figure(value, over, n=n, largest=len(arrays.labels) - 1)
    if kind in OF_SCORES or not n:
        return edge_figure(value, over, n)
    # All answers are right, yet the mean is below 1: scales the interval of a share of 1.
    if kind in _OVER_LABELS and value and _all_right(arrays, name.partition(":")[2]):
        return error_figure(value, over, n=n, largest=value)
    return share_figure(value, over, n)


def _all_right(arrays: TaskArrays, label: str) -> bool:
    """True if all answers are right, about this label or, if it is empty, about all labels."""
    if not label:
        return bool(right_answers(arrays).all())
    place = arrays.labels.index(label)
    return bool((arrays.answered & (arrays.gold[:, place] == arrays.predicted[:, place])).all())


def _draws_of(arrays: TaskArrays, groups: Ints | None) -> dict[str, int]:
    """Number of independent draws behind each figure, by name; the empty name is for figures over all memes."""
    scored = ~np.isnan(arrays.scores)
    found = {
        "": draws_among(np.ones_like(arrays.answered), groups),
        "mmae": draws_among(arrays.answered, groups),
        "brier": draws_among(np.asarray(scored.all(axis=1)), groups),
    }

    def rarer(yes: Bools, no: Bools) -> int:
        """Draws of the rarer of yes and no, which limit the area under a curve."""
        return min(draws_among(yes, groups), draws_among(no, groups))

    for place, label in enumerate(arrays.labels):
        gold, there = arrays.gold[:, place], scored[:, place]
        of, to = (draws_among(flags, groups) for flags in (gold, arrays.predicted[:, place]))
        least = rarer(gold & there, ~gold & there)
        found |= {f"precision:{label}": to, f"recall:{label}": of, f"f1:{label}": of or to, f"auroc:{label}": least}
        found[f"auroc-strict:{label}"] = rarer(gold, ~gold)
    for kind, there in (("auroc", scored), ("auroc-strict", np.ones_like(scored))):
        found[kind] = min(found[f"{kind}:{label}"] for label in arrays.labels)
        some_yes, some_no = ((flags & there).any(axis=1) for flags in (arrays.gold, ~arrays.gold))
        found[f"micro-{kind}"] = rarer(np.asarray(some_yes), np.asarray(some_no))
    return found
