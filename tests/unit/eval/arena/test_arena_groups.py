"""Leaderboards by group: a weakness is reported only where it is significant."""

import json

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from court.errors import BadRequest
from eval.arena.folder import FixedTask
from eval.arena.groups import LEAST_TASKS, _dealt, boards_by, group_section, groups_of, interaction, step_down
from eval.arena.leaderboard import leaderboard
from eval.arena.ranking.battles import wins
from eval.arena.ranking.bradley_terry import fit
from eval.arena.run import digest_of
from eval.session.directory import json_line
from tests.support.arena_simulation import World
from tests.support.arena_world import Arena, ArenaModel, output_of

THREE = ("ash", "beech", "cedar")


def simulated(seed, *, memes=60, planted=0.0, meme_effect=0.7, within=False):
    """Battles of four models over memes of two groups; in the second, the last is weaker by ``planted`` in log-odds.

    Each meme has two tasks: both of the same group or, if ``within``, one of each.
    """
    meme, task = np.indices((memes, 2))
    group = task if within else meme % 2
    world = World((0.6, 0.2, 0.0, 0.2), meme_effect=meme_effect, ties=0.0, memes=memes, tasks=2)
    table = world.table(seed, -planted * group[:, :, None] * np.array([0, 0, 0, 1]))
    return table, np.arange(len(table)) // 3, group.ravel()


def interaction_of(seed, *, deals=199, **world):
    return interaction(*simulated(seed, **world), ("one", "other"), deals=deals, resamples=100, seed=seed)


def test_likelihood_ratio_equals_that_of_single_battles():
    table, unit, group = simulated(3)

    def likelihood(part):
        won = wins(part) + (1 - np.eye(4)) / 8  # a quarter of a tied battle for each pair
        theta = fit(won[None])[0]
        chance = 1 / (1 + np.exp(theta[None, :] - theta[:, None]))
        return sum(won[i, j] * np.log(chance[i, j]) for i in range(4) for j in range(4) if i != j)

    found = interaction_of(3)
    parts = [likelihood(table.at(np.flatnonzero(group[unit] == which))) for which in (0, 1)]
    expected = 2 * (sum(parts) - likelihood(table))
    assert found["statistic"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("within", [False, True])
def test_planted_weakness_is_found_and_named(within):
    found = interaction_of(1, planted=2.5, within=within, deals=499)
    assert found["p"] < 0.01
    worst = min(found["differences"], key=lambda one: one["p"])
    # Reported for the first group, in which it is stronger.
    assert (worst["model"], worst["group"]) == ("model 3", "one") and worst["p"] < 0.05
    points = worst["points"]
    assert points.value > 100 and 0 < points.low < points.value < points.high


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True])
def test_false_positive_rate_is_within_chance(within):
    """At most 5 % of 200 simulated arenas show a difference; by the binomial law up to 8.5 % is within chance."""
    found = [interaction_of(seed, deals=99, memes=40, within=within) for seed in range(200)]
    assert np.mean([one["p"] < 0.05 for one in found]) <= 0.085
    assert np.mean([any(each["p"] < 0.05 for each in one["differences"]) for one in found]) <= 0.085
    # The p-values are uniform, so that the test is not just conservative.
    assert 0.4 < np.mean([one["p"] for one in found]) < 0.6


def test_permutations_keep_equal_labels_of_a_meme_together():
    rng = np.random.default_rng(0)
    meme = np.repeat(np.arange(20), 2)
    group = np.repeat(np.arange(20) % 3, 2)
    dealt = _dealt(group, meme, rng)
    assert (dealt[::2] == dealt[1::2]).all() and (np.bincount(dealt) == np.bincount(group)).all()
    assert (dealt != group).any()
    # Memes with one task swap only among themselves; if each meme has both groups, labels are permuted within memes.
    sizes = np.array([0, 1, 1, 2, 3, 3])
    for _ in range(50):
        dealt = _dealt(np.array([0, 1, 1, 0, 2, 2]), sizes, rng)
        assert sorted(dealt[[0, 3]]) == [0, 0] and {tuple(dealt[1:3]), tuple(dealt[4:])} == {(1, 1), (2, 2)}
    mixed = _dealt(np.tile([0, 1], 200), np.repeat(np.arange(200), 2), rng)
    assert (mixed[::2] != mixed[1::2]).all() and 0.35 < mixed[::2].mean() < 0.65


def test_adjusted_p_values_match_statsmodels():
    # For independent statistics the step-down of maxima equals Holm-Šidák.
    rng = np.random.default_rng(5)
    drawn = np.abs(rng.normal(size=(20_000, 4)))
    observed = np.array([2.6, 2.2, 1.0, 3.0])
    single = [(drawn[:, place] >= observed[place]).mean() for place in range(4)]
    assert step_down(observed, drawn) == pytest.approx(multipletests(single, method="holm-sidak")[1], abs=0.01)


