"""Tables as spreadsheets, Windows and pandas write them: one content, in many files."""

import io

import pytest
from click.testing import CliRunner
from PIL import Image

from court.errors import BadRequest
from court.verdict import Label
from eval.scores.scored_file import read_predictions
from retrieval.library.picture_import import _file, _NoPicture
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from retrieval.library.tables import plain_word
from serving.cli.main import cli
from tests.support.judged import meme

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
]


def table(delimiter=",", end="\n", labels=("1", "0")):
    lines = [delimiter.join(("id", "image", "label", "text"))]
    for id_, image, label, text in ROWS:
        lines.append(delimiter.join((id_, image, labels[label == "0"], f'"{text}"')))
    return end.join((*lines, ""))


FILES = {
    "plain": table().encode(),
    "BOM and CRLF": table(end="\r\n").encode("utf-8-sig"),
    "UTF-16": table(end="\r\n").encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + table().encode("utf-16-be"),
    "lone CR": table(end="\r").encode(),
    "semicolons": table(";").encode(),
    "tabs": table("\t").encode(),
    **{f"labels {harmful} and {benign}": table(labels=(harmful, benign)).encode() for harmful, benign in WORDS},
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_one_table_however_it_is_written(tmp_path, content):
    (tmp_path / "table.csv").write_bytes(content)
    rows = read_source(Source(tmp_path / "table.csv"))
    assert not rows.problems
    assert [(row.id, row.image, row.text) for row in rows.good] == [(row[0], row[1], row[3]) for row in ROWS]
    assert [row.label for row in rows.good] == [Label.HARMFUL, Label.NOT_HARMFUL] * 2


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_predictions_are_read_the_same_way(tmp_path, content):
    (tmp_path / "table.csv").write_bytes(content)
    read = read_predictions(tmp_path / "table.csv", [meme(id_, label == "1") for id_, _, label, _ in ROWS])
    assert [one.outcome.harmful for one in read.predictions] == [True, False, True, False]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (table().encode("cp1252"), r"not UTF-8 text: line 3 has bytes of another encoding.*iconv -f WINDOWS-1252"),
        (table().encode("utf-16-le"), "UTF-16 without a mark"),
        (b"id,label\n\x00\x00", "is no text"),
    ],
)
@pytest.mark.parametrize("read", [lambda path: read_source(Source(path)), lambda path: read_predictions(path, [])])
def test_an_encoding_that_is_not_known_is_named_and_nothing_is_read(tmp_path, content, why, read):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(BadRequest, match=why):
        read(tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("value", "word"),
    [(1.0, "1"), ("0.0", "0"), (True, "true"), (" Not_Harmful ", "not harmful"), (None, ""), (1.5, None), ([], None)],
)
def test_words_of_labels(value, word):
    assert plain_word(value) == word


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "img").mkdir(parents=True)
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    for name in ("img/00001.png", "UPPER.JPG"):
        (folder / name).write_bytes(out.getvalue())
    (tmp_path / "secret.png").write_bytes(out.getvalue())
    return folder


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
    ],
)
def test_a_picture_is_found_by_whatever_its_table_calls_it(pictures, name):
    assert _file(name, pictures)


@pytest.mark.parametrize(
    "name", ["../secret.png", "..\\secret.png", "img/../../secret.png", "img", "", "\\", "00002.png"]
)
def test_no_name_leads_out_of_the_folder(pictures, name):
    with pytest.raises(_NoPicture, match="missing"):
        _file(name, pictures)


def test_a_table_of_which_too_much_can_not_be_used_makes_no_library(tmp_path):
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
    again = CliRunner().invoke(cli, ["precedents", "add", str(place), str(tmp_path / "table.csv")])
    assert "3 of the 18 rows can't be used" in again.output, "what is there already is no loss"
