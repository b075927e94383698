"""Tests of tables as spreadsheets, Windows and pandas write them: one content in many file formats."""

import io

import pytest
from click.testing import CliRunner
from PIL import Image

from court.errors import BadRequest
from court.verdict import Label
from retrieval.library.cells import plain_word
from retrieval.library.picture_finder import DatasetPictures
from retrieval.library.picture_import import Wanted, _bytes_of, _finders, _NoPicture
from retrieval.library.readers import classes_of, label_counts, read_source
from retrieval.library.sources import Row, Source
from serving.cli.main import cli

ROWS = [
    ("00035", "img/a.png", "1", "dirty people, from Blueland"),
    ("00036", "img/b.png", "0", "café opens late, olé"),
    ("00037", "img/c.png", "1", "never trust Greenland"),
    ("00038", "img/d.png", "0", "my cat; my boss"),
]
WORDS = [
    ("harmful", "not_harmful"),
    ("1.0", "0.0"),
    ("hateful", "not-hateful"),
    ("true", "False"),
    ("Harmful", "benign"),
    ("1.00", "0.00"),
    ("HARMFUL", "NON-HARMFUL"),
]
SWALLOWED = "a quote that opens in line 12 swallows the line"


def table(delimiter=",", end="\n", labels=("1", "0")):
    lines = [delimiter.join(("id", "image", "label", "text"))]
    for id_, image, label, text in ROWS:
        lines.append(delimiter.join((id_, image, labels[label == "0"], f'"{text}"')))
    return end.join((*lines, ""))


FILES = {
    "plain": table().encode(),
    "BOM and CRLF": table(end="\r\n").encode("utf-8-sig"),
    "UTF-16": table(end="\r\n").encode("utf-16"),
    "UTF-16, big-endian": b"\xfe\xff" + table().encode("utf-16-be"),
    "lone CR": table(end="\r").encode(),
    "semicolons": table(";").encode(),
    "tabs": table("\t").encode(),
    "columns without a name": "".join(f"{line},,\n" for line in table().splitlines()).encode(),
    "cells past the header": table().replace('"\n', '",,\n').encode(),
    "a column of pandas": "".join(f"{n or ''},{line}\n" for n, line in enumerate(table().splitlines())).encode(),
    "the Hateful Memes' name of pictures": table().replace("image", "img").encode(),
    **{f"labels {harmful} and {benign}": table(labels=(harmful, benign)).encode() for harmful, benign in WORDS},
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_table_is_read_in_every_format(tmp_path, content):
    (tmp_path / "table.csv").write_bytes(content)
    rows = read_source(Source(tmp_path / "table.csv"))
    assert not rows.problems
    assert [(row.id, row.image, row.text) for row in rows.good] == [(row[0], row[1], row[3]) for row in ROWS]
    assert [row.label for row in rows.good] == [Label.HARMFUL, Label.NOT_HARMFUL] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table().encode("cp1252"), r"not UTF-8 text: line 3 has bytes of another encoding.*iconv -f WINDOWS-1252"),
        (table().encode("utf-16-le"), "UTF-16 without a mark"),
        (b"id,label\n\x00\x00", "is no text"),
        (table().encode("utf-16") + b"\n", "begins as UTF-16 and is damaged"),
    ],
)
def test_unsupported_encoding_is_named_and_refused(tmp_path, content, message):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        read_source(Source(tmp_path / "table.csv"))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (1.0, "1"),
        ("0.0", "0"),
        (True, "true"),
        (" Not_Harmful ", "not harmful"),
        (None, ""),
        (1.5, None),
        ([], None),
        ("-1", "-1"),
        (-1, "-1"),
    ],
)
def test_label_words_are_normalised(value, word):
    assert plain_word(value) == word


def test_negative_label_is_not_read_as_its_opposite(tmp_path):
    (tmp_path / "table.csv").write_text(table(labels=("1", "-1")))
    rows = read_source(Source(tmp_path / "table.csv"))
    assert [row.id for row in rows.good] == ["00035", "00037"]
    assert [problem.id for problem in rows.problems] == ["00036", "00038"]


