"""Tests of scoring a file of predictions: accepted layouts, refused lines, and the resulting cards."""

import json
from functools import partial

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.commands.options import score_by_protocol
from eval.datasets.items import Level, Protocol
from eval.runs.results import NOT_JUDGED
from eval.scores.metrics import task_card
from eval.scores.prediction_file import NO_ANSWER, read_predictions
from tests.support.cards import write_table
from tests.support.judged import F, H, N, U, meme

NOT, SOME, VERY = Level
THREE = [meme("a", NOT), meme("b", SOME), meme("c", VERY), meme("d", NOT)]
TWO = [meme(1, True), meme(2, False)]


def read(tmp_path, content, memes=THREE, name="theirs.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_predictions(path, memes)


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def refusal(tmp_path, content, memes=THREE):
    with pytest.raises(BadRequest) as caught:
        read(tmp_path, content, memes)
    return caught.value.message


@pytest.mark.parametrize(
    ("word", "outcome", "level"),
    [
        ("True", H, None),
        ("hateful", H, None),
        ("Misogynous", H, None),
        (" not_harmful ", N, None),
        ("FALSE", N, None),
        ("not hateful", N, None),
        ("undecided", U, None),
        ("", F, None),
        ("somewhat harmful", H, SOME),
        ("very_harmful", H, VERY),
    ],
)
def test_labels_are_read_in_common_spellings(tmp_path, word, outcome, level):
    (first, *_) = read(tmp_path, f"id,label\na,{word}\n").predictions
    assert (first.outcome, first.level) == (outcome, level)
    assert first.reason == (NO_ANSWER if outcome is F else "")


@pytest.mark.parametrize(
    ("value", "outcome"), [(True, H), (False, N), (1, H), (0, N), (1.0, H), (None, F), ("undecided", U)]
)
def test_json_labels_may_be_booleans_numbers_or_null(tmp_path, value, outcome):
    (first, *_) = read(tmp_path, jsonl({"id": "a", "label": value})).predictions
    assert first.outcome is outcome


def test_csv_and_json_lines_give_the_same_predictions(tmp_path):
    table = "\ufeffID,Label,Score,note\r\nd,not harmful,0.25,x\r\nb,somewhat harmful,.5,\r\n\r\nc,very harmful,1,\r\n"
    lines = jsonl(
        {"id": "d", "label": "not harmful", "score": 0.25, "note": "x"},
        {"id": "b", "label": "somewhat harmful", "score": "0.5"},
        {"id": "c", "label": "very harmful", "score": 1},
    )
    one, other = read(tmp_path, table), read(tmp_path, lines)
    assert one == other
    assert [prediction.meme for prediction in one.predictions] == ["a", "b", "c", "d"]
    assert [prediction.level for prediction in one.predictions] == [None, SOME, VERY, NOT]
    assert [prediction.score for prediction in one.predictions] == [None, 0.5, 1.0, 0.25]
    assert one.missing == ("a",) and one.predictions[0].reason == NOT_JUDGED
    assert one.unused == ("note",)


def test_numeric_ids_match_those_of_the_data_set(tmp_path):
    loaded = read(tmp_path, jsonl({"id": 2, "label": 0}, {"id": "1", "label": 1}), TWO)
    assert [prediction.outcome for prediction in loaded.predictions] == [H, N]


def test_levels_are_read_only_for_data_sets_that_have_them(tmp_path):
    assert [prediction.level for prediction in read(tmp_path, "id,label\n1,very harmful\n2,0\n", TWO).predictions] == [
        None,
        None,
    ]
    # Without any other level, "not harmful" has none either: it would be the only level scored.
    assert [prediction.level for prediction in read(tmp_path, "id,label\na,0\nb,1\n").predictions] == [None] * 4
    half = refusal(tmp_path, "id,label\na,0\nb,harmful\nc,very harmful\n")
    assert "of 1 others it says harmful and not how much, 'b' among them" in half


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("a,harmless?,", "the label is none that is known"),
        ("a,2,", "the label is none that is known"),
        ("a,perhaps,", "the label is none that is known"),
        ("zz,harmful,", "no meme of the split has the id 'zz'"),
        (",harmful,", "it has no id"),
        ("a,harmful,1.01", "the score is no number from 0 to 1"),
        ("a,harmful,-0.1", "the score is no number from 0 to 1"),
        ("a,harmful,nan", "the score is no number from 0 to 1"),
        ("a,harmful,inf", "the score is no number from 0 to 1"),
        ("a,harmful,high", "the score is no number from 0 to 1"),
        ("a,harmful", "the line has 2 cells under a header of 3"),
        ('a,"harmful"x,', "the line is no CSV"),
    ],
)
def test_faulty_csv_line_is_named(tmp_path, line, fault):
    message = refusal(tmp_path, f"id,label,score\nb,not harmful,0.5\n{line}\n")
    assert message.startswith("theirs.csv can't be scored as it is:\nline 3: ") and fault in message


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id": "a", "label": "harmful"', "the line is no JSON object"),
        ("[1]", "the line is no JSON object"),
        ('{"id": "a"}', "it has no label"),
        ('{"id": "a", "label": ["harmful"]}', "the label is neither a word nor a whole number"),
        ('{"id": "a", "label": 0.5}', "the label is neither a word nor a whole number"),
        ('{"id": true, "label": 1}', "it has no id"),
        ('{"id": "a", "label": 1, "score": NaN}', "the score is no number from 0 to 1"),
        ('{"id": "a", "label": 1, "score": true}', "the score is no number from 0 to 1"),
        ('{"id": "a", "label": 1, "score": 1e999}', "the score is no number from 0 to 1"),
        ('{"id": "a", "label": 1, "score": [1]}', "the score is no number from 0 to 1"),
    ],
)
def test_faulty_json_line_is_named(tmp_path, line, fault):
    message = refusal(tmp_path, '{"id": "b", "label": 1}\n' + line + "\n")
    assert "\nline 2: " in message and fault in message


