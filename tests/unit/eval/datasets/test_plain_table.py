"""Plain tables: a file with pictures or texts and labels, read without a card of its own."""

import json

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli as eval_cli
from eval.datasets.card import read_card
from eval.datasets.plain_table import read_plain_table
from eval.datasets.read import named_source, read_split
from serving.cli.main import cli
from tests.support.cards import write_table
from tests.support.encoders import png_of

HEADER = ("filename", "text", "label")


def rows_of(benign, harmful, count=24):
    return [(f"{n}.png", f"a pond, seen from place {n}", harmful if n % 2 else benign) for n in range(count)]


def table(folder, rows, header=HEADER, pictures=4):
    folder.mkdir(exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    for n in range(pictures):
        (folder / "images" / f"{n}.png").write_bytes(png_of((n, 2, 3)))
    return write_table(folder / "memes.csv", header, rows) or folder / "memes.csv"


def test_columns_and_classes_are_read_and_reported(tmp_path):
    found = read_plain_table(table(tmp_path, rows_of("none", "hate")))
    assert found.notes == (
        "memes.csv: id from filename, picture from filename, text from text, label from label.",
        "harmful = hate (12), benign = none (12).",
        "none is read as a label, as there is one other.",
    )
    read = read_split(found.card, found.data, "all")
    assert [(m.id, m.harmful) for m in read.memes[:2]] == [("0.png", False), ("1.png", True)]
    assert read.pictures == tmp_path / "images"


def test_options_name_columns_and_harmful_labels(tmp_path):
    rows = [(f"{n}.png", n % 3, ("fine", "toxic", "hateful", "nan")[n % 4]) for n in range(40)]
    file = table(tmp_path, rows, ("shot", "votes", "toxicity"))
    with pytest.raises(BadRequest, match=r"column toxicity don't say .*fine \(10\).*--harmful"):
        read_plain_table(file, ("label=toxicity",))
    found = read_plain_table(file, ("label=Toxicity", "picture=shot"), "toxic, HATEFUL")
    assert found.card.court_task.court.harmful == ("toxic", "hateful")
    assert "10 of 40 rows have no label." in found.notes
    read = read_split(found.card, found.data, "all")
    assert sum(meme.harmful for meme in read.memes) == 20 and len(read.memes) == 30


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        (("filename", "text", "verdict"), ("label=toxicity",), r"no column toxicity; it has .*verdict \(bad, ok\)"),
        (("filename", "kind", "verdict"), (), r"hold the labels; it has .*--column label=NAME"),
        (("a", "b", "label"), (), None),
        (HEADER, ("mood=label",), "the fields are id, picture"),
    ],
)
def test_unknown_columns_are_refused_with_the_columns_there_are(tmp_path, header, columns, message):
    rows = [(f"{n}.png", f"k{n % 3}", ("ok", "bad")[n % 2]) for n in range(24)]
    file = table(tmp_path, rows, header)
    if message is None:
        # Pictures are known by their endings, whatever the column is called.
        assert read_plain_table(file).card.fields.picture.column == "a"
        return
    with pytest.raises(BadRequest, match=message):
        read_plain_table(file, columns)


def test_a_column_of_splits_divides_the_table(tmp_path):
    rows = [(f"{n}.png", f"pond {n}", ("ok", "bad")[n % 2], ("Train", "train", "TEST")[n % 3]) for n in range(30)]
    found = read_plain_table(table(tmp_path, rows, (*HEADER, "split")))
    assert [(split.name, split.role) for split in found.card.splits] == [("Train", "train"), ("TEST", "test")]
    assert len(read_split(found.card, found.data, "Train").memes) == 20
    source = named_source("", tmp_path / "memes.csv", "")
    assert len(source.rows().good) == 20 and "of the split Train" in source.notes[-1]


