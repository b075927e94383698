import dataclasses
import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import bootstrap, mannwhitneyu
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score, roc_auc_score

from court.errors import BadRequest
from eval.datasets.protocol import Level, Protocol
from eval.scores.metrics import card, noise, score
from eval.scores.tables import noise_in_words
from tests.support.judged import F, H, N, U, results

GOLD = [True] * 6 + [False] * 4
SAID = [True] * 4 + [False] * 2 + [False] * 3 + [True]
NOT, SOME, VERY = Level


def outcomes(said):
    return [H if harmful else N for harmful in said]


def plain(gold, said, **fields):
    return card(results(gold, said, **fields), Protocol.PLAIN)


def bounds(figure):
    return [figure.low, figure.high]


# --- Two-class scores, as the vote of a library is scored ------------------------------------------


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
    draws = [rng.integers(0, 150, 150) for _ in range(800)]
    accuracies = [accuracy_score(gold[d], said[d]) for d in draws]
    f1s = [f1_score(gold[d], said[d], labels=[False, True], average="macro") for d in draws]
    scores = score(gold.tolist(), said.tolist())
    for figure, resampled in ((scores.accuracy, accuracies), (scores.macro_f1, f1s)):
        assert bounds(figure) == pytest.approx(list(np.percentile(resampled, [2.5, 97.5])), abs=0.015)


def test_memes_that_are_all_alike_leave_an_interval_of_some_width():
    """By Clopper and Pearson (1934): of one meme 2.5 % is the least share that gives a right label so often."""
    one = plain([True], [H]).strict.accuracy
    assert (one.value, one.low, one.high) == (1, pytest.approx(0.025), 1)
    none = plain([True, False] * 40, [N, H] * 40)
    assert (none.strict.accuracy.value, none.strict.accuracy.low) == (0, 0)
    assert none.strict.accuracy.high == pytest.approx(1 - 0.025 ** (1 / 80))
    assert none.strict.classes[1].recall.high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert none.coverage.low == pytest.approx(0.025 ** (1 / 80))


def test_other_figures_at_their_ends_have_some_width_too():
    gold = [True, False] * 6
    least = 0.025 ** (1 / 12)
    right = plain(gold, outcomes(gold), score=[float(harmful) for harmful in gold])
    assert bounds(right.strict.macro_f1) == pytest.approx([least, 1])
    assert bounds(right.strict.classes[0].f1) == bounds(right.auroc) == pytest.approx([0.025 ** (1 / 6), 1])
    assert bounds(right.brier) == pytest.approx([0, 1 - least])
    wrong = plain(gold, outcomes(not harmful for harmful in gold))
    assert bounds(wrong.strict.macro_f1) == pytest.approx([0, 1 - least])
    # One class alone: the other's F1 is 0 whatever happens.
    assert bounds(plain([True], [H]).strict.macro_f1) == pytest.approx([0.0125, 0.5])
    assert bounds(score(gold, gold).accuracy) == pytest.approx([least, 1])


def test_what_an_accuracy_at_its_end_is_known_to_is_no_zero():
    gold = [True, False] * 6
    said = noise_in_words(plain(gold, outcomes(gold)))
    assert "an accuracy of 1.000 is known to lie between 0.735 and 1.000" in said and "±" not in said
    assert "is known to about ±" in noise_in_words(plain(GOLD, outcomes(SAID)))


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


def test_a_95_percent_interval_holds_the_truth_about_95_times_in_100():
    """400 data sets of 200 memes from a system whose true accuracy and macro-F1 are known.

    By chance alone the share would wander by 3.3 points (three standard errors of 400 trials) around 95 %.
    """
    rng = np.random.default_rng(11)
    share, recall, specificity = 0.35, 0.75, 0.85
    hit, missed = share * recall, share * (1 - recall)
    passed, wronged = (1 - share) * specificity, (1 - share) * (1 - specificity)
    accuracy = hit + passed
    macro_f1 = (2 * hit / (2 * hit + missed + wronged) + 2 * passed / (2 * passed + missed + wronged)) / 2
    held = np.zeros(2)
    for number in range(400):
        gold = rng.random(200) < share
        said = rng.random(200) < np.where(gold, recall, 1 - specificity)
        scores = score(gold.tolist(), said.tolist(), resamples=1000, seed=number)
        held += [
            scores.accuracy.low <= accuracy <= scores.accuracy.high,
            scores.macro_f1.low <= macro_f1 <= scores.macro_f1.high,
        ]
    assert np.all(np.abs(held / 400 - 0.95) < 0.033), held


