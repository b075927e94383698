"""Annotator agreement, soft labels, label noise and subgroups, against other implementations and planted effects."""

import json
import random
from dataclasses import replace

import krippendorff
import numpy as np
import pytest
from click.testing import CliRunner
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from court.errors import BadRequest
from eval.cli import cli
from eval.commands.ablate import _shown, compared_with_first
from eval.datasets.items import Prediction, Protocol
from eval.reports.label_sections import annotators_section
from eval.reports.sections import as_text
from eval.reports.tasks import gather
from eval.runs.results import Judged
from eval.scores.annotators import (
    alpha,
    alpha_figure,
    annotator_agreement,
    harm_shares,
    soft_labels,
    soft_scores,
    votes_of,
)
from eval.scores.label_noise import find_label_noise
from eval.scores.measure import holm, wilson
from eval.scores.meme_rows import read_meme_rows
from eval.scores.subgroups import NONE, SHARES, groups_of, subgroup_tables
from tests.support.judged import F, H, N, U, meme, results, write_run


def invoke(*args, code=0):
    ran = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert ran.exit_code == code, ran.output
    return ran.output


# Krippendorff's alpha


@pytest.mark.parametrize("scale", ["nominal", "ordinal"])
@pytest.mark.parametrize("seed", range(4))
def test_alpha_matches_the_krippendorff_package(scale, seed):
    rng = random.Random(seed)
    # Five annotators, some of whom skip some of forty items; three values, unevenly used.
    table = [[rng.choice([0, 0, 1, 2, None]) for _ in range(5)] for _ in range(40)]
    matrix = np.array([[np.nan if v is None else v for v in row] for row in table], dtype=float).T
    theirs = krippendorff.alpha(reliability_data=matrix, level_of_measurement=scale)
    ours = alpha([[v for v in row if v is not None] for row in table], scale)
    assert ours == pytest.approx(theirs)


def test_interval_of_alpha_matches_resampling_of_items():
    rng = np.random.default_rng(2)
    items = [["a" if rng.random() < p else "b" for _ in range(3)] for p in rng.choice([0.1, 0.5, 0.9], 80)]
    ours = alpha_figure(items, "nominal", resamples=2000)
    drawn = [alpha([items[i] for i in rng.integers(0, 80, 80)], "nominal") for _ in range(600)]
    assert ours.value == alpha(items, "nominal")
    assert [ours.low, ours.high] == pytest.approx(list(np.percentile(drawn, [2.5, 97.5])), abs=0.03)
    assert alpha_figure([["a", "a"], ["a"]], "nominal") is None


# Annotators


def votes(table):
    """Returns votes from a mapping of memes to labels, by annotators called p0, p1 …"""
    return votes_of((meme, f"p{who}", label) for meme, labels in table.items() for who, label in enumerate(labels))


TABLE = {"m1": "hhh", "m2": "hhn", "m3": "nnn", "m4": "hn", "m5": "h"}


def test_agreement_of_annotators_matches_figures_by_hand():
    section, found = annotators_section(votes(TABLE), annotator_agreement(votes(TABLE)))
    assert [found[name] for name in ("memes", "paired", "annotators", "votes")] == [5, 4, 3, 12]
    assert found["labels"] == {"h": 7, "n": 5} and section.notes[0] == "Labels given: 7 h, 5 n."
    # Shares of agreeing pairs: all, one of three, all, none.
    assert found["pairs"].value == pytest.approx((1 + 1 / 3 + 1 + 0) / 4)
    assert found["unanimous"].value == 0.5
    # Against the others: 3 of 3; of hhn only the n has a majority, against it; 3 of 3; 0 of 2.
    assert found["ceiling"].value == pytest.approx((3 + 0 + 3 + 0) / (3 + 1 + 3 + 2))


def test_unanimous_annotators_still_leave_a_wide_interval():
    found = annotator_agreement(votes({f"m{n}": "hhh" for n in range(10)}))
    for figure in (found["pairs"], found["unanimous"], found["ceiling"]):
        # The interval is over memes, not over votes.
        assert (figure.value, figure.low, figure.high) == (1, pytest.approx(0.025 ** (1 / 10)), 1)
    # Two memes, unanimous on both: alpha is 1, and would be -1/2 with disagreement on both (1 - 4 / (8/3)).
    both = annotator_agreement(votes({"h": "hh", "n": "nn"}))["alpha"]
    assert both.value == 1
    assert (both.low, both.high) == (pytest.approx(-0.5 + 1.5 * 0.025 ** (1 / 2)), 1)
    apart = annotator_agreement(votes({"m": "hn"}))["unanimous"]
    assert (apart.value, apart.low, apart.high) == (0, 0, pytest.approx(0.975))


