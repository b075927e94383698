"""How good a set of labels is, and how sure one can be of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score

CLASSES = (False, True)
"""Not harmful, harmful. Always given to scikit-learn: a class that nobody predicted still counts in a macro average."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with the interval that resampling the memes leaves it in.

    Attributes:
        value: Of all memes.
        low: 2.5th percentile over the resamples.
        high: 97.5th percentile.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of two-class labels.

    Attributes:
        n: Memes.
        harmful: Of these, those whose gold label is harmful.
        majority: Accuracy of always saying the more frequent label.
        accuracy: Share of labels that agree with gold.
        macro_f1: Mean of the F1 of both classes.
        brier: Mean squared difference of probability and gold, or None without probabilities.
    """

    n: int
    harmful: int
    majority: float
    accuracy: Figure
    macro_f1: Figure
    brier: float | None


def score(
    gold: Sequence[bool],
    said: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Scores:
    """Scores labels against gold ones, with 95 % percentile bootstrap intervals over memes.

    Args:
        gold: Whether each meme is harmful.
        said: Whether it was called harmful, in the same order.
        probabilities: Of harm, in the same order, or None.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        ValueError: There is no meme, or the sequences differ in length.
    """
    if not gold or len(gold) != len(said):
        raise ValueError("scores need at least one meme, and one label each")
    truth, labels = np.asarray(gold, dtype=bool), np.asarray(said, dtype=bool)
    rng = np.random.default_rng(seed)
    # Accuracy and F1 depend on the four counts of the confusion matrix only, and resampling memes is drawing those.
    cells = np.array([np.sum((truth == t) & (labels == s)) for t in CLASSES for s in CLASSES])
    drawn = rng.multinomial(len(truth), cells / len(truth), size=resamples)
    return Scores(
        n=len(truth),
        harmful=int(truth.sum()),
        majority=max(truth.mean(), 1 - truth.mean()),
        accuracy=_figure(float(accuracy_score(truth, labels)), (drawn[:, 0] + drawn[:, 3]) / len(truth)),
        macro_f1=_figure(
            float(f1_score(truth, labels, labels=CLASSES, average="macro", zero_division=0)), _macro_f1(drawn)
        ),
        brier=None if probabilities is None else float(brier_score_loss(truth, probabilities, labels=CLASSES)),
    )


def _figure(value: float, resampled: NDArray[np.float64]) -> Figure:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Figure(value, float(low), float(high))


def _macro_f1(cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Macro-F1 of confusion matrices: int of shape (resamples, 4), gold x said, both not harmful first."""
    benign_benign, benign_harmful, harmful_benign, harmful_harmful = cells.T

    def f1(hit: NDArray[np.int64], false: NDArray[np.int64], missed: NDArray[np.int64]) -> NDArray[np.float64]:
        bottom = 2 * hit + false + missed
        # 0 / 0, where a class is neither there nor said, counts 0, as in scikit-learn.
        return np.asarray(2 * hit / np.maximum(bottom, 1), dtype=np.float64)

    both = f1(benign_benign, harmful_benign, benign_harmful) + f1(harmful_harmful, benign_harmful, harmful_benign)
    return np.asarray(both / 2, dtype=np.float64)
