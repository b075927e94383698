"""Cells as found in real files: each gives the right value, or an error with file, line and column."""

import json
import random
import tomllib

import pytest

from court.errors import BadRequest
from eval.datasets.card import card_of
from eval.datasets.card_draft import draft_card
from eval.datasets.card_split import CardReader
from eval.datasets.known import card_file, find_card
from eval.datasets.verbs import Expression, compile_expression
from retrieval.library.cells import BadCell
from tests.support.cards import own_card, read_by_card
from tests.support.encoders import png_of

LABEL = "column label: it is no value that the card names for harm (1, 0)"


def read_lines(tmp_path, *lines, card=None):
    """Reads JSON rows after a valid one; returns labels by id, and problems as (line, reason)."""
    good = {"id": "good", "text": "a pond", "image": "good.png", "label": 0}
    rows = [good, *lines]
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text)
    read = read_by_card(card or own_card("jsonl", ["rows.jsonl"]), tmp_path, "all")
    assert len(read.memes) + read.excluded + read.refused + read.elsewhere == read.rows == len(rows)
    assert all(problem.source == "rows.jsonl" for problem in read.problems)
    return {m.id: m.tasks.get("harm") for m in read.memes}, [(p.line, p.reason) for p in read.problems]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "harmful"),
        (1.0, "harmful"),
        ("1", "harmful"),
        ("1.0", "harmful"),
        (" 1 ", "harmful"),
        (True, "harmful"),
        ("True", "harmful"),
        ("0.0", "harmless"),
        (False, "harmless"),
        ("FALSE", "harmless"),
        (None, "column label: the label is empty"),
        ("", "column label: the label is empty"),
        ("  ", "column label: the label is empty"),
        (float("nan"), "column label: the label is empty"),
        ("nan", "column label: the label is empty"),
        (2, LABEL),
        (0.5, LABEL),
        ("yes", LABEL),
        ([1], "column label: it holds a list or an object where one value is expected"),
        ({"a": 1}, "column label: it holds a list or an object where one value is expected"),
    ],
    ids=repr,
)
def test_labels_are_normalised_or_refused(tmp_path, value, expected):
    labels, problems = read_lines(tmp_path, {"id": "m", "text": "a pond", "image": "m.png", "label": value})
    if expected in ("harmful", "harmless"):
        assert labels == {"good": ("harmless",), "m": (expected,)} and problems == []
    else:
        assert labels == {"good": ("harmless",)} and problems == [(2, expected)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "column id: it has no id"),
        ({"id": "  "}, "column id: it has no id"),
        ({"id": True}, "column id: it has no id"),
        ({"id": "good"}, "column id: its id stands in the file already"),
        ({"id": "x" * 201}, "column id: its id is longer than 200 characters"),
        ({"text": ["a"]}, "column text: it holds a list or an object where one value is expected"),
        ({"text": True}, "column text: it is no text"),
        ({"text": "\ud800"}, "column text: it holds bytes that are not UTF-8"),
        ({"text": "x" * 10_001}, "column text: its text is too long"),
        ({"image": "a/" * 251}, "column image: the name of its picture is longer than that of a file can be"),
        ({"image": "x" * 251}, "column image: the name of its picture is longer than that of a file can be"),
        ({"image": f"a/{'ü' * 126}.png"}, "column image: the name of its picture is longer than that of a file can be"),
        ({"image": {"a": 1}}, "column image: it holds a list or an object where one value is expected"),
        *(
            (
                {"image": name},
                'column image: the name of its picture leads out of the data set; take = "basename" in '
                "the card takes the last part of a path",
            )
            for name in (
                "C:\\Users\\x\\img\\01.png",
                "\\\\server\\img\\01.png",
                "/home/x/01.png",
                "img/../../01.png",
                "..\\01.png",
            )
        ),
    ],
    ids=repr,
)
def test_bad_cells_are_refused_with_their_column(tmp_path, change, reason):
    row = {"id": "m", "text": "a pond", "image": "m.png", "label": 1} | change
    assert read_lines(tmp_path, row) == ({"good": ("harmless",)}, [(2, reason)])


