"""Label metrics against scikit-learn and against definitions written out meme by meme; and their intervals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from sklearn import metrics as sk

from eval.scores import measure

LABELS = ("north", "south", "east", "west")


def arrays_of(gold, predicted, scores=None, answered=None, votes=None, labels=LABELS):
    gold, predicted = np.asarray(gold, dtype=bool), np.asarray(predicted, dtype=bool)
    answered = np.ones(len(gold), dtype=bool) if answered is None else np.asarray(answered, dtype=bool)
    scores = np.full(gold.shape, np.nan) if scores is None else np.asarray(scores, dtype=float)
    return measure.TaskArrays(labels[: gold.shape[1]], gold, predicted & answered[:, None], answered, scores, votes)


def value(name, arrays):
    return measure.value_of(measure.metric_of(name, arrays.labels), arrays)


@pytest.fixture(params=range(6))
def multi(request):
    rng = np.random.default_rng(request.param)
    gold = rng.random((60, 4)) < rng.uniform(0.1, 0.6, 4)
    predicted = np.where(rng.random((60, 4)) < 0.3, ~gold, gold)
    return arrays_of(gold, predicted, np.round(rng.random((60, 4)), 1))


@pytest.fixture(params=range(6))
def single(request):
    rng = np.random.default_rng(request.param)
    gold, predicted = rng.choice(4, 80, p=(0.6, 0.2, 0.15, 0.05)), rng.integers(0, 3, 80)
    scores = rng.dirichlet(np.ones(4), 80)
    return arrays_of(np.eye(4, dtype=bool)[gold], np.eye(4, dtype=bool)[predicted], scores)


def test_multi_label_figures_match_scikit_learn(multi):
    gold, predicted = multi.gold.astype(int), multi.predicted.astype(int)
    for name in ("macro", "micro", "weighted"):
        assert value(f"{name}-f1", multi) == pytest.approx(sk.f1_score(gold, predicted, average=name, zero_division=0))
    assert value("exact", multi) == pytest.approx(sk.accuracy_score(gold, predicted))
    assert value("micro-auroc", multi) == pytest.approx(sk.roc_auc_score(gold, multi.scores, average="micro"))
    assert value("auroc", multi) == pytest.approx(sk.roc_auc_score(gold, multi.scores, average="macro"))
    each = range(4)
    accuracies = [sk.accuracy_score(gold[:, k], predicted[:, k]) for k in each]
    f1s = [sk.f1_score(gold[:, k], predicted[:, k], labels=[0, 1], average="macro", zero_division=0) for k in each]
    assert value("mean-binary-accuracy", multi) == pytest.approx(np.mean(accuracies))
    assert value("mean-binary-macro-f1", multi) == pytest.approx(np.mean(f1s))
    n = gold.sum(axis=0)
    assert value("weighted-binary-macro-f1", multi) == pytest.approx((n * f1s).sum() / n.sum())
    for k, label in enumerate(LABELS):
        precision, recall, f1, _ = sk.precision_recall_fscore_support(
            gold[:, k], predicted[:, k], average="binary", zero_division=np.nan
        )
        assert value(f"recall:{label}", multi) == pytest.approx(recall)
        assert value(f"f1:{label}", multi) == pytest.approx(f1)
        assert value(f"binary-accuracy:{label}", multi) == pytest.approx(accuracies[k])
        assert value(f"binary-macro-f1:{label}", multi) == pytest.approx(f1s[k])
        assert value(f"auroc:{label}", multi) == pytest.approx(sk.roc_auc_score(gold[:, k], multi.scores[:, k]))
        if predicted[:, k].any():
            assert value(f"precision:{label}", multi) == pytest.approx(precision)


def test_multi_class_figures_match_scikit_learn(single):
    gold, predicted = single.gold.argmax(axis=1), single.predicted.argmax(axis=1)
    assert value("accuracy", single) == pytest.approx(sk.accuracy_score(gold, predicted))
    for name in ("macro", "micro", "weighted"):
        # All labels of the card count in a macro average, even those that nobody has or predicts.
        expected = sk.f1_score(gold, predicted, labels=range(4), average=name, zero_division=0)
        assert value(f"{name}-f1", single) == pytest.approx(expected)
    if len(set(gold)) == 4:
        expected = sk.roc_auc_score(gold, single.scores, multi_class="ovr", average="macro")
        assert value("auroc", single) == pytest.approx(expected)
    cells = sk.confusion_matrix(gold, predicted, labels=range(4))
    errors = np.abs(np.arange(4)[:, None] - np.arange(4))
    by_level = [(row * error).sum() / row.sum() for row, error in zip(cells, errors, strict=True) if row.sum()]
    assert value("mmae", single) == pytest.approx(np.mean(by_level))
    squares = np.mean([np.mean((p - (g == np.arange(4))) ** 2) for p, g in zip(single.scores, gold, strict=True)])
    assert value("brier", single) == pytest.approx(squares)


def masi_by_hand(gold, predicted):
    """Computes the MASI weight of two sets, after Passonneau 2006, section 4."""
    if gold == predicted:
        return Fraction(1)
    if not gold & predicted:
        return Fraction(0)
    weight = Fraction(2, 3) if gold < predicted or predicted < gold else Fraction(1, 3)
    return Fraction(len(gold & predicted), len(gold | predicted)) * weight


def test_jaccard_and_masi_match_their_definitions_on_sets(multi):
    pairs = [
        ({LABELS[k] for k in np.flatnonzero(gold)}, {LABELS[k] for k in np.flatnonzero(predicted)})
        for gold, predicted in zip(multi.gold, multi.predicted, strict=True)
    ]
    jaccards = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]
    assert value("jaccard", multi) == pytest.approx(np.mean(jaccards))
    assert value("masi", multi) == pytest.approx(float(sum(masi_by_hand(a, b) for a, b in pairs) / len(pairs)))


def test_meme_without_an_answer_counts_as_wrong_and_as_no_prediction():
    gold = [[1, 0], [0, 1], [0, 0], [1, 1]]
    predicted = [[1, 0], [0, 1], [0, 0], [1, 1]]
    all_right = arrays_of(gold, predicted)
    one_silent = arrays_of(gold, predicted, answered=[1, 1, 0, 1])
    assert value("exact", all_right) == value("jaccard", all_right) == value("mean-binary-macro-f1", all_right) == 1
    # The unanswered meme has no gold label: "none of them" is a hit only if it was predicted.
    assert value("exact", one_silent) == value("jaccard", one_silent) == value("masi", one_silent) == 0.75
    assert value("mean-binary-accuracy", one_silent) == 0.75
    # Yes: F1 1. No: one of two hit, one predicted: 2 * 1 / (1 + 2).
    assert value("mean-binary-macro-f1", one_silent) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([[3, 0]], 1.0),
        # Two "yes", one "no": for a "yes" the others are 1:1 (half right); the "no" meets two "yes" (wrong).
        ([[2, 1]], 2 / 3 * 0.5),
        ([[1, 1]], 0.0),
        ([[3, 0], [1, 1]], 0.5),
        # A single vote has nothing to agree with.
        ([[1, 0], [3, 0]], 1.0),
        # Of five votes: for a "yes" the others are 2:2, for a "no" 3:1.
        ([[3, 2]], 3 / 5 * 0.5),
        ([[4, 1]], 4 / 5),
    ],
)
def test_agreement_ceiling_is_one_annotator_against_the_majority_of_the_others(votes, expected):
    arrays = arrays_of(np.zeros((len(votes), 2)), np.zeros((len(votes), 2)), votes=np.array(votes))
    assert value("agreement-ceiling", arrays) == pytest.approx(expected)


def test_figures_without_a_defined_value_are_none():
    arrays = arrays_of([[1, 0], [1, 0]], [[1, 0], [1, 0]])
    for name in ("auroc", "micro-auroc", "brier", "agreement-ceiling", "precision:south", "recall:south"):
        assert value(name, arrays) is None
    one_class = arrays_of([[1, 0], [1, 0]], [[1, 0], [1, 0]], scores=[[0.5, 0.5], [0.7, 0.3]])
    assert value("auroc", one_class) is None
    with pytest.raises(KeyError):
        measure.metric_of("f1:nowhere", LABELS)
    with pytest.raises(KeyError):
        measure.metric_of("kappa", LABELS)


def test_weights_equal_repetition(multi):
    """A meme drawn twice counts as two memes would, in every metric."""
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 4, (3, len(multi.answered)))
    silent = measure.TaskArrays(
        multi.labels,
        multi.gold,
        multi.predicted & (np.arange(60) % 7 > 0)[:, None],
        np.arange(60) % 7 > 0,
        multi.scores,
    )
    for name, metric in measure.METRICS.items():
        drawn = metric(silent, weights.astype(float))
        for row, result in zip(weights, drawn, strict=True):
            repeated = np.repeat(np.arange(60), row)
            twice = measure.TaskArrays(
                silent.labels,
                silent.gold[repeated],
                silent.predicted[repeated],
                silent.answered[repeated],
                silent.scores[repeated],
            )
            expected = value(name, twice)
            assert math.isnan(result) if expected is None else result == pytest.approx(expected), name


def test_groups_are_drawn_whole():
    groups = np.array([0, 0, 1, 2, 2, 2])
    (weights,) = measure.weights_of(groups, 6, resamples=500)
    assert (weights[:, 0] == weights[:, 1]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert weights[:, 2].mean() == pytest.approx(1, abs=0.15)
    (alone,) = measure.weights_of(None, 6, resamples=500)
    assert (alone.sum(axis=1) == 6).all() and alone.var(axis=0) == pytest.approx(5 / 6, abs=0.25)


def scored_half(*, answers):
    """A hundred memes with probabilities; those of the harder half are noise, and missing unless ``answers``."""
    gold, hard = np.arange(100) % 2 == 0, np.arange(100) >= 50
    chance = np.where(hard, np.random.default_rng(0).uniform(size=100), np.where(gold, 0.9, 0.1))
    scores = np.column_stack([chance, 1 - chance])
    answered = answers | ~hard
    scores[~answered] = np.nan
    return arrays_of(np.column_stack([gold, ~gold]), scores > 0.5, scores, answered, labels=("yes", "no"))


@pytest.mark.parametrize("name", ["auroc", "micro-auroc", "brier", "mmae", "auroc:yes"])
def test_leaving_the_harder_half_unanswered_does_not_improve_a_strict_figure(name):
    whole, half = scored_half(answers=True), scored_half(answers=False)
    better = -1 if name in measure.LOWER_IS_BETTER else 1
    assert better * value(name, half) > better * value(name, whole), "over answered memes, silence pays"
    assert value(measure.strict_name(name), whole) == value(name, whole)
    assert better * value(measure.strict_name(name), half) < better * value(name, whole)
    assert [measure.counted_memes(name, arrays) for arrays in (whole, half)] == [100, 50]
    assert measure.name_over_all(name, whole, whole) == name and measure.name_over_all(
        name, whole, half
    ) == measure.strict_name(name)


def test_strict_figures_count_a_missing_meme_as_wrong_as_can_be():
    half = scored_half(answers=False)
    gold, scores = half.gold[:, 0], half.scores[:, 0]
    ranks = np.where(half.answered, scores, np.where(gold, -1, 2))
    assert value("auroc-strict:yes", half) == pytest.approx(sk.roc_auc_score(gold, ranks))
    assert value("brier-strict", half) == pytest.approx(np.where(half.answered, (scores - gold) ** 2, 1).mean())
    # Of three steps, the middle one can be missed by one and the others by two.
    gold = np.eye(3, dtype=bool)
    one = arrays_of(gold, gold, answered=[True, False, False])
    assert (value("mmae", one), value("mmae-strict", one)) == (0, pytest.approx((0 + 1 + 2) / 3))
    nothing = arrays_of(gold, gold, answered=[False] * 3)
    assert [value(name, nothing) for name in measure.METRICS if name.endswith("-strict")] == [None] * 4
