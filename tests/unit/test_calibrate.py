from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from court.precedents import MinSimilarity, SureRange, VoteSettings, probability, share
from court.verdict import Label
from retrieval.calibration.calibrate import calibrate, fit_logistic, probabilities_of, safeguarded_votes, shares
from retrieval.calibration.leave_one_out import leave_one_out_neighbours
from retrieval.calibration.thresholds import CONFIDENCE, choose_sure_range, settled, within
from retrieval.embed.encoder import unit_rows
from retrieval.library.manifest import LabelledMeme, Safeguards, Tuning

FLOORS = MinSimilarity(text=0.3, picture=0.5)
DIM = 8


def meme(number: int, harmful: bool, *, text: str | None = None, pixels: str = "") -> LabelledMeme:
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL if harmful else Label.NOT_HARMFUL,
        text=f"text {number}" if text is None else text,
        pixels_sha256=pixels,
        has_text=text != "",
        has_picture=bool(pixels),
    )


def world(
    n: int, *, text: float, picture: float | None = None, seed: int = 0, share_of_harm: float = 0.5
) -> tuple[NDArray[np.float32], list[LabelledMeme]]:
    """Memes whose halves tell their label as strongly as is said; None for no pictures."""
    random = np.random.default_rng(seed)
    harmful = random.random(n) < share_of_harm
    towards = np.where(harmful, 1.0, -1.0)[:, None] * np.eye(DIM)[0]
    texts = unit_rows(text * towards + random.normal(size=(n, DIM)) * 0.4)
    pictures = np.zeros((n, DIM), np.float32)
    if picture is not None:
        pictures = unit_rows(picture * towards + random.normal(size=(n, DIM)) * 0.4)
    memes = [meme(i, bool(h), pixels="" if picture is None else f"p{i}") for i, h in enumerate(harmful)]
    return np.hstack([texts, pictures]), memes


@settings(deadline=None)
@given(
    found=st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=30),
    k=st.integers(1, 40),
    tau=st.floats(0.02, 2),
    prior=st.floats(0.01, 0.99),
    m=st.floats(0.1, 10),
    intercept=st.floats(-3, 3),
    slope=st.floats(0.1, 5),
)
def test_votes_as_the_court_votes(
    found: list[tuple[float, bool]], k: int, tau: float, prior: float, m: float, intercept: float, slope: float
) -> None:
    found = sorted(found, key=lambda pair: -pair[0])
    similarities, harmful = [s for s, _ in found], [h for _, h in found]
    chosen = VoteSettings(k=k, tau=tau, prior=prior, prior_weight=m, intercept=intercept, slope=slope)

    together = shares(np.array([similarities]), np.array([harmful]), chosen)

    expected = share(similarities, harmful, chosen)
    assert together[0] == pytest.approx(expected, abs=1e-9)
    assert probabilities_of(together, chosen)[0] == pytest.approx(probability(expected, chosen), abs=1e-9)


def test_places_where_there_are_no_more_neighbours_have_no_vote() -> None:
    chosen = VoteSettings(k=5, tau=0.1, prior=0.5)
    padded = shares(np.array([[0.9, 0.8, -np.inf, -np.inf]]), np.array([[True, False, True, True]]), chosen)
    assert padded[0] == pytest.approx(share([0.9, 0.8], [True, False], chosen), abs=1e-12)


@pytest.mark.slow
def test_learns_what_tells_the_labels_apart() -> None:
    by_text = [calibrate(*world(400, text=0.3, picture=0.0, seed=seed), DIM, FLOORS) for seed in range(3)]
    by_picture = [calibrate(*world(400, text=0.0, picture=0.3, seed=seed), DIM, FLOORS) for seed in range(3)]
    assert np.mean([tuning.alpha for tuning in by_text]) > 0.5 > np.mean([tuning.alpha for tuning in by_picture])


