"""Figures of the witness: labels against the truth, abstentions, and whether its citations bear what it found.

Figures by scikit-learn; intervals are 95 %, by percentile bootstrap over claims (:mod:`eval.scores.resampling`).
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
    """Citations of findings that are no abstention.

    Attributes:
        quotes: Passages that findings rest on.
        dropped: Passages that were named and stand in no document; none of them is part of a finding.
        standing: Share of all named passages that stand in their document; None where none was named.
        judged: Findings of which a model judged whether a passage backs them.
        bearing: Share of these with a passage that backs them by itself; None if there are none.
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
        arm: The arm.
        n: Claims that are true or false.
        true: Number of the ``n`` that are true.
        unknown: Claims that the data set itself calls unknown; they are in no figure but ``unknown_abstained``.
        abstained: Number of the ``n`` without an answer because the evidence was not enough.
        failed: Number of the ``n`` without a finding: no source or no model gave one.
        coverage: Share of the ``n`` with an answer.
        accuracy: Share of the ``n`` whose answer is right; one without an answer is wrong.
        decided_accuracy: Share of right ones among the answers; None where there is none.
        macro_f1: Mean of the F1 of both labels.
        weighted_f1: The same, weighted by how many claims have each.
        labels: Scores of the labels False and True.
        unknown_abstained: Share of ``unknown`` on which it abstained; None where there are none.
        against: Difference in accuracy to the arm ``witness``, over the same claims; None for that arm, or without it.
        citations: Its citations.
        calls: Mean number of model calls of a claim.
        tokens: Mean number of tokens of a claim, in and out.
        documents: Mean number of documents read about a claim.
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
    """Scores each arm that there is, in the order of :class:`Arm`.

    Raises:
        BadRequest: No claim is true or false.
    """
    # Arms in the order of the enumeration, whichever order their lines were written in: claims are
    # checked concurrently.
    by_arm = {arm: [one for one in checked if one.arm is arm] for arm in Arm}
    baseline = by_arm[Arm.WITNESS]
    return [
        # The baseline isn't compared with itself: a difference of zero with an interval of zero would
        # look like a result.
        _card(arm, lines, [] if arm is Arm.WITNESS else baseline, resamples=resamples, seed=seed)
        for arm, lines in by_arm.items()
        if lines
    ]


def _card(
    arm: Arm, lines: Sequence[CheckedClaim], baseline: Sequence[CheckedClaim], *, resamples: int, seed: int
) -> WitnessCard:
    # What the data set itself calls unknown has no right answer. Counting an abstention on it as right
    # or wrong would mix two different abilities in one figure.
    known = [one for one in lines if one.gold is not Gold.UNKNOWN]
    if not known:
        raise BadRequest("No claim of the file is true or false: there is nothing to score.", reason="NOTHING_TO_SCORE")
    gold = np.array([one.gold is Gold.TRUE for one in known], dtype=np.int64)
    predicted = np.array([_column(one) for one in known], dtype=np.int64)
    cells: Ints = np.zeros((2, 4), dtype=np.int64)
    # `np.add.at` and not `cells[gold, predicted] += 1`, which would count a cell once however often its
    # pair of indices occurs.
    np.add.at(cells, (gold, predicted), 1)
    # Resampling claims is drawing the cells of the confusion matrix from a multinomial: the same
    # distribution, and no need to hold claims × resamples.
    drawn = resampling.draw_cells(cells, resamples, seed)
    over = resampling.rates(drawn)
    # Both labels are always named, so that the arrays have two places even where every claim is true.
    precision, recall, f1, support = precision_recall_fscore_support(
        gold, predicted, labels=[0, 1], average=None, zero_division=0
    )
    n, decided = len(known), predicted < _ABSTAINED
    drawn_f1 = np.stack(over.f1)
    # Weights are those of each resample, whose split between true and false varies too; those of the
    # sample would leave that variation out of the interval.
    weights = drawn.sum(axis=2).T / n
    right = int((gold == predicted).sum())
    unknown = [one for one in lines if one.gold is Gold.UNKNOWN]
    # Columns beyond the first two are abstentions and failures: no answers, yet in every denominator
    # but that of `decided_accuracy`.
    answered = drawn[:, :, :_ABSTAINED].sum(axis=(1, 2))
    hits = drawn[:, 0, 0] + drawn[:, 1, 1]

    def label(place: int, name: str) -> ClassScores:
        there, named = int(support[place]), int((predicted == place).sum())
        return ClassScores(
            name=name,
            # Without a claim that was given the label, precision is no number; sklearn's 0
            # (`zero_division`) is only its stand-in.
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
        # Resamples in which nothing was answered have no share to contribute, and are left out rather
        # than counted as 0.
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
    # Failure goes before abstention: without a label there was no finding, so that nothing was
    # abstained from.
    if one.label is None:
        return _FAILED
    return _ABSTAINED if one.answer is None else int(one.answer)


def _right(lines: Sequence[CheckedClaim]) -> list[tuple[str, float]]:
    # By identity: no answer is None, which is neither True nor False, and counts as wrong.
    return [(one.id, float(one.answer is (one.gold is Gold.TRUE))) for one in lines if one.gold is not Gold.UNKNOWN]


def _citations(lines: Sequence[CheckedClaim], resamples: int, seed: int) -> Citations:
    found = [one for one in lines if one.label in _BEARS]
    quotes = sum(len(one.evidence) for one in found)
    # Passages that were dropped belong into the denominator: a witness that invents quotes would
    # otherwise get 100 % by having them all removed.
    standing = sum(passage.stands for one in found for passage in one.evidence)
    dropped = sum(one.quotes_dropped for one in found)
    # Where no passage was judged at all, the finding says nothing about bearing, neither for nor against.
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
    # Two cells, drawn like a confusion matrix.
    drawn = resampling.draw_cells(np.array([part, whole - part], dtype=np.int64), resamples, seed)
    return share_figure(part / whole, drawn[:, 0] / whole, whole)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
