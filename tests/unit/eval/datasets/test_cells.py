"""One rule for cells: each reader takes the shared table of cells alike."""

import json

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.verdict import Label
from eval.cli import cli
from eval.datasets.items import JudgedMeme, Outcome
from eval.datasets.read import read_split
from eval.scores.annotators import harm_shares, soft_labels, votes_of
from eval.scores.meme_rows import read_meme_rows
from eval.scores.prediction_file import read_predictions
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from tests.support.cards import HARM, own_card, write_table

LABELS = (
    ("harmful", True),
    ("Harmful", True),
    (" HARMFUL ", True),
    ("1", True),
    ("1.0", True),
    ("not_harmful", False),
    ("Not Harmful", False),
    ("not-harmful", False),
    ("0", False),
    ("0.0", False),
    ("", None),
    ("  ", None),
    ("nan", None),
    ("NaN", None),
    ("None", None),
    ("NA", None),
    ("null", None),
    ("-", None),
)
"""Cell, and True for harmful, False for benign, None for a missing value."""
MISSING = tuple(cell for cell, meaning in LABELS if meaning is None)


ROWS = [(f"m{n}", f"pond {n}", cell) for n, (cell, _) in enumerate(LABELS)]
WANTED = {f"m{n}": meaning for n, (_, meaning) in enumerate(LABELS)}


def labelled(folder):
    file = folder / "memes.csv"
    write_table(file, ("id", "text", "label"), ROWS)
    return file


def test_gold_labels(tmp_path):
    labelled(tmp_path)
    words = {"harmful": "harmful", "1": "harmful", "not harmful": "harmless", "0": "harmless"}
    task = HARM | {"map": words, "missing": "none"}
    card = own_card("csv", ["memes.csv"], fields={"id": "id", "text": "text"}, tasks=[task])
    read = read_split(card, tmp_path, "all")
    assert {m.id: m.harmful for m in read.memes} == {id_: one for id_, one in WANTED.items() if one is not None}
    assert len(read.problems) == len(MISSING)


def test_predictions(tmp_path):
    memes = [JudgedMeme(id=id_, split="all", line=1, harmful=True) for id_ in WANTED]
    read = read_predictions(labelled(tmp_path), memes)
    outcomes = {True: Outcome.HARMFUL, False: Outcome.NOT_HARMFUL, None: Outcome.FAILED}
    assert [one.outcome for one in read.predictions] == [outcomes[meaning] for meaning in WANTED.values()]


def test_precedents(tmp_path):
    read = read_source(Source(labelled(tmp_path)))
    labels = {row.id: row.label is Label.HARMFUL for row in read.good}
    assert labels == {id_: one for id_, one in WANTED.items() if one is not None}
    assert {one.id for one in read.problems} == {id_ for id_, one in WANTED.items() if one is None}


def test_votes(tmp_path):
    file = tmp_path / "votes.csv"
    write_table(file, ("id", "annotator", "label"), [(id_, "a", cell) for id_, _, cell in ROWS])
    rows, missing = read_meme_rows(file, ("id", "annotator", "label"), "votes")
    assert missing == len(MISSING)
    shares = harm_shares(soft_labels(votes_of(rows)))
    assert shares == {id_: float(one) for id_, one in WANTED.items() if one is not None}


def test_spellings_of_votes_agree_entirely(tmp_path):
    file = tmp_path / "votes.csv"
    spellings = (("Harmful", "harmful ", "HARMFUL", "nan"), ("not_harmful", "Not Harmful", "not harmful", "-"))
    votes = [(n, f"r{who}", cell) for n in range(12) for who, cell in enumerate(spellings[n % 2])]
    write_table(file, ("id", "annotator", "label"), votes)
    ran = CliRunner().invoke(cli, ["labels", "annotators", str(file), "--json"])
    agreement = json.loads(ran.output)["agreement"]
    assert (agreement["alpha"]["value"], agreement["votes"]) == (1.0, 36)
    assert set(agreement["labels"]) == {"Harmful", "not_harmful"}


def test_unknown_words_are_refused_with_the_known_ones():
    soft = {"m": {"toxic": 0.5, "fine": 0.5}}
    with pytest.raises(BadRequest, match="No annotator gave the label toxik; there are: fine, toxic"):
        harm_shares(soft, ["toxic", "toxik"])
    assert harm_shares(soft, ["TOXIC"]) == {"m": 0.5}
