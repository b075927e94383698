"""The same panel under two reference settings: planted shifts are detected, and no others are reported."""

import itertools
import random

import numpy as np
import pytest

from eval.arena.bias import contrast_section, contrasts
from eval.arena.ranking.battles import SCALE, battles, wins
from eval.arena.ranking.bradley_terry import finite_ratings
from eval.arena.words import Setting, Verdict
from tests.support.arena_world import judged

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


def contrast_of(events, **more):
    (found,) = contrasts(events, MODELS, FAMILIES, resamples=300, seed=0, **more)
    return found, {(one.judge, one.target): one for one in found.shifts}


def test_only_the_family_favouring_judge_is_detected():
    found, shifts = contrast_of(study(2.0))
    assert (found.one, found.other, found.battles) == (Setting.OWN, Setting.FUSED, 40 * 2 * 6)
    for target in MODELS:
        assert shifts["b", target].points.value == 0 == shifts["b", target].points.high
        assert shifts["a", target].sure and (shifts["a", target].points.value > 0) == (FAMILIES[target] == "x")
    assert {key for key, one in shifts.items() if one.own_family} == {("a", "a"), ("a", "c"), ("b", "b")}
    # a's family gains about four times the shift in log-odds (two on each side); b's gains nothing.
    a = np.mean([shifts["a", t].points.value for t in "ac"]) - np.mean([shifts["a", t].points.value for t in "bd"])
    assert found.own_family.value == pytest.approx(a / 2) and found.own_family.low > 0
    assert 0.5 * 2 * SCALE < a < 1.7 * 2 * SCALE
    section = contrast_section(found, MODELS)
    assert section.rows[1][1].endswith("*°") and "Surely moved: a by a" in section.notes[-1]
    # A few memes may all point the same way by chance.
    few, _ = contrast_of([event for event in study(2.0) if int(event.meme[1:]) < 5])
    section = contrast_section(few, MODELS)
    assert "*" not in str(section.rows) and "Surely moved" not in str(section.notes)


def test_equal_verdicts_show_no_shift_and_spread_is_that_of_ratings():
    found, shifts = contrast_of(study(0.0))
    assert all(one.points.value == one.points.low == one.points.high == 0 and not one.sure for one in shifts.values())
    assert found.wider.value == 0 and found.own_family.value == 0
    fused = [event for event in study(0.0) if event.setting is Setting.FUSED]
    tables = (
        battles(MODELS, [(e.a, e.b, e.verdicts["overall"].score, e.meme) for e in fused if e.judge == judge])
        for judge in "ab"
    )
    by_hand = np.mean([np.std(finite_ratings(wins(table))) for table in tables])
    assert found.spread == found.other_spread == pytest.approx(by_hand)
    wider, _ = contrast_of(study(2.0))
    assert wider.wider.value == pytest.approx(wider.spread - wider.other_spread) and wider.wider.low > 0


def test_only_battles_judged_under_both_settings_are_compared():
    events = study(1.0)
    fewer = [e for e in events if e.setting is Setting.FUSED or e.meme < "m2"]
    found, _ = contrast_of(fewer)
    assert found.battles == 6 * 2 * len({e.meme for e in fewer if e.setting is Setting.OWN})
    assert contrasts([], MODELS, FAMILIES, resamples=10, seed=0) == ()
    assert contrasts([e for e in events if e.setting is Setting.OWN], MODELS, FAMILIES, resamples=10, seed=0) == ()
    alone = contrasts(events, MODELS, dict.fromkeys(MODELS, "x"), resamples=10, seed=0)
    assert alone[0].own_family is None, "with a single family there is nothing to compare"


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
        (found,) = contrasts(events, MODELS, FAMILIES, resamples=400, seed=seed)
        covered += [not one.sure for one in found.shifts]
    assert 0.93 <= np.mean(covered) <= 0.97
