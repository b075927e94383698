"""Tests of answers of other systems to questions of a data set's card, in every accepted file format."""

import json

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.items import JudgedMeme, Outcome
from eval.datasets.known import find_card
from eval.scores.prediction_file import NO_ANSWER, read_answers

STANCE, FRAMES = find_card("climatememes").tasks
MISOGYNOUS = next(task for task in find_card("mami").tasks if task.kind == "binary")
CARD = """
format = 1
id = "ponds"
title = "Memes about ponds"
layout = { kind = "csv" }
fields = { id = "id", text = "text" }
splits = [{ name = "test", role = "test", files = ["test.csv"] }]
caveats = ["they are few"]
[[tasks]]
id = "mood"
kind = "multi"
of = { column = "mood", split = "/" }
labels = ["merry", "grim"]
official = "mean-binary-accuracy"
metrics = ["mean-binary-accuracy"]
"""


def memes(*ids):
    return [
        JudgedMeme(id=id_, split="test", line=1, image="", text="", harmful=None, source_label="", tasks={})
        for id_ in ids
    ]


def answers_in(path, task, *ids, **options):
    read = read_answers(path, memes(*ids), task, **options)
    answers = [
        prediction.said[task.id].labels if prediction.outcome is Outcome.ANSWERED else prediction.reason
        for prediction in read.predictions
    ]
    return answers, read


def faults_in(path, task, *ids):
    with pytest.raises(BadRequest) as caught:
        read_answers(path, memes(*ids), task)
    return caught.value.message


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_single_label_is_read_like_a_gold_label(tmp_path, form):
    cells = {"a": "skeptical", "b": " Convinced ", "c": "", "d": "NEITHER"}
    path = tmp_path / f"theirs.{form}"
    if form == "csv":
        path.write_text("ID,Label,note\r\n" + "".join(f"{id_},{cell},x\r\n" for id_, cell in cells.items()), newline="")
    else:
        path.write_text("".join(json.dumps({"id": id_, "label": cell or None}) + "\n" for id_, cell in cells.items()))
    answers, read = answers_in(path, STANCE, "a", "b", "c", "d", "e")
    assert answers == [("skeptical",), ("convinced",), NO_ANSWER, ("neither",), "NOT_JUDGED"]
    assert read.missing == ("e",) and read.unused == (("note",) if form == "csv" else ())


def test_values_of_the_data_sets_own_files_are_accepted_as_labels(tmp_path):
    yes, no = MISOGYNOUS.map["1"], MISOGYNOUS.map["0"]
    (tmp_path / "t.csv").write_text(f"id,label\na,1\nb,0.0\nc,True\nd,false\ne,{yes}\nf,{no}\n")
    answers, _ = answers_in(tmp_path / "t.csv", MISOGYNOUS, *"abcdef")
    assert [labels[0] for labels in answers] == [yes, no, yes, no, yes, no]


def test_several_labels_may_be_a_list_or_a_text(tmp_path):
    lines = [{"id": "a", "label": ["CAUSE", "real"]}, {"id": "b", "label": []}, {"id": "c", "label": None}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert answers_in(tmp_path / "t.jsonl", FRAMES, *"abc")[0] == [("REAL", "CAUSE"), (), NO_ANSWER]
    (tmp_path / "t.csv").write_text("id,label\na,CAUSE; REAL\nb,\n")
    assert answers_in(tmp_path / "t.csv", FRAMES, *"ab")[0] == [("REAL", "CAUSE"), NO_ANSWER]


def test_probabilities_of_all_labels_are_read(tmp_path):
    (tmp_path / "t.csv").write_text(
        "id,label,score:convinced,score:skeptical,score:neither\na,convinced,0.7,0.2,0.1\nb,neither,,,\n"
    )
    _, read = answers_in(tmp_path / "t.csv", STANCE, "a", "b")
    assert read.predictions[0].said["stance"].scores == {"convinced": 0.7, "skeptical": 0.2, "neither": 0.1}
    assert read.predictions[1].said["stance"].scores == {} and read.unused == ()


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        (STANCE, {"label": "secret"}, "line 1: column label: it is no value that the card names for stance (convinced"),
        (STANCE, {"label": ["convinced", "neither"]}, "line 1: it has 2 labels, and a meme has one of stance"),
        (STANCE, {"labels": "convinced"}, "line 1: it has no label; leave it empty where there is no answer"),
        (STANCE, {"label": "convinced", "score:neither": 2}, "line 1: the score is no number from 0 to 1"),
        (STANCE, {"label": "neither", "score:neither": 1}, "a probability of some labels and none of convinced, skept"),
        (STANCE, {"label": {"a": 1}}, "line 1: column label: it holds a list or an object"),
        (FRAMES, {"label": ["REAL", "secret"]}, "line 1: column label: it is no value that the card names for frames"),
        (FRAMES, {"id": "stranger", "label": []}, "no meme of the split has the id 'stranger'"),
    ],
)
def test_invalid_answer_is_refused_with_its_line(tmp_path, task, row, message):
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", **row}) + "\n")
    faults = faults_in(tmp_path / "t.jsonl", task, "a")
    assert message in faults and "secret" not in faults


def test_command_scores_answers_and_reports_missing_ones(tmp_path):
    (tmp_path / "card.toml").write_text(CARD)
    gold = ["merry", "grim", "merry/grim", "merry"]
    (tmp_path / "test.csv").write_text("id,text,mood\n" + "".join(f"m{n},t,{mood}\n" for n, mood in enumerate(gold)))
    (tmp_path / "theirs.csv").write_text("id,label,why\nm0,merry,x\nm1,grim,x\nm2,merry,x\n")
    arguments = (
        "score",
        tmp_path / "theirs.csv",
        "--dataset",
        tmp_path / "card.toml",
        "--data",
        tmp_path,
        "--split",
        "test",
    )

    def invoke(*words, code=0):
        output = CliRunner().invoke(cli, [str(word) for word in (*arguments, *words)])
        assert output.exit_code == code, output.output
        return output.output

    output = invoke("--task", "mood", "--name", "Theirs")
    assert "mean-binary-accuracy (official)" in output and "elsewhere" in output
    assert "On this data set: they are few." in output
    assert (
        "Of 1 meme of the split the file says nothing" in output and "Columns that nothing was read from: why" in output
    )
    found = json.loads(invoke("--task", "mood", "--json"))
    (run,) = found["tables"][0]["rows"]
    # Five of the eight marks are right; the meme missing from the file has none.
    assert run["card"]["figures"]["mean-binary-accuracy"]["value"] == pytest.approx(5 / 8)
    assert run["card"]["unanswered"] == 1 and found["missing"] == ["m3"]
    assert "leave it out with --task" in invoke("--task", "mood", "--protocol", "plain", code=2)
    assert "--column go with a plain table" in invoke("--task", "mood", "--column", "label=other", code=2)
    assert "no task 'weather'; it has mood" in invoke("--task", "weather", code=1)
