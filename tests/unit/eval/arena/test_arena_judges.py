"""Reliability of judges: rankings by MemeArena's definition, agreement with people, shifts between references."""

import itertools
import math
import random

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.metrics import cohen_kappa_score

from eval.arena.agreement import HumanVerdict, human_agreement, joint_scores
from eval.arena.bias import bias_report, closeness, contrast_section, contrasts, ndcg
from eval.arena.ranking.battles import SCALE, battles, wins
from eval.arena.ranking.bradley_terry import finite_ratings, ratings
from eval.arena.words import Setting, Verdict
from eval.datasets.known import published_file
from eval.scores.measure import Figure
from tests.support.arena_world import judged


def scores(order):
    """Scores by which the first model is the best."""
    return {model: float(-place) for place, model in enumerate(order)}


def test_ndcg_matches_its_definition():
    reference = scores("abc")  # relevance 2, 1, 0
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    assert ndcg(scores("abc"), reference) == pytest.approx(1)
    assert ndcg(scores("bac"), reference) == pytest.approx((1 + 2 / math.log2(3)) / ideal)
    assert ndcg(scores("cba"), reference) == pytest.approx((1 / math.log2(3) + 2 / math.log2(4)) / ideal)
    # Even a reversed ranking scores far above 0, which is why Kendall's τ is reported too.
    assert ndcg(scores("cba"), reference) > 0.6 and closeness(scores("cba"), reference)["tau"] == -1


@pytest.mark.parametrize("size", [2, 3, 5])
def test_chance_ndcg_is_the_mean_over_all_orders(size):
    for reference in (scores("abcde"[:size]), scores("abcde"[:size]) | {"b": 0.0}):
        every = [ndcg(scores(order), reference) for order in itertools.permutations(reference)]
        assert closeness(reference, reference)["chance"] == pytest.approx(np.mean(every))


def test_tied_models_count_as_the_mean_over_their_orders():
    reference = scores("abcd")
    level = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    found = closeness(level, reference)
    orders = [ndcg(scores(("a", *others)), reference) for others in itertools.permutations("bcd")]
    assert found["ndcg"] == pytest.approx(np.mean(orders))
    assert found["tau"] == pytest.approx(kendalltau([1, 0, 0, 0], [0, -1, -2, -3]).statistic)
    assert closeness(dict.fromkeys("abcd", 0.0), reference)["tau"] is None


def test_two_published_ndcg_values_are_below_chance():
    models = "abcdefghijklmno"
    reference = scores(models)
    assert closeness(reference, reference)["chance"] == pytest.approx(0.807, abs=5e-4)
    assert ndcg(scores(models[::-1]), reference) == pytest.approx(0.614, abs=5e-4)
    assert ndcg(scores(models[1:] + "a"), reference) == pytest.approx(0.958, abs=5e-4)
    # Both of the published .68 are worse than chance, which a fall of the best model alone can't explain.
    worse = [
        (name, value)
        for name, row in published_file("papers/memearena")["ndcg"].items()
        for value in row
        if value < 0.807
    ]
    assert worse == [("own", 0.68), ("none", 0.68)]


def test_published_ratings_match_their_scale_and_win_rates():
    memearena, probench = (published_file(f"papers/{name}") for name in ("memearena", "probench"))
    rows, baseline = memearena["ratings"], probench["baseline"]
    assert sum(one["rating"] for one in rows) / len(rows) == pytest.approx(1000, abs=0.05)
    assert sum(one["battles"] for one in rows) / 2 == 5645
    rates = [one["win_rate"] for one in rows]
    assert rates == sorted(rates, reverse=True) and len(probench["ratings"]) == 23
    known = [one for one in probench["ratings"] if "win_rate" in one]
    for one in known:
        points = baseline + 400 * math.log10(one["win_rate"] / (1 - one["win_rate"]))
        assert points == pytest.approx(one["rating"], abs=0.1) and known
    # Our Bradley-Terry fit gives the same if all models meet only the baseline.
    battled = [("b", "m", 0.0, "x")] * 6597 + [("b", "m", 1.0, "x")] * 3403
    fitted = ratings(battles(["b", "m"], battled), anchor=0)
    assert fitted[1] - fitted[0] + baseline == pytest.approx(1229, abs=0.1)


