"""Functional tests: their cases, passing rates of known behaviours, and the path from a run to figures."""

import csv
import json
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageChops

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.known import find_card, recognised
from eval.datasets.read import read_split
from eval.scores.functional import functional_scores
from eval.synthetic.functional import CONTRAST, DATASET, TITLES, cases, draw_case, read_key, write_functional
from eval.synthetic.world import GROUPS
from tests.support.judged import F, H, N, U, results

CASES = cases(6, 0)


def invoke(*args, code=0, **env):
    ran = CliRunner().invoke(cli, [str(arg) for arg in args], env=env)
    assert ran.exit_code == code, ran.output
    return ran.output


def results_of(reply_for, name="ours"):
    return results(
        [case.harmful for case in CASES], [reply_for(case) for case in CASES], ids=[c.id for c in CASES], name=name
    )


def label_of(case):
    return H if case.harmful else N


def test_each_functionality_has_equally_many_cases_of_one_label():
    counts = Counter(case.functionality for case in CASES)
    assert set(counts) == set(TITLES) and set(counts.values()) == {6}
    labels = defaultdict(set)
    for case in CASES:
        labels[case.functionality].add(case.harmful)
    assert all(len(own) == 1 for own in labels.values())
    assert cases(6, 0) == CASES != cases(6, 1)
    assert len({case.id for case in CASES}) == len(CASES)


def test_contrast_set_differs_only_in_caption_and_sign():
    sets = defaultdict(list)
    for case in CASES:
        if case.contrast is not None:
            sets[case.contrast].append(case)
    assert len(sets) == 6
    for own in sets.values():
        assert [case.functionality for case in own] == list(CONTRAST) and [c.harmful for c in own] == [True] + [
            False
        ] * 3
        assert len({(case.scene, case.seed) for case in own}) == 1
        attack, things, kind, kind_things = own
        assert attack.caption == things.caption != kind.caption == kind_things.caption
        assert attack.sign == kind.sign != things.sign == kind_things.sign
        # The caption names no group: without the picture, attack and complaint are the same.
        assert not any(group in attack.caption for group in GROUPS) and any(group in attack.sign for group in GROUPS)
        box = ImageChops.difference(draw_case(attack), draw_case(things)).getbbox()
        assert box and box[0] >= 0.15 * 640 and box[2] <= 0.85 * 640 and box[1] >= 0.4 * 480 and box[3] <= 0.6 * 480


def test_cases_name_only_invented_groups():
    for case in CASES:
        assert "{" not in case.caption and "}" not in case.caption
        if case.harmful and case.contrast is None:
            assert any(group in case.caption for group in GROUPS)


def contrast(found):
    """Shares of whole sets, and of pairs told by the picture and by the words."""
    return [figure.value for figure in found.contrast.values()]


def test_perfect_system_passes_every_case():
    found = functional_scores(CASES, results_of(label_of))
    assert found.passed.value == 1 and found.passed.low < 1
    assert (found.sets, contrast(found)) == (6, [1, 1, 1])


def test_system_blind_to_pictures_passes_no_pair_that_only_the_picture_separates():
    attacks = {case.caption for case in CASES if case.functionality == CONTRAST[0]}
    blind = functional_scores(CASES, results_of(lambda case: H if case.caption in attacks or case.harmful else N))
    rates = {one.id: one.passed.value for one in blind.functionalities}
    assert rates[CONTRAST[0]] == 1 and rates[CONTRAST[1]] == 0 and rates["derogation"] == 1
    assert contrast(blind) == [0, 0, 1]


def test_system_that_always_answers_harmful_passes_only_harmful_cases():
    found = functional_scores(CASES, results_of(lambda _: H))
    assert found.passed.value == found.always_harmful == np.mean([case.harmful for case in CASES])
    assert contrast(found) == [0, 0, 0]


def test_undecided_and_failed_cases_do_not_pass():
    found = functional_scores(CASES, results_of(lambda case: U if case.harmful else F))
    assert found.passed.value == 0 and sum(one.silent for one in found.functionalities) == len(CASES)


def test_predictions_of_other_cases_are_refused():
    with pytest.raises(BadRequest, match=r"other functional tests"):
        functional_scores([], results_of(label_of))
    flipped = results([not case.harmful for case in CASES], [H] * len(CASES), ids=[case.id for case in CASES])
    with pytest.raises(BadRequest, match="labels differ"):
        functional_scores(CASES, flipped)
    part = results([CASES[0].harmful], [H], ids=[CASES[0].id])
    with pytest.raises(BadRequest, match=r"has not judged 107 of 108 cases.*without --limit"):
        functional_scores(CASES, part)


@pytest.mark.slow
def test_drawn_tests_yield_pass_rates_of_a_court_and_of_foreign_predictions(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.commands.synthetic.write_functional", partial(write_functional, count=1))
    output = invoke("synthetic", tmp_path / "tests", "--layout", "functional")
    assert "18 cases of 18 functionalities, 8 of them harmful" in output
    (dataset,) = recognised(tmp_path / "tests")
    assert dataset.id == DATASET
    key = read_key(tmp_path / "tests")
    read = read_split(find_card(DATASET), tmp_path / "tests", "test")
    assert not read.problems and [(m.id, m.harmful, m.text) for m in read.memes] == [
        (case.id, case.harmful, case.caption) for case in key
    ]
    with Image.open(tmp_path / "tests" / read.memes[0].image) as picture:
        assert not ImageChops.difference(picture.convert("RGB"), draw_case(key[0])).getbbox()
    home = {"MEMECOURT_HOME": str(tmp_path / "home")}
    invoke("run", "--dataset", DATASET, "--data", tmp_path / "tests", "--out", tmp_path / "court", **home)
    file = tmp_path / "oracle.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([("id", "label"), *((case.id, int(case.harmful)) for case in key)])
    invoke(
        *("score", file, "--dataset", DATASET, "--data", tmp_path / "tests", "--split", "test"),
        *("--out", tmp_path / "oracle"),
    )
    score = ("functional", tmp_path / "tests", tmp_path / "court", tmp_path / "oracle")
    output = invoke(*score, "--html", tmp_path / "page.html")
    assert "attack-on-shown-group" in output and "whole sets right" in output
    assert "quoted-to-refuse" in (tmp_path / "page.html").read_text()
    court, oracle = json.loads(invoke(*score, "--json"))["systems"]
    assert oracle["passed"]["value"] == 1 and 0 < court["passed"]["value"] < 1
    assert "holds no functional tests" in invoke("functional", tmp_path, tmp_path / "court", code=1)


def test_functional_tests_are_written_only_into_an_empty_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="not empty"):
        write_functional(tmp_path)
