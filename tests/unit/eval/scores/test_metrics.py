import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import bootstrap
from sklearn.calibration import calibration_curve
from sklearn.metrics import f1_score, roc_auc_score

from court.errors import BadRequest
from eval.datasets.items import Level, Protocol
from eval.reports.tasks import gather, noise_in_words, sections_of
from eval.scores.measure import measure
from eval.scores.metrics import KINDS, harm_arrays, harm_values, task_card
from tests.support.judged import F, H, N, U, results

GOLD = [True] * 6 + [False] * 4
PREDICTED = [True] * 4 + [False] * 2 + [False] * 3 + [True]
NOT, SOME, VERY = Level


def outcomes(predicted):
    return [H if harmful else N for harmful in predicted]


def plain(gold, predicted, **fields):
    return task_card(results(gold, predicted, **fields), Protocol.PLAIN)


def values(ours, label):
    """Precision, recall and F1 of a label."""
    return [ours.figures[f"{kind}:{label}"].value for kind in KINDS]


def bounds(figure):
    return [figure.low, figure.high]


def scored(gold, predicted, **drawn):
    """Accuracy and macro-F1 of labels, with their intervals."""
    found = measure(harm_arrays(gold, predicted), ("accuracy", "macro-f1"), None, **drawn)
    return found["accuracy"], found["macro-f1"]


def test_scores_match_figures_by_hand():
    # Harmful: precision 4/5, recall 4/6, F1 8/11. Not harmful: precision 3/5, recall 3/4, F1 6/9.
    expected = pytest.approx((0.7, (8 / 11 + 6 / 9) / 2))
    assert harm_values(GOLD, PREDICTED) == expected
    assert tuple(figure.value for figure in scored(GOLD, PREDICTED)) == expected


def test_identical_outcomes_still_leave_a_wide_interval():
    """After Clopper and Pearson (1934): the least share that gets one meme right with a chance of 2.5 % is 2.5 %."""
    one = plain([True], [H]).figures["accuracy"]
    assert (one.value, one.low, one.high) == (1, pytest.approx(0.025), 1)
    none = plain([True, False] * 40, [N, H] * 40)
    assert (none.figures["accuracy"].value, none.figures["accuracy"].low) == (0, 0)
    assert none.figures["accuracy"].high == pytest.approx(1 - 0.025 ** (1 / 80))
    assert none.figures["recall:harmful"].high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert none.figures["coverage"].low == pytest.approx(0.025 ** (1 / 80))


def test_other_figures_at_their_extremes_have_a_wide_interval_too():
    gold = [True, False] * 6
    least = 0.025 ** (1 / 12)
    right = plain(gold, outcomes(gold), score=[float(harmful) for harmful in gold]).figures
    assert bounds(right["macro-f1"]) == pytest.approx([least, 1])
    assert bounds(right["f1:not harmful"]) == bounds(right["auroc"]) == pytest.approx([0.025 ** (1 / 6), 1])
    assert bounds(right["brier"]) == pytest.approx([0, 1 - least])
    wrong = plain(gold, outcomes(not harmful for harmful in gold))
    assert bounds(wrong.figures["macro-f1"]) == pytest.approx([0, 1 - least])
    # With one class alone, the other's F1 is always 0.
    assert bounds(plain([True], [H]).figures["macro-f1"]) == pytest.approx([0.0125, 0.5])
    assert bounds(scored(gold, gold)[0]) == pytest.approx([least, 1])


def test_accuracy_at_its_extreme_is_reported_with_an_interval():
    gold = [True, False] * 6
    sentence = noise_in_words(plain(gold, outcomes(gold)))
    assert "an accuracy of 1.000 is known to lie between 0.735 and 1.000" in sentence


def test_same_seed_gives_the_same_interval():
    assert scored(GOLD, PREDICTED, seed=3) == scored(GOLD, PREDICTED, seed=3)
    assert scored(GOLD, PREDICTED)[0].low < 0.7 < scored(GOLD, PREDICTED)[0].high