def test_faults_are_listed_by_line_up_to_ten(tmp_path):
    doubled = refusal(tmp_path, "id,label\na,1\nb,1\na,0\n")
    assert "line 4: the id 'a' stands in line 2 already" in doubled
    many = refusal(tmp_path, "id,label\n" + "".join(f"x{n},1\n" for n in range(13)))
    assert many.count("\nline ") == 10 and many.endswith("… and 3 more")


def test_very_long_id_is_shortened_in_the_error(tmp_path):
    assert len(refusal(tmp_path, f"id,label\n{'people from Blueland ' * 20},1\n")) < 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it holds no rows"),
        ("id,label\n", "it holds no rows"),
        ("meme,label\na,1\n", "the header must name id and label"),
        ("id,label,label\na,1,1\n", "the header must name id and label, and no column twice"),
        (b"id,label\na,\xff\n", "is not UTF-8 text"),
    ],
)
def test_files_without_predictions_are_refused(tmp_path, content, message):
    assert message in refusal(tmp_path, content)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(BadRequest, match=r"nothing\.csv, can't be read"):
        read_predictions(tmp_path / "nothing.csv", THREE)


def test_missing_predictions_count_as_failed(tmp_path):
    scored = read(tmp_path, "id,label\na,0\nb,1\n")
    ours = scored.results(
        THREE, name="theirs", dataset="harm-c", split="test", protocols=(Protocol.MERGED, Protocol.EXTREME)
    )
    merged = task_card(ours, Protocol.MERGED)
    assert (merged.n, merged.failed, merged.known("coverage").value) == (4, 2, 0.5)
    assert merged.known("accuracy").value == 0.5 and merged.decided["accuracy"].value == 1.0


# --- The command -----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    """A test split in HarMeme's layout."""
    place = tmp_path / "data"
    place.mkdir()
    labels = ["not harmful"] * 5 + ["somewhat harmful"] * 3 + ["very harmful"] * 2
    rows = [
        {"id": f"m{n}", "image": f"m{n}.png", "labels": [label], "text": "cake on monday"}
        for n, label in enumerate(labels)
    ]
    (place / "test.jsonl").write_text(jsonl(*rows))
    return place


