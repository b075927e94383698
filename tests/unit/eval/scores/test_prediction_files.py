"""Predictions in binary files: Parquet and Inspect AI logs, written by these libraries themselves."""

import json
import random

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.items import Level
from eval.runs.results import read_results
from eval.scores.prediction_file import NO_ANSWER, read_predictions
from tests.support.judged import F, H, N, U, meme
from tests.support.report_runs import write_report_run

NOT, SOME, VERY = Level
THREE = [meme("a", NOT), meme("b", SOME), meme("c", VERY), meme("d", NOT)]
TWO = [meme("a", False), meme("b", True), meme("c", True), meme("d", False)]


def fault_in(path, memes=TWO, **options):
    with pytest.raises(BadRequest) as caught:
        read_predictions(path, memes, **options)
    return caught.value.message


# --- Parquet ---------------------------------------------------------------------------------------


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra datasets")


def write_table(parquet, path, **columns):
    import pyarrow

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_reads_like_csv(tmp_path, parquet):
    file = write_table(
        parquet,
        tmp_path / "theirs.parquet",
        ID=["d", "b", "c"],
        Label=["not harmful", "somewhat harmful", "very harmful"],
        Score=[0.25, None, 1.0],
        note=["x", "y", "z"],
    )
    table = tmp_path / "theirs.csv"
    table.write_text("ID,Label,Score,note\nd,not harmful,0.25,x\nb,somewhat harmful,,y\nc,very harmful,1,z\n")
    assert read_predictions(file, THREE) == read_predictions(table, THREE)


def test_parquet_types_are_converted_to_labels_and_ids(tmp_path, parquet):
    file = write_table(parquet, tmp_path / "t.parquet", id=[1, 2, 3], label=[True, False, None])
    read = read_predictions(file, [meme(n, True) for n in (1, 2, 3)])
    assert [one.outcome for one in read.predictions] == [H, N, F] and read.predictions[2].reason == NO_ANSWER


def test_parquet_faults_are_reported_by_row(tmp_path, parquet):
    file = write_table(parquet, tmp_path / "t.parquet", id=["a", "zz", "a"], label=["harmful", "harmful", "maybe"])
    message = fault_in(file)
    assert "row 2: no meme of the split has the id 'zz'" in message
    assert "row 3: the id 'a' stands in row 1 already" in message
    file = write_table(parquet, tmp_path / "s.parquet", id=["a", "b"], label=[1, 0], score=[0.5, 1.5])
    assert "row 2: the score is no number from 0 to 1" in fault_in(file)
    file = write_table(parquet, tmp_path / "l.parquet", id=["a", "b", "c"], label=["0", "harmful", "very harmful"])
    assert "'b' among them" in fault_in(file, THREE)


def test_unusable_parquet_columns_and_files_are_reported(tmp_path, parquet):
    assert "must name id and label" in fault_in(write_table(parquet, tmp_path / "a.parquet", meme=["a"], label=["1"]))
    assert "no column twice" in fault_in(
        write_table(parquet, tmp_path / "b.parquet", id=["a"], label=["1"], Label=["0"])
    )
    assert "it holds no rows" in fault_in(write_table(parquet, tmp_path / "c.parquet", id=[], label=[]))
    (tmp_path / "d.parquet").write_text("id,label\na,1\n")
    assert "can't be read as parquet" in fault_in(tmp_path / "d.parquet")
    assert "none.parquet is not there" in fault_in(tmp_path / "none.parquet")


# --- Logs of Inspect AI ----------------------------------------------------------------------------


@pytest.fixture
def inspect():
    return pytest.importorskip("inspect_ai.log", reason="needs the extra inspect")


def a_log(inspect, path, *samples, status="success"):
    """Writes a log; a sample is its id, answers by scorer, and further fields."""
    from inspect_ai.scorer import Score

    inspect.write_eval_log(
        inspect.EvalLog(
            status=status,
            eval=inspect.EvalSpec(
                created="2026-01-02T03:04:05+00:00",
                task="theirs",
                dataset=inspect.EvalDataset(name="theirs"),
                model="mockllm/model",
                config=inspect.EvalConfig(),
            ),
            samples=[
                inspect.EvalSample(
                    id=id_,
                    epoch=more.get("epoch", 1),
                    input="Monday morning without coffee",
                    target="harmful",
                    scores={name: Score(value="C", answer=answer) for name, answer in answers.items()},
                    metadata=more.get("metadata", {}),
                    error=inspect.EvalError(message="x", traceback="", traceback_ansi="") if "error" in more else None,
                )
                for id_, answers, more in samples
            ],
        ),
        str(path),
    )
    return path


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_labels_are_the_answers_of_a_scorer(tmp_path, inspect, ending):
    file = a_log(
        inspect,
        tmp_path / f"theirs.{ending}",
        ("a", {"first": "not harmful", "second": "harmful"}, {}),
        ("b", {"first": "HARMFUL", "second": "0"}, {}),
        ("c", {"first": None, "second": "undecided"}, {}),
        ("d", {}, {"error": True}),
    )
    assert [one.outcome for one in read_predictions(file, TWO).predictions] == [N, H, F, F]
    assert [one.outcome for one in read_predictions(file, TWO, scorer="second").predictions] == [H, N, U, F]
    assert "has no scorer 'third'. It has: first, second." in fault_in(file, scorer="third")
    assert read_predictions(file, TWO).notes == (
        f"{file.name}: labels are the answers of the scorer first; other scorers: second.",
    )
    stopped = a_log(inspect, tmp_path / f"half.{ending}", ("a", {"first": "harmful"}, {}), status="cancelled")
    assert "status is cancelled" in read_predictions(stopped, TWO).notes[1]