def test_malformed_lines_are_refused(tmp_path):
    _, problems = read_lines(tmp_path, "cut", '["a"]', '"a"', "1", "[" * 100_000)
    assert problems == [(line, "the line is no JSON object") for line in range(2, 7)]


def test_numbers_and_missing_texts_are_accepted(tmp_path):
    row = {"id": 7, "text": None, "label": 1, "image": None}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": 8.0, "text": 12}) + "\n")
    read = read_by_card(own_card("jsonl", ["rows.jsonl"]), tmp_path, "all")
    assert [(m.id, m.text, m.image) for m in read.memes] == [("7", "", ""), ("8", "12", "")]


@pytest.mark.parametrize("blank", ["\n", "\r\n\r\n", ",,\n"])
def test_blank_lines_before_the_header_are_skipped(tmp_path, blank):
    (tmp_path / "rows.csv").write_text(f"{blank}id,text,image,label\nm1,a pond,a.png,1\n", newline="")
    read = read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")
    assert [m.id for m in read.memes] == ["m1"] and read.problems == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_byte_order_marks_and_line_ends_are_not_part_of_cells(tmp_path, encoding, end, kind):
    rows = [["id", "text", "image", "label"], ["m1", "grün", "a.png", "1"], ["m2", "b", "b.png", "0"]]
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(rows[0], row, strict=True)), ensure_ascii=False) for row in rows[1:]]
    else:
        lines = [("\t" if kind == "tsv" else ",").join(row) for row in rows]
    (tmp_path / "rows").write_bytes("".join(line + end for line in lines).encode(encoding))
    read = read_by_card(own_card(kind, ["rows"]), tmp_path, "all")
    assert [(m.id, m.text, m.tasks["harm"]) for m in read.memes] == [
        ("m1", "grün", ("harmful",)),
        ("m2", "b", ("harmless",)),
    ]
    assert (read.rows, read.problems) == (2, ())