# --- Cards: worked examples from elsewhere, and by hand --------------------------------------------


def test_the_user_guide_s_example_of_precision_and_recall():
    """scikit-learn user guide, "Binary classification": y_true 0 1 0 1, y_pred 0 1 0 0."""
    ours = plain([False, True, False, True], [N, H, N, N])
    benign, harmful = ours.strict.classes
    assert (benign.name, harmful.name) == ("not harmful", "harmful")
    assert benign.precision.value == pytest.approx(2 / 3) and benign.recall.value == 1.0
    assert harmful.precision.value == 1.0 and harmful.recall.value == 0.5 and harmful.f1.value == pytest.approx(2 / 3)
    assert (benign.support, harmful.support) == (2, 2)


def test_the_manual_s_examples_of_auroc_and_brier():
    """scikit-learn: roc_auc_score of 0 0 1 1 by .1 .4 .35 .8; brier_score_loss of 0 1 1 0 by .1 .9 .8 .3."""
    assert plain([False, False, True, True], [N] * 4, score=[0.1, 0.4, 0.35, 0.8]).auroc.value == pytest.approx(0.75)
    assert plain([False, True, True, False], [N] * 4, score=[0.1, 0.9, 0.8, 0.3]).brier.value == pytest.approx(0.0375)


def test_no_class_is_a_miss_of_its_own_class_and_no_prediction_of_the_other():
    """By hand. Harmful: 2 right, 1 called benign, 1 undecided, 1 failed. Benign: 3 right, 1 harmful, 1 undecided."""
    gold = [True] * 5 + [False] * 5
    ours = plain(gold, [H, H, N, U, F, N, N, N, H, U])
    assert ours.confusion == ((3, 1, 1, 0), (1, 2, 1, 1))
    assert (ours.n, ours.harmful, ours.benign, ours.undecided, ours.failed) == (10, 5, 5, 2, 1)
    assert ours.coverage.value == 0.7
    benign, harmful = ours.strict.classes
    assert ours.strict.accuracy.value == 0.5 and ours.strict.n == 10
    assert harmful.precision.value == pytest.approx(2 / 3) and harmful.recall.value == pytest.approx(2 / 5)
    assert harmful.f1.value == pytest.approx(4 / 8)  # 2 TP over 2 TP + FP (1) + FN (3)
    assert benign.precision.value == pytest.approx(3 / 4) and benign.recall.value == pytest.approx(3 / 5)
    assert benign.f1.value == pytest.approx(6 / 9)
    assert ours.strict.macro_f1.value == pytest.approx((4 / 8 + 6 / 9) / 2)
    assert ours.decided.n == 7 and ours.decided.accuracy.value == pytest.approx(5 / 7)
    assert [c.support for c in ours.decided.classes] == [4, 3]
    assert ours.decided.classes[1].recall.value == pytest.approx(2 / 3)
    assert ours.decided.classes[1].precision == harmful.precision


def test_baselines_are_those_of_saying_one_thing_and_of_the_vote():
    ours = plain([True] * 2 + [False] * 6, [H] * 8, vote_harmful=[True, False, None] + [False] * 5)
    assert ours.majority == 0.75
    said_always = f1_score([1, 1, 0, 0, 0, 0, 0, 0], [0] * 8, labels=[0, 1], average="macro")
    assert ours.majority_macro_f1 == pytest.approx(said_always)
    assert ours.voted == ours.vote.n == 7 and ours.vote.accuracy.value == pytest.approx(6 / 7)
    assert plain([True, False], [H, N]).vote is None