def test_duplicate_column_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("id,label,text,Label\na,1,words,0\n")
    with pytest.raises(BadRequest, match="has the column label twice"):
        read_source(Source(tmp_path / "table.csv"))


@pytest.mark.parametrize(
    ("quoted", "good"),
    [
        ('m10,0,"oops\n', 10),  # to the end of the file
        ('m10,0,"oops\n' + "x,1,y\n" * 30 + 'x,1,"y"\n', 499),  # to the next quote
        ('m10,0,"oops\n' + "x,1,y\n" * 200 + 'x,1,y"\n', 499),  # to a fitting quote, too far below to end this cell
    ],
)
def test_rows_swallowed_by_a_quote_are_counted(tmp_path, quoted, good):
    rows = [f"m{n},{n % 2},text number {n}\n" for n in range(500)]
    rows[10] = quoted
    (tmp_path / "table.csv").write_text("id,label,text\n" + "".join(rows))
    read = read_source(Source(tmp_path / "table.csv"))
    assert len(read.good) == good
    assert {problem.reason for problem in read.problems} == {SWALLOWED}
    assert len(read.problems) == "".join(rows).count("\n") - good


def test_lines_within_a_long_cell_belong_to_its_text(tmp_path):
    content = f'id,label,text\na,1,"{"x" * 200_000}\nb,0,inner"\nc,0,words\n'
    (tmp_path / "table.csv").write_text(content)
    rows = read_source(Source(tmp_path / "table.csv"))
    assert [row.id for row in rows.good] == ["c"]
    assert [problem.reason for problem in rows.problems] == ["its text is too long"]


def test_mixed_line_ends_are_read(tmp_path):
    (tmp_path / "table.csv").write_text(table(end="\r").replace("never trust", "never\ntrust"), newline="")
    assert len(read_source(Source(tmp_path / "table.csv")).good) == 4


def test_ids_rounded_by_a_spreadsheet_make_no_library(tmp_path):
    rows = [f"1.23457E+18,{number % 2},text number {number}" for number in range(18)]
    (tmp_path / "table.csv").write_text("\n".join(["id,label,text", *rows]))
    command = ["precedents", "build", str(tmp_path / "library"), str(tmp_path / "table.csv")]
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 1 and "another meme before it has its id (17)" in refused.output


def test_folder_without_the_pictures_makes_no_library(tmp_path):
    (tmp_path / "table.csv").write_text(table())
    (tmp_path / "elsewhere").mkdir()
    command = ["precedents", "build", str(tmp_path / "library"), str(tmp_path / "table.csv")]
    refused = CliRunner().invoke(cli, [*command, "--pictures", str(tmp_path / "elsewhere")])
    assert refused.exit_code == 1 and "its picture is missing (4)" in refused.output
    (tmp_path / "table.csv").write_text(table().replace("image", "file"))
    built = CliRunner().invoke(cli, [*command, "--pictures", str(tmp_path / "elsewhere")])
    assert built.exit_code == 0 and "none of its rows names a picture (image)" in built.output


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "img").mkdir(parents=True)
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    for name in ("img/00001.png", "UPPER.JPG", "img/re\u0301sum\u00e9.png"):
        (folder / name).write_bytes(out.getvalue())
    (tmp_path / "secret.png").write_bytes(out.getvalue())
    return folder


def read_picture(name, folder):
    row = Row(line=1, id="m", label=Label.HARMFUL, source_label="", text="", image=name)
    finders = _finders([Wanted(row, folder)])
    return _bytes_of(name, folder, finders.get(folder) or DatasetPictures(folder, folder, ("",)))