def test_table_lines_are_read_or_refused_one_by_one(tmp_path):
    text = 'ID,Text,image,label\nm1,"two\nlines",a.png,1\n\nm2,short,1\nm3,"a ""pond""",c.png,0\nm4,a"b,"x"y,0\n'
    (tmp_path / "rows.csv").write_text(text)
    read = read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")
    # Column names are case-insensitive.
    assert [(m.id, m.text) for m in read.memes] == [("m1", "two\nlines"), ("m3", 'a "pond"')]
    assert [(p.line, p.reason) for p in read.problems] == [
        (5, "the line has 3 cells and not 4"),
        (7, "the line is no CSV"),
    ]
    assert (read.rows, read.refused) == (4, 2)
    (tmp_path / "rows.csv").write_text("id;text;image;label\na;b, c;c;1\n")
    assert [meme.text for meme in read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all").memes] == ["b, c"]
    (tmp_path / "rows.csv").write_text("id|text|image|label\na|b|c|1\n")
    with pytest.raises(BadRequest, match=r"has none of the columns .* when its cells are parted by commas or semi"):
        read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")
    (tmp_path / "rows.csv").write_text("id,text,label,label\na,b,0,1\n")
    with pytest.raises(BadRequest, match="has the column label 2 times"):
        read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")
    (tmp_path / "rows.csv").write_bytes(b"id,text,label\na,gr\xfcn,0\n")
    with pytest.raises(BadRequest, match="is not UTF-8 text: line 2 has bytes of another encoding"):
        read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")
    (tmp_path / "rows.csv").write_bytes("id,text,label\na,b,0\n".encode("utf-16-le"))
    with pytest.raises(BadRequest, match="UTF-16 without a mark"):
        read_by_card(own_card("csv", ["rows.csv"]), tmp_path, "all")


def test_column_missing_from_all_rows_is_reported(tmp_path):
    (tmp_path / "rows.csv").write_text("id,words,label\na,b,0\n")
    read = read_by_card(own_card("csv", ["rows.csv"], fields={"id": "id", "text": "txt"}), tmp_path, "all")
    assert [p.reason for p in read.problems] == ["no row has the column txt, which the card makes the text of"]


def test_excluded_rows_and_rows_of_other_splits_are_counted(tmp_path):
    task = {"id": "harm", "kind": "binary", "of": "label", "map": {"1": "a", "0": "b"}, "missing": "drop"}
    splits = [
        {"name": name, "role": "test", "files": ["rows.jsonl"], "where": {"set": name}} for name in ("all", "other")
    ]
    card = own_card("jsonl", ["rows.jsonl"], tasks=[task], splits=splits)
    rows = [("all", 1), ("all", None), ("other", 1), ("third", 1), ("all", 5)]
    lines = [json.dumps({"id": n, "text": "", "set": s, "label": label}) for n, (s, label) in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    read = read_by_card(card, tmp_path, "all")
    assert (len(read.memes), read.excluded, read.refused, read.elsewhere, read.rows) == (1, 1, 2, 1, 5)


def test_pictures_are_found_despite_other_case_extension_or_slashes(tmp_path):
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    for name in ("A.JPG", "b.png", "sub/c.png", "d.png", "d.jpg", "e.v2.png"):
        (folder / name).write_bytes(png_of((1, 2, 3)))
    (folder / "d.jpg").write_bytes(png_of((3, 2, 1)))
    names = ["a.jpg", "b", "sub\\c.png", "none.png", "B.PNG", "e.v2", "d"]
    rows = [{"id": n, "text": "", "image": name, "label": 1} for n, name in enumerate(names)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_by_card(own_card("jsonl", ["rows.jsonl"]), tmp_path, "all")
    found = [read.picture_of(meme) for meme in read.memes[:-1]]
    assert [path and path.relative_to(folder).as_posix() for path in found] == [
        *("A.JPG", "b.png", "sub/c.png", None, "b.png", "e.v2.png")
    ]
    assert read.pictures.folder == folder, "a likely folder is found even if no file has exactly the given name"
    with pytest.raises(BadRequest, match="The picture d could be any of"):
        read.picture_of(read.memes[-1])


HOSTILE = ("../secret.csv", "/etc/hosts", "a/../../b.csv", "C:\\x.csv", "..\\x.csv", "~/x.csv", "\\\\server\\x.csv")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "where",
    [
        lambda name: {"layout": {"kind": "csv", "folders": [name]}},
        lambda name: {"layout": {"kind": "csv", "own": [name]}},
        lambda name: {"layout": {"kind": "csv", "pictures": [name]}},
        lambda name: {"splits": [{"name": "all", "role": "test", "files": [name]}]},
        lambda name: {"splits": [{"name": "all", "role": "test", "files": ["a.csv"], "ids": [name]}]},
        lambda name: {
            "splits": [{"name": "all", "role": "test", "files": ["a.csv"]} | {"labels": {"files": [name], "on": "id"}}]
        },
        lambda name: {
            "fields": {"id": "id", "text": {"column": "a", "else": {"join": {"file": name, "on": "id", "column": "b"}}}}
        },
    ],
)
def test_card_with_paths_outside_the_data_set_is_refused(name, where):
    with pytest.raises(BadRequest, match="leads out of the directory of the data set"):
        own_card("csv", ["a.csv"], **where(name))


def test_cells_cannot_name_files_outside_the_data_set(tmp_path):
    (tmp_path / "secret.json").write_text('{"words": "secret"}')
    data = tmp_path / "data"
    data.mkdir()
    fields = {"id": "id", "text": {"join": {"file": "{id}.json", "column": "words"}}}
    rows = [{"id": name, "label": 1} for name in ("../secret", "..", "/etc/hosts", "a\\b", "*", "fine")]
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "fine.json").write_text('{"words": "a pond"}')
    read = read_by_card(own_card("jsonl", ["rows.jsonl"], fields=fields), data, "all")
    assert [meme.text for meme in read.memes] == ["a pond"]
    assert {p.reason for p in read.problems} == {"column id: its value can't stand in the name of a file"}


def test_links_out_of_the_data_set_are_refused(tmp_path):
    (tmp_path / "secret.jsonl").write_text('{"id": "a", "label": 1}\n')
    data = tmp_path / "data"
    (data / "images").mkdir(parents=True)
    (data / "rows.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(BadRequest, match="is a link that leads out of"):
        CardReader(own_card("jsonl", ["rows.jsonl"]), data, "all")
    (data / "rows.jsonl").unlink()
    (data / "rows.jsonl").write_text('{"id": "a", "text": "", "image": "a.png", "label": 1}\n')
    (data / "images/a.png").symlink_to(tmp_path / "secret.jsonl")
    read = read_by_card(own_card("jsonl", ["rows.jsonl"]), data, "all")
    assert read.picture_of(read.memes[0]) is None
    # The hub's cache stores files outside the snapshot that links to them, within the same repository.
    snapshot = tmp_path / "datasets--pond/snapshots/0123"
    (tmp_path / "datasets--pond/blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (tmp_path / "datasets--pond/blobs/x").write_text('{"id": "a", "text": "", "image": "", "label": 1}\n')
    (snapshot / "rows.jsonl").symlink_to("../../blobs/x")
    assert len(read_by_card(own_card("jsonl", ["rows.jsonl"]), snapshot, "all").memes) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "surprise: there is no such key; docs/datasets.md lists them"),
        ({"title": None}, "title: Input should be a valid string"),
        ({"layout": {}}, "layout.kind: it is missing"),
        ({"format": 2}, "format: Input should be 1"),
        ({"id": "Not An Id"}, "id: letters a to z"),
        ({"tasks": []}, "tasks: Tuple should have at least 1 item"),
        ({"splits": [{"name": "a", "role": "exam", "files": ["a"]}]}, "splits.0.role: Input should be 'train'"),
        ({"splits": [{"name": "a", "role": "test"}]}, "split a: name its files"),
        ({"splits": [{"name": "a", "role": "test", "files": ["{language}.csv"]}]}, "languages go with {language}"),
        ({"layout": {"kind": "csv", "never_read": ["text"]}}, "text: a column that is never read, and read"),
    ],
)
def test_invalid_card_is_refused(change, message):
    with pytest.raises(BadRequest) as refused:
        own_card("csv", ["a.csv"], **change)
    assert message in refused.value.message and refused.value.reason == "CARD_INVALID"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"kind": "binary", "labels": ["a", "b", "c"]}, "has 3 labels, and a binary task has two"),
        ({"labels": ["a"]}, "needs two labels or more"),
        ({"map": {"1": "c"}, "labels": ["a", "b"]}, "map names c, which is no label"),
        ({"court": {"harmful": ["a"], "benign": ["a"]}, "labels": ["a", "b"]}, "each on one side"),
        ({"court": {"harmful": ["a"], "benign": ["b"]}, "labels": ["a", "b", "c"]}, "name every label"),
        ({"protocols": ["merged"], "labels": ["a", "b", "c"]}, "protocols go with a table court"),
        ({"when": {"other": "a"}, "labels": ["a", "b"]}, "when names other = a"),
        ({"when": {"t": "a"}, "labels": ["a", "b"]}, "when names t, which has to stand before it in the card"),
        ({}, "needs two labels or more, each once, named by labels, map or columns; it has none"),
        ({"variants": ["A"], "variant_of": {"de": "B"}, "labels": ["a", "b"]}, "variant_of names B, which is no"),
        ({"of": {"column": "a", "const": "b"}, "labels": ["a", "b"]}, "takes its value from one of"),
        ({"of": "a", "columns": {"a": "a", "b": "b"}}, "needs of; or"),
        ({"labels": ["a", "b"], "metrics": ["accuracy"], "official": "f1"}, "official is none of its metrics"),
    ],
)
def test_invalid_task_is_refused(task, message):
    with pytest.raises(BadRequest) as refused:
        own_card("csv", ["a.csv"], tasks=[{"id": "t", "kind": "single", "of": "label"} | task])
    assert message in refused.value.message
    # One fault gives one sentence: the list left empty by it is not reported too.
    assert "at least 1 item" not in refused.value.message


