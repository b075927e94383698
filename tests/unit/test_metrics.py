import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from eval.metrics import score

GOLD = [True] * 6 + [False] * 4
SAID = [True] * 4 + [False] * 2 + [False] * 3 + [True]


def test_scores_worked_by_hand():
    # Harmful: precision 4/5, recall 4/6, F1 8/11. Not harmful: precision 3/5, recall 3/4, F1 6/9.
    scores = score(GOLD, SAID, [0.9] * 10)
    assert (scores.n, scores.harmful, scores.majority) == (10, 6, 0.6)
    assert scores.accuracy.value == pytest.approx(0.7)
    assert scores.macro_f1.value == pytest.approx((8 / 11 + 6 / 9) / 2)
    assert scores.brier == pytest.approx((6 * 0.01 + 4 * 0.81) / 10)


def test_intervals_are_those_of_resampling_memes_one_by_one():
    """A second implementation: draw memes, score each draw with scikit-learn."""
    rng = np.random.default_rng(1)
    gold = rng.random(150) < 0.4
    said = np.where(rng.random(150) < 0.7, gold, ~gold)
    draws = [rng.integers(0, 150, 150) for _ in range(2000)]
    accuracies = [accuracy_score(gold[d], said[d]) for d in draws]
    f1s = [f1_score(gold[d], said[d], labels=[False, True], average="macro") for d in draws]
    scores = score(gold.tolist(), said.tolist())
    for figure, resampled in ((scores.accuracy, accuracies), (scores.macro_f1, f1s)):
        assert [figure.low, figure.high] == pytest.approx(list(np.percentile(resampled, [2.5, 97.5])), abs=0.012)


def test_a_class_that_nobody_named_still_counts():
    assert score([True, True], [True, True]).macro_f1.value == pytest.approx(0.5)
    assert score(GOLD, [True] * 10).macro_f1.value == pytest.approx((12 / 16) / 2)


def test_the_same_seed_gives_the_same_interval():
    assert score(GOLD, SAID, seed=3) == score(GOLD, SAID, seed=3)
    assert score(GOLD, SAID).accuracy.low < 0.7 < score(GOLD, SAID).accuracy.high


def test_nothing_to_score_is_an_error():
    with pytest.raises(ValueError):
        score([], [])
    with pytest.raises(ValueError):
        score([True], [])