def test_a_protocol_drops_memes_from_everything():
    gold = [NOT, NOT, SOME, SOME, VERY]
    ours = results(
        gold, [N, N, N, H, H], protocols=(Protocol.MERGED, Protocol.EXTREME), score=[0.1, 0.2, 0.3, 0.4, 0.9]
    )
    merged, extreme = card(ours, Protocol.MERGED), card(ours, Protocol.EXTREME)
    assert (merged.n, merged.harmful, merged.dropped) == (5, 3, 0)
    assert (extreme.n, extreme.harmful, extreme.dropped) == (3, 1, 2)
    assert (merged.scored, extreme.scored) == (5, 3)
    assert merged.strict.accuracy.value == 0.8 and extreme.strict.accuracy.value == 1.0
    with pytest.raises(ValueError):
        card(ours, Protocol.PLAIN)
    with pytest.raises(BadRequest, match="extreme no meme of ours is left"):
        card(results([SOME], [H]), Protocol.EXTREME)


def test_mmae_by_its_definition():
    """Baccianella et al. 2009: the mean error at each true level, averaged over the levels and not over the memes."""
    gold = [NOT] * 4 + [SOME] * 2 + [VERY]
    said = [NOT, NOT, SOME, VERY, SOME, NOT, NOT]
    ours = card(results(gold, [N] * 7, level=said), Protocol.MERGED)
    by_hand = (Fraction(0 + 0 + 1 + 2, 4) + Fraction(0 + 1, 2) + Fraction(2, 1)) / 3
    assert ours.mmae.value == pytest.approx(float(by_hand)) and ours.levelled == 7
    # Always the middle level: an error of 1 at both ends, whatever the counts.
    assert card(results(gold, [N] * 7, level=[SOME] * 7), Protocol.MERGED).mmae.value == pytest.approx(2 / 3)


def test_mmae_is_over_memes_that_were_given_a_level():
    ours = card(results([NOT, SOME, VERY], [N, U, H], level=[NOT, None, SOME]), Protocol.MERGED)
    assert ours.levelled == 2 and ours.mmae.value == pytest.approx((0 + 1) / 2)
    assert card(results([NOT, VERY], [N, H]), Protocol.MERGED).mmae is None
    assert plain([True], [H], level=[VERY]).mmae is None


def test_ties_count_half_in_auroc():
    rng = np.random.default_rng(2)
    gold = rng.random(120) < 0.4
    scores = np.round(np.clip(rng.normal(0.4 + 0.2 * gold, 0.2), 0, 1), 1)
    ours = plain(gold.tolist(), [N] * 120, score=scores.tolist()).auroc.value
    wins = mannwhitneyu(scores[gold], scores[~gold]).statistic
    assert ours == pytest.approx(wins / (gold.sum() * (~gold).sum()))
    assert plain([True, False], [H, N], score=[0.5, 0.5]).auroc.value == 0.5


# --- Intervals against a second implementation -----------------------------------------------------


@pytest.fixture(scope="module")
def made():
    """250 memes with every outcome, and scores of one decimal, so that many are equal."""
    rng = np.random.default_rng(4)
    gold = rng.random(250) < 0.35
    said = rng.choice(4, 250, p=[0.5, 0.3, 0.12, 0.08])
    scores = np.round(np.clip(rng.normal(0.4 + 0.2 * gold, 0.2), 0, 1), 1)
    ours = plain(gold.tolist(), [(N, H, U, F)[code] for code in said], score=scores.tolist())
    return gold, said, scores, ours


def test_scipy_s_bootstrap_gives_the_same_intervals(made):
    gold, said, scores, ours = made

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

    assert bounds(ours.coverage) == pytest.approx(scipys(lambda s: np.mean(s < 2), said), abs=0.012)
    assert bounds(ours.strict.accuracy) == pytest.approx(scipys(lambda g, s: np.mean(g == s), gold, said), abs=0.012)
    assert bounds(ours.auroc) == pytest.approx(scipys(roc_auc_score, gold, scores), abs=0.015)
    assert bounds(ours.brier) == pytest.approx(
        scipys(lambda g, s: np.mean((g - s) ** 2), gold * 1.0, scores), abs=0.012
    )