def test_card_in_another_encoding_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "a.toml").write_bytes('title = "Fr\xf6sche"\n'.encode("latin-1"))
    with pytest.raises(BadRequest, match=r"a\.toml is no TOML: .* Save it as UTF-8\."):
        find_card(str(tmp_path / "a.toml"))


def test_problems_name_columns_missing_from_a_row(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "yes": "1", "harm": "1"}\n')
    (tmp_path / "other.jsonl").write_text('{"id": "a", "value": "1"}\n')

    def reason(**changes):
        task = {"id": "t", "kind": "single", "of": "harm", "labels": ["1", "0"]} | changes.pop("task", {})
        fields = {"id": "id"} | changes
        reader = CardReader(own_card("jsonl", ["rows.jsonl"], fields=fields, tasks=[task]), tmp_path, "all")
        assert list(reader.blocks()) == []
        return reader.problems[0].reason

    label = "there is no label, as in a test split: the row has no such column"
    assert reason(task={"of": "harms"}) == f"column harms: {label}"
    columns = {"kind": "multi", "of": None, "labels": (), "columns": {"a": "yes", "b": "no"}}
    assert reason(task=columns) == f"column no: {label}"
    assert reason(id="uid") == "column uid: it has no id: the row has no such column"
    join = {"file": "other.jsonl", "on": "id", "column": "values"}
    joined = "column values: the label is empty, or other.jsonl has no such row or column"
    assert reason(task={"of": {"join": join}}) == joined


