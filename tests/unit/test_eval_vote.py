"""What a library's vote is worth, measured on memes whose labels are known."""

import asyncio
import csv
import json

import pytest
from click.testing import CliRunner

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest
from eval.cli import cli
from eval.studies.vote import measure_left_out, measure_plain_votes, measure_vote
from retrieval.build import build_library
from retrieval.library.sources import Source
from retrieval.open import load_encoder
from retrieval.starter.draw import SCENES, draw_meme
from tests.support.encoders import WordEncoder

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
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", wide)


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


def test_templates_are_held_apart_where_the_encoder_tells_them(library, tmp_path):
    refused = CliRunner().invoke(cli, ["vote", str(library), "--leave-one-out", "--split", "template"])
    assert refused.exit_code == 1 and "Build it with --encoder builtin" in refused.output
    both = CliRunner().invoke(cli, ["vote", str(library), "--leave-one-out", "--keep-twins", "--split", "template"])
    assert both.exit_code == 2 and "leaves twins out" in both.output


@pytest.mark.slow
def test_a_vote_that_goes_by_templates_loses_where_they_are_held_apart(tmp_path, monkeypatch):
    """Scenes give the labels away, and words nothing: with the scene left out, the vote is no better than chance."""
    monkeypatch.undo()
    lines, pictures = [], tmp_path / "img"
    pictures.mkdir()
    for number in range(48):
        scene, harmful = SCENES[number % 8], number % 8 < 4
        draw_meme(scene, f"word {number}", seed=1).save(pictures / f"{number}.png")
        line = {"id": str(number), "image": f"{number}.png", "text": f"word {number}", "label": str(int(harmful))}
        lines.append(json.dumps(line) + "\n")
    (tmp_path / "memes.jsonl").write_text("".join(lines))
    encoder = load_encoder("builtin")
    source = Source(tmp_path / "memes.jsonl", pictures=pictures)
    asyncio.run(
        build_library(tmp_path / "library", [source], name="l", encoder=encoder, picture_reader=GuardedPictureReader())
    )
    together = measure_left_out(tmp_path / "library", twins_too=True)
    apart = measure_left_out(tmp_path / "library", twins_too=True, templates_too=True)
    assert together.accuracy.value >= 0.9 and apart.accuracy.value <= 0.6
    told = CliRunner().invoke(cli, ["vote", str(tmp_path / "library"), "--leave-one-out", "--split", "template"])
    assert told.exit_code == 0 and f"{apart.accuracy.value:.3f}" in told.output


def test_the_plain_vote_counts_each_of_the_k_nearest_the_same(library, tmp_path):
    file = written(tmp_path / "e.csv", labelled("v", 10, wrong=2))
    votes = asyncio.run(measure_plain_votes(library, Source(file), (1, 3, 25))).votes
    assert [one.k for one in votes] == [1, 3, 25]
    assert [one.scores.accuracy.value for one in votes] == [pytest.approx(0.8)] * 3
    with pytest.raises(BadRequest, match="odd"):
        asyncio.run(measure_plain_votes(library, Source(file), (1, 2)))


def test_near_duplicates_give_no_vote_where_that_is_asked(library, tmp_path):
    # Word for word as in the library, but with the other label: by themselves the twins are all wrong.
    twins = [[f"t{n}", "not_harmful", f"{BAD[n % 3]} t{n}"] for n in range(3)]
    file = written(tmp_path / "f.csv", [*twins, ["new", "harmful", f"{BAD[0]} anew"]])
    whole = asyncio.run(measure_plain_votes(library, Source(file), (1,)))
    without = asyncio.run(measure_plain_votes(library, Source(file), (1,), without_duplicates=True))
    assert whole.with_near is None and without.with_near == 3


def test_the_command_gives_a_line_for_each_k(library, tmp_path):
    file = str(written(tmp_path / "g.csv", labelled("v", 10, wrong=2)))
    told = CliRunner().invoke(cli, ["vote", str(library), file, "--k", "1,3", "--without-near-duplicates"])
    assert told.exit_code == 0, told.output
    assert "  1  0.800 [" in told.output and "  3  0.800 [" in told.output and "near  " in told.output
    assert CliRunner().invoke(cli, ["vote", str(library), file, "--k", "2"]).exit_code == 1
    assert CliRunner().invoke(cli, ["vote", str(library), file, "--k", "one"]).exit_code == 2
    assert CliRunner().invoke(cli, ["vote", str(library), file, "--without-near-duplicates"]).exit_code == 2