@pytest.mark.slow
def test_rates_are_those_of_scoring_each_resample_with_scikit_learn(made):
    gold, said, _, ours = made
    rng = np.random.default_rng(5)
    draws = [rng.integers(0, 250, 250) for _ in range(400)]
    given = {"labels": [1], "average": "macro", "zero_division": 0}
    strict = ours.strict.classes[1]
    for figure, measure in ((strict.precision, precision_score), (strict.recall, recall_score), (strict.f1, f1_score)):
        resampled = [measure(gold[d].astype(int), said[d], **given) for d in draws]
        assert bounds(figure) == pytest.approx(list(np.percentile(resampled, [2.5, 97.5])), abs=0.03)
    decided = [d[said[d] < 2] for d in draws]
    resampled = [accuracy_score(gold[d], said[d]) for d in decided]
    assert bounds(ours.decided.accuracy) == pytest.approx(list(np.percentile(resampled, [2.5, 97.5])), abs=0.02)


def test_mmae_s_interval_is_that_of_resampling_memes():
    rng = np.random.default_rng(6)
    gold, said = rng.choice(3, 200, p=[0.6, 0.3, 0.1]), rng.choice(3, 200)
    ours = card(results([Level(g) for g in gold], [N] * 200, level=[Level(s) for s in said]), Protocol.MERGED)

    def by_definition(d):
        return np.mean([np.mean(np.abs(said[d] - level)[gold[d] == level]) for level in np.unique(gold[d])])

    resampled = [by_definition(rng.integers(0, 200, 200)) for _ in range(2000)]
    assert bounds(ours.mmae) == pytest.approx(list(np.percentile(resampled, [2.5, 97.5])), abs=0.02)


def test_figures_don_t_depend_on_which_others_there_are(made):
    gold, said, _, ours = made
    bare = plain(gold.tolist(), [(N, H, U, F)[code] for code in said])
    assert bare.strict == ours.strict and bare.coverage == ours.coverage and bare.auroc is None


# --- AUROC over all memes and over those that were given a class -----------------------------------


def test_auroc_over_all_memes_counts_every_pair_with_an_unscored_meme_as_lost():
    # Harmful .9 and unscored, not harmful .1, .95 and unscored: of 2 x 3 pairs only (.9, .1) is ranked rightly.
    ours = plain([True, True, False, False, False], [H, F, N, H, U], score=[0.9, None, 0.1, 0.95, None])
    assert (ours.auroc.value, ours.auroc_strict.value) == (0.5, pytest.approx(1 / 6))
    assert ours.auroc_strict.low <= 1 / 6 <= ours.auroc_strict.high


def test_auroc_over_decided_memes_leaves_scores_of_undecided_ones_out():
    # The undecided harmful meme is ranked below both others: over scored memes it costs half of the area.
    ours = plain([True, True, False, False], [H, U, N, N], score=[0.9, 0.05, 0.1, 0.2])
    assert (ours.auroc.value, ours.auroc_decided.value, ours.auroc_strict.value) == (0.5, 1.0, 0.5)
    assert plain([True, False], [U, N], score=[0.9, 0.1]).auroc_decided is None


@pytest.mark.parametrize("silent", [0, 40])
def test_auroc_over_all_memes_is_the_share_of_pairs_ranked_rightly(silent):
    """A second way: the area over scored memes, times the share of pairs in which both have a score."""
    rng = np.random.default_rng(3)
    gold = rng.random(200) < 0.4
    scores = rng.random(200).round(2)
    there = np.arange(200) >= silent
    ours = plain(gold.tolist(), [H] * 200, score=[float(s) if t else None for s, t in zip(scores, there, strict=True)])
    pairs = (gold & there).sum() * (~gold & there).sum() / (gold.sum() * (~gold).sum())
    assert ours.auroc_strict.value == pytest.approx(roc_auc_score(gold[there], scores[there]) * pairs)
    if not silent:
        assert ours.auroc == ours.auroc_strict == ours.auroc_decided