def test_names_of_class_labels_and_bytes_of_pictures_are_read_from_parquet(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    rows = [
        {"image": {"bytes": png_of((n, 9, 9)), "path": None}, "text": f"pond {n}", "label": n % 2 if n < 22 else -1}
        for n in range(24)
    ]
    features = {"label": {"names": ["hateful", "not-hateful"], "_type": "ClassLabel"}}
    made = arrow.Table.from_pylist(rows)
    made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(made, tmp_path / "memes.parquet")
    found = read_plain_table(tmp_path / "memes.parquet")
    assert "harmful = hateful (11), benign = not-hateful (11)." in found.notes
    read = read_split(found.card, found.data, "all")
    assert [m.harmful for m in read.memes[:2]] == [True, False] and len(read.memes) == 22
    assert (read.pictures / read.memes[5].image).read_bytes() == png_of((5, 9, 9))


def test_drafts_fill_in_classes_only_if_words_say_them(tmp_path):
    for words, court in (
        (("not-hateful", "hateful"), '# court = { harmful = ["hateful"], benign = ["not-hateful"] } # CHECK'),
        (("non-benign", "benign"), "# court = { harmful = [], benign = [] } # CHECK the words don't say"),
    ):
        file = table(tmp_path, rows_of(*words))
        drafted = CliRunner().invoke(eval_cli, ["datasets", "card", "new", str(file)]).output
        assert court in drafted


def test_precedents_are_built_of_a_plain_table(tmp_path):
    file = table(tmp_path / "data", rows_of("harmless", "odd"))
    lib = str(tmp_path / "lib")
    ran = CliRunner().invoke(cli, ["precedents", "build", lib, str(file)])
    assert ran.exit_code == 1 and "--max-lost" in ran.output and "its picture is missing (20)" in ran.output
    ran = CliRunner().invoke(cli, ["precedents", "build", lib, str(file), "--max-lost", "0.9", "--source", "mine"])
    assert ran.exit_code == 0, ran.output
    assert "harmful = odd (12), benign = harmless (12)." in ran.output and "24 of 24 rows went in" in ran.output
    refused = CliRunner().invoke(cli, ["precedents", "build", lib, str(file), "--replace", "--harmful", "od"])
    assert refused.exit_code == 1 and "The labels are: harmless (12), odd (12)" in refused.output


def test_columns_that_are_not_read_are_named_and_workbooks_are_no_tables(tmp_path):
    # Names of pictures are no text, however long.
    rows = [(n // 2, f"one-meme-of-the-archive-{n}.png", f"pond {n}", ("hateful", "none")[n % 2]) for n in range(12)]
    write_table(tmp_path / "memes.csv", ("id", "pic", "words", "verdict"), rows)
    found = read_plain_table(tmp_path / "memes.csv")
    assert found.notes[0] == ("memes.csv: id from pic, picture from pic, label from verdict; not read: id, words.")
    (tmp_path / "book.csv").write_bytes(b"PK\x03\x04" + bytes(range(200)))
    with pytest.raises(BadRequest, match=r"workbook of a spreadsheet.*Save its table as CSV"):
        read_plain_table(tmp_path / "book.csv")


def test_tables_of_figures_of_speech_say_that_no_label_means_harm(tmp_path):
    # The layout of FigMemes: names, splits and figures of speech, parted by tabs.
    figures = ("irony", "metaphor", "none", "allusion")
    rows = [(f"{n}.jpg", f"pond number {n}", figures[n % 4], ("train", "test")[n % 2]) for n in range(40)]
    file = tmp_path / "figmemes.tsv"
    write_table(file, ("img_name", "text", "label", "split"), rows, delimiter="\t")
    with pytest.raises(BadRequest, match=r"column label don't say which .*irony \(10\).*--harmful"):
        read_plain_table(file)
    found = read_plain_table(file, two_sided=False)
    assert found.is_divided and found.card.tasks[0].labels == ("irony", "metaphor", "allusion")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_pictures_of_a_table_are_found_in_a_named_folder(tmp_path, delimiter):
    rows = [(f"{n}.png", f"pond, number {n}", ("toxic", "ok")[n % 2]) for n in range(8)]
    write_table(tmp_path / "tables/memes.csv", HEADER, rows, delimiter=delimiter)
    for folder in ("tables/images", "elsewhere/deep"):
        (tmp_path / folder).mkdir(parents=True)
        for picture, *_ in rows:
            (tmp_path / folder / picture).write_bytes(folder.encode())
    file = tmp_path / "tables/memes.csv"
    found = read_plain_table(file, pictures=tmp_path / "elsewhere")
    read = read_split(found.card, found.data, "all")
    assert read.pictures == tmp_path / "elsewhere/deep" and len(read.memes) == 8
    with pytest.raises(BadRequest, match="is no folder of pictures"):
        read_plain_table(file, pictures=tmp_path / "nowhere")


def test_cards_cannot_name_folders_outside_the_data_set(tmp_path):
    card = tmp_path / "mine.toml"
    card.write_text('format = 1\nid = "mine"\n[layout]\nkind = "csv"\npictures_at = "/etc"\n')
    with pytest.raises(BadRequest, match="pictures_at: there is no such key"):
        read_card(card)