def test_says_what_the_vote_was_worth() -> None:
    tuning = calibrate(*world(300, text=1.0, picture=1.0), DIM, FLOORS)
    figures = tuning.calibration
    assert figures.method == "leave-one-out" and figures.n == 300 and not figures.note
    assert figures.accuracy is not None and figures.accuracy > 0.95
    assert figures.macro_f1 is not None and figures.macro_f1 > 0.95
    assert figures.brier is not None and figures.brier < 0.05
    assert tuning.vote.slope > 0


def test_figures_of_labels_that_follow_from_nothing_are_those_of_chance() -> None:
    seen = [calibrate(*world(300, text=0.0, seed=seed), DIM, FLOORS).calibration for seed in range(8)]
    accuracies = [figures.accuracy or 0 for figures in seen]
    # The best of 42 settings on the same memes would show about 0.6.
    assert np.mean(accuracies) == pytest.approx(0.5, abs=0.05)
    assert all(figures.brier is not None and figures.brier < 0.28 for figures in seen)


def test_is_the_same_every_time() -> None:
    tunings: list[Tuning] = [calibrate(*world(120, text=0.3, picture=0.3), DIM, FLOORS) for _ in range(2)]
    assert tunings[0] == tunings[1]


def test_a_text_alone_has_a_tuning_of_its_own_that_does_not_promise_what_pictures_gave() -> None:
    """Pictures that tell the label and texts that hardly do: by text alone, labels are often wrong."""
    rows, memes = world(600, text=0.05, picture=1.0)
    tuning = calibrate(rows, memes, DIM, FLOORS)
    alone = tuning.for_query(text=True, picture=False)
    assert alone.alpha == 1.0 and tuning.text_alone is not None and alone.vote == tuning.text_alone.vote
    assert tuning.for_query(text=True, picture=True) is tuning.for_query(text=False, picture=True) is tuning
    assert tuning.risk is not None and alone.risk is not None and alone.regression is not None
    assert tuning.risk.at_rate(0).risk < 0.05 < 0.3 < alone.risk.at_rate(0).risk
    assert (alone.calibration.accuracy or 1) < 0.65 < 0.95 < (tuning.calibration.accuracy or 0)

    # On memes that it never saw: what the text's own regression says is no surer than it is right.
    new, labelled = world(2000, text=0.05, picture=1.0, seed=7)
    truth = np.array([one.harmful for one in labelled])

    def surer_than_right(tuned: Tuning) -> float:
        assert tuned.regression is not None
        z = np.array([tuned.regression.log_odds(row[:DIM], None) for row in new])
        p = 1 / (1 + np.exp(-z))
        return float(np.maximum(p, 1 - p).mean() - ((p >= 0.5) == truth).mean())

    assert surer_than_right(alone) < 0.05 < surer_than_right(tuning)


def test_memes_without_a_text_have_no_say_in_the_tuning_of_texts() -> None:
    rows, memes = world(300, text=1.0, picture=1.0)
    rows[::2, :DIM] = 0
    some = [
        one.model_copy(update={"text": "", "has_text": False}) if n % 2 == 0 else one for n, one in enumerate(memes)
    ]
    alone = calibrate(rows, some, DIM, FLOORS).text_alone
    assert alone is not None and alone.calibration.n == 150


def test_a_library_that_was_written_before_claims_nothing_of_a_text_alone() -> None:
    tuning = calibrate(*world(300, text=1.0, picture=1.0), DIM, FLOORS)
    before = Tuning.model_validate_json(tuning.model_dump_json(exclude={"text_alone"}))
    alone = before.for_query(text=True, picture=False)
    assert (alone.risk, alone.settles, alone.regression) == (None, None, None) and alone.vote == tuning.vote
    by_text = calibrate(*world(300, text=1.0), DIM, FLOORS)
    assert by_text.text_alone is None and by_text.for_query(text=True, picture=False) is by_text