def test_95_percent_interval_covers_the_truth_about_95_times_in_100():
    """Draws 400 data sets of 200 memes from a system whose true accuracy and macro-F1 are known.

    By chance alone, coverage varies by 3.3 points (three standard errors of 400 trials) around 95 %.
    """
    rng = np.random.default_rng(11)
    share, recall, specificity = 0.35, 0.75, 0.85
    hit, missed = share * recall, share * (1 - recall)
    passed, wronged = (1 - share) * specificity, (1 - share) * (1 - specificity)
    accuracy = hit + passed
    macro_f1 = (2 * hit / (2 * hit + missed + wronged) + 2 * passed / (2 * passed + missed + wronged)) / 2
    covered = np.zeros(2)
    for number in range(400):
        gold = rng.random(200) < share
        predicted = rng.random(200) < np.where(gold, recall, 1 - specificity)
        shares = scored(gold.tolist(), predicted.tolist(), resamples=1000, seed=number)
        covered += [found.low <= true <= found.high for found, true in zip(shares, (accuracy, macro_f1), strict=True)]
    assert np.all(np.abs(covered / 400 - 0.95) < 0.033), covered


# --- Cards: worked examples from elsewhere, and by hand --------------------------------------------


def test_missing_class_is_a_miss_for_its_own_class_and_no_prediction_of_the_other():
    """Harmful: 2 right, 1 called benign, 1 undecided, 1 failed. Benign: 3 right, 1 harmful, 1 undecided."""
    gold = [True] * 5 + [False] * 5
    ours = plain(gold, [H, H, N, U, F, N, N, N, H, U])
    assert ours.confusion == ((3, 1, 1, 0), (1, 2, 1, 1))
    assert (ours.n, ours.gold["harmful"], ours.unanswered, ours.failed) == (10, 5, 3, 1)
    assert ours.figures["coverage"].value == 0.7
    assert ours.figures["accuracy"].value == 0.5
    # F1 of harmful: 2 TP over 2 TP + FP (1) + FN (3).
    assert values(ours, "harmful") == pytest.approx([2 / 3, 2 / 5, 4 / 8])
    assert values(ours, "not harmful") == pytest.approx([3 / 4, 3 / 5, 6 / 9])
    assert ours.figures["macro-f1"].value == pytest.approx((4 / 8 + 6 / 9) / 2)
    assert ours.decided["accuracy"].value == pytest.approx(5 / 7)


def test_baselines_are_the_majority_class_and_the_vote():
    ours = plain([True] * 2 + [False] * 6, [H] * 8, vote_harmful=[True, False, None] + [False] * 5)
    assert ours.baseline["accuracy"] == 0.75
    said_always = f1_score([1, 1, 0, 0, 0, 0, 0, 0], [0] * 8, labels=[0, 1], average="macro")
    assert ours.baseline["macro-f1"] == pytest.approx(said_always)
    assert ours.voted == 7 and ours.vote["accuracy"].value == pytest.approx(6 / 7)
    assert plain([True, False], [H, N]).vote == {}


def test_protocol_drops_memes_from_every_figure():
    gold = [NOT, NOT, SOME, SOME, VERY]
    ours = results(
        gold, [N, N, N, H, H], protocols=(Protocol.MERGED, Protocol.EXTREME), score=[0.1, 0.2, 0.3, 0.4, 0.9]
    )
    merged, extreme = task_card(ours, Protocol.MERGED), task_card(ours, Protocol.EXTREME)
    assert (merged.n, merged.gold["harmful"], merged.dropped) == (5, 3, 0)
    assert (extreme.n, extreme.gold["harmful"], extreme.dropped) == (3, 1, 2)
    assert (merged.over["auroc"], extreme.over["auroc"]) == (5, 3)
    assert merged.figures["accuracy"].value == 0.8 and extreme.figures["accuracy"].value == 1.0
    with pytest.raises(ValueError):
        task_card(ours, Protocol.PLAIN)
    with pytest.raises(BadRequest, match="extreme no meme of ours is left"):
        task_card(results([SOME], [H]), Protocol.EXTREME)