def test_joint_vote_is_one_battle_and_even_votes_are_ties():
    def votes(*ballots):
        return [judged("m", a, b, judge, verdict) for judge, (a, b, verdict) in zip("wxyz", ballots, strict=False)]

    a_wins, b_wins, tie = ("a", "b", Verdict.A), ("b", "a", Verdict.A), ("a", "b", Verdict.BOTH_GOOD)
    (key,) = joint_scores(votes(a_wins), "overall")
    assert key == ("m", 0, "a", "b")
    for ballots, score in (
        ((a_wins, a_wins, b_wins), 1.0),
        ((b_wins, b_wins, a_wins), 0.0),
        ((a_wins, b_wins), 0.5),
        ((tie, tie, a_wins), 1.0),
        ((tie, tie), 0.5),
        # Five levels: one "far better" outweighs one "better", but not two.
        ((("a", "b", Verdict.A_FAR), b_wins), 1.0),
        ((("a", "b", Verdict.B_FAR), a_wins, ("b", "a", Verdict.B)), 0.5),
        ((("b", "a", Verdict.B_FAR), b_wins, b_wins, b_wins), 0.0),
    ):
        assert joint_scores(votes(*ballots), "overall") == {key: score}, ballots


def test_self_preference_is_measured_against_impartial_judges():
    """b favours itself. In battles of a and b only c is impartial, so that a does not look partial because of b."""
    events = []
    for number in range(12):
        meme = f"m{number}"
        for judge in "abc":
            for one, other in itertools.combinations("abc", 2):
                better = Verdict.A if number % 3 else Verdict.B  # overall a beats b beats c
                if judge == "b" and "b" in (one, other):
                    better = Verdict.A if one == "b" else Verdict.B
                events.append(judged(meme, one, other, judge, better, study="bias"))
    (fused,) = bias_report(events, "abc", "abc", (200, 0))["settings"]
    cases = {case["judge"]: case for case in fused["own_cases"]}
    assert cases["b"]["own"] == 1.0 and cases["b"]["others"] == pytest.approx(0.5)
    assert cases["b"]["favours_itself"] and cases["b"]["lift"].low > 0.2
    assert cases["a"]["lift"].value == cases["c"]["lift"].value == 0.0
    assert not cases["a"]["favours_itself"] and not cases["c"]["favours_itself"]
    for memes, enough in ((2, False), (5, False), (6, True)):
        few = [event for event in events if int(event.meme[1:]) < memes]
        (fused,) = bias_report(few, "abc", "abc", (200, 0))["settings"]
        partial = next(case for case in fused["own_cases"] if case["judge"] == "b")
        assert partial["own"] - partial["others"] > 0.2
        assert isinstance(partial["lift"], Figure) == partial["favours_itself"] == enough
    (alone,) = bias_report([e for e in events if e.judge == "b"], "abc", "abc", (100, 0))["settings"]
    means = {alone[name] for name in ("ndcg", "chance", "joint", "tau")}
    assert means == {None}, "nobody to compare with is no full marks"
    assert bias_report([e for e in events if e.study == "arena"], "abc", "abc", (100, 0)) is None


def test_larger_panels_approach_the_full_panel():
    rng = random.Random(1)
    events = [
        judged(f"m{number}", one, other, judge, Verdict.A if rng.random() < 0.62 else Verdict.B, study="bias")
        for number in range(6)
        for judge in ("j1", "j2", "j3", "j4", "j5")
        for one, other in itertools.combinations("abcde", 2)
    ]
    report = bias_report(events, "abcde", ("j1", "j2", "j3", "j4", "j5"), (100, 0))
    ndcgs, taus, chances = ([size[name] for size in report["sizes"]] for name in ("ndcg", "tau", "chance"))
    assert [(size["size"], size["panels"]) for size in report["sizes"]] == [(1, 5), (2, 10), (3, 10), (4, 5), (5, 1)]
    assert ndcgs[-1] == pytest.approx(1) and taus[-1] == pytest.approx(1)
    assert taus[0] < taus[2] <= taus[-1]
    (panel,) = report["settings"]
    assert not panel["own_cases"]  # none of them fights
    # MemeArena's reference, recomputed: the majority of five votes wins the battle.
    votes = {}
    for event in events:
        votes.setdefault((event.meme, event.a, event.b), []).append(event.verdicts["overall"] is Verdict.A)
    won = dict.fromkeys("abcde", 0)
    for (_, one, other), ballots in votes.items():
        won[one if sum(ballots) > 2 else other] += 1
    for agreement in panel["judges"]:
        own = dict.fromkeys("abcde", 0)
        for event in events:
            if event.judge == agreement["judge"]:
                own[event.a if event.verdicts["overall"] is Verdict.A else event.b] += 1
        assert agreement["joint"] == pytest.approx(ndcg(own, won))
        assert agreement["joint_tau"] == pytest.approx(kendalltau(list(own.values()), list(won.values())).statistic)
        assert agreement["joint_chance"] == pytest.approx(closeness(won, won)["chance"])
    assert panel["joint"] > panel["ndcg"], "a judge agrees with itself"
    assert 0.6 < chances[0] < 1 and chances[0] == pytest.approx(chances[-1])