# Arenas.


@pytest.fixture(scope="module")
def by_language(tmp_path_factory):
    """Questions in two languages, of one and two rounds, about 40 memes each; beech is weak in one of the languages."""
    strengths = {"ash": 0.6, "beech": 0.9, "cedar": 0.0}

    class Patchy(ArenaModel):
        def _quality(self, meme):
            quality = self.strengths[self.name] - (3.0 if self.name == "beech" and int(meme) % 2 else 0.0)
            return f"quality={quality:.4f} voice={self.name}"

    fixed_tasks = {
        f"m{number}": (
            FixedTask(
                meme=f"m{number}",
                rounds=("Who is shown?",) * (1 + number % 7 // 6),
                language="fr" if number % 2 else "de",
                tags={"difficulty": str(number % 11), "field": "tea"},
            ),
        )
        for number in range(80)
    }
    voices = {name: Patchy(name, strengths) for name in strengths}
    arena = Arena(
        tmp_path_factory.mktemp("languages"),
        memes=80,
        strengths=strengths,
        judges=["ash", "cedar"],
        voices=voices,
        plan={"fixed_tasks": fixed_tasks},
        answers_per_task=3,
        own_case=True,
    )
    arena.hold()
    return arena


def test_weakness_is_reported_only_for_groups_that_show_it(by_language):
    found, rounds, field = boards_by(
        by_language.manifest(), by_language.folder.events(), ("language", "rounds", "field"), deals=499
    )
    assert [(group["name"], group["tasks"], group["memes"]) for group in found["groups"]] == [
        ("de", 40, 40),
        ("fr", 40, 40),
    ]
    assert found["shown"] and not any(group["not_rated"] for group in found["groups"])
    places = {group["name"]: [row.model for row in group["models"]] for group in found["groups"]}
    assert places["de"][0] == "beech" and places["fr"][-1] == "beech"
    language, by_rounds, by_field = (group_section(by, THREE).notes for by in (found, rounds, field))
    assert any(note.startswith("beech is stronger in de than elsewhere") for note in language)
    # Questions of two rounds are too few for ratings and comparisons.
    assert {group["name"]: bool(group["not_rated"]) for group in rounds["groups"]} == {"1": False, "2": True}
    assert any(f"{LEAST_TASKS} are wanted" in note for note in by_rounds) and not rounds["shown"]
    assert rounds["test"] is None is field["test"] and by_rounds[1] == by_field[1]
    assert "Fewer than two groups have questions enough" in by_field[1]


def test_groups_follow_from_tags_of_tasks_and_memes(by_language):
    manifest, events = by_language.manifest(), by_language.folder.events()
    assert groups_of(manifest, events, "difficulty")["m6", 0] == "hard (6 and more)"
    assert groups_of(manifest, events, "difficulty")["m5", 0] == "easy (below 6)"
    assert groups_of(manifest, events, "gold")["m1", 0] == "harmful"
    assert set(groups_of(manifest, events, "dataset").values()) == {"synthetic-harmeme"}
    assert set(groups_of(manifest, events, "rounds").values()) == {"1", "2"}
    assert groups_of(manifest, events, "relevance") == {} == groups_of(manifest, events, "colour")
    with pytest.raises(BadRequest, match=r"'colour'.*difficulty, field") as caught:
        boards_by(manifest, events, ("colour",))
    assert caught.value.reason == "GROUPS_MISSING"


@pytest.mark.slow
def test_group_without_finite_ratings_shows_win_rates_and_the_reason(tmp_path):
    far = {"ash": 90.0, "beech": 0.0, "cedar": 0.0}
    Arena(tmp_path, memes=64, strengths=far, judges=["beech", "cedar"], controller="beech", own_case=True).hold()
    report = ("arena", "--report", "--out", tmp_path, "--by")
    shown = output_of(*report, "relevance,gold")
    assert "By relevance" in shown and "no finite ratings" in shown
    page = (tmp_path / "leaderboard.html").read_text()
    assert "By gold" in page and "100 %" in page and "style=" not in page
    (by,) = json.loads(output_of(*report, "gold", "--json"))["by"]
    assert by["groups"][0]["models"][0]["rating"] is None and by["test"]["p"] > 0
    assert "'colour'" in output_of(*report, "colour", code=1)


def test_tags_are_stored_and_part_of_the_digest(by_language):
    tagged = next(event for event in by_language.folder.events() if event.kind == "TaskFormulated")
    assert (
        json.loads(json_line(tagged))["tags"]["field"] == "tea" and leaderboard(by_language.root).figures["tasks"] == 80
    )
    plain, about_tea = ([FixedTask(meme="m", rounds=("Who?",), tags=tags)] for tags in ({}, {"field": "tea"}))
    assert digest_of(plain) == digest_of(list(plain)) != digest_of(about_tea)