def test_soft_labels_are_shares_and_an_annotator_s_last_vote_counts():
    rows = [(meme, who, label) for meme, by_who in votes(TABLE).items() for who, label in by_who.items()]
    soft = soft_labels(votes_of([*rows, ("m2", "p2", "h")]))
    assert soft["m2"] == {"h": 1.0} and soft["m4"] == {"h": 0.5, "n": 0.5}
    assert harm_shares(soft, ["h"]) == {"m1": 1.0, "m2": 1.0, "m3": 0.0, "m4": 0.5, "m5": 1.0}


def test_labels_of_unclear_meaning_need_to_be_declared_harmful():
    soft = soft_labels(votes(TABLE))
    with pytest.raises(BadRequest, match=r"'h' is harmful.*--harmful"):
        harm_shares(soft)
    with pytest.raises(BadRequest, match=r"No annotator gave the label x; there are: h, n"):
        harm_shares(soft, ["x"])
    assert harm_shares(soft_labels(votes({"m": ["hateful", "0", "Not hateful"]}))) == {"m": pytest.approx(1 / 3)}
    assert annotator_agreement({}) == dict.fromkeys(("alpha", "pairs", "unanimous", "ceiling"))


def test_soft_scores_match_figures_by_hand():
    ours = results([True, True, False, False, True], [H, N, U, H, H], ids=["m1", "m2", "m3", "m4", "m6"],
                   score=[1.0, 0.25, None, 0.5, 0.9])  # fmt: skip
    shares = {"m1": 1.0, "m2": 0.75, "m3": 0.0, "m4": 0.5}
    found = soft_scores(ours.judged, shares)
    assert (found["scored"], found["even"], found["without_votes"]) == (3, 1, 1)
    assert found["brier"].value == pytest.approx((0 + 0.25 + 0) / 3)
    # Unanimous: m1 right, m3 undecided and so wrong. Contested: m2 wrong. m4 is even.
    assert (found["unanimous"].value, found["contested"].value) == (0.5, 0.0)


def test_votes_are_read_and_compared_with_a_run(tmp_path):
    file = tmp_path / "votes.csv"
    lines = [f"{m},p{i},{'harmful' if label == 'h' else 'not_harmful'}" for m, ls in TABLE.items()
             for i, label in enumerate(ls)]  # fmt: skip
    file.write_text("id,annotator,label\n" + "\n".join(lines) + "\n")
    write_run(tmp_path / "run", results([True, False], [H, N], ids=["m1", "m3"], score=[0.9, 0.2]))
    output = invoke("labels", "annotators", file, tmp_path / "run", "--html", tmp_path / "page.html")
    assert "Krippendorff’s α" in output and "accuracy, unanimous" in output
    assert "Krippendorff" in (tmp_path / "page.html").read_text()
    found = json.loads(invoke("labels", "annotators", file, tmp_path / "run", "--json"))
    assert found["soft_labels"]["m4"] == {"harmful": 0.5, "not_harmful": 0.5}
    # A table of memes with a row for each rater holds the same votes under other names.
    table = tmp_path / "memes.csv"
    table.write_text("Filename,Rater,Toxicity,text\n" + "".join(f"{line},a pond\n" for line in lines))
    named = [f"--column={one}" for one in ("id=Filename", "annotator=rater", "label=toxicity")]
    assert json.loads(invoke("labels", "annotators", table, *named, "--json"))["agreement"] == found["agreement"]
    assert found["runs"][0]["unanimous"]["value"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,label\nm1,h\n", "line 1: the header must name id, annotator and label"),
        ("id,annotator,label\nm1,,h\nm2,p1,h,x\n", "line 2: annotator is empty"),
        ('{"id": "m1", "annotator": {}, "label": "h"}\n', "line 1: annotator is empty, or neither a word nor a whole"),
        ("", "it holds no rows"),
    ],
)
def test_unusable_rows_are_reported_by_line(tmp_path, content, message):
    file = tmp_path / "rows.csv"
    file.write_text(content)
    with pytest.raises(BadRequest) as error:
        read_meme_rows(file, ("id", "annotator", "label"), "votes")
    assert message in error.value.message


