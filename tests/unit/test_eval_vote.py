"""What a library's vote is worth, measured on memes whose labels are known."""

import asyncio
import csv
import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.vote import measure_left_out, measure_vote
from retrieval.build import build_library
from retrieval.sources import Source
from tests.encoders import WordEncoder

BAD = ["throw them out", "all of them lie", "kick them all out of town"]
GOOD = ["cake for everyone", "coffee on monday", "cake and coffee with friends"]


def wide():
    """So many dimensions that words which differ lie far apart."""
    return WordEncoder(text_dim=512)


def written(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", "text"])
        writer.writerows(rows)
    return path


def labelled(prefix, count, wrong=0):
    """Memes that the words give away, the first few labelled the other way round."""
    rows = []
    for number in range(count):
        for label, texts in (("harmful", BAD), ("not_harmful", GOOD)):
            other = {"harmful": "not_harmful", "not_harmful": "harmful"}[label]
            text = f"{texts[number % 3]} {prefix}{number}"
            rows.append([f"{prefix}-{label}-{number}", other if number < wrong else label, text])
    return rows


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vote")
    source = Source(written(folder / "train.csv", labelled("t", 20)))
    asyncio.run(build_library(folder / "library", [source], name="l", encoder=wide()))
    return folder / "library"


@pytest.fixture(autouse=True)
def words_instead_of_a_model(monkeypatch):
    monkeypatch.setattr("retrieval.builtin.BuiltinEncoder", wide)


def test_a_vote_is_scored_against_labels_it_has_not_seen(library, tmp_path):
    perfect = asyncio.run(measure_vote(library, Source(written(tmp_path / "a.csv", labelled("v", 10)))))
    assert (perfect.scores.n, perfect.scores.harmful, perfect.scores.accuracy.value) == (20, 10, 1.0)
    assert perfect.without_picture == 20 and perfect.same_text == 0
    # Two of ten labels of each kind are wrong: that is what the figure must say, to the digit.
    spoilt = asyncio.run(measure_vote(library, Source(written(tmp_path / "b.csv", labelled("v", 10, wrong=2)))))
    assert spoilt.scores.accuracy.value == pytest.approx(0.8)
    assert spoilt.scores.macro_f1.value == pytest.approx(0.8)


def test_what_stands_in_the_library_and_what_is_too_far_is_counted(library, tmp_path):
    rows = [*labelled("t", 2), ["far", "harmful", "zebra umbrella quartz"]]
    report = asyncio.run(measure_vote(library, Source(written(tmp_path / "c.csv", rows))))
    assert report.same_text == 4
    assert report.undecided == 1


def test_leaving_one_out_asks_about_the_library_s_own(library):
    scores = measure_left_out(library, twins_too=True)
    assert (scores.n, scores.majority) == (40, 0.5)
    assert scores.accuracy.value == 1.0


def test_the_command_tells_figures_with_intervals_and_the_majority(library, tmp_path):
    file = written(tmp_path / "d.csv", labelled("v", 10, wrong=2))
    told = CliRunner().invoke(cli, ["vote", str(library), str(file)])
    assert told.exit_code == 0
    assert "majority     0.500" in told.output and "accuracy     0.800  [" in told.output
    as_json = json.loads(CliRunner().invoke(cli, ["vote", str(library), "--leave-one-out", "--json"]).output)
    assert as_json["scores"]["n"] == 40
    assert CliRunner().invoke(cli, ["vote", str(library)]).exit_code == 2
    missing = CliRunner().invoke(cli, ["vote", str(tmp_path / "none"), str(file)])
    assert missing.exit_code == 1 and "no precedent library" in missing.output