def test_columns_with_reserved_names_are_ignored(tmp_path):
    reserved = {"@language": ["de"], "@group": {"a": 1}, "@id": "other", "@row": [], "@variant": 2, "@@ocr": "x"}
    labels, problems = read_lines(tmp_path, {"id": "m", "text": "a pond", "image": "", "label": 1} | reserved)
    assert labels == {"good": ("harmless",), "m": ("harmful",)} and problems == []
    (meme,) = read_by_card(own_card("jsonl", ["rows.jsonl"]), tmp_path, "all").memes[1:]
    assert (meme.id, meme.language, meme.group, meme.ocr) == ("m", "", "", "")


def test_malformed_or_unknown_cards_are_refused(tmp_path):
    (tmp_path / "a.toml").write_text('format = 1\nid = "a\n')
    with pytest.raises(BadRequest, match=r"a\.toml is no TOML: .*line 2"):
        find_card(str(tmp_path / "a.toml"))
    with pytest.raises(BadRequest, match="can't be read"):
        find_card(str(tmp_path / "none.toml"))
    (tmp_path / "mine.toml").write_text(card_file("fhm").read_text())
    with pytest.raises(BadRequest, match="has the id fhm, which is that of a data set that is known"):
        find_card(str(tmp_path / "mine.toml"))
    with pytest.raises(BadRequest, match="no variant 'FR'; it has CN, DE, IN, MX, US, own"):
        find_card("multi3hate:FR")
    with pytest.raises(BadRequest, match="There is no data set 'harm-q'"):
        find_card("harm-q")
    with pytest.raises(BadRequest, match="has no task 'hate'; it has hate:US"):
        find_card("multi3hate").task("hate")
    with pytest.raises(BadRequest, match="has no split 'x'; it has all, all:en"):
        find_card("multi3hate").split("x")