def test_mmae_matches_its_definition():
    """Baccianella et al. 2009: the mean error at each true level, averaged over levels rather than memes."""
    gold = [NOT] * 4 + [SOME] * 2 + [VERY]
    predicted = [NOT, NOT, SOME, VERY, SOME, NOT, NOT]
    ours = task_card(results(gold, [N] * 7, level=predicted), Protocol.MERGED)
    by_hand = (Fraction(0 + 0 + 1 + 2, 4) + Fraction(0 + 1, 2) + Fraction(2, 1)) / 3
    assert ours.figures["mmae"].value == pytest.approx(float(by_hand)) and ours.over["mmae"] == 7
    # Always the middle level: an error of 1 at both ends, whatever the counts.
    middle = task_card(results(gold, [N] * 7, level=[SOME] * 7), Protocol.MERGED)
    assert middle.figures["mmae"].value == pytest.approx(2 / 3)


def test_mmae_covers_only_memes_with_a_predicted_level():
    ours = task_card(results([NOT, SOME, VERY], [N, U, H], level=[NOT, None, SOME]), Protocol.MERGED)
    assert ours.over["mmae"] == 2 and ours.figures["mmae"].value == pytest.approx((0 + 1) / 2)
    assert "mmae" not in task_card(results([NOT, VERY], [N, H]), Protocol.MERGED).figures
    assert "mmae" not in plain([True], [H], level=[VERY]).figures


# --- Intervals against a second implementation -----------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    """250 memes with every outcome, and scores of one decimal, so that many are equal."""
    rng = np.random.default_rng(4)
    gold = rng.random(250) < 0.35
    predicted = rng.choice(4, 250, p=[0.5, 0.3, 0.12, 0.08])
    scores = np.round(np.clip(rng.normal(0.4 + 0.2 * gold, 0.2), 0, 1), 1)
    ours = plain(gold.tolist(), [(N, H, U, F)[code] for code in predicted], score=scores.tolist())
    return gold, predicted, scores, ours


def test_intervals_match_scipy_s_bootstrap(sample):
    gold, predicted, scores, ours = sample

    def scipys(statistic, *data):
        found = bootstrap(
            data,
            statistic,
            paired=True,
            vectorized=False,
            method="percentile",
            n_resamples=1000,
            rng=np.random.default_rng(9),
        )
        return list(found.confidence_interval)

    assert bounds(ours.figures["coverage"]) == pytest.approx(scipys(lambda s: np.mean(s < 2), predicted), abs=0.012)
    assert bounds(ours.figures["accuracy"]) == pytest.approx(
        scipys(lambda g, s: np.mean(g == s), gold, predicted), abs=0.012
    )
    assert bounds(ours.figures["auroc"]) == pytest.approx(scipys(roc_auc_score, gold, scores), abs=0.015)
    assert bounds(ours.figures["brier"]) == pytest.approx(
        scipys(lambda g, s: np.mean((g - s) ** 2), gold * 1.0, scores), abs=0.012
    )


def test_figures_do_not_depend_on_which_others_are_present(sample):
    gold, predicted, _, ours = sample
    bare = plain(gold.tolist(), [(N, H, U, F)[code] for code in predicted])
    assert "auroc" not in bare.figures and bare.figures == {name: ours.figures[name] for name in bare.figures}


# --- AUROC over all memes and over decided ones -----------------------------------------------------


def test_strict_auroc_counts_every_pair_with_an_unscored_meme_as_lost():
    # Harmful .9 and unscored, not harmful .1, .95 and unscored: of 2 x 3 pairs only (.9, .1) is ranked correctly.
    ours = plain([True, True, False, False, False], [H, F, N, H, U], score=[0.9, None, 0.1, 0.95, None])
    assert (ours.figures["auroc"].value, ours.figures["auroc-strict"].value) == (0.5, pytest.approx(1 / 6))
    assert ours.figures["auroc-strict"].low <= 1 / 6 <= ours.figures["auroc-strict"].high


def test_decided_auroc_ignores_scores_of_undecided_memes():
    # The undecided harmful meme is ranked below both others: over scored memes it costs half of the area.
    ours = plain([True, True, False, False], [H, U, N, N], score=[0.9, 0.05, 0.1, 0.2])
    assert [ours.figures[name].value for name in ("auroc", "auroc-strict")] == [0.5, 0.5]
    assert ours.decided["auroc"].value == 1.0
    assert plain([True, False], [U, N], score=[0.9, 0.1]).decided["auroc"] is None


