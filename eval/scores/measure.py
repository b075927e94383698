"""Metrics of a task's labels: functions of gold labels, answers and the number of times each meme is drawn.

Every metric takes the weights of the memes, float of shape (resamples, memes), and returns one value per resample, NaN
if it is undefined. The value over all memes uses weights of 1, so that value and interval share one definition. A meme
without an answer is wrong: it is never a hit, misses each of its gold labels, and is neither a yes nor a no if labels
are scored one by one. 0 / 0 in an F1 counts as 0, as in scikit-learn. Metrics of probabilities and of steps are over
the memes that have some; each has a strict form over all memes, in which those without are as wrong as they can be.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
SURE = 0.05
"""Significance level: a difference with a smaller p-value is not attributed to chance."""
FEWEST_TO_SAY = 6
"""Fewest memes that only one of two systems gets right for the exact test to fall below :data:`SURE` (2 * 0.5 ** 6)."""
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


@dataclass(frozen=True, slots=True, eq=False)
class TaskArrays:
    """Gold labels and answers of a task, with a row per meme and a column per label, in the card's order."""

    labels: tuple[str, ...]
    gold: Bools
    """Boolean of shape (memes, labels)."""
    predicted: Bools
    """Boolean of shape (memes, labels); all False if there is no answer."""
    answered: Bools
    """Boolean of shape (memes,)."""
    scores: Floats
    """float64 of shape (memes, labels), probabilities of the labels; NaN if there are none."""
    votes: NDArray[np.int64] | None = None
    """int64 of shape (memes, labels), number of annotators who gave each label; None if unknown."""

    def replaced(self, predicted: Bools) -> "TaskArrays":
        """Returns the same memes with other answers: every meme is answered, and none has scores."""
        none = np.full(self.scores.shape, np.nan)
        return replace(self, predicted=predicted, answered=np.ones_like(self.answered), scores=none)

    def at(self, memes: Bools | Ints) -> "TaskArrays":
        """Returns some of the memes, bool of shape (memes,), or those at some places."""
        votes = None if self.votes is None else self.votes[memes]
        rows = (self.gold[memes], self.predicted[memes], self.answered[memes], self.scores[memes])
        return TaskArrays(self.labels, *rows, votes)


Metric = Callable[[TaskArrays, Floats], Floats]


def draws_among(memes: NDArray[np.bool_], groups: Ints | None) -> int:
    """Counts the independent draws among the marked memes (bool of shape (memes,)): the memes, or their groups."""
    return int(memes.sum()) if groups is None else len(np.unique(groups[memes]))


def weights_of(groups: Ints | None, memes: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Floats]:
    """Draws the number of times that each meme occurs when memes or whole groups are drawn with replacement.

    Yields all resamples in parts, float64 of shape (resamples of the part, memes).

    Args:
        groups: int64 of shape (memes,), number of each meme's group, from 0; None if each meme is its own group.
    """
    rng, units = np.random.default_rng(seed), memes if groups is None else int(groups.max()) + 1
    # At least one resample at a time, even if a single one exceeds the bound.
    step = max(1, _AT_ONCE // memes)
    for start in range(0, resamples, step):
        n = min(step, resamples - start)
        drawn = rng.integers(0, units, (n, units)) + units * np.arange(n)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=n * units).reshape(n, units)
        # A meme occurs as often as its group.
        yield (counts if groups is None else counts[:, groups]).astype(np.float64)