def test_agreement_of_panels_with_people_matches_hand_counts():
    """Three judges on four battles; people always prefer a. Only j judged the last one."""
    verdicts = {"j": "aaba", "k": "abb", "l": "baa"}
    events = [
        judged(f"m{number}", "a", "b", judge, Verdict.A if word == "a" else Verdict.B)
        for judge, words in verdicts.items()
        for number, word in enumerate(words)
    ]
    people = [
        HumanVerdict(meme=f"m{number}", task=0, one="a", other="b", who=who, better="one")
        for number in range(4)
        for who in "pq"
    ]
    one, two, three = human_agreement(events, people)["panels"]
    assert (one["size"], one["panels"], one["battles"]) == (1, 3, pytest.approx(10 / 3))
    assert one["accuracy"] == pytest.approx((3 / 4 + 1 / 3 + 2 / 3) / 3)
    assert (one["lowest"], one["highest"]) == (pytest.approx(1 / 3), pytest.approx(3 / 4))
    # Two that differ make a tie, unlike people: j and k agree on a once, j and l once, k and l never.
    assert (two["panels"], two["accuracy"]) == (3, pytest.approx((1 / 3 + 1 / 3 + 0) / 3))
    assert (three["panels"], three["battles"], three["accuracy"]) == (1, 3, pytest.approx(2 / 3))
    assert three["kappa"] is None or three["kappa"] <= 0
    alone = [event for event in events if event.judge == "j"]
    assert human_agreement(alone, people)["panels"] == []


def test_agreement_of_the_panel_with_people_handles_ties_and_swaps():
    events = [
        judged("m1", "a", "b", "j", Verdict.A),
        judged("m1", "b", "a", "k", Verdict.B),  # a again, shown second
        judged("m2", "a", "b", "j", Verdict.BOTH_GOOD),
        judged("m3", "b", "a", "j", Verdict.A),  # b
        judged("m4", "a", "b", "j", Verdict.A),
        judged("m4", "a", "b", "k", Verdict.B),  # a tie
        judged("m5", "a", "b", "j", Verdict.A_FAR),
        judged("m6", "a", "b", "j", Verdict.B, study="bias"),  # a bias study does not count
    ]

    def human(meme, who, better, one="a", other="b"):
        return HumanVerdict(meme=meme, task=0, one=one, other=other, who=who, better=better)

    humans = [
        human("m1", "p", "one"),
        human("m1", "q", "one"),
        human("m1", "r", "other", "b", "a"),  # a, with the two swapped
        human("m2", "p", "one"),
        human("m2", "q", "tie"),
        human("m2", "r", "tie"),
        human("m3", "p", "one"),
        human("m4", "p", "one"),
        human("m5", "p", "one"),
        human("m5", "q", "other"),  # a tie among people
        human("m6", "p", "one"),
        human("m7", "p", "one"),
    ]
    found = human_agreement(events, humans)
    assert (found["battles"], found["even"]) == (3, 2)
    assert found["accuracy"].value == pytest.approx(2 / 3)
    j, k = found["judges"]
    assert (j["judge"], j["accuracy"].value) == ("j", pytest.approx(3 / 4))
    assert (k["judge"], k["accuracy"].value, k["kappa"].n) == ("k", pytest.approx(1 / 2), 2)
    expected = cohen_kappa_score(["first", "tie", "second"], ["first", "tie", "first"])
    assert found["kappa"].value == pytest.approx(expected)
    assert found["people"].n == 3  # m1, m2 and m5 were judged by several
    without_people = human_agreement(events, [])
    assert without_people["accuracy"] is None and without_people["kappa"].value is None


MODELS = ("a", "b", "c", "d")
FAMILIES = {"a": "x", "b": "y", "c": "x", "d": ""}


def study(shift, *, memes=40, seed=0):
    """Judges a and b judge all pairs over each meme under two settings; with its own answer, a favours family x."""
    events = []
    for number, judge in itertools.product(range(memes), "ab"):
        for one, other in itertools.combinations(MODELS, 2):
            draw = random.Random(f"{seed} {number} {judge} {one} {other}").random()
            for setting in (Setting.FUSED, Setting.OWN):
                edge = 0.3 * (MODELS.index(other) - MODELS.index(one))
                if setting is Setting.OWN and judge == "a":
                    edge += shift * ((FAMILIES[one] == "x") - (FAMILIES[other] == "x"))
                verdict = Verdict.A if draw < 1 / (1 + np.exp(-edge)) else Verdict.B
                events.append(judged(f"m{number}", one, other, judge, verdict, study="bias", setting=setting))
    return events