# Label noise


def noisy_memes(flipped=20, n=400):
    """Returns memes some of which have a wrong label, and probabilities of a system that is right in 95 % of cases."""
    rng = np.random.default_rng(5)
    truth = rng.random(n) < 0.5
    wrong = set(rng.choice(n, flipped, replace=False).tolist())
    right = rng.random(n) < 0.95
    p = np.where(truth == right, rng.uniform(0.75, 0.99, n), rng.uniform(0.01, 0.25, n))
    return [(str(i), bool(truth[i]) != (i in wrong), float(p[i])) for i in range(n)], {str(i) for i in wrong}


@pytest.mark.slow
def test_planted_wrong_labels_are_found():
    memes, wrong = noisy_memes()
    found = find_label_noise([*memes, ("unscored", True, None)])
    listed = {one.id for one in found.noisy}
    assert (found.n, found.without) == (400, 1)
    assert len(listed & wrong) >= 17 and len(listed) <= 50
    support = [one.probability if one.harmful else 1 - one.probability for one in found.noisy]
    assert support == sorted(support)
    clean = find_label_noise(noisy_memes(flipped=0)[0])
    assert len(clean.noisy) < len(found.noisy) and clean.harmful_wrong < found.harmful_wrong


def test_label_noise_of_few_memes_is_refused():
    with pytest.raises(BadRequest, match="label noise needs 20 of each"):
        find_label_noise([("1", True, 0.4), ("2", False, 0.1)])


@pytest.mark.slow
def test_label_noise_of_several_runs_uses_the_mean_of_their_scores(tmp_path):
    memes, wrong = noisy_memes(n=200, flipped=10)
    gold, scores = [harmful for _, harmful, _ in memes], [p for *_, p in memes]
    for name in ("a", "b"):
        write_run(tmp_path / name, results(gold, [H] * 200, name=name, score=scores))
    found = json.loads(invoke("labels", "noise", tmp_path / "a", tmp_path / "b", "--json"))
    assert len({one["id"] for one in found["by_label"]["harmful"]["noisy"]} & wrong) >= 8
    output = invoke("labels", "noise", tmp_path / "a", "--show", 1)
    assert "labels are likely wrong" in output and "more are not shown" in output
    write_run(tmp_path / "c", results([not harmful for harmful in gold], [H] * 200, score=scores))
    assert "disagree on the gold label" in invoke("labels", "noise", tmp_path / "a", tmp_path / "c", code=1)


# Subgroups


def test_holm_and_wilson_match_statsmodels():
    rng = np.random.default_rng(0)
    ps = rng.random(12) ** 3
    assert holm(ps.tolist()) == pytest.approx(multipletests(ps, method="holm")[1].tolist())
    for count, n in ((0, 5), (3, 7), (40, 40)):
        ours = wilson(count, n)
        assert (ours.low, ours.high) == pytest.approx(proportion_confint(count, n, method="wilson"))
    assert holm([]) == [] and wilson(0, 0) is None


def test_subgroups_match_figures_by_hand():
    ours = results([True, True, False, False, False], [H, U, H, N, F], ids="abcde")
    (table,) = subgroup_tables(ours, {"a": ["x"], "b": ["x", "y"], "c": ["x"], "d": []}, Protocol.PLAIN)
    x, none, y = table.groups
    assert [(g.name, g.n, g.harmful) for g in table.groups] == [("x", 3, 2), (NONE, 2, 0), ("y", 1, 1)]
    shares = {share: (x.shares[share].count, x.shares[share].n, x.shares[share].rest) for share in SHARES[:3]}
    assert shares == {"accuracy": (1, 3, 0.5), "false_alarms": (1, 1, 0.0), "misses": (1, 2, None)}
    assert x.shares["misses"].p is None
    assert none.shares["misses"].figure is None and y.shares["silent"].figure.value == 1