def interval(resampled: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of a figure's values, float of shape (resamples with a value,)."""
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(low), float(high)


def share_figure(value: float, resampled: Floats, n: int, *, largest: float = 1.0, edges_only: bool = False) -> Figure:
    """A share of ``n`` memes; if all resamples agree, with the exact interval of Clopper and Pearson (1934).

    The bootstrap interval of identical outcomes has no width: one correctly judged meme would be an accuracy of exactly
    1. If whole groups are drawn, ``n`` is their number: a group is one draw, however many memes it has.

    Args:
        largest: Value of a share of 1: the most steps of an error, or the value of a mean if all answers are right.
        edges_only: True for figures that are no shares, such as an F1: resamples may agree on a value between 0 and
            ``largest``, for example because all scores are equal; then nothing varies. But a single draw always agrees
            with itself.
    """
    low, high = interval(resampled)
    if low == high and n and (not edges_only or value in (0.0, largest) or n == 1):
        # Not above: nearly every command imports this module, and would be twice as slow to show its --help.
        from scipy.stats import binomtest

        # Rounded: a mean of zeros and ones times n may miss the whole number by its last bit.
        exact = binomtest(round(value / largest * n), n).proportion_ci(confidence_level=0.95, method="exact")
        low, high = largest * float(exact.low), largest * float(exact.high)
    return Figure(value, low, high)


def wilson(count: int, n: int) -> Figure | None:
    """A share with Wilson's 95 % interval (1927), valid for few memes and shares near 0 and 1; None if ``n`` is 0."""
    from scipy.stats import binomtest

    if not n:
        return None
    span = binomtest(count, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Figure(count / n, float(span.low), float(span.high))


NOTHING = "–"
"""Placeholder for a missing figure."""


def figure(value: Figure | float | None, form: str = ".3f", *, times: float = 1.0) -> str:
    """A figure, with its interval if it has one; a dash if there is no figure.

    Args:
        times: Factor of the figure and of its interval: 100 for per cent.
    """
    if value is None:
        return NOTHING
    if not isinstance(value, Figure):
        return f"{times * value:{form}}"
    # Multiplied before rounding, or the last digit of a percentage would be lost.
    low, high = times * value.low, times * value.high
    return f"{times * value.value:{form}} [{low:{form}}, {high:{form}}]"


def figure_over(value: Figure | float | None, memes: int, n: int) -> str:
    """A figure, with the number of memes behind it if these are not all."""
    return figure(value) if value is None or memes == n else f"{figure(value)} of {memes:,}"


def listed(parts: Iterable[str]) -> str:
    """Joins words: ``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


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


def paired_differences(
    names: Sequence[str],
    systems: tuple[TaskArrays, TaskArrays],
    groups: Ints | None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Figure]:
    """Differences between two systems on the same memes, by metric, without those that have no value."""
    metrics = [metric_of(name, systems[0].labels) for name in names]
    drawn = resampled(metrics, systems, groups, resamples=resamples, seed=seed)
    found = {}
    for name, metric, over in zip(names, metrics, drawn[0] - drawn[1], strict=True):
        one, other = (value_of(metric, arrays) for arrays in systems)
        over = over[~np.isnan(over)]
        if one is not None and other is not None and over.size:
            found[name] = Figure(one - other, *interval(over))
    if "accuracy" in found:
        # From the counts: the difference of two equal shares computed in floating point need not be exactly 0.
        one_right, other_right = (int(right_answers(arrays).sum()) for arrays in systems)
        found["accuracy"] = replace(found["accuracy"], value=(one_right - other_right) / len(systems[0].answered))
    return found


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the exact McNemar test.

    The probability that the memes that only one of the two gets right split at least as unevenly as here if each were
    equally likely to go to either (Agresti 2013, "Categorical Data Analysis", section 11.1).
    """
    from scipy.stats import binomtest

    # If no meme is right in only one of them, there is nothing to test, and SciPy would raise.
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down procedure, in the same order."""
    order = np.argsort(ps, kind="stable")
    steps = np.minimum(np.arange(len(ps), 0, -1) * np.take(ps, order), 1.0)
    corrected = np.empty(len(ps))
    # Monotone: an adjusted p-value must not be smaller than that of a test with a smaller raw p-value.
    corrected[order] = np.maximum.accumulate(steps)
    return [float(p) for p in corrected]


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
        return share_figure(value, over, n, largest=len(arrays.labels) - 1, edges_only=True)
    # If all answers are right, the mean may still be below 1.
    best = kind in _OVER_LABELS and value and _all_right(arrays, name.partition(":")[2])
    return share_figure(value, over, n, largest=value if best else 1.0, edges_only=bool(best) or kind in OF_SCORES)


def _all_right(arrays: TaskArrays, label: str) -> bool:
    """True if all answers are right, about this label or, if it is empty, about all labels."""
    if not label:
        return bool(right_answers(arrays).all())
    place = arrays.labels.index(label)
    return bool((arrays.answered & (arrays.gold[:, place] == arrays.predicted[:, place])).all())


def _draws_of(arrays: TaskArrays, groups: Ints | None) -> dict[str, int]:
    """Number of independent draws behind each figure, by name; the empty name is for figures over all memes."""

    def draws(*masks: Bools) -> int:
        """Draws of the rarest kind of memes: yes or no limits the area under a curve."""
        return min(draws_among(mask, groups) for mask in masks)

    scored, every = ~np.isnan(arrays.scores), np.ones_like(arrays.gold)
    found = {"": draws(every[:, 0]), "mmae": draws(arrays.answered), "brier": draws(np.asarray(scored.all(axis=1)))}
    for label, gold, predicted in zip(arrays.labels, arrays.gold.T, arrays.predicted.T, strict=True):
        of, to = draws(gold), draws(predicted)
        found |= {f"precision:{label}": to, f"recall:{label}": of, f"f1:{label}": of or to}
    for kind, there in (("auroc", scored), ("auroc-strict", every)):
        yes, no = arrays.gold & there, ~arrays.gold & there
        found |= {f"{kind}:{label}": draws(*each) for label, *each in zip(arrays.labels, yes.T, no.T, strict=True)}
        micro = draws(*(np.asarray(some.any(axis=1)) for some in (yes, no)))
        found |= {kind: draws(*yes.T, *no.T), f"micro-{kind}": micro}
    return found


def metric_of(name: str, labels: Sequence[str]) -> Metric:
    """Returns the metric of this name. Raises KeyError: There is no such metric, or the task has no such label."""
    if name in METRICS:
        return METRICS[name]
    kind, _, label = name.partition(":")
    if kind not in _PER_LABEL or label not in labels:
        raise KeyError(name)
    return partial(_PER_LABEL[kind], place=tuple(labels).index(label))


def value_of(metric: Metric, arrays: TaskArrays) -> float | None:
    """Value of a metric over all memes; None if it is undefined."""
    value = float(metric(arrays, np.ones((1, len(arrays.answered))))[0])
    return None if np.isnan(value) else value


def strict_name(name: str) -> str:
    """Name of a metric's form over all memes; the name itself if the metric is over all memes anyway."""
    kind, colon, label = name.partition(":")
    return f"{kind}-strict{colon}{label}" if kind in PARTIAL else name


def name_over_all(name: str, *systems: TaskArrays) -> str:
    """Name of the metric by which systems can be compared: the strict form unless all have a value for each meme."""
    complete = all(counted_memes(name, arrays) == len(arrays.answered) for arrays in systems)
    return name if complete else strict_name(name)


def counted_memes(name: str, arrays: TaskArrays) -> int:
    """Number of memes that a metric is computed over."""
    kind, _, label = name.partition(":")
    scored = ~np.isnan(arrays.scores)
    match kind:
        case "auroc" if label:
            return int(scored[:, arrays.labels.index(label)].sum())
        # A meme counts if all of its probabilities do.
        case "auroc" | "micro-auroc" | "brier":
            return int(scored.all(axis=1).sum())
        case "mmae":
            return int(arrays.answered.sum())
        case "precision":
            return int(arrays.predicted[:, arrays.labels.index(label)].sum())
        case "agreement-ceiling":
            return 0 if arrays.votes is None else int((arrays.votes.sum(axis=1) >= 2).sum())
    return len(arrays.answered)


def _ratio(part: Floats, whole: Floats) -> Floats:
    """The quotient; NaN where the whole is 0."""
    none = np.full(np.broadcast(part, whole).shape, np.nan)
    # Divides only where possible: NumPy would warn about each resample without a meme.
    return np.asarray(np.divide(part, whole, out=none, where=whole > 0))


def _mean(weights: Floats, values: NDArray[np.generic]) -> Floats:
    """Weighted mean of one value per meme."""
    return _ratio(weights @ values.astype(np.float64), weights.sum(axis=1))


def _counts(arrays: TaskArrays, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Hits, answers and gold of each label, each of shape (resamples, labels)."""
    both, predicted, gold = (
        each.astype(np.float64) for each in (arrays.gold & arrays.predicted, arrays.predicted, arrays.gold)
    )
    return weights @ both, weights @ predicted, weights @ gold


def _f1(hits: Floats, predicted: Floats, gold: Floats) -> Floats:
    # Makes 0 / 0 equal 0: the numerator is 0, and the denominator must not be.
    return np.asarray(2 * hits / np.maximum(predicted + gold, 1e-12))


def right_answers(arrays: TaskArrays) -> Bools:
    """True for each meme whose answer has exactly the gold labels."""
    # A meme without an answer predicts the empty set, which must not count as right if gold is empty.
    return np.asarray(arrays.answered & (arrays.gold == arrays.predicted).all(axis=1))


def differing_answers(one: TaskArrays, other: TaskArrays) -> Bools:
    """True for each meme on which two sets of answers differ, in labels or in a probability."""
    scores = (one.scores == other.scores) | (np.isnan(one.scores) & np.isnan(other.scores))
    same = (one.predicted == other.predicted).all(axis=1) & (one.answered == other.answered) & scores.all(axis=1)
    return np.asarray(~same)


def _accuracy(arrays: TaskArrays, weights: Floats) -> Floats:
    return _mean(weights, right_answers(arrays))


def _micro_f1(arrays: TaskArrays, weights: Floats) -> Floats:
    hits, predicted, gold = (each.sum(axis=1) for each in _counts(arrays, weights))
    return _f1(hits, predicted, gold)


def _jaccards(arrays: TaskArrays) -> Floats:
    """Jaccard similarity of answer and gold, shape (memes,); 1 where both are empty, 0 without an answer."""
    both, either = (arrays.gold & arrays.predicted).sum(axis=1), (arrays.gold | arrays.predicted).sum(axis=1)
    return np.asarray(np.where(either > 0, both / np.maximum(either, 1), 1.0) * arrays.answered)


def _masi(arrays: TaskArrays, weights: Floats) -> Floats:
    """MASI (Passonneau 2006): Jaccard times 1 for equal sets, 2/3 where one holds the other, 1/3 where they overlap."""
    same = (arrays.gold == arrays.predicted).all(axis=1)
    holds = ~(arrays.gold & ~arrays.predicted).any(axis=1) | ~(arrays.predicted & ~arrays.gold).any(axis=1)
    return _mean(weights, _jaccards(arrays) * np.where(same, 1.0, np.where(holds, 2 / 3, 1 / 3)))


def _binary_accuracies(arrays: TaskArrays, weights: Floats) -> Floats:
    """Share of memes on which each label was correctly given or denied, shape (resamples, labels)."""
    right = (arrays.gold == arrays.predicted) & arrays.answered[:, None]
    return _ratio(weights @ right.astype(np.float64), weights.sum(axis=1)[:, None])


def _binary_macro_f1s(arrays: TaskArrays, weights: Floats) -> Floats:
    """Mean of the F1 of yes and of no for each label, shape (resamples, labels)."""
    # A missing answer is not a "no" either, so that silence is never right.
    denied, absent = arrays.answered[:, None] & ~arrays.predicted, ~arrays.gold
    no = (weights @ each.astype(np.float64) for each in (denied & absent, denied, absent))
    return np.asarray((_f1(*_counts(arrays, weights)) + _f1(*no)) / 2)


def _ranked(gold: Bools, scores: Floats, weights: Floats) -> Floats:
    """Area under the ROC curve of weighted pairs; ties count half, and pairs without a score are ignored."""
    there = ~np.isnan(scores)
    if not there.any():
        return np.full(len(weights), np.nan)
    gold, scores, weights = gold[there], scores[there], weights[:, there]
    order = np.argsort(scores, kind="stable")
    # Equal scores are summed up as one step, so that ties count half.
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    yes, no = (np.add.reduceat(weights[:, order] * of[order], starts, axis=1) for of in (gold, ~gold))
    outranked = no.cumsum(axis=1) - no / 2
    return _ratio((yes * outranked).sum(axis=1), yes.sum(axis=1) * no.sum(axis=1))


def _auroc(arrays: TaskArrays, weights: Floats) -> Floats:
    """Mean over the labels; equal to either label's own if there are two whose probabilities add up to 1."""
    each = [_ranked(arrays.gold[:, place], arrays.scores[:, place], weights) for place in range(len(arrays.labels))]
    return np.asarray(np.mean(each, axis=0))


def _micro_auroc(arrays: TaskArrays, weights: Floats) -> Floats:
    """AUROC over all pairs of a meme and a label, ranked together."""
    # Each pair has the weight of its meme.
    return _ranked(arrays.gold.ravel(), arrays.scores.ravel(), np.repeat(weights, len(arrays.labels), axis=1))


def _outranked(metric: Callable[..., Floats], arrays: TaskArrays, weights: Floats, **place: int) -> Floats:
    """An area under the ROC curve in which a pair without a score is ranked wrongly against every other one."""
    missing = np.isnan(arrays.scores)
    # Without any score there is no ranking to count against the system.
    if not missing.all():
        arrays = replace(arrays, scores=np.where(missing, np.where(arrays.gold, -1.0, 2.0), arrays.scores))
    return metric(arrays, weights, **place)


def _brier(arrays: TaskArrays, weights: Floats) -> Floats:
    """Mean squared difference of probability and gold, over labels and over memes with scores."""
    there = ~np.isnan(arrays.scores).any(axis=1)
    squares = ((arrays.scores[there] - arrays.gold[there]) ** 2).mean(axis=1)
    return _mean(weights[:, there], squares)


def _mmae(arrays: TaskArrays, weights: Floats) -> Floats:
    """Macro-averaged mean absolute error over answered memes, in steps (Baccianella et al. 2009, equation 4)."""
    there = arrays.answered
    gold, predicted = arrays.gold[there].argmax(axis=1), arrays.predicted[there].argmax(axis=1)
    level = (gold[:, None] == np.arange(len(arrays.labels))).astype(np.float64)
    weights = weights[:, there]
    # Averaged within each level first, so that a rare level counts as much as a frequent one.
    errors = _ratio(weights @ (level * np.abs(gold - predicted)[:, None]), weights @ level)
    # Not nanmean, which warns about a resample in which no meme was drawn.
    return _ratio(np.nansum(errors, axis=1), (~np.isnan(errors)).sum(axis=1).astype(np.float64))


def _brier_strict(arrays: TaskArrays, weights: Floats) -> Floats:
    """Brier score over all memes: one without scores has the largest error, 1."""
    missing = np.isnan(arrays.scores)
    if not missing.all():
        arrays = replace(arrays, scores=np.where(missing.any(axis=1, keepdims=True), 1.0 - arrays.gold, arrays.scores))
    return _brier(arrays, weights)


def _mmae_strict(arrays: TaskArrays, weights: Floats) -> Floats:
    """MMAE over all memes: one without an answer is as far off as its gold label allows."""
    if arrays.answered.any():
        last = len(arrays.labels) - 1
        furthest = np.where(arrays.gold.argmax(axis=1) * 2 >= last, 0, last)
        wrong = furthest[:, None] == np.arange(last + 1)
        predicted = np.where(arrays.answered[:, None], arrays.predicted, wrong)
        arrays = replace(arrays, predicted=predicted, answered=np.ones_like(arrays.answered))
    return _mmae(arrays, weights)


def _agreement_ceiling(arrays: TaskArrays, weights: Floats) -> Floats:
    """Accuracy of a random annotator against the majority of the others; a tie of k labels counts 1 / k."""
    if arrays.votes is None:
        return np.full(len(weights), np.nan)
    votes = arrays.votes.astype(np.float64)
    # With a single vote there are no others to agree with.
    there = votes.sum(axis=1) >= 2
    votes, agree = votes[there], np.zeros(int(there.sum()))
    for place in range(votes.shape[1]):
        others = votes.copy()
        # Excludes the vote in question, which would agree with itself.
        others[:, place] -= 1
        tops = others == others.max(axis=1, keepdims=True)
        agree += votes[:, place] / votes.sum(axis=1) * np.where(tops[:, place], 1 / tops.sum(axis=1), 0.0)
    return _mean(weights[:, there], agree)


def _one(of: Metric, arrays: TaskArrays, weights: Floats, *, place: int) -> Floats:
    """One column of a function that returns a column per label."""
    return np.asarray(of(arrays, weights)[:, place])


def _over_labels(of: Metric, arrays: TaskArrays, weights: Floats) -> Floats:
    """Mean of a function that returns a column per label."""
    return np.asarray(of(arrays, weights).mean(axis=1))


def _weighted(of: Metric, arrays: TaskArrays, weights: Floats) -> Floats:
    """Mean of a function that returns a column per label, weighted by the memes that have the label."""
    gold = weights @ arrays.gold.astype(np.float64)
    return _ratio((of(arrays, weights) * gold).sum(axis=1), gold.sum(axis=1))


def _f1s(arrays: TaskArrays, weights: Floats) -> Floats:
    return _f1(*_counts(arrays, weights))


def _precisions(arrays: TaskArrays, weights: Floats) -> Floats:
    hits, predicted, _ = _counts(arrays, weights)
    return _ratio(hits, predicted)


def _recalls(arrays: TaskArrays, weights: Floats) -> Floats:
    hits, _, gold = _counts(arrays, weights)
    return _ratio(hits, gold)


def _label_auroc(arrays: TaskArrays, weights: Floats, *, place: int) -> Floats:
    return _ranked(arrays.gold[:, place], arrays.scores[:, place], weights)


_PER_LABEL: Mapping[str, Callable[..., Floats]] = {
    "f1": partial(_one, _f1s),
    "precision": partial(_one, _precisions),
    "recall": partial(_one, _recalls),
    "auroc": _label_auroc,
    "auroc-strict": partial(_outranked, _label_auroc),
    "binary-accuracy": partial(_one, _binary_accuracies),
    "binary-macro-f1": partial(_one, _binary_macro_f1s),
}
"""Metrics of a single label, followed by a colon and the label: ``f1:skeptical``."""
METRICS: Mapping[str, Metric] = {
    "accuracy": _accuracy,
    "exact": _accuracy,
    "coverage": lambda arrays, weights: _mean(weights, arrays.answered),
    "macro-f1": partial(_over_labels, _f1s),
    "micro-f1": _micro_f1,
    "weighted-f1": partial(_weighted, _f1s),
    "jaccard": lambda arrays, weights: _mean(weights, _jaccards(arrays)),
    "masi": _masi,
    "mean-binary-accuracy": partial(_over_labels, _binary_accuracies),
    "mean-binary-macro-f1": partial(_over_labels, _binary_macro_f1s),
    # MAMI, subtask B.
    "weighted-binary-macro-f1": partial(_weighted, _binary_macro_f1s),
    "auroc": _auroc,
    "micro-auroc": _micro_auroc,
    "brier": _brier,
    "mmae": _mmae,
    "auroc-strict": partial(_outranked, _auroc),
    "micro-auroc-strict": partial(_outranked, _micro_auroc),
    "brier-strict": _brier_strict,
    "mmae-strict": _mmae_strict,
    "agreement-ceiling": _agreement_ceiling,
}
"""Metrics by their names in cards; ``exact`` is the accuracy of the whole set of labels."""
PARTIAL = frozenset({"auroc", "micro-auroc", "brier", "mmae"})
"""Metrics over the memes that have probabilities or an answer; each has a strict form over all memes."""
OF_SCORES = frozenset({"auroc", "micro-auroc", "brier", "auroc-strict", "micro-auroc-strict", "brier-strict"})
"""Metrics of probabilities, which legitimately have no variance if all probabilities are equal."""
LOWER_IS_BETTER = frozenset({"brier", "mmae", "brier-strict", "mmae-strict"})
"""Metrics of errors."""
BASELINE_FREE = OF_SCORES | {"agreement-ceiling"}
"""Metrics that need more than predicted labels, so that a constant answer has no value for them."""
