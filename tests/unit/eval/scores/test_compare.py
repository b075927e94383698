"""Comparison of two runs: paired differences, McNemar's test, and its wording."""

import dataclasses
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import bootstrap

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.items import Level, Protocol
from eval.scores.compare import compare, in_words
from eval.scores.measure import mcnemar
from eval.scores.metrics import task_card
from tests.support.golden import check_figures
from tests.support.judged import F, H, N, U, results, write_run

NOT, SOME, VERY = Level
PLAIN = Protocol.PLAIN


def systems_with(both, only_a, only_b, neither):
    """Two systems on harmful memes, with these numbers right by both, one or neither."""
    answers_a = [H] * (both + only_a) + [N] * (only_b + neither)
    answers_b = [H] * both + [N] * only_a + [H] * only_b + [N] * neither
    gold = [True] * len(answers_a)
    return results(gold, answers_a, name="A"), results(gold, answers_b, name="B")


def test_right_and_wrong_memes_are_counted_for_both_systems():
    gold = [True, True, True, True, False, False, False, False]
    a = results(gold, [H, H, U, N, N, N, H, F], name="A")
    b = results(gold, [H, N, H, U, N, F, N, U], name="B")
    ours = compare(a, b, PLAIN)
    # Right: A on 0, 1, 4, 5; B on 0, 2, 4, 6. Undecided and failed memes count as wrong.
    assert (ours.both_right, ours.only_a_right, ours.only_b_right, ours.both_wrong) == (2, 2, 2, 2)
    assert ours.a["accuracy"] == ours.b["accuracy"] == 0.5 and ours.differences["accuracy"].value == 0.0
    assert [flip.meme for flip in ours.changed] == ["1", "2", "3", "5", "6", "7"]
    third = ours.changed[2]
    assert (third.gold, third.a, third.b) == (("harmful",), ("not harmful",), ("undecided",))
    assert ours.mcnemar_p == 1.0 and not ours.sure


def test_scores_match_those_of_single_runs():
    rng = np.random.default_rng(3)
    gold = (rng.random(80) < 0.4).tolist()
    a = results(gold, [(N, H, U, F)[code] for code in rng.choice(4, 80)], name="A")
    b = results(gold, [(N, H, U, F)[code] for code in rng.choice(4, 80)], name="B")
    ours, of_a, of_b = compare(a, b, PLAIN), task_card(a, PLAIN), task_card(b, PLAIN)
    assert ours.a["accuracy"] == pytest.approx(of_a.known("accuracy").value)
    assert ours.b["macro-f1"] == pytest.approx(of_b.known("macro-f1").value)
    for name in ("accuracy", "macro-f1"):
        assert ours.differences[name].value == pytest.approx(of_a.known(name).value - of_b.known(name).value)
    other_way = compare(b, a, PLAIN)
    assert other_way.differences["accuracy"].value == -ours.differences["accuracy"].value
    assert other_way.mcnemar_p == ours.mcnemar_p


def test_mcnemar_matches_full_enumeration():
    """The two-sided p-value sums all splits of the discordant memes that are no likelier than the observed one."""
    for a in range(9):
        for b in range(9):
            ways = [math.comb(a + b, k) for k in range(a + b + 1)]
            as_uneven = sum(way for way in ways if way <= ways[a])
            assert mcnemar(a, b) == pytest.approx(as_uneven / 2 ** (a + b))


def test_interval_matches_scipy_s_paired_bootstrap():
    rng = np.random.default_rng(8)
    gold = rng.random(200) < 0.4
    answers = [np.where(rng.random(200) < right, gold, ~gold) for right in (0.8, 0.72)]
    a, b = (
        results(gold.tolist(), [H if one else N for one in ours], name=name)
        for name, ours in zip("AB", answers, strict=True)
    )
    better = (answers[0] == gold).astype(float) - (answers[1] == gold)
    found = bootstrap((better,), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(1))
    ours = compare(a, b, PLAIN).differences["accuracy"]
    assert [ours.low, ours.high] == pytest.approx(list(found.confidence_interval), abs=0.011)
    assert ours.value == pytest.approx(better.mean())


def test_paired_interval_is_narrower_than_that_of_one_system():
    """Two systems right on nearly the same memes have a narrower interval of the difference than of each accuracy."""
    a, b = systems_with(600, 40, 10, 350)
    ours = compare(a, b, PLAIN)
    paired = ours.differences["accuracy"].high - ours.differences["accuracy"].low
    alone = task_card(a, PLAIN).known("accuracy")
    assert paired < 0.6 * (alone.high - alone.low)
    assert ours.sure and ours.differences["accuracy"].low > 0


def test_memes_of_a_group_are_resampled_together():
    gold = [True, False] * 60
    right = [[H, N] * 60, [H, N] * 40 + [N, H] * 20]
    alone = [results(gold, answers, name=name) for name, answers in zip("ab", right, strict=True)]
    over = [
        dataclasses.replace(
            one,
            judged=tuple(
                dataclasses.replace(each, meme=each.meme.model_copy(update={"group": f"g{place // 20}"}))
                for place, each in enumerate(one.judged)
            ),
        )
        for one in alone
    ]
    singly, whole = compare(*alone, Protocol.PLAIN), compare(*over, Protocol.PLAIN)
    assert (singly.groups, whole.groups) == (0, 6)
    assert whole.differences["accuracy"].value == singly.differences["accuracy"].value == pytest.approx(1 / 3)
    # Two of six groups are all wrong, so the difference is uncertain.
    assert whole.differences["accuracy"].low == 0 < singly.differences["accuracy"].low
    assert "6 groups" in " ".join(in_words(whole)) and "groups" not in " ".join(in_words(singly))