# --- Calibration -----------------------------------------------------------------------------------


def test_bins_are_scikit_learn_s_quantile_bins_where_no_scores_are_equal():
    rng = np.random.default_rng(7)
    scores = rng.random(200)
    gold = rng.random(200) < scores
    bins = plain(gold.tolist(), [N] * 200, score=scores.tolist()).calibration
    share, mean = calibration_curve(gold, scores, n_bins=10, strategy="quantile")
    assert [b.n for b in bins] == [20] * 10
    assert [b.mean_score for b in bins] == pytest.approx(list(mean))
    assert [b.share_harmful for b in bins] == pytest.approx(list(share))


def test_equal_scores_are_never_parted():
    scores = [0.0] * 50 + [1.0] * 48 + [0.3, 0.3]
    ours = plain([False] * 50 + [True] * 50, [N] * 100, score=scores)
    assert sum(b.n for b in ours.calibration) == 100
    assert all(a.high < b.low for a, b in zip(ours.calibration, ours.calibration[1:], strict=False))
    # By hand: 50 at 0 and 48 at 1 are as they should be, two at .3 are harmful.
    assert ours.ece == pytest.approx(2 * 0.7 / 100)


def test_equal_scores_fall_where_the_middle_of_them_does():
    """Of 20 memes in bins of two: ranks 1 and 2, rank 3, the fifteen whose middle is rank 11, ranks 19 and 20."""
    scores = [0.1, 0.2, 0.3, *[0.5] * 15, 0.8, 0.9]
    assert [b.n for b in plain([True] * 20, [N] * 20, score=scores).calibration] == [2, 1, 15, 2]


def test_expected_calibration_error_by_hand():
    ours = plain([True, False, True, True], [N] * 4, score=[0.5] * 4)
    assert [dataclasses.astuple(b) for b in ours.calibration] == [(0.5, 0.5, 4, 0.5, 0.75)]
    assert ours.ece == 0.25


# --- What can't be measured is None, never NaN and never a warning (pytest makes those errors) -----


