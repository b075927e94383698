"""Tests of the ranking core against other implementations, known truths, and tables that have no ranking."""

import itertools
import warnings

import numpy as np
import pytest

from eval.arena.ranking.battles import Battles, NotRanked, battles, groups, rated, win_rates, wins, wins_by
from eval.arena.ranking.bootstrap import draw_memes, spread, spread_of_elo, spread_styled, tails
from eval.arena.ranking.bradley_terry import NoMaximum, elo, fit, ratings, styled
from eval.perf import ranking as benchmark
from tests.support.arena_simulation import World, coverage
from tests.support.sizes import FULL


def random_table(n, rows, *, seed=0, spread=0.8, ties=0.2, memes=40):
    """A random table like those of arenas: every pair meets, on both sides and with every outcome."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(0, spread, n)
    pairs = list(itertools.permutations(range(n), 2))
    left, right = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    more = rng.integers(0, n, rows)
    left, right = np.concatenate([left, more]), np.concatenate([right, (more + rng.integers(1, n, rows)) % n])
    score = (rng.random(len(left)) < 1 / (1 + np.exp(theta[right] - theta[left]))).astype(float)
    score[rng.random(len(left)) < ties] = 0.5
    return Battles(tuple(f"m{place}" for place in range(n)), left, right, score, rng.integers(0, memes, len(left)))


def table_of_counts(models, won):
    """A table from counts: ``won[i][j]`` is how often model i beat model j."""
    pairs = itertools.permutations(range(len(models)), 2)
    return battles(models, [(models[i], models[j], 1, f"{i} {j}") for i, j in pairs for _ in range(won[i][j])])


# Citations among four journals of statistics, 1987-89 (Stigler 1994, as in R's BradleyTerry2): cited beats citing.
JOURNALS = ("Biometrika", "Comm Statist", "JASA", "JRSS-B")
CITED = [[0, 730, 498, 221], [33, 0, 68, 17], [320, 813, 0, 142], [284, 276, 325, 0]]
# Games of the American League's eastern division, 1987 (Agresti 1990, table 10.10).
TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
GAMES = [
    [0, 7, 9, 7, 7, 9, 11],
    [6, 0, 7, 5, 11, 9, 9],
    [4, 6, 0, 7, 7, 8, 12],
    [6, 8, 6, 0, 6, 7, 10],
    [6, 2, 6, 7, 0, 7, 12],
    [4, 4, 5, 6, 6, 0, 6],
    [2, 4, 1, 3, 1, 7, 0],
]
REAL = {"journals": table_of_counts(JOURNALS, CITED), "baseball": table_of_counts(TEAMS, GAMES)}
REAL_LIKE = {
    "few": random_table(4, 30, seed=1),
    "many models": random_table(15, 1500, seed=2),
    "many battles": random_table(6, 20_000, seed=3),
    "far apart": random_table(5, 3000, seed=4, spread=2.5),
    "no ties": random_table(7, 400, seed=5, ties=0.0),
}
DEGENERATE = {
    "all ties": battles("abc", [("a", "b", 0.5, "x"), ("b", "c", 0.5, "x"), ("c", "a", 0.5, "y")]),
    "a circle": battles("abc", [("a", "b", 1, "x"), ("b", "c", 1, "x"), ("c", "a", 1, "y")]),
    "held by one tie": battles("ab", [("a", "b", 1, "x")] * 50 + [("a", "b", 0.5, "y")]),
    "a chain": battles(
        "abcd", [(one, other, s, "x") for one, other in ("ab", "bc", "cd") for s in (1, 1, 1, 0)] + [("a", "b", 1, "y")]
    ),
    "lopsided": battles("ab", [("a", "b", 1, "x")] * 1000 + [("a", "b", 0, "y")]),
}


def to_evalica(table):
    """The columns of a table as evalica takes them."""
    import evalica

    winners = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    return table.left.tolist(), table.right.tolist(), [winners[score] for score in table.score.tolist()]


def by_evalica(table):
    import evalica

    strengths = evalica.bradley_terry(*to_evalica(table), tolerance=1e-14, limit=200_000).scores
    return rated(np.log(strengths.loc[range(len(table.models))].to_numpy()), None)


def by_statsmodels(table, covariates=None):
    """Ratings by a logistic regression, the first model being the reference."""
    import statsmodels.api as sm

    rows = np.arange(len(table))
    design = np.zeros((len(table), len(table.models)))
    design[rows, table.left], design[rows, table.right] = 1, -1
    design = design[:, 1:] if covariates is None else np.hstack([design[:, 1:], covariates])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels warns that half wins are not counts
        model = sm.GLM(table.score, design, family=sm.families.Binomial())
        found = model.fit(maxiter=500, tol=1e-15, tol_criterion="params").params
    return rated(np.concatenate([[0.0], found[: len(table.models) - 1]]), None)


@pytest.mark.parametrize(
    "table", [*REAL.values(), *REAL_LIKE.values(), *DEGENERATE.values()], ids=[*REAL, *REAL_LIKE, *DEGENERATE]
)
def test_bradley_terry_agrees_with_evalica_and_statsmodels(table):
    ours = ratings(table)
    assert np.abs(ours - by_statsmodels(table)).max() < 1e-6
    assert np.abs(ours - by_evalica(table)).max() < 1e-6  # evalica's iteration ends at 1e-14 of its strengths


def test_fit_reproduces_published_estimates():
    journals = fit(np.array(CITED, dtype=float))
    assert journals - journals[0] == pytest.approx([0, -2.94907, -0.47957, 0.26895], abs=5e-6)
    teams = fit(np.array(GAMES, dtype=float))
    assert teams - teams[-1] == pytest.approx([1.58, 1.44, 1.29, 1.25, 1.11, 0.68, 0], abs=0.0051)


@pytest.mark.parametrize("table", REAL.values(), ids=REAL)
def test_ratings_do_not_depend_on_names_sides_or_order_of_battles(table):
    rng = np.random.default_rng(0)
    n, rows = len(table.models), rng.permutation(len(table))
    turned = rng.random(len(table)) < 0.5
    names = rng.permutation(n)
    left, right = np.where(turned, table.right, table.left), np.where(turned, table.left, table.right)
    score = np.where(turned, 1 - table.score, table.score)
    other = Battles(
        tuple(table.models[place] for place in np.argsort(names)),
        names[left][rows],
        names[right][rows],
        score[rows],
        table.meme[rows],
    )
    assert np.abs(ratings(other)[names] - ratings(table)).max() < 1e-9


@pytest.mark.parametrize("name", ["few", "many battles", "no ties"])
def test_counts_elo_and_ratings_match_evalica_to_the_last_digits(name):
    """Counts are sums of halves, exact in both; Elo is one formula; ratings differ only in how the logarithm is
    computed.
    """
    import evalica

    table = REAL_LIKE[name]
    columns, places = to_evalica(table), range(len(table.models))
    expected_counts = evalica.counting(*columns, tie_weight=0.5).scores.loc[places].to_numpy()
    assert (wins(table).sum(axis=1) == expected_counts).all()
    for k in (4.0, 32.0):
        theirs = evalica.elo(*columns, k=k).scores.loc[places].to_numpy()
        assert np.abs(elo(table, k=k) / theirs - 1).max() <= 1e-14
    assert np.abs(ratings(table) / by_evalica(table) - 1).max() <= 1e-14 * 10  # 1e-13: two iterations, each to 1e-14


@pytest.mark.parametrize("seed", range(4))
def test_styled_ratings_agree_with_statsmodels(seed):
    table = random_table(5, 800, seed=seed)
    rng = np.random.default_rng(seed + 100)
    covariates = rng.normal(size=(len(table), 3)) * [1, 50, 0.02]
    assert np.abs(styled(table, covariates) - by_statsmodels(table, covariates)).max() < 1e-6
    # Without covariates, or with constant ones, the ratings are those of Bradley-Terry.
    for columns in (0, 2):
        assert np.allclose(styled(table, np.zeros((len(table), columns))), ratings(table), rtol=0, atol=1e-8)


def test_style_control_separates_style_from_strength():
    rng = np.random.default_rng(7)
    n, rows = 4, 6000
    theta, style = np.array([0.6, 0.2, -0.2, -0.6]), np.array([-1.0, 0.5, 0.5, 0.0])
    left = rng.integers(0, n, rows)
    right = (left + rng.integers(1, n, rows)) % n
    covariate = style[left] - style[right] + rng.normal(0, 0.5, rows)
    score = (rng.random(rows) < 1 / (1 + np.exp(-(theta[left] - theta[right] + 0.9 * covariate)))).astype(float)
    table = Battles(tuple("abcd"), left, right, score, rng.integers(0, 300, rows))
    assert ratings(table).argmax() == 1  # the model with the winning style seems best
    found = styled(table, covariate[:, None])
    assert found.argsort().tolist() == [3, 2, 1, 0]
    over_memes = spread_styled(table, covariate[:, None], resamples=100)
    # A 95 % interval of one table may miss the truth; four standard deviations do not.
    assert (np.abs(found - rated(theta, None)) < 4 * over_memes.draws.std(axis=0)).all()
    assert (over_memes.low < found).all() and (found < over_memes.high).all()


@pytest.mark.parametrize(
    ("rows", "expected_groups"),
    [
        ([("a", "b", 1, "x"), ("b", "c", 1, "x"), ("b", "c", 0, "y")], (("a",), ("b", "c"))),  # undefeated
        ([("a", "b", 0, "x"), ("a", "c", 0, "x"), ("b", "c", 0.5, "y")], (("b", "c"), ("a",))),  # never won
        ([("a", "b", 0.5, "x")], (("a", "b"), ("c",))),  # never fought
    ],
)
def test_tables_without_finite_ratings_raise_with_their_groups(rows, expected_groups):
    table = battles("abc", rows)
    for compute in (ratings, spread, lambda t: styled(t, np.zeros((len(t), 1)))):
        with pytest.raises(NotRanked) as caught:
            compute(table)
        assert set(caught.value.groups) == set(expected_groups)
    if rows[0][2] == 1:
        assert groups(wins(table), table.models) == expected_groups  # the best group first
    assert not np.isnan(elo(table)).any()


def test_covariates_that_predict_every_winner_raise_an_error():
    table = random_table(3, 200, ties=0.0)
    with pytest.raises(NoMaximum):
        styled(table, (2 * table.score - 1)[:, None])


def test_ties_count_as_half_wins_in_wins_and_win_rates():
    table = battles("abc", [("a", "b", 1, "x"), ("b", "a", 0.5, "x"), ("c", "a", 0, "y"), ("a", "b", 0, "y")])
    assert wins(table).tolist() == [[0, 1.5, 1], [1.5, 0, 0], [0, 0, 0]]
    assert (wins_by(table, table.meme, table.memes).sum(axis=0) == wins(table)).all()
    assert win_rates(wins(table)).tolist() == [2.5 / 4, 0.5, 0]
    assert np.isnan(win_rates(wins(battles("abc", [("a", "b", 1, "x")])))[2])


def test_four_hundred_points_mean_odds_of_ten_to_one_for_the_better():
    table = battles("ab", [("a", "b", 1, "x")] * 10 + [("a", "b", 0, "y")])
    a, b = ratings(table)
    assert a - b == pytest.approx(400) and a + b == pytest.approx(2000)
    assert ratings(table, anchor=1).tolist() == pytest.approx([1400, 1000])


def test_elo_depends_on_the_order_of_battles():
    table = battles("ab", [("a", "b", 1, "x"), ("a", "b", 0, "y")])
    reversed_table = battles("ab", [("a", "b", 0, "y"), ("a", "b", 1, "x")])
    assert elo(table, k=32)[0] < 1000 < elo(reversed_table, k=32)[0]
    both = elo(table, np.array([[0, 1], [1, 0], [0, -1]]), k=32)
    assert both[0] == pytest.approx(elo(table, k=32)) and both[1] == pytest.approx(elo(reversed_table, k=32))
    assert both[2].tolist() == [1016, 984]


def test_fitting_many_tables_at_once_matches_fitting_each_alone():
    tables = np.stack([wins(random_table(5, 200, seed=seed)) for seed in range(6)]).reshape(2, 3, 5, 5)
    together = fit(tables)
    assert together.shape == (2, 3, 5)
    for place in np.ndindex(2, 3):
        assert np.abs(together[place] - fit(tables[place])).max() < 1e-12


def test_resampling_draws_whole_memes_and_counts_those_without_ratings():
    assert (draw_memes(7, 50, 0).sum(axis=1) == 7).all()
    low, high = tails(10)
    assert low < 2.5 < 97.5 < high and low + high == pytest.approx(100)
    # A model that lost only over one meme of six is undefeated in a third of the resamples, so it has no finite
    # interval.
    rows = [("a", "b", 1, f"m{number}") for number in range(5)] + [("a", "b", 0, "m5")]
    found = spread(battles("ab", rows), resamples=400)
    assert found.low is None and found.high is None
    assert 0.25 < found.without / 400 < 0.45 and len(found.draws) == 400 - found.without
    # With all battles over one meme there is nothing to resample.
    assert spread(battles("ab", [("a", "b", 1, "x"), ("a", "b", 0, "x")])).low is None
    assert spread_of_elo(battles("ab", rows), resamples=100).low is not None


def test_intervals_over_memes_reach_their_coverage_but_not_those_over_battles():
    """The nightly run draws 200 tables, others 15, whose coverage may be off by more."""
    tables = 200 if FULL else 15
    world = World(meme_effect=2.0, memes=60, tasks=8)
    over_memes, over_battles = coverage(world, tables, resamples=500 if FULL else 200)
    assert (0.92 if FULL else 0.84) <= over_memes <= 0.99
    assert over_battles < (0.78 if FULL else 0.8)


def test_battles_are_validated_on_construction():
    with pytest.raises(KeyError):
        battles("ab", [("a", "z", 1, "x")])
    for rows in ([("a", "a", 1, "x")], [("a", "b", 1.5, "x")]):
        with pytest.raises(ValueError):
            battles("ab", rows)


def test_ranking_benchmark_reports_its_figures_and_goals():
    result = benchmark.ranking(battles=20_000, rows=2_000)
    assert min(result.figures[name] for name in ("table_over_pandas", "described_over_pandas", "over_evalica")) > 0
    assert result.figures["points_apart"] < 1e-6
    assert result.goals["over_evalica"] == "<= 1" and set(result.goals) == set(result.figures)