@pytest.mark.parametrize(
    "name",
    [
        "img/00001.png",
        "img\\00001.png",
        "C:\\data\\img\\00001.png",
        "/mnt/set/img/00001.png",
        "img/00001.PNG",
        "UPPER.JPG",
        "UPPER.jpg",
        "train/UPPER.jpg",
        "./img//00001.png",
        "file:///C:/data/img/00001.png",
        "IMG/00001.PNG",
        "img\\re\u0301sume\u0301.png",
        "img/r\u00e9sum\u00e9.png",
    ],
)
def test_picture_is_found_under_every_spelling_of_its_name(pictures, name):
    assert read_picture(name, pictures)


@pytest.mark.parametrize(
    "name", ["../secret.png", "..\\secret.png", "img/../../secret.png", "img", "", "\\", "00002.png"]
)
def test_picture_names_cannot_lead_out_of_the_folder(pictures, name):
    with pytest.raises(_NoPicture, match="missing"):
        read_picture(name, pictures)


def test_table_with_too_many_unusable_rows_makes_no_library(tmp_path):
    rows = [f"m{number},{'maybe' if number < 3 else number % 2},some text number {number}" for number in range(18)]
    (tmp_path / "table.csv").write_text("\n".join(["id,label,text", *rows]))
    place, command = (
        tmp_path / "library",
        ["precedents", "build", str(tmp_path / "library"), str(tmp_path / "table.csv")],
    )
    refused = CliRunner().invoke(cli, command)
    assert (
        refused.exit_code == 1 and "3 of the 18 rows can't be used" in refused.output and "--max-lost" in refused.output
    )
    assert not place.exists()
    assert CliRunner().invoke(cli, [*command, "--max-lost", "0.2"]).exit_code == 0
    added = CliRunner().invoke(cli, ["precedents", "add", str(place), str(tmp_path / "table.csv")])
    assert "3 of the 18 rows can't be used" in added.output, "memes that are there already do not count as lost"


@pytest.mark.parametrize(
    ("benign", "harmful"),
    [
        ("non-hateful", "hateful"),
        ("harmless", "harmful"),
        ("none", "hate"),
        ("ok", "toxic"),
        ("0", "1"),
        ("nonhateful", "hateful"),
        ("hate_no", "hate_yes"),
        ("Normal", "weird"),
        ("not_propaganda", "propaganda"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_one_mark_tells_the_benign_label_in_any_order(benign, harmful, swapped):
    pair = (harmful, benign) if swapped else (benign, harmful)
    assert classes_of(dict.fromkeys(pair, 5)) == {benign: False, harmful: True}


@pytest.mark.parametrize(
    "words",
    [
        ("non-benign", "benign"),
        ("no harm", "harm"),
        ("not ok", "ok"),
        ("cats", "dogs"),
        ("notorious", "famous"),
        ("homeless", "rich"),
        ("none", "no"),
        ("funny", "hateful", "none"),
    ],
)
def test_words_that_say_nothing_leave_the_classes_open(words):
    assert classes_of(dict.fromkeys(words, 5)) is None


def test_named_labels_decide_and_unknown_ones_are_refused_with_the_known():
    counts = {"funny": 3, "toxic": 2, "Very Hateful": 1}
    assert classes_of(counts, ("TOXIC", "very_hateful")) == {"funny": False, "toxic": True, "Very Hateful": True}
    with pytest.raises(BadRequest, match=r"toxik, which is no label. The labels are: funny \(3\), toxic \(2\)"):
        classes_of(counts, ("toxik",))
    with pytest.raises(BadRequest, match="names every label"):
        classes_of(counts, tuple(counts))


def test_spellings_of_a_label_are_one_and_missing_values_none():
    counts, note = label_counts({"Harmful": 4, "harmful ": 2, "HARMFUL": 1, "ok": 3, "nan": 2, "-": 1, "": 5, "NA": 1})
    assert (counts, note) == ({"Harmful": 7, "ok": 3}, "")
    assert label_counts({"none": 2, "hate": 3})[0] == {"none": 2, "hate": 3}
    counts, note = label_counts({"none": 2, "hate": 3, "ok": 1})
    assert counts == {"hate": 3, "ok": 1} and note == "none is read as a missing value (2 rows)."