def run_score(data, file, *more):
    words = ["score", file, "--dataset", "synthetic-harmeme", "--data", data, "--split", "test", *more]
    outcome = CliRunner().invoke(cli, [str(word) for word in words])
    return outcome.exit_code, outcome.output


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "theirs.csv"
    lines = [f"m{n},{'not harmful' if n < 4 else 'very harmful'},{n / 10},x" for n in range(9)]
    path.write_text("\n".join(["id,label,score,note", *lines]))
    return path


def cells(output, title):
    """The columns of a row of the table, without intervals."""
    line = next(line for line in output.splitlines() if line.startswith(title + "  "))
    return [part.split(" [")[0].strip() for part in line.removeprefix(title).strip().split("  ") if part]


def test_command_prints_the_cards_side_by_side(data, theirs):
    code, output = run_score(data, theirs)
    assert code == 0, output
    merged, extreme = output.split("Protocol extreme")
    assert cells(merged, "protocol") == ["merged"] and cells(extreme, "protocol") == ["extreme"]
    # By hand, merged: m0-m3 and m5-m8 are right, m4 is wrong, m9 is missing. Extreme drops m5-m7. Beside them stands
    # the most frequent class.
    assert cells(merged, "accuracy") == ["0.800", "0.500"] and cells(extreme, "accuracy") == ["0.714", "0.714"]
    assert cells(merged, "accuracy, decided") == ["0.889"] and cells(extreme, "accuracy, decided") == ["0.833"]
    assert cells(merged, "coverage")[0] == "0.900" and cells(extreme, "coverage")[0] == "0.857"
    assert "Of 1 meme of the split the file says nothing; it counts as failed." in output
    assert "Columns that nothing was read from: note." in output
    assert "With 10 memes an accuracy of 0.800 is known to lie between" in output
    theirs.write_text("id,label\n" + "".join(f"m{n},{'not harmful' if n < 5 else 'harmful'}\n" for n in range(10)))
    assert "an accuracy of 1.000 is known to lie between 0.692 and 1.000" in run_score(data, theirs)[1]
    head, benign, harmful = merged.splitlines()[merged.splitlines().index("Confusion, theirs, merged") + 1 :][:3]
    assert head.split() == ["gold", "\\", "said", "not", "harmful", "harmful", "undecided", "failed"]
    assert benign.split() == ["not", "harmful", "4", "1", "0", "0"] and harmful.split() == [
        "harmful",
        "0",
        "4",
        "0",
        "1",
    ]


def test_command_prints_the_cards_as_json(data, theirs):
    code, output = run_score(data, theirs, "--protocol", "merged", "--json", "--name", "another system")
    document = json.loads(output)
    assert code == 0 and (document["name"], document["missing"], document["unused"]) == (
        "another system",
        ["m9"],
        ["note"],
    )
    (table,) = document["tables"]
    only = table["rows"][0]["card"]
    assert (table["protocol"], only["n"], only["figures"]["accuracy"]["value"]) == ("merged", 10, 0.8)
    # Levels, by hand: of gold 0, one of five has level 2; of gold 1, three are off by 1; of gold 2, one is right.
    assert only["figures"]["mmae"]["value"] == pytest.approx((2 / 5 + 1 + 0) / 3) and only["over"]["mmae"] == 9


def test_command_refuses_unusable_files_and_options(data, theirs, tmp_path):
    theirs.write_text("id,label\nm0,maybe\n")
    code, output = run_score(data, theirs)
    assert code == 1 and "line 2: the label is none that is known" in output
    assert run_score(data, tmp_path / "none.csv")[0] == 1
    code, output = run_score(data, theirs, "--protocol", "plain")
    assert code == 2 and "There are: merged, extreme." in output
    code, output = run_score(data, theirs, "--dataset", "harm-x")
    assert code == 2 and "There is no data set 'harm-x'" in output


