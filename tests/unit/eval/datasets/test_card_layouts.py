"""Every public layout, with generated rows: bundled or custom cards read them with the expected counts."""

import json

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from court.errors import BadRequest
from eval.datasets.card import card_of
from eval.datasets.known import find_card
from eval.datasets.read import source_of
from retrieval.library.readers import read_source
from tests.support.cards import counts_of, own_card, read_by_card, write_table
from tests.support.encoders import png_of

ROWS = [{"id": f"m{n}", "text": f"pond {n}", "image": f"m{n}.png", "label": n % 2} for n in range(7)]


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def write_arrow_stream(path):
    # As saved by the datasets library: a stream, pictures as names and bytes.
    table = arrow.Table.from_pylist([row | {"image": {"bytes": b"x", "path": row["image"]}} for row in ROWS])
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_arrow_file(path):
    table = arrow.Table.from_pylist(ROWS)
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write_parquet(path):
    rows = [row | {"image": {"bytes": b"x" * 1000, "path": row["image"]}} for row in ROWS]
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("jsonl", write_jsonl),
        ("json", lambda path: path.write_text(json.dumps(ROWS, indent=1))),
        ("json-map", lambda path: path.write_text(json.dumps({row["id"]: row for row in ROWS}))),
        ("csv", lambda path: write_table(path, ROWS[0], [row.values() for row in ROWS])),
        ("tsv", lambda path: write_table(path, ROWS[0], [row.values() for row in ROWS], "\t")),
        ("parquet", write_parquet),
        ("arrow", write_arrow_stream),
        ("arrow", write_arrow_file),
    ],
)
def test_every_file_format_gives_the_same_memes(tmp_path, kind, write, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    write(tmp_path / "rows.data")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/m4.png").write_bytes(png_of((1, 2, 3)))
    read = read_by_card(own_card(kind, ["rows.data"]), tmp_path, "all")
    in_file = write in (write_parquet, write_arrow_stream)
    images = [f"rows-{n:06}" if in_file else row["image"] for n, row in enumerate(ROWS, 1)]
    assert [(m.id, m.text, m.image) for m in read.memes] == [
        (row["id"], row["text"], image) for row, image in zip(ROWS, images, strict=True)
    ]
    assert counts_of(read, "harm") == {"harmless": 4, "harmful": 3}
    assert (read.rows, read.refused, read.problems) == (7, 0, ())
    found = read.picture_of(read.memes[4])
    if in_file:
        # The bytes in the file are the meme's picture, whatever stands beside it; they are read once.
        assert set(found.read_bytes()) == {ord("x")}
        found.unlink()
        again = read_by_card(own_card(kind, ["rows.data"]), tmp_path, "all")
        assert [m.image for m in again.memes] == images and not found.exists()
    else:
        assert found == tmp_path / "images/m4.png"


def test_split_is_read_from_several_files(tmp_path):
    (tmp_path / "data").mkdir()
    for shard, rows in enumerate((ROWS[:3], ROWS[3:])):
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / f"data/train-0000{shard}-of-00002.parquet")
    read = read_by_card(own_card("parquet", ["data/train-*.parquet"]), tmp_path, "all")
    assert [meme.id for meme in read.memes] == [row["id"] for row in ROWS] and len(read.files) == 2
    (tmp_path / "data/train-00001-of-00002.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(BadRequest, match=r"train-00001-of-00002\.parquet, after row 0: can't be read as parquet"):
        read_by_card(own_card("parquet", ["data/train-*.parquet"]), tmp_path, "all")


def test_picture_tree_takes_labels_from_folder_names(tmp_path):
    for n, name in enumerate(("calm/a.png", "calm/b.jpg", "loud/deep/c.png", "loud/notes.txt")):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_of((n, 0, 0)))
    task = {"id": "mood", "kind": "single", "labels": ["calm", "loud"]}
    task["of"] = {"column": "@path", "split": "/", "part": 0}
    card = own_card(
        "tree",
        ["pictures"],
        fields={"id": "@stem", "picture": {"column": "@path", "prefix": "pictures/"}},
        layout={"kind": "tree", "pictures": [""]},
        tasks=[task],
    )
    read = read_by_card(card, tmp_path, "all")
    assert {m.id: m.tasks["mood"] for m in read.memes} == {"a": ("calm",), "b": ("calm",), "c": ("loud",)}
    assert read.picture_of(read.memes[2]) == tmp_path / "pictures/loud/deep/c.png"
    assert list(read.files) == ["pictures"]
    before = read.files["pictures"]
    (tmp_path / "pictures/calm/d.png").write_bytes(png_of((1, 2, 3)))
    assert read_by_card(card, tmp_path, "all").files["pictures"] != before
    task["court"] = {"harmful": ["loud"], "benign": ["calm"]}
    dataset = card_of(card.to_json() | {"tasks": [task]}, "tree")
    source = source_of(dataset, tmp_path, "all")
    assert [row.label.value for row in read_source(source).good] == ["NOT_HARMFUL"] * 3 + ["HARMFUL"]
    assert source.recipe and source.files == ()