def test_system_compared_with_itself_has_no_difference():
    a, _ = systems_with(5, 2, 0, 3)
    ours = compare(a, a, PLAIN)
    for difference in (ours.differences["accuracy"], ours.differences["macro-f1"]):
        assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert ours.mcnemar_p == 1.0 and ours.changed == ()
    assert in_words(ours)[-1] == "They are right on the same memes: this test set can't tell them apart."


def test_only_memes_of_both_systems_are_compared():
    a = results([True, True, False], [H, H, N], ids=["a", "b", "c"], name="A")
    b = results([True, False, True], [N, N, H], ids=["b", "c", "d"], name="B")
    ours = compare(a, b, PLAIN)
    assert (ours.n, ours.left_out_a, ours.left_out_b) == (2, ("a",), ("d",))
    assert (ours.a["accuracy"], ours.b["accuracy"]) == (1.0, 0.5)
    words = in_words(ours)
    assert "1 meme that only A was asked about is not compared." in words
    assert "1 meme that only B was asked about is not compared." in words


def test_disjoint_memes_and_conflicting_gold_labels_are_refused():
    a = results([True, False], [H, N], name="A")
    with pytest.raises(BadRequest, match="share no meme"):
        compare(a, results([True], [H], ids=["x"], name="B"), PLAIN)
    with pytest.raises(BadRequest, match="disagree on the gold label of 1 memes, 1 among them"):
        compare(a, results([True, True], [H, N], name="B"), PLAIN)


def test_memes_dropped_by_a_protocol_are_not_reported_as_left_out():
    gold = [NOT, SOME, VERY]
    a, b = results(gold, [N, N, H], name="A"), results(gold, [N, H, H], name="B")
    extreme = compare(a, b, Protocol.EXTREME)
    assert (extreme.n, extreme.left_out_a, extreme.changed) == (2, (), ())
    assert [flip.meme for flip in compare(a, b, Protocol.MERGED).changed] == ["1"]


def test_wording_for_a_difference_within_noise():
    a, b = systems_with(300, 12, 9, 33)
    assert in_words(compare(a, b, PLAIN)) == [
        "Protocol plain, 354 memes: accuracy of A 0.881, of B 0.873; macro-f1 of A 0.468, of B 0.466.",
        "A is right on 12 memes that B gets wrong, B on 9 that A gets wrong; exact McNemar p = 0.664.",
        "The difference (A less B) is +0.008 [-0.017, +0.034] in accuracy, +0.002 [-0.005, +0.010] in macro-f1.",
        "In accuracy this is within noise: this test set can't tell them apart.",
    ]


def test_wording_for_a_significant_difference():
    a, b = systems_with(300, 5, 25, 24)
    assert in_words(compare(a, b, PLAIN))[-1] == (
        "B is better in accuracy by more than chance would often make of two systems that are as good."
    )


@pytest.fixture
def runs(tmp_path):
    gold = [NOT] * 30 + [SOME] * 20 + [VERY] * 10
    both = (Protocol.MERGED, Protocol.EXTREME)
    answers_a, answers_b = [N] * 30 + [H] * 30, [N] * 30 + [N] * 25 + [U] * 5
    write_run(tmp_path / "a", results(gold, answers_a, name="with precedents", protocols=both))
    write_run(tmp_path / "b", results(gold, answers_b, name="without", protocols=both))
    return tmp_path / "a", tmp_path / "b"


def run_compare(*words):
    outcome = CliRunner().invoke(cli, ["compare", *(str(word) for word in words)])
    return outcome.exit_code, outcome.output


def test_command_reports_each_protocol_and_flipped_memes(runs):
    code, output = run_compare(*runs)
    assert code == 0
    assert "Protocol merged, 60 memes: accuracy of with precedents 1.000, of without 0.500" in output
    assert "Protocol extreme, 40 memes:" in output
    assert "with precedents is better in accuracy by more than chance" in output
    lines = output.splitlines()
    header = next(line for line in lines if line.startswith("different"))
    assert header.split() == ["different", "gold", "with", "precedents", "without"]
    assert lines[lines.index(header) + 1].split() == ["30", "harmful", "harmful", "not", "harmful"]
    assert "and 10 more; --json lists all" in lines
    assert "59         harmful  harmful          undecided" in lines  # the last row, under extreme
    assert "A is" not in output  # both sides have the same data, so there is no note


def test_command_prints_everything_as_json(runs, request):
    code, output = run_compare(*runs, "--protocol", "extreme", "--json")
    check_figures(request, "compare", json.loads(output))
    (only,) = json.loads(output)["comparisons"]
    assert code == 0 and only["protocol"] == "extreme"
    assert (only["only_a_right"], only["only_b_right"], len(only["changed"])) == (10, 0, 10)
    assert only["mcnemar_p"] == pytest.approx(2 / 2**10)
    assert only["differences"]["accuracy"]["value"] == 0.25
    assert only["changed"][-1] == {"meme": "59", "gold": ["harmful"], "a": ["harmful"], "b": ["undecided"]}


def test_command_explains_what_cannot_be_compared(runs, tmp_path):
    assert "holds no run" in run_compare(runs[0], tmp_path / "nothing")[1]
    code, output = run_compare(*runs, "--protocol", "plain")
    assert code == 2 and "There is no protocol 'plain' here. There are: merged, extreme." in output
    write_run(tmp_path / "c", results([True], [H], ids=["30"], name="other"))
    code, output = run_compare(runs[0], tmp_path / "c")
    assert code == 1 and "were not run under the same protocol" in output