def test_only_the_group_that_is_treated_worse_is_found():
    """Forty groups of 50 memes, one with false alarms on half of its memes: uncorrected, others stand out by chance."""
    rng = random.Random(6)
    gold, predicted, groups = [], [], {}
    for number in range(40):
        for _ in range(50):
            groups[str(len(gold))] = [f"g{number}"]
            gold.append(rng.random() < 0.4)
            wrong = rng.random() < (0.5 if number == 3 and not gold[-1] else 0.1)
            predicted.append(H if gold[-1] != wrong else N)
    (table,) = subgroup_tables(results(gold, predicted), groups, Protocol.PLAIN)
    assert {g.name for g in table.groups if g.shares["false_alarms"].sure} == {"g3"}
    assert not any(g.shares["misses"].sure for g in table.groups)
    assert any(g.name != "g3" and g.shares[one].p < 0.05 for g in table.groups for one in ("false_alarms", "misses"))
    # No meme is undecided: that is not tested, and costs nothing in the correction.
    assert table.tests == 120 and all(g.shares["silent"].p is None for g in table.groups)


def test_memes_are_grouped_by_their_properties():
    one = meme("1", True).model_copy(update={"text": "Синие люди", "targets": ("a", "b")})
    two = meme("2", False).model_copy(update={"text": "blue people"})
    run = results([], [])
    run = replace(run, judged=tuple(Judged(each, Prediction(meme=each.id, outcome=H)) for each in (one, two)))
    assert groups_of(run, "script") == {"1": ("cyrillic",), "2": ("latin",)}
    assert groups_of(run, "target") == {"1": ("a", "b"), "2": (NONE,)}
    with pytest.raises(BadRequest, match="by 'colour'; there are: label, language, script"):
        groups_of(run, "colour")


def test_subgroups_are_shown(tmp_path):
    write_run(tmp_path / "run", results([True, False] * 40, [H] * 80))
    output = invoke("subgroups", tmp_path / "run", "--by", "split", "--html", tmp_path / "page.html")
    assert "No group differs from the others" in output and "test" in (tmp_path / "page.html").read_text()
    found = json.loads(invoke("subgroups", tmp_path / "run", "--by", "label", "--json"))
    (table,) = found["tables"]
    assert {group["name"] for group in table["groups"]} == {"True", "False"}


# Multiple comparisons


def arms(*odd, n=60):
    """Returns a run that is right about everything, and arms that are wrong about the first so many memes."""
    gold = [True, False] * (n // 2)
    right = [H, N] * (n // 2)
    wrong = [[N if (label is H) else H for label in right[:count]] + right[count:] for count in odd]
    return [results(gold, labels, name=name) for name, labels in zip("abcde", [right, *wrong], strict=False)]


def test_ablation_names_the_arms_that_differ_after_correction():
    """Six memes of sixty give p = .031, insignificant as one test of four; twenty give .000002."""
    found = arms(6, 20, 0, 0)
    by_protocol = {Protocol.PLAIN: compared_with_first(found, Protocol.PLAIN, 0)}
    shown = _shown(found[0], by_protocol, 0)
    output = as_text(shown.lead, shown.sections)
    assert "These are 4 tests at 5 %" in output and "After Holm's correction for that many: c." in output
    rows = shown.figures["plain"]
    assert [row["corrected_p"] < 0.05 for row in rows] == [False, False, True, False, False]
    assert rows[1]["mcnemar_p"] < 0.05 and rows[1]["corrected_p"] == pytest.approx(3 * rows[1]["mcnemar_p"])


def test_report_names_the_comparisons_that_hold_after_correction():
    ((table,),) = (group.tables for group in gather(arms(6, 6, 20), resamples=200).groups)
    sentences = table.remarks
    assert "These are 3 comparisons" in sentences[-1]
    # Six memes of sixty give p = .031, insignificant as one test of three.
    assert sentences[-1].endswith("correction for that many: d.")


def test_rounding_does_not_miss_shares_of_all_or_half_of_the_annotators():
    labels = ["very harmful"] * 3 + ["harmful"] * 2 + ["somewhat harmful"]
    shares = harm_shares(soft_labels(votes({"m": labels, "even": [*labels, *["not harmful"] * 6]})))
    assert shares == {"m": 1.0, "even": 0.5}
