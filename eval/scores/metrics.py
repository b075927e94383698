"""Metrics of labels, with intervals.

Figures are computed by scikit-learn; 95 % intervals by percentile bootstrap over memes (:mod:`eval.scores.resampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    roc_auc_score,
)

from court.errors import BadRequest
from eval.datasets.protocol import Level, Protocol
from eval.runs.results import Judged, Results
from eval.scores import resampling
from eval.scores.resampling import Floats, Ints
from eval.solvers.prediction import Outcome
from retrieval.linked import number_linked

CLASSES = (False, True)
"""Not harmful, harmful. Always passed to scikit-learn, so that a class that was never predicted counts in averages."""

OUTCOMES = (Outcome.NOT_HARMFUL, Outcome.HARMFUL, Outcome.UNDECIDED, Outcome.FAILED)
"""The columns of a confusion matrix, in this order."""

RESAMPLES = 10_000

BINS = 10
"""Largest number of bins of a calibration curve."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its bootstrap interval.

    Attributes:
        low: 2.5th percentile over the resamples; the exact lower bound for a share on which all resamples agree, and
            for other figures at 0 or 1.
        high: 97.5th percentile over the resamples, or the exact upper bound in the same cases.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Scores of one class.

    Attributes:
        name: ``not harmful`` or ``harmful``.
        precision: Share of hits among the memes that were given this class; None if there are none.
        recall: Share of hits among the memes that are of this class; None if there are none.
        f1: Harmonic mean of both; 0 if the class is neither present nor predicted, as in scikit-learn.
    """

    name: str
    precision: Figure | None
    recall: Figure | None
    f1: Figure
    support: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Figures of labels over some memes.

    Attributes:
        accuracy: Share of labels that agree with gold.
        macro_f1: Mean of the F1 of both classes.
        classes: Scores of the classes not harmful and harmful.
    """

    n: int
    accuracy: Figure
    macro_f1: Figure
    classes: tuple[ClassScores, ClassScores]


@dataclass(frozen=True, slots=True)
class Bin:
    """One point of a calibration curve.

    Attributes:
        mean_score: Mean score of these memes, in [0, 1].
        share_harmful: Share of these memes that are harmful.
    """

    low: float
    high: float
    n: int
    mean_score: float
    share_harmful: float


