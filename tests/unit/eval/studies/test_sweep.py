"""Tests of choosing settings: refused splits, the best candidate, its equals, and how much the best owes to luck."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.card import SplitRole
from eval.datasets.items import Protocol
from eval.datasets.known import known_cards
from eval.scores.choose import TOO_FEW_DIFFER, choice_in_words, rank
from eval.scores.metrics import task_card
from eval.studies.sweeping import grid, parse_axis, parse_thresholds, require_not_test
from eval.synthetic.make import Layout, make
from tests.support import judged
from tests.support.encoders import WordEncoder
from tests.support.golden import check_figures
from tests.support.judged import F, H, N, U

PLAIN = Protocol.PLAIN


def results(name, gold, outcomes, scores=None):
    return judged.results(gold, outcomes, name=name, **{"score": scores} if scores else {})


def guessing(rng, gold, right):
    return [(H if harmful else N) if rng.random() < right else (N if harmful else H) for harmful in gold]


@pytest.mark.parametrize("dataset", known_cards(), ids=lambda dataset: dataset.id)
def test_test_and_train_splits_are_refused(dataset):
    for split in dataset.all_splits():
        if split.role is SplitRole.VALIDATION:
            require_not_test(dataset, split.name)
        else:
            with pytest.raises(BadRequest) as refused:
                require_not_test(dataset, split.name)
            assert refused.value.reason == "NOT_A_VALIDATION_SPLIT"
            assert all(validation.name in refused.value.message for validation in dataset.of_role(SplitRole.VALIDATION))
    with pytest.raises(BadRequest, match="no split 'other'"):
        require_not_test(dataset, "other")


def test_command_refuses_a_test_split_before_judging(tmp_path):
    result = CliRunner().invoke(
        cli,
        ["sweep", "--dataset", "harm-c", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--split", "test",
         "--grid", "exhibits=1,3"],
    )  # fmt: skip
    assert result.exit_code == 1 and "scores better than it is" in result.output
    assert not (tmp_path / "out").exists()


def test_grid_has_every_combination():
    arms = grid(dict([parse_axis("exhibits=1,3"), parse_axis("alpha=0,0.5,null")]))
    assert [arm.name for arm in arms][:3] == ["exhibits=1,alpha=0", "exhibits=1,alpha=0.5", "exhibits=1,alpha=none"]
    assert len(arms) == 6 and arms[-1].overlay == {"exhibits": 3, "alpha": None}
    assert [arm.name for arm in grid({})] == ["as-set"]
    with pytest.raises(BadRequest, match="each of them once"):
        grid({"alpha": [0.5, 0.5]})
    with pytest.raises(BadRequest, match="sets nothing"):
        parse_axis("exhibit=1,2")
    with pytest.raises(BadRequest, match="names no values"):
        parse_axis("exhibits=")


def test_thresholds_must_be_scores():
    assert parse_thresholds("0.5,0.25,0.5") == (0.5, 0.25)
    assert parse_thresholds("") == ()
    for text in ("x", "1.5", "nan"):
        with pytest.raises(BadRequest, match="no score"):
            parse_thresholds(text)


def test_candidates_are_ranked_and_scored_as_on_cards():
    rng = np.random.default_rng(0)
    gold = [bool(n % 3 == 0) for n in range(90)]
    runs = [results(f"r{n}", gold, guessing(rng, gold, right)) for n, right in enumerate((0.6, 0.9, 0.75))]
    halting = results("r3", gold, [U if n % 7 == 0 else F if n % 11 == 0 else H for n in range(90)])
    swept = rank([*runs, halting], PLAIN, (), resamples=2000, seed=1)
    assert [candidate.run for candidate in swept.ways] == ["r1", "r2", "r0", "r3"]
    for candidate in swept.ways:
        own_figures = task_card(
            next(run for run in [*runs, halting] if run.name == candidate.run), PLAIN, resamples=2000
        )
        assert candidate.value.value == pytest.approx(own_figures.known("macro-f1").value)
        assert candidate.accuracy == pytest.approx(own_figures.known("accuracy").value)
        assert candidate.coverage == pytest.approx(own_figures.known("coverage").value)
        assert candidate.value.low == pytest.approx(own_figures.known("macro-f1").low, abs=0.02)
        assert candidate.value.high == pytest.approx(own_figures.known("macro-f1").high, abs=0.02)
    assert swept.best.behind.value == swept.best.behind.high == 0 and swept.best.within_noise
    assert not swept.ways[-1].within_noise and swept.ways[-1].behind.low > 0


def test_thresholds_relabel_scored_memes_and_leave_the_others():
    gold = [True] * 5 + [False] * 5
    scores = [0.4, 0.4, 0.4, 0.4, None, 0.1, 0.1, 0.3, 0.3, None]
    swept = rank([results("r", gold, [N, N, N, N, H, N, N, N, N, U], scores)], PLAIN, (0.2, 0.35), resamples=100)
    by = {candidate.threshold: candidate for candidate in swept.ways}
    assert by[0.35].accuracy == 0.9 and by[0.2].accuracy == 0.7 and by[None].accuracy == 0.5
    assert {candidate.coverage for candidate in swept.ways} == {0.9}
    assert swept.best.threshold == 0.35
    bare = rank([results("r", gold, [H, N] * 5)], PLAIN, (0.2,), resamples=100)
    assert [candidate.threshold for candidate in bare.ways] == [None]


def test_single_candidate_is_not_flattered():
    gold = [bool(n % 2) for n in range(60)]
    swept = rank([results("r", gold, guessing(np.random.default_rng(0), gold, 0.7))], PLAIN, (), resamples=500)
    assert swept.flattered_by == 0
    assert "nothing to choose" in choice_in_words(swept)[0]


@pytest.mark.slow
def test_best_of_many_equals_is_flattered_by_about_the_estimate():
    """Thirty systems that are right about 70 % of all memes: any lead of the best is luck."""
    gold = [bool(n % 2) for n in range(200)]
    estimated, true = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        runs = [results(f"r{n}", gold, guessing(rng, gold, 0.7)) for n in range(30)]
        swept = rank(runs, PLAIN, (), resamples=300, seed=seed)
        estimated.append(swept.flattered_by)
        true.append(swept.best.value.value - 0.7)
        assert sum(candidate.within_noise for candidate in swept.ways) > 5
    # The true flattery is two standard errors of 200 memes, .065; the estimate is known to be a little cautious.
    assert np.mean(true) == pytest.approx(0.065, abs=0.015)
    assert 0.75 < np.mean(estimated) / np.mean(true) < 1.25


def test_clearly_best_candidate_owes_little_to_luck():
    gold = [bool(n % 2) for n in range(200)]
    rng = np.random.default_rng(0)
    runs = [results(f"r{n}", gold, guessing(rng, gold, 0.9 if n == 4 else 0.6)) for n in range(10)]
    swept = rank(runs, PLAIN, (), resamples=300)
    assert swept.best.run == "r4" and swept.flattered_by < 0.005
    assert sum(candidate.within_noise for candidate in swept.ways) == 1


def test_too_few_memes_of_a_class_are_refused_before_judging(tmp_path):
    data = make(tmp_path / "data", Layout.HARMEME, train=4, val=4, test=0, seed=2, size=(320, 240))
    words = ["--dataset", data.dataset, "--data", str(data.root), "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(cli, ["sweep", *words, "--grid", "alpha=0,1"])
    assert refused.exit_code == 1 and "too few to choose anything by" in refused.output
    assert not (tmp_path / "out").exists()


def test_runs_on_different_memes_are_refused():
    gold = [bool(n % 2) for n in range(20)]
    with pytest.raises(BadRequest, match="same memes"):
        rank([results("a", gold, [H] * 20), results("b", gold[:-2], [H] * 18)], PLAIN, ())


@pytest.mark.slow
def test_command_sweeps_without_a_model_and_extends_a_finished_sweep(tmp_path, monkeypatch, request):
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    data = make(tmp_path / "data", Layout.HARMEME, train=32, val=16, test=0, seed=2)
    options = [
        "sweep", "--dataset", data.dataset, "--data", str(data.root), "--out", str(tmp_path / "out"),
        "--protocol", "merged", "--thresholds", "0.4,0.6", "--concurrency", "2",
    ]  # fmt: skip
    environment = {"MEMECOURT_HOME": str(tmp_path / "home"), "MEMECOURT_PICTURE_WORKERS": "1"}
    first = CliRunner().invoke(cli, [*options, "--grid", "alpha=0,1"], env=environment)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0] == f"{data.dataset}, split val, protocol merged: 16 memes"
    assert any(line.startswith("Best of 6: alpha=") for line in lines)
    assert any(line.startswith("The best of many is flattered") for line in lines)
    finished = (tmp_path / "out" / "alpha=0" / "manifest.json").read_bytes()
    more = CliRunner().invoke(cli, [*options, "--grid", "alpha=0,1,0.5", "--json"], env=environment)
    assert more.exit_code == 0, more.output
    check_figures(request, "sweep", json.loads(more.stdout))
    found = json.loads(more.stdout)["merged"]
    assert {candidate["run"] for candidate in found["ways"]} == {"alpha=0", "alpha=1", "alpha=0.5"}
    assert len(found["ways"]) == 9 and found["n"] == 16
    assert (tmp_path / "out" / "alpha=0" / "manifest.json").read_bytes() == finished
    nothing = CliRunner().invoke(cli, ["sweep", *options[1:7], "--out", str(tmp_path / "x")], env=environment)
    assert nothing.exit_code == 2 and "nothing to choose from" in nothing.output


def test_small_differences_are_noise_and_groups_are_drawn_whole():
    gold = [bool(n % 2) for n in range(40)]
    right = [H if harmful else N for harmful in gold]

    def swept(wrong, group=0):
        worse = [N if outcome is H else H for outcome in right[:wrong]] + right[wrong:]
        runs = [results("right", gold, right), results("worse", gold, worse)]
        if group:
            for number, run in enumerate(runs):
                rows = [
                    replace(one, meme=one.meme.model_copy(update={"group": f"g{place // group}"}))
                    for place, one in enumerate(run.judged)
                ]
                runs[number] = replace(run, judged=tuple(rows))
        return rank(runs, PLAIN, (), resamples=500)

    for wrong, sure in ((5, False), (20, True)):
        best, worse = swept(wrong).ways
        assert (best.run, best.within_noise) == ("right", True)
        assert (worse.differing, worse.within_noise) == (wrong, not sure)
    assert swept(5).ways[1].behind.low > 0 and TOO_FEW_DIFFER in choice_in_words(swept(5))
    assert TOO_FEW_DIFFER not in choice_in_words(swept(20))
    # Twenty wrong memes of one group count as one independent observation.
    assert swept(20, group=20).ways[1].differing == 1 and swept(20, group=20).ways[1].within_noise
    wide, narrow = (swept(20, group=size).ways[1].value for size in (10, 1))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