def contrast_of(events):
    (found,) = contrasts(events, MODELS, FAMILIES, (300, 0))
    return found, {(one["judge"], one["target"]): one for one in found["shifts"]}


def test_only_the_family_favouring_judge_is_detected():
    found, shifts = contrast_of(study(2.0))
    assert (found["one"], found["other"], found["battles"]) == (Setting.OWN, Setting.FUSED, 40 * 2 * 6)
    for target in MODELS:
        assert shifts["b", target]["points"] == Figure(0, 0, 0)
        assert shifts["a", target]["sure"]
        assert (shifts["a", target]["points"].value > 0) == (FAMILIES[target] == "x")
    assert {key for key, one in shifts.items() if one["own_family"]} == {("a", "a"), ("a", "c"), ("b", "b")}
    # a's family gains about four times the shift in log-odds (two on each side); b's gains nothing.
    own, others = (np.mean([shifts["a", target]["points"].value for target in some]) for some in ("ac", "bd"))
    a = own - others
    assert found["own_family"].value == pytest.approx(a / 2) and found["own_family"].low > 0
    assert 0.5 * 2 * SCALE < a < 1.7 * 2 * SCALE
    section = contrast_section(found, MODELS)
    assert section.rows[1][1].endswith("*°") and "Surely moved: a by a" in section.notes[-1]
    # A few memes may all point the same way by chance.
    few, _ = contrast_of([event for event in study(2.0) if int(event.meme[1:]) < 5])
    section = contrast_section(few, MODELS)
    assert "*" not in str(section.rows) and "Surely moved" not in str(section.notes)


def test_equal_verdicts_show_no_shift_and_spread_is_that_of_ratings():
    found, shifts = contrast_of(study(0.0))
    assert all(one["points"] == Figure(0, 0, 0) and not one["sure"] for one in shifts.values())
    assert found["wider"].value == 0 and found["own_family"].value == 0
    fused = [event for event in study(0.0) if event.setting is Setting.FUSED]
    tables = (
        battles(MODELS, [(e.a, e.b, e.verdicts["overall"].score, e.meme) for e in fused if e.judge == judge])
        for judge in "ab"
    )
    by_hand = np.mean([np.std(finite_ratings(wins(table))) for table in tables])
    assert found["spread"] == found["other_spread"] == pytest.approx(by_hand)
    wider, _ = contrast_of(study(2.0))
    assert wider["wider"].value == pytest.approx(wider["spread"] - wider["other_spread"]) and wider["wider"].low > 0


def test_only_battles_judged_under_both_settings_are_compared():
    events = study(1.0)
    fewer = [e for e in events if e.setting is Setting.FUSED or e.meme < "m2"]
    found, _ = contrast_of(fewer)
    assert found["battles"] == 6 * 2 * len({e.meme for e in fewer if e.setting is Setting.OWN})
    assert contrasts([], MODELS, FAMILIES, (10, 0)) == []
    assert contrasts([e for e in events if e.setting is Setting.OWN], MODELS, FAMILIES, (10, 0)) == []
    alone = contrasts(events, MODELS, dict.fromkeys(MODELS, "x"), (10, 0))
    assert alone[0]["own_family"] is None, "with a single family there is nothing to compare"


@pytest.mark.slow
def test_intervals_have_their_nominal_coverage():
    """Verdicts of two settings drawn independently from one distribution: about 95 % of 1,600 intervals contain 0."""
    covered = []
    for seed in range(200):
        events = []
        for number in range(20):
            suits = np.random.default_rng((seed, number)).normal(0, 0.7, 4)
            rng = np.random.default_rng((seed, number, 1))
            for setting, judge in itertools.product((Setting.FUSED, Setting.OWN), "ab"):
                for i, j in itertools.combinations(range(4), 2):
                    verdict = Verdict.A if rng.random() < 1 / (1 + np.exp(suits[j] - suits[i])) else Verdict.B
                    two = (MODELS[i], MODELS[j])
                    events.append(judged(f"m{number}", *two, judge, verdict, study="bias", setting=setting))
        (found,) = contrasts(events, MODELS, FAMILIES, (400, seed))
        covered += [not one["sure"] for one in found["shifts"]]
    assert 0.93 <= np.mean(covered) <= 0.97