def test_decided_figures_say_over_how_many_of_the_decided_memes_they_are():
    ours = results([True, True, False, False], [H, H, N, U], score=[0.9, None, 0.1, 0.2])
    assert task_card(ours, Protocol.PLAIN).decided_over == {"accuracy": 3, "macro-f1": 3, "auroc": 2}
    rows = {row[0]: row[1] for row in sections_of(gather([ours], resamples=50))[1].rows}
    assert rows["AUROC, decided"].endswith("] of 2") and rows["accuracy, decided"].endswith("]")


# --- Calibration -----------------------------------------------------------------------------------


def test_bins_match_scikit_learn_s_quantile_bins_if_all_scores_differ():
    rng = np.random.default_rng(7)
    scores = rng.random(200)
    gold = rng.random(200) < scores
    bins = plain(gold.tolist(), [N] * 200, score=scores.tolist()).calibration
    share, mean = calibration_curve(gold, scores, n_bins=10, strategy="quantile")
    assert [b.n for b in bins] == [20] * 10
    assert [b.mean_score for b in bins] == pytest.approx(list(mean))
    assert [b.share_harmful for b in bins] == pytest.approx(list(share))


def test_equal_scores_are_never_split():
    scores = [0.0] * 50 + [1.0] * 48 + [0.3, 0.3]
    ours = plain([False] * 50 + [True] * 50, [N] * 100, score=scores)
    assert sum(b.n for b in ours.calibration) == 100
    assert all(a.high < b.low for a, b in zip(ours.calibration, ours.calibration[1:], strict=False))
    # By hand: the 50 at 0 and 48 at 1 are calibrated, the two at .3 are harmful.
    assert ours.ece == pytest.approx(2 * 0.7 / 100)


def test_equal_scores_go_to_the_bin_of_their_middle_rank():
    """20 memes in bins of two: ranks 1 and 2, rank 3, the fifteen whose middle is rank 11, ranks 19 and 20."""
    scores = [0.1, 0.2, 0.3, *[0.5] * 15, 0.8, 0.9]
    assert [b.n for b in plain([True] * 20, [N] * 20, score=scores).calibration] == [2, 1, 15, 2]


def test_expected_calibration_error_matches_a_figure_by_hand():
    ours = plain([True, False, True, True], [N] * 4, score=[0.5] * 4)
    assert [dataclasses.astuple(b) for b in ours.calibration] == [(0.5, 0.5, 4, 0.5, 0.75)]
    assert ours.ece == 0.25


# --- Undefined figures are None, never NaN and never a warning (pytest turns those into errors) ----


def numbers(value):
    if dataclasses.is_dataclass(value):
        value = dataclasses.astuple(value)
    if isinstance(value, tuple):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    ("gold", "predicted", "fields"),
    [
        ([True], [H], {"score": [1.0]}),
        ([False], [U], {}),
        ([True], [F], {"score": [0.0]}),
        ([True] * 5, [H, H, N, U, F], {"score": [0.5] * 5}),
        ([False] * 5, [N] * 5, {"score": [0.1, None, None, 0.2, 0.3]}),
        ([True, False], [U, F], {}),
        ([True, False], [H, H], {"score": [0.2, 0.2], "vote_harmful": [True, None]}),
        ([True, False], [H, U], {"score": [0.2, None]}),
    ],
)
def test_degenerate_results_yield_finite_figures_or_none(gold, predicted, fields):
    ours = plain(gold, predicted, **fields)
    assert all(math.isfinite(number) for number in numbers(ours))
    assert (not ours.decided) == all(outcome in (U, F) for outcome in predicted)
    scored = [g for g, s in zip(gold, fields.get("score", [None] * len(gold)), strict=True) if s is not None]
    assert ours.over.get("auroc", 0) == len(scored)
    assert (ours.figures.get("auroc") is None) == (len(set(scored)) < 2)
    assert (ours.figures.get("auroc-strict") is None) == (len(set(gold)) < 2 or not scored)
    assert (ours.figures.get("brier") is None) == (ours.ece is None) == (ours.calibration == ()) == (not scored)
    for harmful, label in enumerate(ours.gold):
        assert (ours.figures[f"recall:{label}"] is None) == (bool(harmful) not in gold)
        assert (ours.figures[f"precision:{label}"] is None) == ((N, H)[harmful] not in predicted)


