"""Figures of the witness: labels versus truth, abstentions, and support of findings by citations.

Figures use scikit-learn; intervals are 95 %, by percentile bootstrap over claims (:mod:`eval.scores.resampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from court.errors import BadRequest
from court.verdict import ClaimLabel
from eval.scores import resampling
from eval.scores.metrics import RESAMPLES, ClassScores, Figure, edge_figure, share_figure
from eval.scores.resampled_means import difference_of
from eval.scores.resampling import Ints
from eval.witness.arms import Arm
from eval.witness.check import CheckedClaim
from eval.witness.claims import Gold

_ABSTAINED, _FAILED = 2, 3
"""Columns of a confusion matrix beside the answers false and true."""
_BEARS = {ClaimLabel.SUPPORTED: "supports", ClaimLabel.REFUTED: "refutes"}


@dataclass(frozen=True, slots=True)
class Citations:
    """Citations of findings other than abstentions.

    Attributes:
        quotes: Number of passages that findings are based on.
        dropped: Number of cited passages that occur in no document; none of them is part of a finding.
        standing: Share of all cited passages that occur in their document; None if none was cited.
        judged: Number of findings for which a model judged if a passage supports them.
        bearing: Share of these with a passage that supports them by itself; None if there are none.
    """

    quotes: int
    dropped: int
    standing: Figure | None
    judged: int
    bearing: Figure | None


@dataclass(frozen=True, slots=True)
class WitnessCard:
    """Figures of one arm.

    Attributes:
        n: Number of claims that are true or false.
        true: Number of the ``n`` that are true.
        unknown: Number of claims that the data set calls unknown; only ``unknown_abstained`` includes them.
        abstained: Number of the ``n`` without an answer because the evidence was not enough.
        failed: Number of the ``n`` without a finding because the source or the model failed.
        coverage: Share of the ``n`` with an answer.
        accuracy: Share of the ``n`` with a correct answer; a missing answer counts as wrong.
        decided_accuracy: Share of correct ones among the answers; None if there are no answers.
        macro_f1: Mean F1 of both labels.
        weighted_f1: Mean F1 of both labels, weighted by the number of claims with each.
        labels: Scores of the labels False and True.
        unknown_abstained: Share of ``unknown`` on which it abstained; None if there are none.
        against: Difference in accuracy to the arm ``witness``, over the same claims; None for that arm, or without it.
        calls: Mean number of model calls per claim.
        tokens: Mean number of tokens per claim, in and out.
        documents: Mean number of documents read per claim.
    """

    arm: Arm
    n: int
    true: int
    unknown: int
    abstained: int
    failed: int
    coverage: Figure
    accuracy: Figure
    decided_accuracy: Figure | None
    macro_f1: Figure
    weighted_f1: Figure
    labels: tuple[ClassScores, ClassScores]
    unknown_abstained: float | None
    against: Figure | None
    citations: Citations
    calls: float
    tokens: float
    documents: float


def score_arms(checked: Sequence[CheckedClaim], *, resamples: int = RESAMPLES, seed: int = 0) -> list[WitnessCard]:
    """Scores each arm that has results, in the order of :class:`Arm`.

    Raises:
        BadRequest: No claim is true or false.
    """
    # Arms in the order of the enumeration, not of their lines: claims are checked concurrently.
    by_arm = {arm: [one for one in checked if one.arm is arm] for arm in Arm}
    baseline = by_arm[Arm.WITNESS]
    return [
        # The baseline isn't compared with itself: a difference of zero with a zero-width interval would look like a
        # result.
        _card(arm, lines, [] if arm is Arm.WITNESS else baseline, resamples=resamples, seed=seed)
        for arm, lines in by_arm.items()
        if lines
    ]


def _card(
    arm: Arm, lines: Sequence[CheckedClaim], baseline: Sequence[CheckedClaim], *, resamples: int, seed: int
) -> WitnessCard:
    # Claims that the data set calls unknown have no right answer. Counting an abstention on them as right or wrong
    # would mix two different abilities in one figure.
    known = [one for one in lines if one.gold is not Gold.UNKNOWN]
    if not known:
        raise BadRequest("No claim of the file is true or false: there is nothing to score.", reason="NOTHING_TO_SCORE")
    gold = np.array([one.gold is Gold.TRUE for one in known], dtype=np.int64)
    predicted = np.array([_column(one) for one in known], dtype=np.int64)
    cells: Ints = np.zeros((2, 4), dtype=np.int64)
    # `np.add.at`, not `cells[gold, predicted] += 1`, which would count repeated pairs of indices only once.
    np.add.at(cells, (gold, predicted), 1)
    # Resampling claims is equivalent to drawing the cells of the confusion matrix from a multinomial, which does not
    # need claims × resamples in memory.
    drawn = resampling.draw_cells(cells, resamples, seed)
    over = resampling.rates(drawn)
    # Both labels are always listed, so that the arrays have two elements even if every claim is true.
    precision, recall, f1, support = precision_recall_fscore_support(
        gold, predicted, labels=[0, 1], average=None, zero_division=0
    )
    n, decided = len(known), predicted < _ABSTAINED
    drawn_f1 = np.stack(over.f1)
    # Weights of each resample, whose split between true and false varies too; the sample's weights would leave that
    # variation out of the interval.
    weights = drawn.sum(axis=2).T / n
    right = int((gold == predicted).sum())
    unknown = [one for one in lines if one.gold is Gold.UNKNOWN]
    # Columns beyond the first two are abstentions and failures: not answers, but part of every denominator except that
    # of `decided_accuracy`.
    answered = drawn[:, :, :_ABSTAINED].sum(axis=(1, 2))
    hits = drawn[:, 0, 0] + drawn[:, 1, 1]

    def label(place: int, name: str) -> ClassScores:
        there, named = int(support[place]), int((predicted == place).sum())
        return ClassScores(
            name=name,
            # If no claim was given the label, precision is undefined; sklearn's 0 (`zero_division`) is a placeholder.
            precision=share_figure(float(precision[place]), over.precision[place], named) if named else None,
            recall=share_figure(float(recall[place]), over.recall[place], there) if there else None,
            f1=edge_figure(float(f1[place]), over.f1[place], there or named),
            support=there,
        )

    return WitnessCard(
        arm=arm,
        n=n,
        true=int(gold.sum()),
        unknown=len(unknown),
        abstained=int((predicted == _ABSTAINED).sum()),
        failed=int((predicted == _FAILED).sum()),
        coverage=share_figure(float(decided.mean()), answered / n, n),
        accuracy=share_figure(right / n, over.accuracy, n),
        # Resamples without any answer have no share and are left out instead of counted as 0.
        decided_accuracy=share_figure(
            right / int(decided.sum()), hits[answered > 0] / answered[answered > 0], int(decided.sum())
        )
        if decided.any()
        else None,
        macro_f1=edge_figure(float(f1.mean()), over.macro_f1, n),
        weighted_f1=edge_figure(float((f1 * support).sum() / n), np.asarray((drawn_f1 * weights).sum(axis=0)), n),
        labels=(label(0, "False"), label(1, "True")),
        unknown_abstained=sum(_column(one) == _ABSTAINED for one in unknown) / len(unknown) if unknown else None,
        against=difference_of(_right(known), _right(baseline), resamples=resamples, seed=seed),
        citations=_citations(lines, resamples, seed),
        calls=_mean([one.calls for one in lines]),
        tokens=_mean([one.tokens_in + one.tokens_out for one in lines]),
        documents=_mean([one.documents for one in lines]),
    )


def _column(one: CheckedClaim) -> int:
    # Failure takes precedence over abstention: without a label there was no finding, so nothing to abstain from.
    if one.label is None:
        return _FAILED
    return _ABSTAINED if one.answer is None else int(one.answer)


def _right(lines: Sequence[CheckedClaim]) -> list[tuple[str, float]]:
    # Compared by identity: a missing answer is None, neither True nor False, and counts as wrong.
    return [(one.id, float(one.answer is (one.gold is Gold.TRUE))) for one in lines if one.gold is not Gold.UNKNOWN]


def _citations(lines: Sequence[CheckedClaim], resamples: int, seed: int) -> Citations:
    found = [one for one in lines if one.label in _BEARS]
    quotes = sum(len(one.evidence) for one in found)
    # Dropped passages belong in the denominator: otherwise a witness that invents quotes would get 100 % by having them
    # all removed.
    standing = sum(passage.stands for one in found for passage in one.evidence)
    dropped = sum(one.quotes_dropped for one in found)
    # Findings without any judged passage count neither for nor against.
    judged = [one for one in found if any(passage.relation for passage in one.evidence)]
    bearing = sum(
        any(passage.relation == _BEARS[one.label] for passage in one.evidence)
        for one in judged
        if one.label is not None
    )
    return Citations(
        quotes=quotes,
        dropped=dropped,
        standing=_share(standing, quotes + dropped, resamples, seed),
        judged=len(judged),
        bearing=_share(bearing, len(judged), resamples, seed),
    )


def _share(part: int, whole: int, resamples: int, seed: int) -> Figure | None:
    if not whole:
        return None
    # Two cells, resampled like a confusion matrix.
    drawn = resampling.draw_cells(np.array([part, whole - part], dtype=np.int64), resamples, seed)
    return share_figure(part / whole, drawn[:, 0] / whole, whole)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