def numbers(value):
    if dataclasses.is_dataclass(value):
        value = dataclasses.astuple(value)
    if isinstance(value, tuple):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize(
    ("gold", "said", "fields"),
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
def test_degenerate_results(gold, said, fields):
    ours = plain(gold, said, **fields)
    assert all(math.isfinite(number) for number in numbers(ours))
    assert (ours.decided is None) == all(outcome in (U, F) for outcome in said)
    scored = [g for g, s in zip(gold, fields.get("score", [None] * len(gold)), strict=True) if s is not None]
    assert ours.scored == len(scored)
    assert (ours.auroc is None) == (len(set(scored)) < 2)
    assert (ours.auroc_strict is None) == (len(set(gold)) < 2 or not scored)
    assert (ours.brier is None) == (ours.ece is None) == (ours.calibration == ()) == (not scored)
    for place, one in enumerate(ours.strict.classes):
        assert (one.recall is None) == (bool(place) not in gold)
        assert (one.precision is None) == ((N, H)[place] not in said)


def test_noise_of_a_small_test_set():
    assert noise(100, 0.5) == pytest.approx(0.098)
    assert noise(354, 0.82) == pytest.approx(0.04, abs=0.0005)
    for wrong in ((0, 0.5), (10, 1.2)):
        with pytest.raises(ValueError):
            noise(*wrong)


def grouped(found, size):
    """The results with their memes in groups of ``size``, one after the other."""
    judged = tuple(
        dataclasses.replace(one, meme=one.meme.model_copy(update={"group": f"g{place // size}"}))
        for place, one in enumerate(found.judged)
    )
    return dataclasses.replace(found, judged=judged)


def test_intervals_are_drawn_over_the_groups_that_a_card_names():
    rng = np.random.default_rng(5)
    gold, scores = rng.random(40) < 0.5, rng.random(40)
    said = [H if score > 0.5 else U if score < 0.1 else N for score in scores]
    plain = results(gold.tolist(), said, score=scores.tolist(), vote_harmful=(scores > 0.4).tolist())
    many = [np.repeat(np.array(values, dtype=object), 10).tolist() for values in (gold, said, scores, scores > 0.4)]
    tenfold = results(many[0], many[1], score=many[2], vote_harmful=many[3])
    alone, over = card(plain, Protocol.PLAIN), card(grouped(tenfold, 10), Protocol.PLAIN)
    assert (alone.groups, over.groups, over.n) == (0, 40, 400)
    by_meme = card(grouped(tenfold, 1), Protocol.PLAIN)
    for name in ("strict.accuracy", "strict.macro_f1", "coverage", "auroc", "auroc_decided", "brier", "vote.accuracy"):
        one, ten, singly = (functools.reduce(getattr, name.split("."), each) for each in (alone, over, by_meme))
        # Ten copies of each meme say no more than one of each.
        assert ten.value == pytest.approx(one.value)
        assert (ten.low, ten.high) == pytest.approx((one.low, one.high), abs=0.03)
        assert singly.high - singly.low < 0.6 * (ten.high - ten.low)


def test_levels_and_groups_of_different_sizes():
    levels = [Level.NOT_HARMFUL, Level.VERY_HARMFUL, Level.SOMEWHAT_HARMFUL] * 20
    ours = results(levels, [H] * 60, level=[Level.VERY_HARMFUL] * 60, protocols=(Protocol.MERGED,))
    uneven = dataclasses.replace(ours, judged=(*grouped(ours, 1).judged[:30], *(grouped(ours, 20).judged[30:])))
    found = card(uneven, Protocol.MERGED)
    assert found.mmae.value == pytest.approx(1.0) and found.mmae.low <= 1 <= found.mmae.high
    accuracy = found.strict.accuracy
    assert accuracy.value == pytest.approx(2 / 3) and accuracy.low < accuracy.value < accuracy.high


def test_where_groups_are_drawn_exact_intervals_are_of_as_many_groups():
    said = [H, N] * 10
    found = card(grouped(results([one is H for one in said], said, score=[0.9, 0.1] * 10), 5), Protocol.PLAIN)
    of_groups = pytest.approx((0.025 ** (1 / 4), 1))
    over = (found.coverage, found.strict.accuracy, found.decided.accuracy, found.strict.macro_f1, found.auroc)
    for figure in (*over, found.strict.classes[1].recall, found.strict.classes[0].precision):
        assert (figure.low, figure.high) == of_groups
    assert found.strict.classes[0].support == 10
    # The normal approximation would take the memes for independent.
    assert "±" not in noise_in_words(found)
    plain = score([True, False], [True, False], resamples=50, groups=np.array([0, 0]))
    assert (plain.accuracy.low, plain.macro_f1.low) == pytest.approx((0.025, 0.025))


def test_one_meme_makes_no_figure_certain():
    levels = [Level.SOMEWHAT_HARMFUL]
    for level, value in ((Level.SOMEWHAT_HARMFUL, 0), (Level.VERY_HARMFUL, 1)):
        one = results(levels, [H], level=[level], score=[0.7], protocols=(Protocol.MERGED,))
        found = card(one, Protocol.MERGED)
        assert found.mmae.value == value and found.mmae.high - found.mmae.low > 1.9
        assert found.brier.value == pytest.approx(0.09) and found.brier.high == pytest.approx(0.975)
    # All levels right: each error was drawn as 0, and yet may occur.
    right = [Level.NOT_HARMFUL, Level.SOMEWHAT_HARMFUL, Level.VERY_HARMFUL] * 3
    found = card(results(right, [N, H, H] * 3, level=right, protocols=(Protocol.MERGED,)), Protocol.MERGED)
    assert (found.mmae.low, found.mmae.high) == pytest.approx((0, 2 * (1 - 0.025 ** (1 / 9))))