def grouped(found, size):
    """Returns the results with their memes in consecutive groups of ``size``."""
    judged = tuple(
        dataclasses.replace(one, meme=one.meme.model_copy(update={"group": f"g{place // size}"}))
        for place, one in enumerate(found.judged)
    )
    return dataclasses.replace(found, judged=judged)


def test_intervals_resample_the_groups_that_a_card_names():
    rng = np.random.default_rng(5)
    gold, scores = rng.random(40) < 0.5, rng.random(40)
    predicted = [H if score > 0.5 else U if score < 0.1 else N for score in scores]
    plain = results(gold.tolist(), predicted, score=scores.tolist(), vote_harmful=(scores > 0.4).tolist())
    many = [
        np.repeat(np.array(values, dtype=object), 10).tolist() for values in (gold, predicted, scores, scores > 0.4)
    ]
    tenfold = results(many[0], many[1], score=many[2], vote_harmful=many[3])
    alone, over = task_card(plain, Protocol.PLAIN), task_card(grouped(tenfold, 10), Protocol.PLAIN)
    assert (alone.groups, over.groups, over.n) == (0, 40, 400)
    by_meme = task_card(grouped(tenfold, 1), Protocol.PLAIN)
    names = ("accuracy", "macro-f1", "coverage", "auroc", "brier")
    for part, name in (*(("figures", name) for name in names), ("decided", "auroc"), ("vote", "accuracy")):
        one, ten, singly = (getattr(each, part)[name] for each in (alone, over, by_meme))
        # Ten copies of each meme carry no more information than one.
        assert ten.value == pytest.approx(one.value)
        assert (ten.low, ten.high) == pytest.approx((one.low, one.high), abs=0.03)
        assert singly.high - singly.low < 0.6 * (ten.high - ten.low)


def test_levels_and_groups_of_different_sizes_are_supported():
    levels = [Level.NOT_HARMFUL, Level.VERY_HARMFUL, Level.SOMEWHAT_HARMFUL] * 20
    ours = results(levels, [H] * 60, level=[Level.VERY_HARMFUL] * 60, protocols=(Protocol.MERGED,))
    uneven = dataclasses.replace(ours, judged=(*grouped(ours, 1).judged[:30], *(grouped(ours, 20).judged[30:])))
    found = task_card(uneven, Protocol.MERGED)
    error = found.figures["mmae"]
    assert error.value == pytest.approx(1.0) and error.low <= 1 <= error.high
    accuracy = found.figures["accuracy"]
    assert accuracy.value == pytest.approx(2 / 3) and accuracy.low < accuracy.value < accuracy.high


def test_exact_intervals_count_groups_if_groups_are_resampled():
    predicted = [H, N] * 10
    ours = results([one is H for one in predicted], predicted, score=[0.9, 0.1] * 10)
    found = task_card(grouped(ours, 5), Protocol.PLAIN)
    of_groups = pytest.approx((0.025 ** (1 / 4), 1))
    names = ("coverage", "accuracy", "macro-f1", "auroc", "recall:harmful", "precision:not harmful")
    for figure in (*map(found.figures.get, names), found.decided["accuracy"]):
        assert (figure.low, figure.high) == of_groups
    assert found.gold["not harmful"] == 10


def test_single_meme_makes_no_figure_certain():
    levels = [Level.SOMEWHAT_HARMFUL]
    for level, value in ((Level.SOMEWHAT_HARMFUL, 0), (Level.VERY_HARMFUL, 1)):
        one = results(levels, [H], level=[level], score=[0.7], protocols=(Protocol.MERGED,))
        found = task_card(one, Protocol.MERGED)
        assert found.figures["mmae"].value == value and found.figures["mmae"].high - found.figures["mmae"].low > 1.9
        brier = found.figures["brier"]
        assert (brier.value, brier.high) == pytest.approx((0.09, 0.975))
    # All levels right: every resampled error is 0, although errors may occur.
    right = [Level.NOT_HARMFUL, Level.SOMEWHAT_HARMFUL, Level.VERY_HARMFUL] * 3
    found = task_card(results(right, [N, H, H] * 3, level=right, protocols=(Protocol.MERGED,)), Protocol.MERGED)
    assert (found.figures["mmae"].low, found.figures["mmae"].high) == pytest.approx((0, 2 * (1 - 0.025 ** (1 / 9))))