@pytest.mark.parametrize(
    ("expression", "row", "expected"),
    [
        ("a", {"a": "x"}, "x"),
        ("a", {}, None),
        ({"path": "a.b.1"}, {"a": {"b": [1, 2]}}, 2),
        ({"path": "a.b.7"}, {"a": {"b": [1, 2]}}, None),
        ({"list": ["a", "b", "c"]}, {"a": "1", "b": None, "c": 0}, ["1", 0]),
        ({"const": "en"}, {}, "en"),
        ({"column": "a", "from": 1}, {"a": [1, 2, 3]}, [2, 3]),
        ({"column": "a", "take": "basename"}, {"a": "C:\\x\\y.png"}, "y.png"),
        ({"column": "a", "take": "basename"}, {"a": "https://i.example/x/y.png?width=3#z"}, "y.png"),
        ({"column": "a", "take": "stem"}, {"a": "x/y.v2.png"}, "y.v2"),
        ({"column": "a", "take": "parent"}, {"a": "x/y/z.png"}, "y"),
        ({"column": "a", "split": ";"}, {"a": "x; y;"}, ["x", "y"]),
        ({"column": "a", "split": "_", "part": 1, "char": 2}, {"a": "x_0123_y"}, "2"),
        ({"column": "a", "replace": {"/n": "\n"}}, {"a": "x/ny"}, "x\ny"),
        ({"column": "a", "prefix": "p/", "suffix": ".jpg"}, {"a": 7}, "p/7.jpg"),
        ({"column": "a", "none": ["None"], "else": "b"}, {"a": "None", "b": "y"}, "y"),
        ({"column": "a", "else": {"const": "z"}}, {"a": float("nan")}, "z"),
    ],
)
def test_expressions_are_evaluated(expression, row, expected):
    assert compile_expression(Expression.model_validate(expression), lambda _: dict)(row) == expected


@pytest.mark.parametrize(
    ("expression", "row", "message"),
    [
        ({"column": "a", "split": "_", "part": 3}, {"a": "x_y"}, "column a: it has 2 parts and no part 3"),
        ({"column": "a", "char": 3}, {"a": "xy"}, "column a: it has 2 characters and none at place 3"),
        ({"column": "a", "from": 1}, {"a": "x"}, "column a: it is no list"),
        ({"path": "a.b"}, {"a": "x"}, "column a.b: there is no b in it"),
    ],
)
def test_expressions_refuse_bad_cells(expression, row, message):
    with pytest.raises(BadCell) as refused:
        compile_expression(Expression.model_validate(expression), lambda _: dict)(row)
    assert str(refused.value) == message


def test_votes_of_annotators_are_combined_into_a_label(tmp_path):
    task = {"id": "harm", "kind": "single", "of": {"list": ["a", "b", "c"]}, "labels": ["x", "y", "z"]}
    task |= {"votes": {"rule": "majority", "least": 2}}
    card = own_card("jsonl", ["rows.jsonl"], tasks=[task], fields={"id": "id"})
    rows = [("x", "x", "y"), ("x", "y", "z"), ("x", None, "x"), (None, None, None), ("x", "y", "q")]
    lines = [json.dumps({"id": n} | dict(zip("abc", row, strict=True))) for n, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    read = read_by_card(card, tmp_path, "all")
    assert {m.id: m.tasks["harm"] for m in read.memes} == {"0": ("x",), "2": ("x",)}
    assert read.memes[0].shares == {"harm": {"x": pytest.approx(2 / 3), "y": pytest.approx(1 / 3)}}
    assert [(p.line, p.reason) for p in read.problems] == [
        (2, "column a, b, c: no label of harm has the most votes, and 2 or more"),
        (4, "column a, b, c: the label is empty"),
        (5, "column a, b, c: it is no value that the card names for harm (x, y, z)"),
    ]
    lax = card_of(card.to_json() | {"tasks": [task | {"missing": "none"}]}, "lax")
    assert "harm" not in read_by_card(lax, tmp_path, "all").memes[1].tasks


ODD_CELLS = (
    None,
    "",
    float("nan"),
    "nan",
    "N/A",
    0,
    True,
    0.5,
    "0.0",
    "True",
    " 1",
    [],
    [1],
    {"a": 1},
    'q"uote',
    "\u200b",
)


@pytest.mark.parametrize("seed", range(3))
def test_draft_of_odd_cells_is_a_valid_card(tmp_path, seed):
    rng = random.Random(seed)
    rows = [{"id": f"m{n}", "text": f"a pond, {n}", "image": "b.png", "label": n % 2} for n in range(60)]
    for row in rows:
        row[rng.choice(list(row))] = rng.choice(ODD_CELLS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    card_of(tomllib.loads(draft_card(tmp_path, "drafted")), "drafted.toml")