def test_without_pictures_or_without_texts_all_weight_is_on_what_there_is() -> None:
    rows, memes = world(60, text=1.0)
    assert calibrate(rows, memes, DIM, FLOORS).alpha == 1.0
    rows, memes = world(60, text=1.0, picture=1.0)
    rows[:, :DIM] = 0
    bare = [meme(i, m.harmful, text="", pixels=f"p{i}") for i, m in enumerate(memes)]
    assert calibrate(rows, bare, DIM, FLOORS).alpha == 0.0


@pytest.mark.parametrize(("n", "harm"), [(1, 0.5), (19, 0.5), (50, 0.0), (50, 1.0)])
def test_too_few_memes_get_defaults_and_are_told_so(n: int, harm: float) -> None:
    tuning = calibrate(*world(n, text=1.0, share_of_harm=harm), DIM, FLOORS)
    assert tuning.calibration.method == "defaults"
    assert "nothing was chosen" in tuning.calibration.note
    assert tuning.calibration.accuracy is None
    assert 0 < tuning.vote.prior < 1 and 1 <= tuning.vote.k <= n
    assert tuning.floors == FLOORS


def test_prior_is_the_share_of_harm() -> None:
    rows, memes = world(200, text=0.5, share_of_harm=0.25)
    assert calibrate(rows, memes, DIM, FLOORS).vote.prior == sum(m.harmful for m in memes) / 200


def test_a_meme_is_tried_without_its_twins() -> None:
    rows = np.tile(np.eye(2 * DIM, dtype=np.float32)[0] + np.eye(2 * DIM, dtype=np.float32)[DIM], (6, 1))
    memes = [
        meme(0, True, text="One two", pixels="p"),
        meme(1, False, text="one  TWO", pixels="q"),  # the words of 0
        meme(2, False, text="three", pixels="p"),  # the picture of 0
        meme(3, True, text="four", pixels="r"),
        meme(4, True, text="", pixels="s"),
        meme(5, True, text="", pixels="t"),  # no text is no twin of no text
    ]
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=6, limit=100)
    others = [int(np.isfinite(row).sum()) for row in found.similarities]
    assert others == [3, 4, 4, 5, 5, 5]
    assert found.labels.tolist() == [m.harmful for m in memes]


def test_a_meme_without_a_half_is_compared_by_the_other() -> None:
    rows = np.zeros((3, 2 * DIM), np.float32)
    rows[0, 0] = rows[1, 0] = rows[1, DIM] = rows[2, DIM] = 1
    memes = [meme(0, True), meme(1, False, pixels="p"), meme(2, True, text="", pixels="q")]
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=2, limit=100)
    assert found.similarities[:, 0].tolist() == [1.0, 0.5, 1.0]


def test_memes_on_a_template_are_left_out_together() -> None:
    """Pictures of 0 and 1 are nearly the same; 3 and 4 have none, and share nothing."""
    rows = np.zeros((5, 2 * DIM), np.float32)
    rows[:, 0] = 1
    rows[0, DIM], rows[1, DIM : DIM + 2], rows[2, DIM + 2] = 1, (0.8, 0.6), 1
    memes = [meme(i, i % 2 == 0, pixels=f"p{i}" if i < 3 else "") for i in range(5)]
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=5, limit=5, template=0.7)
    assert [int(np.isfinite(row).sum()) for row in found.similarities] == [3, 3, 4, 4, 4]
    (together,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[0.5], depth=5, limit=5)
    assert np.isfinite(together.similarities[:, :4]).all()


def test_memes_with_nobody_else_left_are_not_voted_on() -> None:
    rows = np.tile(np.eye(2 * DIM, dtype=np.float32)[0], (3, 1))
    twins = [meme(i, True, text="same") for i in range(3)]
    assert next(leave_one_out_neighbours(rows, twins, DIM, alphas=[1.0], depth=3, limit=9)).labels.size == 0
    # All alike: nothing to choose by, and no failure.
    memes = [meme(i, i % 2 == 0, text="same") for i in range(30)]
    assert calibrate(np.tile(rows[:1], (30, 1)), memes, DIM, FLOORS).calibration.method == "defaults"


