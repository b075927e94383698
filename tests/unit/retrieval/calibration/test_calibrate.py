"""Calibration of the vote: settings chosen leave-one-out, probabilities, and the sure range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from court.precedents import MinSimilarity, SureRange, VoteSettings, probability, share
from court.verdict import Label
from retrieval.calibration.calibrate import calibrate, fit_logistic, probabilities_of, safeguarded_votes, shares
from retrieval.calibration.leave_one_out import leave_one_out_neighbours
from retrieval.calibration.thresholds import CONFIDENCE, choose_sure_range, settled, within
from retrieval.embed.encoder import unit_rows
from retrieval.library.manifest import LabelledMeme, Safeguards, Tuning

FLOORS = MinSimilarity(text=0.3, picture=0.5)
DIM = 8


def meme(number, harmful, *, text=None, pixels=""):
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL if harmful else Label.NOT_HARMFUL,
        text=f"text {number}" if text is None else text,
        pixels_sha256=pixels,
        has_text=text != "",
        has_picture=bool(pixels),
    )


def world(n, *, text, picture=None, seed=0, share_of_harm=0.5):
    """Memes whose text and picture vectors separate the labels with the given strength; None for no pictures."""
    random = np.random.default_rng(seed)
    harmful = random.random(n) < share_of_harm
    towards = np.where(harmful, 1.0, -1.0)[:, None] * np.eye(DIM)[0]
    texts = unit_rows(text * towards + random.normal(size=(n, DIM)) * 0.4)
    pictures = np.zeros((n, DIM), np.float32)
    if picture is not None:
        pictures = unit_rows(picture * towards + random.normal(size=(n, DIM)) * 0.4)
    memes = [meme(i, bool(h), pixels="" if picture is None else f"p{i}") for i, h in enumerate(harmful)]
    return np.hstack([texts, pictures]), memes


@given(
    found=st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=30),
    k=st.integers(1, 40),
    tau=st.floats(0.02, 2),
    prior=st.floats(0.01, 0.99),
    m=st.floats(0.1, 10),
    intercept=st.floats(-3, 3),
    slope=st.floats(0.1, 5),
)
def test_vectorised_vote_equals_the_court_s_vote(found, k, tau, prior, m, intercept, slope):
    found = sorted(found, key=lambda pair: -pair[0])
    similarities, harmful = [s for s, _ in found], [h for _, h in found]
    chosen = VoteSettings(k=k, tau=tau, prior=prior, prior_weight=m, intercept=intercept, slope=slope)

    together = shares(np.array([similarities]), np.array([harmful]), chosen)

    expected = share(similarities, harmful, chosen)
    assert together[0] == pytest.approx(expected, abs=1e-9)
    assert probabilities_of(together, chosen)[0] == pytest.approx(probability(expected, chosen), abs=1e-9)


def test_missing_neighbours_do_not_vote():
    chosen = VoteSettings(k=5, tau=0.1, prior=0.5)
    padded = shares(np.array([[0.9, 0.8, -np.inf, -np.inf]]), np.array([[True, False, True, True]]), chosen)
    assert padded[0] == pytest.approx(share([0.9, 0.8], [True, False], chosen), abs=1e-12)


@pytest.mark.slow
def test_alpha_favours_the_half_that_separates_the_labels():
    by_text = [calibrate(*world(400, text=0.3, picture=0.0, seed=seed), DIM, FLOORS) for seed in range(3)]
    by_picture = [calibrate(*world(400, text=0.0, picture=0.3, seed=seed), DIM, FLOORS) for seed in range(3)]
    assert np.mean([tuning.alpha for tuning in by_text]) > 0.5 > np.mean([tuning.alpha for tuning in by_picture])


def test_calibration_reports_quality_of_the_vote():
    tuning = calibrate(*world(300, text=1.0, picture=1.0), DIM, FLOORS)
    figures = tuning.calibration
    assert figures.method == "leave-one-out" and figures.n == 300 and not figures.note
    assert figures.accuracy is not None and figures.accuracy > 0.95
    assert figures.macro_f1 is not None and figures.macro_f1 > 0.95
    assert figures.brier is not None and figures.brier < 0.05
    assert tuning.vote.slope > 0


def test_random_labels_score_at_chance():
    calibrations = [calibrate(*world(300, text=0.0, seed=seed), DIM, FLOORS).calibration for seed in range(8)]
    accuracies = [figures.accuracy or 0 for figures in calibrations]
    # The best of 42 settings, measured on the same memes, would reach about 0.6.
    assert np.mean(accuracies) == pytest.approx(0.5, abs=0.05)
    assert all(figures.brier is not None and figures.brier < 0.28 for figures in calibrations)


def test_calibration_is_deterministic():
    tunings: list[Tuning] = [calibrate(*world(120, text=0.3, picture=0.3), DIM, FLOORS) for _ in range(2)]
    assert tunings[0] == tunings[1]


def test_text_only_queries_have_their_own_tuning():
    """Pictures separate the labels and texts hardly do, so that text alone is often wrong."""
    rows, memes = world(600, text=0.05, picture=1.0)
    tuning = calibrate(rows, memes, DIM, FLOORS)
    alone = tuning.for_query(text=True, picture=False)
    assert alone.alpha == 1.0 and tuning.text_alone is not None and alone.vote == tuning.text_alone.vote
    assert tuning.for_query(text=True, picture=True) is tuning.for_query(text=False, picture=True) is tuning
    assert tuning.risk is not None and alone.risk is not None and alone.regression is not None
    assert tuning.risk.at_rate(0).risk < 0.05 < 0.3 < alone.risk.at_rate(0).risk
    assert (alone.calibration.accuracy or 1) < 0.65 < 0.95 < (tuning.calibration.accuracy or 0)

    # On new memes the text-only regression is not overconfident.
    new, labelled = world(2000, text=0.05, picture=1.0, seed=7)
    truth = np.array([one.harmful for one in labelled])

    def surer_than_right(tuned):
        assert tuned.regression is not None
        z = np.array([tuned.regression.log_odds(row[:DIM], None) for row in new])
        p = 1 / (1 + np.exp(-z))
        return float(np.maximum(p, 1 - p).mean() - ((p >= 0.5) == truth).mean())

    assert surer_than_right(alone) < 0.05 < surer_than_right(tuning)


def test_memes_without_text_do_not_affect_the_text_only_tuning():
    rows, memes = world(300, text=1.0, picture=1.0)
    rows[::2, :DIM] = 0
    some = [
        one.model_copy(update={"text": "", "has_text": False}) if n % 2 == 0 else one for n, one in enumerate(memes)
    ]
    alone = calibrate(rows, some, DIM, FLOORS).text_alone
    assert alone is not None and alone.calibration.n == 150


def test_older_library_makes_no_claims_for_text_only_queries():
    tuning = calibrate(*world(300, text=1.0, picture=1.0), DIM, FLOORS)
    before = Tuning.model_validate_json(tuning.model_dump_json(exclude={"text_alone"}))
    alone = before.for_query(text=True, picture=False)
    assert (alone.risk, alone.settles, alone.regression) == (None, None, None) and alone.vote == tuning.vote
    by_text = calibrate(*world(300, text=1.0), DIM, FLOORS)
    assert by_text.text_alone is None and by_text.for_query(text=True, picture=False) is by_text


def test_alpha_gives_all_weight_to_the_only_half_present():
    rows, memes = world(60, text=1.0)
    assert calibrate(rows, memes, DIM, FLOORS).alpha == 1.0
    rows, memes = world(60, text=1.0, picture=1.0)
    rows[:, :DIM] = 0
    bare = [meme(i, m.harmful, text="", pixels=f"p{i}") for i, m in enumerate(memes)]
    assert calibrate(rows, bare, DIM, FLOORS).alpha == 0.0


@pytest.mark.parametrize(("n", "harm"), [(1, 0.5), (19, 0.5), (50, 0.0), (50, 1.0)])
def test_too_few_memes_get_defaults_and_a_note(n, harm):
    tuning = calibrate(*world(n, text=1.0, share_of_harm=harm), DIM, FLOORS)
    assert tuning.calibration.method == "defaults"
    assert "nothing was chosen" in tuning.calibration.note
    assert tuning.calibration.accuracy is None
    assert 0 < tuning.vote.prior < 1 and 1 <= tuning.vote.k <= n
    assert tuning.floors == FLOORS


def test_prior_is_the_share_of_harmful_memes():
    rows, memes = world(200, text=0.5, share_of_harm=0.25)
    assert calibrate(rows, memes, DIM, FLOORS).vote.prior == sum(m.harmful for m in memes) / 200


def test_duplicates_of_a_meme_are_no_neighbours():
    rows = np.tile(np.eye(2 * DIM, dtype=np.float32)[0] + np.eye(2 * DIM, dtype=np.float32)[DIM], (6, 1))
    memes = [
        meme(0, True, text="One two", pixels="p"),
        meme(1, False, text="one  TWO", pixels="q"),  # same words as 0
        meme(2, False, text="three", pixels="p"),  # same picture as 0
        meme(3, True, text="four", pixels="r"),
        meme(4, True, text="", pixels="s"),
        meme(5, True, text="", pixels="t"),  # empty texts are no duplicates
    ]
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=6, limit=100)
    others = [int(np.isfinite(row).sum()) for row in found.similarities]
    assert others == [3, 4, 4, 5, 5, 5]
    assert found.labels.tolist() == [m.harmful for m in memes]


def test_meme_without_text_or_picture_is_compared_by_the_other():
    rows = np.zeros((3, 2 * DIM), np.float32)
    rows[0, 0] = rows[1, 0] = rows[1, DIM] = rows[2, DIM] = 1
    memes = [meme(0, True), meme(1, False, pixels="p"), meme(2, True, text="", pixels="q")]
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=2, limit=100)
    assert found.similarities[:, 0].tolist() == [1.0, 0.5, 1.0]


def test_memes_without_neighbours_are_skipped():
    rows = np.tile(np.eye(2 * DIM, dtype=np.float32)[0], (3, 1))
    duplicates = [meme(i, True, text="same") for i in range(3)]
    assert next(leave_one_out_neighbours(rows, duplicates, DIM, alphas=[1.0], depth=3, limit=9)).labels.size == 0
    # All memes the same: there is nothing to choose by, and no failure.
    memes = [meme(i, i % 2 == 0, text="same") for i in range(30)]
    assert calibrate(np.tile(rows[:1], (30, 1)), memes, DIM, FLOORS).calibration.method == "defaults"


def test_large_library_is_evenly_sampled():
    rows, memes = world(100, text=1.0)
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[1.0], depth=5, limit=10)
    assert found.labels.tolist() == [memes[i].harmful for i in range(0, 100, 11)]


def test_logistic_fit_matches_scikit_learn_and_keeps_a_positive_slope():
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(1)
    x = random.normal(size=(3, 400))
    y = random.random(400) < 1 / (1 + np.exp(-(0.4 + 1.3 * x[0])))
    intercepts, slopes = fit_logistic(x, y, l2=1e-9)
    model = linear_model.LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(x[0][:, None], y)
    assert intercepts[0] == pytest.approx(model.intercept_[0], abs=1e-4)
    assert slopes[0] == pytest.approx(model.coef_[0, 0], abs=1e-4)
    _, turned = fit_logistic(-x[:1], y)
    assert turned[0] == 0.05


def test_logistic_fit_of_separable_data_stays_finite():
    intercept, slope = fit_logistic(np.array([[-4.0, -3.0, 3.0, 4.0]]), np.array([False, False, True, True]))
    assert np.isfinite(intercept).all() and 0 < slope[0] <= 10


def votes_of(n, seed=0, *, honest=True):
    """Probabilities, and labels drawn by them; if not ``honest``, the probabilities are twice too confident."""
    random = np.random.default_rng(seed)
    p = random.beta(0.4, 0.4, size=n)
    return p, random.random(n) < (p if honest else 0.25 + p / 2)


@pytest.mark.parametrize("error", [0.01, 0.05, 0.2])
def test_error_bound_is_that_of_clopper_and_pearson(error):
    beta = pytest.importorskip("scipy.stats").beta
    for n in (1, 44, 45, 46, 150, 1000, 4000):
        allowed = [wrong for wrong in range(n) if beta.ppf(CONFIDENCE, wrong + 1, n - wrong) <= error]
        assert [wrong for wrong in range(n) if within(wrong, n, error)] == allowed
    assert not within(0, 0, error) and not within(3, 3, error)


def test_sure_range_settles_as_much_as_the_bound_allows():
    p, labels = votes_of(4000)
    settles = choose_sure_range(p, labels, 0.5, 0.05)
    assert settles is not None and settles.error == 0.05 and settles.n == 4000
    # With calibrated probabilities, 5 % are wrong up to about p = 0.13.
    assert 0.05 < settles.below < 0.2 and 0.8 < settles.above < 0.95
    sure = settled(p, settles)
    assert settles.share == pytest.approx(sure.mean()) and settles.share > 0.3
    for side, wrong in ((p <= settles.below, labels), (p >= settles.above, ~labels)):
        assert wrong[side].mean() < 0.05
    wider = choose_sure_range(p, labels, 0.5, 0.2)
    assert wider is not None and wider.below > settles.below and wider.above < settles.above


def test_no_sure_range_for_overconfident_or_few_votes():
    assert choose_sure_range(*votes_of(4000, honest=False), 0.5, 0.05) is None
    assert choose_sure_range(*votes_of(60), 0.5, 0.05) is None
    assert not settled(np.array([0.0, 0.5, 1.0]), None).any()


@pytest.mark.parametrize("harmful", [False, True])
def test_sure_range_can_cover_one_side_only(harmful):
    p = np.linspace(0, 1, 1001)
    sure = p >= 0.8 if harmful else p <= 0.2
    # One label in the sure range, and random labels elsewhere.
    labels = np.where(sure, harmful, np.arange(p.size) % 2 == 0)
    settles = choose_sure_range(p, labels, 0.5, 0.05)
    assert settles is not None
    assert (settles.below, settles.above > 1) == (-1.0, False) if harmful else (settles.below > 0, settles.above == 2)
    assert settled(np.array([0.0, 1.0]), settles).tolist() == [not harmful, harmful]


def test_sure_range_stays_on_its_side_of_the_threshold():
    p = np.linspace(0, 1, 1001)
    settles = choose_sure_range(p, np.zeros(p.size, np.bool_), 0.4, 0.05)
    assert settles is not None and (settles.below, settles.above) == (0.39, 2.0)
    settles = choose_sure_range(p, np.ones(p.size, np.bool_), 0.4, 0.05)
    assert settles is not None and (settles.below, settles.above) == (-1.0, 0.4)


def test_settled_error_seldom_exceeds_the_bound():
    over = sides = 0
    for seed in range(200):
        settles = choose_sure_range(*votes_of(800, seed), 0.5, 0.05)
        if settles is None:
            continue
        p, labels = votes_of(100_000, 1000)
        for side, wrong in ((p <= settles.below, labels), (p >= settles.above, ~labels)):
            if side.any():
                sides, over = sides + 1, over + int(wrong[side].mean() > 0.05)
    assert sides > 100
    assert over / sides <= 1 - CONFIDENCE + 0.03


def test_crossing_bounds_are_refused():
    with pytest.raises(ValueError, match="both ways"):
        SureRange(error=0.05, below=0.5, above=0.5, share=1, n=1)


def test_separable_library_settles_and_reports_its_error():
    tuning = calibrate(*world(600, text=0.7, picture=0.7), DIM, FLOORS)
    settles, figures = tuning.settles, tuning.calibration
    assert settles is not None and settles.n == figures.n == 600
    assert settles.below < tuning.vote.threshold <= settles.above
    assert figures.settled_share is not None and figures.settled_share > 0.5
    assert figures.settled_error is not None and figures.settled_error <= 0.05


def test_uninformative_library_settles_no_votes():
    for seed in range(4):
        tuning = calibrate(*world(300, text=0.0, seed=seed), DIM, FLOORS)
        assert tuning.settles is None
        assert (tuning.calibration.settled_share, tuning.calibration.settled_error) == (0.0, None)
    few = calibrate(*world(19, text=1.0), DIM, FLOORS)
    assert few.settles is few.calibration.settled_share is None


def test_settled_error_is_cross_validated(monkeypatch):
    rows, memes = world(300, text=0.3)
    calls: list[list[bool]] = []

    def settle_all(p, labels, threshold, error):
        calls.append(labels.tolist())
        return SureRange(error=error, below=threshold - 1e-9, above=threshold, share=1, n=p.size)

    monkeypatch.setattr("retrieval.calibration.calibrate.choose_sure_range", settle_all)
    figures = calibrate(rows, memes, DIM, FLOORS).calibration
    of_fold = [(i // 8 % 5, m.harmful) for i, m in enumerate(memes)]
    assert calls[0] == [harmful for _, harmful in sorted(of_fold, key=lambda pair: pair[0])]
    for fold, labels in enumerate(calls[1:]):
        others = [pair for pair in of_fold if pair[0] != fold]
        assert labels == [harmful for _, harmful in sorted(others, key=lambda pair: pair[0])]
    assert len(calls) == 6
    # If all memes are settled, the settled error is the error of the vote.
    assert figures.settled_share == 1 and figures.accuracy is not None
    assert figures.settled_error == pytest.approx(1 - figures.accuracy)


@pytest.mark.parametrize("voters", [1, 2, 9])
def test_acquittal_that_depends_on_a_single_voter_is_overridden(voters):
    rng = np.random.default_rng(voters)
    settings = VoteSettings(k=voters, tau=0.1, prior=0.4, threshold=0.45)
    similarities = np.sort(rng.uniform(0, 1, (300, voters + 1)), axis=1)[:, ::-1]
    harm = rng.random((300, voters + 1)) < 0.3
    similarities[:40, 1:] = -np.inf  # a single neighbour
    similarities = np.ascontiguousarray(similarities)

    def vote_of(row, left_out=None):
        pairs = zip(similarities[row].tolist(), harm[row].tolist(), strict=True)
        present = [pair for n, pair in enumerate(pairs) if n != left_out and np.isfinite(pair[0])]
        if not present:
            return 1.0
        return probability(share([s for s, _ in present], [h for _, h in present], settings), settings)

    def guarded(row):
        plain = vote_of(row)
        if plain >= settings.threshold:
            return plain
        without = [vote_of(row, n) for n in range(voters) if not harm[row, n] and np.isfinite(similarities[row, n])]
        most = max(without, default=0.0)
        return most if most >= settings.threshold else plain

    expected = np.array([guarded(row) for row in range(300)])
    assert safeguarded_votes(similarities, harm, settings, Safeguards(no_sole_acquittal=True)) == pytest.approx(
        expected
    )
    plain = safeguarded_votes(similarities, harm, settings, Safeguards())
    assert plain == pytest.approx([vote_of(row) for row in range(300)])
    assert ((plain < settings.threshold) & (expected >= settings.threshold)).any()
