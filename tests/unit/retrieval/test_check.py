"""Checks of a library: faults are found, and no text of its memes is printed."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from court.precedents import MinSimilarity, VoteSettings
from court.verdict import Label
from retrieval.audit.library_check import Conflict, check_library
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from serving.cli.main import cli
from tests.support.encoders import WordEncoder, png_of

ENCODER = WordEncoder(text_dim=512)
DIM = ENCODER.identity.text_dim
RED, BLUE = png_of((250, 5, 5), (5, 250, 5)), png_of((5, 5, 250), (250, 5, 5))
MARK = "whisker"


def library_of(root, memes):
    """A library of memes given as (id, harmful, text, PNG or None, digest of the pixels)."""
    rows, labelled = np.zeros((len(memes), ENCODER.identity.dim), np.float32), []
    for row, (id_, harmful, text, png, pixels) in zip(rows, memes, strict=True):
        row[:DIM] = ENCODER.embed_texts([text]).vectors[0]
        if png:
            row[DIM:] = ENCODER.embed_pictures([[png]])[0]
        label = Label.HARMFUL if harmful else Label.NOT_HARMFUL
        labelled.append(
            LabelledMeme(
                id=id_, label=label, text=text, pixels_sha256=pixels, has_text=bool(text), has_picture=png is not None
            )
        )
    tuning = Tuning(
        alpha=0.5,
        vote=VoteSettings(k=5, tau=0.1, prior=0.5, prior_weight=0.2),
        floors=MinSimilarity(text=0.3, picture=0.5),
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    return Library.create(root, name="n", encoder=ENCODER.identity, memes=labelled, rows=rows, tuning=tuning)


def texts(*memes):
    return [(id_, harmful, text, None, "") for id_, harmful, text in memes]


CLEAN = texts(
    *((f"bad{n}", True, f"kick all of them out {n}") for n in range(6)),
    *((f"good{n}", False, f"{MARK} cake for everyone {n}") for n in range(6)),
)


def test_library_without_faults_is_clean(tmp_path):
    found = check_library(library_of(tmp_path, CLEAN))
    assert found.clean and (found.memes, found.near_empty, found.leaks) == (12, (), None)


def test_duplicates_and_conflicts_are_distinguished(tmp_path):
    twice = texts(("again", True, "Kick ALL of them  out 0"), ("other", False, "kick all of them out 1"))
    found = check_library(library_of(tmp_path, [*CLEAN, *twice]))
    assert found.duplicates == (("bad0", "again"),)
    assert Conflict("bad1", "other", True) in found.conflicts and len(found.conflicts) == 1


def test_near_duplicates_conflict_only_if_picture_and_text_are_similar(tmp_path):
    words = "one two three four five six seven eight"
    memes = [
        ("a", True, words, RED, "p1"),
        ("b", False, f"{words} nine", RED, "p2"),  # similar in both
        ("c", False, f"{words} ten", BLUE, "p3"),  # another picture
        ("d", False, "zebra umbrella", RED, "p4"),  # another text
        ("e", True, "", RED, "p5"),
        ("f", False, "", RED, "p6"),  # no texts: the picture decides
    ]
    found = check_library(library_of(tmp_path, memes))
    assert {(one.harmful, one.not_harmful, one.same) for one in found.conflicts} == {
        ("a", "b", False),
        ("e", "f", False),
    }


def test_label_contradicted_by_neighbours_is_suspicious(tmp_path):
    found = check_library(library_of(tmp_path, [*CLEAN, *texts(("wrong", False, "kick all of them out 9"))]))
    assert found.suspicious[0].id == "wrong"
    assert found.suspicious[0].probability > 0.9 and not found.suspicious[0].harmful
    with pytest.raises(ValueError, match="suspicious"):
        check_library(library_of(tmp_path / "b", CLEAN), sure=0.5)


def test_meme_far_from_all_but_its_duplicate_is_reported(tmp_path):
    far = texts(("far", True, "zebra umbrella quartz"), ("twin", True, "Zebra umbrella QUARTZ"))
    found = check_library(library_of(tmp_path, [*CLEAN, *far]))
    assert found.near_empty == ("far", "twin")


def rows(path, *memes):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "label", "text"], *memes])
    return path


def run_check(*arguments):
    return CliRunner().invoke(cli, ["precedents", "check", *map(str, arguments)])


def test_command_prints_only_ids_and_reports_findings_by_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", lambda: ENCODER)
    library_of(tmp_path / "l", CLEAN)
    assert run_check(tmp_path / "l").exit_code == 0
    other = rows(tmp_path / "other.csv", ["x", "harmful", "something else entirely"])
    assert run_check(tmp_path / "l", "--against", other).exit_code == 0
    judged = rows(
        tmp_path / "judged.csv",
        ["good1", "not_harmful", "about nothing"],
        ["x", "harmful", f"{MARK} CAKE for everyone 2"],
    )
    ran = run_check(tmp_path / "l", "--against", judged)
    assert ran.exit_code == 1, ran.output
    assert "good1 (of good1)" in ran.output and "good2 (of x)" in ran.output
    assert MARK not in ran.output and "cake" not in ran.output.casefold()
    as_json = run_check(tmp_path / "l", "--against", judged, "--json")
    leaks = json.loads(as_json.stdout)["leaks"]["leaks"]
    assert [(leak["precedent"], leak["why"]) for leak in leaks] == [("good1", "same id"), ("good2", "same text")]


def test_failed_checks_have_another_exit_code_than_findings(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", lambda: ENCODER)
    assert run_check(tmp_path / "none").exit_code == 2
    library_of(tmp_path / "l", CLEAN)
    assert run_check(tmp_path / "l", "--against", tmp_path / "none.csv").exit_code == 2
    assert run_check(tmp_path / "l", "--against", rows(tmp_path / "e.csv", ["x", "", "y"])).exit_code == 2
    assert run_check(tmp_path / "l", "--pictures", tmp_path).exit_code == 2