def test_a_large_library_is_tried_by_an_even_sample() -> None:
    rows, memes = world(100, text=1.0)
    (found,) = leave_one_out_neighbours(rows, memes, DIM, alphas=[1.0], depth=5, limit=10)
    assert found.labels.tolist() == [memes[i].harmful for i in range(0, 100, 11)]


def test_logistic_fit_agrees_with_scikit_learn_and_never_turns_round() -> None:
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


def test_logistic_fit_of_separable_data_stays_finite() -> None:
    intercept, slope = fit_logistic(np.array([[-4.0, -3.0, 3.0, 4.0]]), np.array([False, False, True, True]))
    assert np.isfinite(intercept).all() and 0 < slope[0] <= 10


def votes_of(n: int, seed: int = 0, *, honest: bool = True) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Probabilities, and labels that are as likely as they say; or half as sure."""
    random = np.random.default_rng(seed)
    p = random.beta(0.4, 0.4, size=n)
    return p, random.random(n) < (p if honest else 0.25 + p / 2)


@pytest.mark.parametrize("error", [0.01, 0.05, 0.2])
def test_the_bound_is_that_of_clopper_and_pearson(error: float) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    for n in (1, 44, 45, 46, 150, 1000, 4000):
        allowed = [wrong for wrong in range(n) if beta.ppf(CONFIDENCE, wrong + 1, n - wrong) <= error]
        assert [wrong for wrong in range(n) if within(wrong, n, error)] == allowed
    assert not within(0, 0, error) and not within(3, 3, error)


def test_without_an_error_it_takes_45_memes_to_say_five_percent() -> None:
    assert within(0, 45, 0.05) and not within(0, 44, 0.05)


def test_settles_what_can_be_settled_and_no_more() -> None:
    p, labels = votes_of(4000)
    settles = choose_sure_range(p, labels, 0.5, 0.05)
    assert settles is not None and settles.error == 0.05 and settles.n == 4000
    # Among votes that are right in their own measure, 5 % are wrong up to about p = 0.13.
    assert 0.05 < settles.below < 0.2 and 0.8 < settles.above < 0.95
    sure = settled(p, settles)
    assert settles.share == pytest.approx(sure.mean()) and settles.share > 0.3
    for side, wrong in ((p <= settles.below, labels), (p >= settles.above, ~labels)):
        assert wrong[side].mean() < 0.05
    wider = choose_sure_range(p, labels, 0.5, 0.2)
    assert wider is not None and wider.below > settles.below and wider.above < settles.above


def test_nothing_is_settled_where_nothing_can_be() -> None:
    assert choose_sure_range(*votes_of(4000, honest=False), 0.5, 0.05) is None
    assert choose_sure_range(*votes_of(60), 0.5, 0.05) is None
    assert not settled(np.array([0.0, 0.5, 1.0]), None).any()


@pytest.mark.parametrize("harmful", [False, True])
def test_one_side_may_settle_alone_and_the_other_has_its_bound_where_no_probability_is(harmful: bool) -> None:
    p = np.linspace(0, 1, 1001)
    sure = p >= 0.8 if harmful else p <= 0.2
    # Sure of one label where it is sure, and a coin elsewhere.
    labels = np.where(sure, harmful, np.arange(p.size) % 2 == 0)
    settles = choose_sure_range(p, labels, 0.5, 0.05)
    assert settles is not None
    assert (settles.below, settles.above > 1) == (-1.0, False) if harmful else (settles.below > 0, settles.above == 2)
    assert settled(np.array([0.0, 1.0]), settles).tolist() == [not harmful, harmful]


def test_no_side_reaches_across_the_threshold() -> None:
    p = np.linspace(0, 1, 1001)
    settles = choose_sure_range(p, np.zeros(p.size, np.bool_), 0.4, 0.05)
    assert settles is not None and (settles.below, settles.above) == (0.39, 2.0)
    settles = choose_sure_range(p, np.ones(p.size, np.bool_), 0.4, 0.05)
    assert settles is not None and (settles.below, settles.above) == (-1.0, 0.4)


def test_what_is_settled_is_seldom_more_wrong_than_was_said() -> None:
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


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match="both ways"):
        SureRange(error=0.05, below=0.5, above=0.5, share=1, n=1)


def test_a_library_that_tells_the_labels_apart_settles_and_says_what_it_was_worth() -> None:
    tuning = calibrate(*world(600, text=0.7, picture=0.7), DIM, FLOORS)
    settles, figures = tuning.settles, tuning.calibration
    assert settles is not None and settles.n == figures.n == 600
    assert settles.below < tuning.vote.threshold <= settles.above
    assert figures.settled_share is not None and figures.settled_share > 0.5
    assert figures.settled_error is not None and figures.settled_error <= 0.05


def test_a_library_that_tells_nothing_settles_nothing() -> None:
    for seed in range(4):
        tuning = calibrate(*world(300, text=0.0, seed=seed), DIM, FLOORS)
        assert tuning.settles is None
        assert (tuning.calibration.settled_share, tuning.calibration.settled_error) == (0.0, None)
    few = calibrate(*world(19, text=1.0), DIM, FLOORS)
    assert few.settles is few.calibration.settled_share is None


def test_what_was_settled_is_measured_on_memes_that_had_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, memes = world(300, text=0.3)
    seen: list[list[bool]] = []

    def settle_all(p: NDArray[np.float64], labels: NDArray[np.bool_], threshold: float, error: float) -> SureRange:
        seen.append(labels.tolist())
        return SureRange(error=error, below=threshold - 1e-9, above=threshold, share=1, n=p.size)

    monkeypatch.setattr("retrieval.calibration.calibrate.choose_sure_range", settle_all)
    figures = calibrate(rows, memes, DIM, FLOORS).calibration
    of_fold = [(i // 8 % 5, m.harmful) for i, m in enumerate(memes)]
    assert seen[0] == [harmful for _, harmful in sorted(of_fold, key=lambda pair: pair[0])]
    for fold, labels in enumerate(seen[1:]):
        others = [pair for pair in of_fold if pair[0] != fold]
        assert labels == [harmful for _, harmful in sorted(others, key=lambda pair: pair[0])]
    assert len(seen) == 6
    # Where all is settled, what is settled wrongly is what is voted wrongly.
    assert figures.settled_share == 1 and figures.accuracy is not None
    assert figures.settled_error == pytest.approx(1 - figures.accuracy)


@pytest.mark.parametrize("voters", [1, 2, 9])
def test_a_vote_that_hangs_on_one_voter_is_none_for_acquittal(voters):
    rng = np.random.default_rng(voters)
    settings = VoteSettings(k=voters, tau=0.1, prior=0.4, threshold=0.45)
    near = np.sort(rng.uniform(0, 1, (300, voters + 1)), axis=1)[:, ::-1]
    harm = rng.random((300, voters + 1)) < 0.3
    near[:40, 1:] = -np.inf  # only one is there
    near = np.ascontiguousarray(near)

    def of(row, left_out=None):
        pairs = zip(near[row].tolist(), harm[row].tolist(), strict=True)
        told = [pair for n, pair in enumerate(pairs) if n != left_out and np.isfinite(pair[0])]
        if not told:
            return 1.0
        return probability(share([s for s, _ in told], [h for _, h in told], settings), settings)

    def guarded(row):
        plain = of(row)
        if plain >= settings.threshold:
            return plain
        without = [of(row, n) for n in range(voters) if not harm[row, n] and np.isfinite(near[row, n])]
        most = max(without, default=0.0)
        return most if most >= settings.threshold else plain

    expected = np.array([guarded(row) for row in range(300)])
    assert safeguarded_votes(near, harm, settings, Safeguards(no_sole_acquittal=True)) == pytest.approx(expected)
    plain = safeguarded_votes(near, harm, settings, Safeguards())
    assert plain == pytest.approx([of(row) for row in range(300)])
    assert ((plain < settings.threshold) & (expected >= settings.threshold)).any()