def test_protocol_that_drops_all_memes_is_skipped_unless_named(data, theirs):
    rows = [line for line in (data / "test.jsonl").read_text().splitlines() if "somewhat" in line]
    (data / "test.jsonl").write_text("\n".join(rows))
    theirs.write_text("id,label\nm5,harmful\n")
    code, output = run_score(data, theirs)
    assert code == 0 and cells(output, "protocol") == ["merged"]
    assert "Under the protocol extreme no meme of theirs is left to be scored" in output
    # A named protocol must have figures, and at least one protocol must have some.
    for protocols in ("extreme", "merged,extreme"):
        code, output = run_score(data, theirs, "--protocol", protocols)
        assert code == 1 and "no meme of theirs is left" in output


def test_scoring_fails_if_no_protocol_has_figures_or_for_other_reasons(capsys):
    def scored(protocol, **reasons):
        if protocol in reasons:
            raise BadRequest(f"not {protocol}", reason=reasons[protocol])
        return protocol.upper()

    both = (Protocol.MERGED, Protocol.EXTREME)
    found = score_by_protocol(both, partial(scored, extreme="NOTHING_SHARED"), named=False)
    assert found == {Protocol.MERGED: "MERGED"} and capsys.readouterr().err == "not extreme\n"
    with pytest.raises(BadRequest, match="not merged"):
        score_by_protocol(both, partial(scored, merged="NOTHING_SHARED", extreme="NOTHING_SHARED"), named=False)
    with pytest.raises(BadRequest, match="not extreme"):
        score_by_protocol(both, partial(scored, extreme="GOLD_DIFFERS"), named=False)


def test_scored_predictions_are_taken_like_a_run(tmp_path):
    rows = [(f"t{n}", f"pond {n}", ("good", "bad")[n % 2], "test" if n < 40 else "train") for n in range(60)]
    write_table(tmp_path / "memes.csv", ("id", "text", "label", "split"), rows)
    data = ("--data", str(tmp_path / "memes.csv"), "--harmful", "bad", "--split", "test")

    def invoke(*words, code=0):
        ran = CliRunner().invoke(cli, [*map(str, words)])
        assert ran.exit_code == code, ran.output
        return ran.output

    for name, wrong in (("one", 3), ("two", 5)):
        cells = [(id_, label if n % wrong else "good", 0.1 + n / 100) for n, (id_, _, label, _) in enumerate(rows[:40])]
        write_table(tmp_path / f"{name}.csv", ("id", "label", "score"), cells)
        invoke("score", tmp_path / f"{name}.csv", *data, "--out", tmp_path / "runs" / name)
    assert "one" in (report := invoke("report", tmp_path / "runs")) and "two" in report
    assert "40 memes: accuracy of one 0.825" in invoke("compare", tmp_path / "runs/one", tmp_path / "runs/two")
    invoke("subgroups", tmp_path / "runs/one", "--by", "label")
    invoke("labels", "noise", tmp_path / "runs/one", tmp_path / "runs/two")
    assert "not empty" in invoke("score", tmp_path / "one.csv", *data, "--out", tmp_path / "runs/one", code=1)


def test_scores_that_contradict_the_files_own_labels_are_reported(tmp_path):
    many = [meme(n, n % 2 == 0) for n in range(20)]
    for flip, count in ((False, 0), (True, 1)):
        scores = [0.9 - n / 100 if (n % 3 == 0) is not flip else 0.1 + n / 100 for n in range(20)]
        rows = [{"id": n, "label": int(n % 3 == 0), "score": score} for n, score in enumerate(scores)]
        notes = read(tmp_path, jsonl(*rows), many, "theirs.jsonl").notes
        assert len(notes) == count
    assert "AUROC against these is 0.000. Are they probabilities of the other label?" in notes[0]
    # Two of each say nothing yet.
    assert not read(tmp_path, jsonl(*rows[:4]), many, "theirs.jsonl").notes
