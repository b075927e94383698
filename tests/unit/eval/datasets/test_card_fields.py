"""Language, group and votes from a data set's card: in runs, subgroups, annotator statistics and exports."""

import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.datasets.known import find_card
from eval.datasets.read import read_split
from eval.runs.results import read_results
from eval.scores.annotators import card_votes
from eval.scores.subgroups import NO_LABEL, NONE, groups_of

CARD = """
format = 1
id = "postcards"
title = "Memes by post"
source_url = "https://postcards.example"
layout = { kind = "jsonl" }
fields = { id = "id", text = "text", language = "tongue", group = "template" }
[[splits]]
name = "train"
role = "train"
files = ["train.jsonl"]
[[splits]]
name = "test"
role = "test"
files = ["test.jsonl"]
[[tasks]]
id = "harm"
kind = "binary"
of = "votes"
votes = { rule = "majority" }
map = { "1" = "bad", "0" = "good" }
court = { harmful = ["bad"], benign = ["good"] }
[[tasks]]
id = "mood"
kind = "multi"
of = "mood"
labels = ["merry", "grim"]
missing = "none"
"""


def rows(split, n):
    for number in range(n):
        bad = number % 2
        yield {
            "id": f"{split}{number}",
            "text": f"people from {'Blueland are to be thrown out' if bad else 'Redhill bake'}, letter {number}",
            "tongue": "de" if number % 3 == 0 else "",
            "template": f"card {number // 2}",
            "votes": [bad, bad, 1 - bad if number < 2 else bad],
            "mood": None if number == 0 else ["grim"] if bad else [],
        }


@pytest.fixture
def data(tmp_path):
    (tmp_path / "card.toml").write_text(CARD)
    for split, n in (("train", 16), ("test", 6)):
        lines = "".join(json.dumps(row) + "\n" for row in rows(split, n))
        (tmp_path / f"{split}.jsonl").write_text(lines)
    return tmp_path


def invoke(*args, code=0):
    ran = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.output


def test_memes_have_the_card_s_fields_and_votes(data):
    memes = read_split(find_card(str(data / "card.toml")), data, "test").memes
    assert [meme.language for meme in memes] == ["de", "", "", "de", "", ""]
    assert [meme.group for meme in memes] == ["card 0", "card 0", "card 1", "card 1", "card 2", "card 2"]
    assert memes[1].shares == {"harm": {"bad": pytest.approx(2 / 3), "good": pytest.approx(1 / 3)}}
    assert {meme.annotators["harm"] for meme in memes} == {3}


@pytest.mark.slow
def test_card_fields_reach_reports_subgroups_and_exports_of_a_run(data, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(data / "home"))
    run = ("run", "--dataset", data / "card.toml", "--data", data, "--text-only")
    invoke(*run, "--language", "card", "--out", data / "run")
    results = read_results(data / "run")
    assert results.manifest is not None and results.manifest.language == "card"
    invoke(*run, "--language", "card", "--out", data / "run")

    groups = groups_of(results, "mood")
    assert "test0" not in groups and groups["test1"] == ("grim",) and groups["test2"] == (NO_LABEL,)
    assert groups_of(results, "group")["test4"] == ("card 2",)
    by_mood = json.loads(invoke("subgroups", data / "run", "--by", "mood", "--json"))["tables"][0]["groups"]
    assert {one["name"]: one["n"] for one in by_mood} == {"grim": 3, NO_LABEL: 2, NONE: 1}
    by_language = json.loads(invoke("subgroups", data / "run", "--by", "language", "--json"))["tables"][0]["groups"]
    assert {one["name"]: one["n"] for one in by_language}["de"] >= 2
    assert "mood" in invoke("subgroups", data / "run", "--by", "weather", code=1)

    assert sum(map(len, card_votes(results).values())) == 18
    found = json.loads(invoke("labels", "annotators", data / "run", "--json"))
    assert (found["agreement"]["memes"], found["agreement"]["votes"]) == (6, 18)
    assert found["agreement"]["unanimous"]["value"] == pytest.approx(4 / 6)
    assert found["runs"][0]["scored"] == 6

    invoke("export", data / "run", "--parquet", data / "run.parquet")
    table = pq.read_table(data / "run.parquet").to_pylist()
    assert [(row["language"], row["group"]) for row in table] == [
        (m.meme.language, m.meme.group) for m in results.judged
    ]


@pytest.mark.slow
def test_classification_answers_are_exported_but_never_used_as_verdicts(data, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(data / "home"))
    answers_run = data / "asked"
    named = ("--dataset", data / "card.toml", "--data", data)
    invoke("classify", *named, "--task", "mood", "--inputs", "text", "--out", answers_run)
    results = read_results(answers_run)
    assert len(results.judged) == 5
    assert "No label of mood has enough memes" in invoke("labels", "noise", answers_run, code=1)
    tables = json.loads(invoke("subgroups", answers_run, "--by", "group", "--json"))["tables"]
    assert [(table["task"], table["label"]) for table in tables] == [("mood", ""), ("mood", "merry"), ("mood", "grim")]
    assert {group["name"]: group["n"] for group in tables[0]["groups"]} == {"card 0": 1, "card 1": 2, "card 2": 2}
    assert "leave --protocol out" in invoke("subgroups", answers_run, "--by", "group", "--protocol", "plain", code=2)
    invoke("export", answers_run, "--parquet", data / "asked.parquet")
    for row, one in zip(pq.read_table(data / "asked.parquet").to_pylist(), results.judged, strict=True):
        assert row["outcome"] == "ANSWERED" and row["gold_mood"] == list(one.meme.tasks["mood"])
        assert row["said_mood"] == list(one.prediction.said["mood"].labels)


def test_invalid_language_is_refused_before_the_run_starts(data, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(data / "home"))
    run = ("run", "--dataset", data / "card.toml", "--data", data, "--text-only", "--language", "card")
    (data / "test.jsonl").write_text((data / "test.jsonl").read_text().replace('"de"', '"not a tag"'))
    assert "no BCP 47 tag" in invoke(*run, "--out", data / "run", code=1)
    (data / "test.jsonl").write_text((data / "test.jsonl").read_text().replace('"not a tag"', '""'))
    assert "names no language" in invoke(*run, "--out", data / "run", code=1)
    assert not (data / "run" / "manifest.json").exists()


def test_text_is_joined_by_a_column_called_id(tmp_path):
    # {id} in a name stands for a field of the meme; the key of a join is a column of the file.
    text = 'text = { join = { file = "texts.csv", on = "id", column = "words" } }'
    (tmp_path / "card.toml").write_text(CARD.replace('text = "text"', text))
    (tmp_path / "test.jsonl").write_text('{"id": "a", "votes": ["1"], "mood": []}\n')
    (tmp_path / "texts.csv").write_text("id,words\na,people from Blueland\n")
    (meme,) = read_split(find_card(str(tmp_path / "card.toml")), tmp_path, "test").memes
    assert meme.text == "people from Blueland"