def test_fhm_fine_has_three_tasks(tmp_path):
    folder = tmp_path / "data/annotations"
    folder.mkdir(parents=True)
    rows = [
        {"id": 1, "img": "img/01.png", "text": "pond", "gold_hate": ["not_hateful"], "gold_pc": ["pc_empty"]}
        | {"gold_attack": ["attack_empty"], "pc": "['pc_empty']"},
        {"id": 2, "img": "img/02.png", "text": "pond", "gold_hate": ["hateful"], "gold_pc": ["sex", "race"]}
        | {"gold_attack": ["mocking"], "pc": "['sex']"},
    ]
    (folder / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text('{"id": 3, "img": "img/03.png", "text": "pond"}\n')
    read = read_by_card(find_card("fhm-fine"), tmp_path, "train")
    assert read.memes[1].tasks == {"hate": ("hateful",), "pc": ("sex", "race"), "attack": ("mocking",)}
    assert read_by_card(find_card("fhm-fine"), tmp_path, "test").memes[0].tasks == {}


def test_pride_mm_splits_its_file_by_a_column(tmp_path):
    rows = [
        ("1.png", "pond", "train", 1, 2, 1, 0),
        ("2.png", "None", "train", 0, "None", 2, 1),
        ("3.png", "pond", "val", 0, "", 0, 1),
        ("4.png", "pond", "test", 1, 3, 0, 1),
        ("5.png", "pond", "elsewhere", 1, 3, 0, 1),
        ("6.png", "pond", "train", 1, "", 0, 1),
    ]
    write_table(tmp_path / "PrideMM.csv", ("name", "text", "split", "hate", "target", "stance", "humour"), rows)
    read = read_by_card(find_card("pridemm"), tmp_path, "train")
    assert (len(read.memes), read.elsewhere, read.refused, read.rows) == (2, 2, 2, 6)
    assert read.memes[0].tasks["target"] == ("community",) and read.memes[0].tasks["stance"] == ("support",)
    # The file writes None for no text, and only hateful memes have a target.
    assert read.memes[1].text == "" and "target" not in read.memes[1].tasks
    assert [(p.line, p.reason) for p in read.problems] == [
        (6, "column split: it names no split of the card (test, train, val, validation)"),
        (7, "column target: the label is empty"),
    ]


def test_functional_memes_have_a_function_and_lie_below_its_folder(tmp_path):
    header = ("img", "text", "label", "functionality")
    rows = [("F1/a.png", "pond", 1, "F1"), ("F25/memes/b.png", "pond", 0, "F25"), ("F3/c.png", "pond", 1, "F26")]
    write_table(tmp_path / "FBHM/train.csv", header, rows)
    write_table(tmp_path / "FBHM/test.csv", header[:3], [("F2/d.png", "pond", 0)])
    for name in ("F1/memes/a.png", "F25/memes/b.png"):
        (tmp_path / "FBHM" / name).parent.mkdir(parents=True)
        (tmp_path / "FBHM" / name).write_bytes(b"picture")
    read = read_by_card(find_card("fbhm"), tmp_path, "train")
    assert [(one.harmful, one.targets, one.tasks["function"]) for one in read.memes] == [
        (True, ("F1",), ("F1",)),
        (False, ("F25",), ("F25",)),
    ]
    assert [read.picture_of(one).name for one in read.memes] == ["a.png", "b.png"]
    assert [problem.line for problem in read.problems] == [4]
    # Whether the authors' test file has the column is not known: without it, memes have no function.
    (one,) = read_by_card(find_card("fbhm"), tmp_path, "test").memes
    assert one.harmful is False and one.targets == ()


def test_multi_off_accepts_the_spellings_of_its_files(tmp_path):
    rows = [("a.png", "pond", "offensive"), ("b.png", "pond", "Non-offensiv"), ("c.png", "pond", "Offensive ")]
    write_table(tmp_path / "Split Dataset/Testing_meme_dataset.csv", ("image_name", "sentence", "label"), rows)
    read = read_by_card(find_card("multioff"), tmp_path, "test")
    assert counts_of(read, "offensive") == {"offensive": 2, "not offensive": 1}


def test_memotion_joins_test_labels_by_row_order(tmp_path):
    folder = tmp_path / "memotion_dataset_7k"
    header = ("", "image_name", "text_ocr", "text_corrected", "humour", "sarcasm", "offensive", "motivational")
    train = [(0, "1.jpg", "raw", "", "hilarious", "general", "slight", "not_motivational", "very_positive")]
    write_table(folder / "labels.csv", (*header, "overall_sentiment"), train)
    test = [("7.jpg", "raw", "better"), ("8.jpg", "raw", "")]
    write_table(folder / "2000_testdata.csv", ("Image_name", "OCR_extracted_text", "corrected_text"), test)
    write_table(folder / "Meme_groundTruth.csv", ("Labels",), [("1_3021_x",), ("0_0100_x",)])
    (meme,) = read_by_card(find_card("memotion"), tmp_path, "train").memes
    assert (meme.text, meme.tasks["humour"], meme.tasks["sentiment"]) == ("raw", ("hilarious",), ("positive",))
    read = read_by_card(find_card("memotion"), tmp_path, "test")
    assert [meme.text for meme in read.memes] == ["better", "raw"]
    assert read.memes[0].tasks == {
        "humour": ("hilarious",),
        "sarcasm": ("not_sarcastic",),
        "offensive": ("very_offensive",),
        "motivational": ("motivational",),
    }
    write_table(folder / "Meme_groundTruth.csv", ("Labels",), [("1_3021_x",)] * 3)
    with pytest.raises(BadRequest, match="can't be joined by their order"):
        read_by_card(find_card("memotion"), tmp_path, "test")


def test_mmhs150k_has_votes_and_splits_by_ids(tmp_path):
    votes = {"11": [0, 0, 0], "12": [1, 1, 2], "13": [1, 2, 3], "14": [0, 5, 0], "15": [0, 1, 2]}
    rows = {id_: {"tweet_text": f"pond {id_}", "labels": found, "tweet_url": "u"} for id_, found in votes.items()}
    (tmp_path / "MMHS150K_GT.json").write_text(json.dumps(rows))
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits/train_ids.txt").write_text("11\n12\n13\n14\n99\n")
    (tmp_path / "img_txt").mkdir()
    (tmp_path / "img_txt/12.json").write_text('{"img_text": "sign"}')
    read = read_by_card(find_card("mmhs150k"), tmp_path, "train")
    assert [(m.id, m.tasks.get("hate"), m.tasks.get("kind")) for m in read.memes] == [
        ("11", ("not hate",), ("not hate",)),
        ("12", ("hate",), ("racist",)),
        ("13", ("hate",), None),
        ("14", ("not hate",), ("not hate",)),
    ]
    assert read.memes[1].shares["kind"] == {"racist": pytest.approx(2 / 3), "sexist": pytest.approx(1 / 3)}
    assert (read.memes[1].ocr, read.memes[0].ocr, read.elsewhere) == ("sign", "", 1)
    assert [problem.reason for problem in read.problems] == ["1 ids of the split have no row in the file"]


def test_picture_folder_is_found_even_by_late_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("eval.datasets.record_files._BATCH", 2)
    rows = [row | {"image": "m6.png" if row["id"] == "m6" else ""} for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "m6.png").write_bytes(b"picture")
    read = read_by_card(own_card("jsonl", ["rows.jsonl"]), tmp_path, "all")
    assert read.pictures.folder == tmp_path / "elsewhere"
    assert [meme.id for meme in read.memes] == [row["id"] for row in ROWS]
