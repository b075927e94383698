"""The accuracy of a library's vote, measured on memes with known labels."""

import asyncio
import csv
import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.studies.vote import measure_vote
from retrieval.build import build_library
from retrieval.library.sources import Source
from tests.support.encoders import WordEncoder

BAD = ["throw them out", "all of them lie", "kick them all out of town"]
GOOD = ["cake for everyone", "coffee on monday", "cake and coffee with friends"]


def wide_encoder():
    """Returns an encoder with so many dimensions that different words lie far apart."""
    return WordEncoder(text_dim=512)


def write_memes(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", "text"])
        writer.writerows(rows)
    return path


def labelled(prefix, count, wrong=0):
    """Returns memes whose words give their label away; the first ``wrong`` of each kind carry the opposite label."""
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
    source = Source(write_memes(folder / "train.csv", labelled("t", 20)))
    asyncio.run(build_library(folder / "library", [source], name="l", encoder=wide_encoder()))
    return folder / "library"


@pytest.fixture(autouse=True)
def word_encoder(monkeypatch):
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", wide_encoder)


def test_vote_is_scored_against_labels_unknown_to_the_library(library, tmp_path):
    perfect = asyncio.run(measure_vote(library, Source(write_memes(tmp_path / "a.csv", labelled("v", 10)))))
    assert (perfect.n, perfect.harmful, perfect.accuracy.value) == (20, 10, 1.0)
    assert perfect.without_picture == 20 and perfect.same_text == 0
    # Two of ten labels of each kind are wrong, and the figure must show exactly that.
    spoilt = asyncio.run(measure_vote(library, Source(write_memes(tmp_path / "b.csv", labelled("v", 10, wrong=2)))))
    assert spoilt.accuracy.value == pytest.approx(0.8)
    assert spoilt.macro_f1.value == pytest.approx(0.8)


def test_memes_also_in_the_library_and_undecided_ones_are_counted(library, tmp_path):
    rows = [*labelled("t", 2), ["far", "harmful", "zebra umbrella quartz"]]
    report = asyncio.run(measure_vote(library, Source(write_memes(tmp_path / "c.csv", rows))))
    assert report.same_text == 4
    assert report.undecided == 1


def test_command_prints_figures_with_intervals_and_the_majority(library, tmp_path):
    file = write_memes(tmp_path / "d.csv", labelled("v", 10, wrong=2))
    outcome = CliRunner().invoke(cli, ["vote", str(library), str(file)])
    assert outcome.exit_code == 0
    rows = dict(line.strip().split(maxsplit=1) for line in outcome.output.splitlines() if line.strip())
    assert rows["majority"] == "0.500" and rows["accuracy"].startswith("0.800 [")
    as_json = json.loads(CliRunner().invoke(cli, ["vote", str(library), str(file), "--json"]).output)
    assert as_json["n"] == 20
    assert CliRunner().invoke(cli, ["vote", str(library)]).exit_code == 2
    missing = CliRunner().invoke(cli, ["vote", str(tmp_path / "none"), str(file)])
    assert missing.exit_code == 1 and "no precedent library" in missing.output