def test_log_faults_are_reported_by_sample(tmp_path, inspect):
    file = a_log(
        inspect,
        tmp_path / "theirs.eval",
        ("a", {"first": "harmful"}, {}),
        ("b", {"first": "maybe"}, {}),
        ("c", {}, {}),
        ("zz", {"first": "harmful"}, {}),
        ("a", {"first": "harmful"}, {"epoch": 2}),
    )
    message = fault_in(file)
    assert "sample 4: no meme of the split has the id 'zz'" in message
    assert "sample 2: the label is none that is known" in message
    assert "sample 3: it has no score by 'first', and no error" in message
    assert "sample 5: it is of epoch 2" in message


def test_scores_without_answers_are_no_predictions(tmp_path, inspect):
    # A scorer may record only right or wrong, which is no label and must not count as a failure of every meme.
    file = a_log(inspect, tmp_path / "theirs.eval", ("a", {"first": None}, {}), ("b", {"first": ""}, {}))
    assert "has no answers by the scorer 'first'" in fault_in(file)
    assert "nothing in it was scored" in fault_in(a_log(inspect, tmp_path / "none.eval", ("a", {}, {})))
    assert "it holds no rows" in fault_in(a_log(inspect, tmp_path / "empty.eval"))


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_inspect_log_of_a_run_round_trips(tmp_path, inspect, ending):
    root = write_report_run(tmp_path / "run")
    target = tmp_path / f"run.{ending}"
    done = CliRunner().invoke(cli, ["export", str(root), "--inspect", str(target)])
    assert done.exit_code == 0, done.output
    ours = [one for one in read_results(root).judged]
    read = read_predictions(target, [one.meme for one in ours])
    assert "labels are the answers of the scorer merged; other scorers: extreme" in read.notes[0]
    assert [one.outcome for one in read.predictions] == [one.prediction.outcome for one in ours]


@pytest.mark.parametrize("ending", ["eval", "json"])
def test_damaged_log_is_reported(tmp_path, inspect, ending):
    whole = a_log(inspect, tmp_path / f"whole.{ending}", *(("abcd"[n], {"first": "harmful"}, {}) for n in range(4)))
    content = whole.read_bytes()
    damaged = tmp_path / f"damaged.{ending}"
    drawn = random.Random(7)
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:cut])
        with pytest.raises(BadRequest):
            read_predictions(damaged, TWO)
    for _ in range(40):
        changed = bytearray(content)
        for _ in range(8):
            changed[drawn.randrange(len(changed))] = drawn.randrange(256)
        damaged.write_bytes(changed)
        try:
            read_predictions(damaged, TWO)
        except BadRequest as error:
            assert error.message
    assert "can't be read" in fault_in(tmp_path / f"nothing.{ending}")


def test_scorer_option_for_a_table_is_refused(tmp_path):
    file = tmp_path / "theirs.csv"
    file.write_text("id,label\na,1\n")
    assert "is no log of Inspect AI" in fault_in(file, scorer="first")


def test_command_scores_a_log(tmp_path, inspect):
    rows = [
        {"id": n, "image": f"{n}.png", "labels": [w], "text": "cake"}
        for n, w in (("a", "not harmful"), ("b", "very harmful"))
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = a_log(inspect, tmp_path / "t.eval", ("a", {"x": "0", "y": "1"}, {}), ("b", {"x": "1", "y": "0"}, {}))
    words = ["score", file, "--dataset", "synthetic-harmeme", "--data", tmp_path, "--split", "test", "--json"]
    for scorer, right in (("x", 1), ("y", 0)):
        done = CliRunner().invoke(cli, [str(word) for word in [*words, "--scorer", scorer]])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["tables"][0]["rows"][0]["card"]["figures"]["accuracy"]["value"] == right
    done = CliRunner().invoke(cli, [str(word) for word in [*words, "--scorer", "z"]])
    assert done.exit_code == 1 and "It has: x, y." in done.output