Confusion = tuple[tuple[int, int, int, int], tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Card:
    """All figures of one set of predictions under one protocol.

    Attributes:
        protocol: Protocol by which gold labels became two classes.
        n: Number of memes that are scored.
        harmful: Number of the ``n`` memes whose gold label is harmful.
        benign: Number of the ``n`` memes whose gold label is not harmful.
        dropped: Number of memes that the protocol excludes; not in ``n``.
        undecided: Number of the ``n`` memes that the system left undecided.
        failed: Number of the ``n`` memes without an answer.
        coverage: Share of the ``n`` memes that were given a class.
        majority: Accuracy of always predicting the more frequent class.
        majority_macro_f1: Macro-F1 of always predicting the more frequent class.
        decided: Rates over the memes that were given a class; None if there are none.
        strict: Rates over all ``n``. A meme without a class is wrong: never a hit, a miss of its gold class, and not
            a prediction of the other, so that it lowers accuracy, recall and F1 but not precision.
        confusion: Counts, gold (not harmful, harmful) x outcomes (:data:`OUTCOMES`).
        scored: Number of memes with a score, which memes without a class may have too.
        auroc: Area under the ROC curve over ``scored``; None unless these include both classes.
        brier: Mean squared difference of score and gold over ``scored``; None if there are none.
        calibration: Calibration of ``scored``, in rising order of score, in at most :data:`BINS` bins with nearly equal
            numbers of memes.
        ece: Expected calibration error over these bins; None if there are none.
        levelled: Number of memes with both a gold and a predicted level.
        mmae: Macro-averaged mean absolute error over ``levelled``, in levels; None if there are none.
        voted: Number of memes with a vote of precedents.
        vote: Rates of the vote itself over ``voted``; None if there are none.
        scored_decided: Number of memes with both a score and a class.
        auroc_decided: AUROC over ``scored_decided``; None unless these include both classes.
        auroc_strict: AUROC over all ``n``: a meme without a score is ranked wrongly against every meme of the other
            class, as a meme without a class is wrong in ``strict``. None if no meme has a score, or all are of one
            class.
        groups: Number of groups that the bootstrap drew, if the data set's card names groups; 0 if it drew memes.
    """

    protocol: Protocol
    n: int
    harmful: int
    benign: int
    dropped: int
    undecided: int
    failed: int
    coverage: Figure
    majority: float
    majority_macro_f1: float
    decided: Rates | None
    strict: Rates
    confusion: Confusion
    scored: int
    auroc: Figure | None
    brier: Figure | None
    calibration: tuple[Bin, ...]
    ece: float | None
    levelled: int
    mmae: Figure | None
    voted: int
    vote: Rates | None
    scored_decided: int
    auroc_decided: Figure | None
    auroc_strict: Figure | None
    groups: int = 0


def group_numbers_of(judged: Sequence[Judged]) -> NDArray[np.int64] | None:
    """Number of each meme's group, shape (memes,); a meme without one is its own group. None if no meme has a group.

    Memes share a group if they share a group of the card or, in a run that held templates apart, a template: such
    memes are not independent draws.
    """
    if not any(one.meme.group or one.meme.template for one in judged):
        return None
    # Keyed by kind, so that a group is never confused with a template of the same name.
    shared = (
        (place, (kind, name))
        for place, one in enumerate(judged)
        for kind, name in (("group", one.meme.group), ("template", one.meme.template))
        if name
    )
    first: dict[tuple[str, str], int] = {}
    return number_linked(len(judged), ((place, first.setdefault(key, place)) for place, key in shared))


def draws_among(memes: NDArray[np.bool_], groups: Ints | None) -> int:
    """Counts the independent draws among the marked memes (bool of shape (memes,)): the memes, or their groups."""
    return int(memes.sum()) if groups is None else len(np.unique(groups[memes]))


def card(results: Results, protocol: Protocol, *, resamples: int = RESAMPLES, seed: int = 0) -> Card:
    """Scores all predictions under one protocol.

    The resamples of each figure start from the same seed, so that no figure depends on which others are computed.

    Raises:
        BadRequest: The protocol leaves no meme to score.
        ValueError: The protocol is not for a data set of this kind.
    """
    # Memes that the protocol drops count only in `dropped`.
    pairs = results.under(protocol)
    if not pairs:
        raise BadRequest(
            f"Under the protocol {protocol} no meme of {results.name} is left to be scored: it drops all of them. "
            "Judge more memes, or choose another protocol.",
            reason="NOTHING_TO_SCORE",
        )
    gold = np.array([harmful for harmful, _ in pairs], dtype=np.int64)
    predicted = np.array([OUTCOMES.index(one.prediction.outcome) for _, one in pairs], dtype=np.int64)
    # scikit-learn returns a square matrix; gold labels only fill the first two rows.
    cells: Ints = confusion_matrix(gold, predicted, labels=range(len(OUTCOMES)))[: len(CLASSES)].astype(np.int64)
    # One draw for coverage, decided and strict figures: how many are decided varies in it as it does among memes.
    groups = group_numbers_of([one for _, one in pairs])
    drawn = _drawn(cells, gold, predicted, groups=groups, resamples=resamples, seed=seed)
    n, harmful = len(pairs), int(gold.sum())
    # The score of a constant answer on this split, which is the least that a system has to beat.
    majority = max(harmful, n - harmful) / n
    decided, covered = predicted < len(CLASSES), drawn[:, :, : len(CLASSES)].sum(axis=(1, 2))
    voted = [(harmful, one) for harmful, one in pairs if one.prediction.vote_harmful is not None]
    with_score = [one for _, one in pairs if one.prediction.score is not None]
    # Scores are compared among memes that have one; `auroc_strict` counts the others against the system.
    scored = [(harmful, one.prediction.score) for harmful, one in pairs if one.prediction.score is not None]
    auroc, brier = _score_figures(scored, resamples, seed, groups=group_numbers_of(with_score))
    auroc_decided, auroc_strict = _more_aurocs(pairs, auroc, resamples, seed)
    bins = _calibration(scored)
    levelled, mmae = _mmae([one for _, one in pairs], resamples, seed)
    return Card(
        protocol=protocol,
        n=n,
        harmful=harmful,
        benign=n - harmful,
        dropped=len(results.judged) - n,
        undecided=int(cells[:, 2].sum()),
        failed=int(cells[:, 3].sum()),
        coverage=share_figure(
            float(decided.mean()), covered / drawn.sum(axis=(1, 2)), draws_among(np.ones(n, dtype=bool), groups)
        ),
        majority=majority,
        # The other class has an F1 of 0; this one a recall of 1 and a precision of its share.
        majority_macro_f1=majority / (1 + majority),
        decided=_rates(
            gold[decided],
            predicted[decided],
            drawn[:, :, : len(CLASSES)],
            groups=None if groups is None else groups[decided],
        )
        if decided.any()
        else None,
        strict=_rates(gold, predicted, drawn, groups=groups),
        confusion=(_row(cells[0]), _row(cells[1])),
        scored=len(scored),
        auroc=auroc,
        brier=brier,
        calibration=bins,
        # Weighted by the size of each bin, as ties make bins uneven.
        ece=sum(b.n * abs(b.mean_score - b.share_harmful) for b in bins) / len(scored) if scored else None,
        levelled=levelled,
        mmae=mmae,
        voted=len(voted),
        vote=_vote_rates(voted, resamples, seed) if voted else None,
        scored_decided=sum(one.prediction.outcome.harmful is not None for one in with_score),
        auroc_decided=auroc_decided,
        auroc_strict=auroc_strict,
        groups=0 if groups is None else int(groups.max()) + 1,
    )


def noise(n: int, accuracy: float) -> float:
    """Half the width of a 95 % interval of an accuracy on ``n`` memes, by the normal approximation.

    The uncertainty of a small test set: on 354 memes, 82 % plus or minus 4 points.

    Raises:
        ValueError: There is no meme, or the accuracy is not between 0 and 1.
    """
    # A share outside of [0, 1] would give the root of a negative number.
    if n < 1 or not 0 <= accuracy <= 1:
        raise ValueError("noise needs at least one meme, and an accuracy between 0 and 1")
    return 1.96 * sqrt(accuracy * (1 - accuracy) / n)


def _row(counts: Ints) -> tuple[int, int, int, int]:
    first, second, third, fourth = (int(count) for count in counts)
    return first, second, third, fourth


def _figure(value: float, resampled: Floats) -> Figure:
    return Figure(value, *resampling.interval(resampled))


def share_figure(value: float, resampled: Floats, n: int) -> Figure:
    """A share of ``n`` memes; if all resamples agree, with the exact interval of Clopper and Pearson (1934).

    The bootstrap interval of identical outcomes has no width: one correctly judged meme would be an accuracy of exactly
    1. If whole groups are drawn, ``n`` is their number: a group is one draw, however many memes it has.
    """
    low, high = resampling.interval(resampled)
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


def _rates(gold: Ints, predicted: Ints, drawn: Ints, *, groups: Ints | None) -> Rates:
    """Rates of ``predicted`` (int of shape (memes,), places in OUTCOMES), intervals from resampled confusion tables."""
    precision, recall, f1, support = precision_recall_fscore_support(
        gold, predicted, labels=[0, 1], average=None, zero_division=0
    )
    over = resampling.rates(drawn)

    def of_class(place: int, name: str) -> ClassScores:
        # The exact intervals of precision and recall use different counts: memes given the class, memes of the class.
        there, named = (draws_among(of == place, groups) for of in (gold, predicted))
        return ClassScores(
            name=name,
            precision=share_figure(float(precision[place]), over.precision[place], named) if named else None,
            recall=share_figure(float(recall[place]), over.recall[place], there) if there else None,
            f1=edge_figure(float(f1[place]), over.f1[place], there or named),
            support=int(support[place]),
        )

    n = draws_among(np.ones(len(gold), dtype=bool), groups)
    classes = (of_class(0, "not harmful"), of_class(1, "harmful"))
    value = float(f1.mean())
    macro_f1 = edge_figure(value, over.macro_f1, n) if value in (0.0, 1.0) else _figure(value, over.macro_f1)
    if macro_f1.low == macro_f1.high:
        # Without width, for example if there is only one class: takes the mean of both classes' bounds.
        low, high = (fmean(getattr(one.f1, end) for one in classes) for end in ("low", "high"))
        macro_f1 = Figure(macro_f1.value, low, high)
    return Rates(
        n=len(gold),
        accuracy=share_figure(float(accuracy_score(gold, predicted)), over.accuracy, n),
        macro_f1=macro_f1,
        classes=classes,
    )


def _drawn(cells: Ints, gold: Ints, predicted: Ints, *, groups: Ints | None, resamples: int, seed: int) -> Ints:
    """Resampled counts of cells (gold x outcome) over memes, or over groups of memes."""
    if groups is None:
        return resampling.draw_cells(cells, resamples, seed)
    shape = (cells.shape[0], cells.shape[1])
    return resampling.draw_group_cells(gold * shape[1] + predicted, shape, groups, resamples=resamples, seed=seed)


def _vote_rates(voted: Sequence[tuple[bool, Judged]], resamples: int, seed: int) -> Rates:
    gold, predicted = np.array([(harmful, one.prediction.vote_harmful) for harmful, one in voted], dtype=np.int64).T
    cells = confusion_matrix(gold, predicted, labels=[0, 1]).astype(np.int64)
    groups = group_numbers_of([one for _, one in voted])
    drawn = _drawn(cells, gold, predicted, groups=groups, resamples=resamples, seed=seed)
    return _rates(gold, predicted, drawn, groups=groups)


def _score_figures(
    scored: Sequence[tuple[bool, float]], resamples: int, seed: int, *, groups: Ints | None
) -> tuple[Figure | None, Figure | None]:
    """AUROC and Brier score."""
    if not scored:
        return None, None
    gold = np.array([harmful for harmful, _ in scored], dtype=bool)
    scores = np.array([score for _, score in scored], dtype=np.float64)
    aurocs, briers = resampling.auroc_and_brier(gold, scores, resamples, seed, groups=groups)
    n = draws_among(np.ones_like(gold), groups)
    brier = edge_figure(float(brier_score_loss(gold, scores, labels=CLASSES)), briers, n)
    # A ranking needs both classes; the Brier score does not.
    if gold.all() or not gold.any():
        return None, brier
    return _auroc_figure(gold, scores, aurocs, groups=groups), brier


_OUTRANKED = {True: -1.0, False: 2.0}
"""Substitute for a missing score, by gold label: below all scores if harmful, above all if not."""


def _more_aurocs(
    pairs: Sequence[tuple[bool, Judged]], scored: Figure | None, resamples: int, seed: int
) -> tuple[Figure | None, Figure | None]:
    """AUROC over decided and over all memes, from gold labels with predictions and the AUROC over scored ones.

    A system can raise its figure over scored memes by withholding scores, so these two are reported beside it.
    """
    with_score = sum(one.prediction.score is not None for _, one in pairs)
    decided = [
        (harmful, one)
        for harmful, one in pairs
        if one.prediction.score is not None and one.prediction.outcome.harmful is not None
    ]
    # Reused if it covers the same memes, as a bootstrap of thousands of memes takes seconds.
    of_decided = scored if len(decided) == with_score else _auroc(decided, resamples, seed)
    # No score is missing: both figures are the same.
    if with_score == len(pairs):
        return of_decided, scored
    return of_decided, _auroc(pairs, resamples, seed) if with_score else None


def _auroc(pairs: Sequence[tuple[bool, Judged]], resamples: int, seed: int) -> Figure | None:
    gold = np.array([harmful for harmful, _ in pairs], dtype=bool)
    if gold.all() or not gold.any():
        return None
    scores = [(harmful, one.prediction.score) for harmful, one in pairs]
    ranks = np.array([_OUTRANKED[harmful] if score is None else score for harmful, score in scores], dtype=np.float64)
    groups = group_numbers_of([one for _, one in pairs])
    aurocs, _ = resampling.auroc_and_brier(gold, ranks, resamples, seed, groups=groups)
    return _auroc_figure(gold, ranks, aurocs, groups=groups)


def _auroc_figure(gold: NDArray[np.bool_], scores: Floats, drawn: Floats, *, groups: Ints | None) -> Figure:
    # At 0 and 1 it gets the interval of a share of the rarer class.
    rarer = min(draws_among(of, groups) for of in (gold, ~gold))
    return edge_figure(float(roc_auc_score(gold, scores)), drawn, rarer)


def _calibration(scored: Sequence[tuple[bool, float]]) -> tuple[Bin, ...]:
    """Bins with nearly equal numbers of memes; ties share a bin, so bins can be fewer and uneven.

    Equal numbers rather than equal widths (adaptive binning, Nixon et al. 2019), since models' scores cluster at both
    ends, and bins of a handful of memes are too noisy.
    """
    if not scored:
        return ()
    gold = np.array([harmful for harmful, _ in scored], dtype=np.float64)
    scores = np.array([score for _, score in scored], dtype=np.float64)
    # A meme's bin follows from its mid-rank, which equal scores share.
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = (counts.cumsum() - counts / 2)[place]
    number = np.floor(middle * min(BINS, len(scores)) / len(scores))
    return tuple(
        Bin(
            low=float(scores[here].min()),
            high=float(scores[here].max()),
            n=int(here.sum()),
            mean_score=float(scores[here].mean()),
            share_harmful=float(gold[here].mean()),
        )
        for here in (number == which for which in np.unique(number))
    )


def _mmae(judged: Sequence[Judged], resamples: int, seed: int) -> tuple[int, Figure | None]:
    levelled = [one for one in judged if one.meme.level is not None and one.prediction.level is not None]
    n = len(levelled)
    if not n:
        return 0, None
    gold, predicted = np.array([(one.meme.level, one.prediction.level) for one in levelled], dtype=np.int64).T
    cells = confusion_matrix(gold, predicted, labels=range(len(Level))).astype(np.int64)
    # Uses the function for resamples, so that value and interval share one definition.
    (value,) = resampling.mmae(cells[None]).tolist()
    groups = group_numbers_of(levelled)
    drawn = _drawn(cells, gold, predicted, groups=groups, resamples=resamples, seed=seed)
    return n, error_figure(
        value, resampling.mmae(drawn), n=draws_among(np.ones(n, dtype=bool), groups), largest=len(Level) - 1
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of two-class labels.

    Attributes:
        harmful: Number of memes whose gold label is harmful.
        majority: Accuracy of always predicting the more frequent label.
        accuracy: Share of labels that agree with gold.
        macro_f1: Mean of the F1 of both classes.
        brier: Mean squared difference of probability and gold; None without probabilities.
    """

    n: int
    harmful: int
    majority: float
    accuracy: Figure
    macro_f1: Figure
    brier: float | None


def score(
    gold: Sequence[bool],
    predicted: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    groups: Ints | None = None,
) -> Scores:
    """Scores labels against gold ones, with 95 % percentile bootstrap intervals over memes, or groups of them.

    Args:
        gold: True for each meme that is harmful.
        predicted: True for each meme that was predicted to be harmful, in the same order.
        probabilities: Probabilities of harm, in the same order, or None.
        groups: int64 of shape (memes,), number of each meme's group, to draw whole groups; None to draw memes.

    Raises:
        ValueError: There is no meme, or the sequences differ in length.
    """
    if not gold or len(gold) != len(predicted):
        raise ValueError("scores need at least one meme, and one label each")
    truth, labels = np.asarray(gold, dtype=bool), np.asarray(predicted, dtype=bool)
    cells = confusion_matrix(truth, labels, labels=CLASSES).astype(np.int64)
    drawn = (
        resampling.draw_cells(cells, resamples, seed)
        if groups is None
        else resampling.draw_group_cells(2 * truth + labels, cells.shape, groups, resamples=resamples, seed=seed)
    )
    over, n = resampling.rates(drawn), draws_among(np.ones_like(truth), groups)
    return Scores(
        n=len(truth),
        harmful=int(truth.sum()),
        majority=max(float(truth.mean()), 1 - float(truth.mean())),
        accuracy=share_figure(float(accuracy_score(truth, labels)), over.accuracy, n),
        macro_f1=edge_figure(
            float(f1_score(truth, labels, labels=CLASSES, average="macro", zero_division=0)), over.macro_f1, n
        ),
        brier=None if probabilities is None else float(brier_score_loss(truth, probabilities, labels=CLASSES)),
    )
