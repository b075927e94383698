"""Rows read by columns, which give what they give one by one."""

import json
import random

import pytest

from eval.datasets import record_files
from eval.datasets.card import FileKind
from eval.datasets.card_rows import CellRule
from eval.datasets.card_split import CardReader
from eval.datasets.record_files import Block, RecordFile, keep_tables
from retrieval.library import tables
from retrieval.library.cells import BadCell
from retrieval.text import TextColumn, text_key
from tests.support.cards import HARM, own_card, write_table

LABELS = ("bad", "Bad", "good", "good ", "1", "0", "", "none", "ugly")
SPLITS = ("train", "train", "test", "other")


def rows_of(seed):
    draw = random.Random(seed)
    few = draw.random() < 0.5
    for n in range(60):
        id_ = f"m{draw.randrange(40) if few else n}"
        text = draw.choice(("pond", "Green  pond", "two\nlines", 'a "pond"', "", "café\u0301", "x" * 70_000))
        picture = draw.choice(("a.png", "b.jpg", " c.png ", "" if few else "d.png", "../e.png" if few else "f.png"))
        yield id_, picture, text, draw.choice(LABELS if few else LABELS[:6]), draw.choice(SPLITS if few else SPLITS[:3])


def card_for(kind, name, missing):
    fields = {"id": "id", "picture": {"column": "img", "prefix": "p/"}, "text": "text", "language": {"const": "en"}}
    splits = [{"name": one, "role": one, "files": [name], "where": {"part": one}} for one in ("train", "test")]
    words = {"bad": "harmful", "1": "harmful", "good": "harmless", "0": "harmless"}
    return own_card(kind, [name], fields=fields, splits=splits, tasks=[HARM | {"map": words, "missing": missing}])


def outcome(card, folder, split, **options):
    reader = CardReader(card, folder, split, columns=("img", "absent"), **options)
    blocks = list(reader.blocks())
    memes = [meme for block in blocks for meme in block.memes()]
    cells = [row for block in blocks for row in zip(*map(block.cells.get, ("img", "absent")), strict=True)]
    return memes, cells, reader.problems, reader.excluded, (reader.rows, reader.elsewhere, reader.refused)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_rows_read_at_once_are_those_read_one_by_one(tmp_path, monkeypatch, seed, kind):
    names, rows = ("id", "img", "text", "label", "part"), list(rows_of(seed))
    if kind == "csv":
        write_table(tmp_path / "rows.csv", names, rows)
    else:
        # Numbers and truth values, which are equal in Python.
        values = [[{"1": 1, "0": False}.get(cell, cell) for cell in row] for row in rows]
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in values]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    card = card_for(kind, f"rows.{kind}", ("problem", "none", "drop")[seed % 3])
    options = [(split, doubles) for split in ("train", "test") for doubles in (True, False)]
    found = []
    # In a block of one row no cell is that of another.
    for size in (1, 7, 1000):
        monkeypatch.setattr(tables, "_BLOCK", size)
        monkeypatch.setattr(record_files, "_BATCH", size)
        with keep_tables():
            found.append([outcome(card, tmp_path, split, doubles=doubles) for split, doubles in options])
    one_by_one, few, at_once = found
    assert one_by_one == few == at_once
    assert any(memes for memes, *_ in at_once)


@pytest.mark.parametrize(
    "texts", [["A Pond", "b"], ["a  b", "c"], [" a", "b "], ["a\nb", "c"], ["", ""], [], ["Éa", "b"], ["a\tb", "\x1cx"]]
)
def test_keys_of_many_texts_are_those_of_each(texts):
    column = TextColumn(texts)
    assert column.keys() == list(map(text_key, texts))
    assert column.word_counts() == [len(text.split()) for text in texts]


@pytest.mark.parametrize(
    "lines",
    [
        'a,b\n1,"x, y"\n,z\n',
        'a,b\n1,x\n2,"y"\n',
        'a,b\r\n1,"x"\r\n',
        'a,b\n1,"x\ny"\n',
        'a,b\n1,"x""y"\n',
        'a,b\n1,"x"y\n2,z\n',
        'a,b\n1,"x""y"z\n',
        'a,b\n1,x"y"\n',
        'a,b\n1,"x\n2,y\n',
        'a,b\n"x\ny",b"\n',
        'a,"x\ny",b"\n1,2\n',
        "a,b\n\n1,x\n",
        "a,b\n1\n2,x,y\n",
        "a,b\n1,x",
        "a,b\n,\n1,x\n",
        "\ufeffa,b\n1,\u00e9\n",
        "a,b\n1,01\n2,NaN\n3,true\n4,\n",
        '"a","b,c"\n1,2\n',
        "a,b\r1,x\r",
        "a,b\n1,x\ry\n",
    ],
)
def test_tables_read_by_pyarrow_have_the_cells_and_faults_of_csv(tmp_path, lines):
    path = tmp_path / "rows.csv"
    path.write_bytes(lines.encode())
    with keep_tables():
        at_once = list(RecordFile(path, FileKind.CSV))
    assert at_once == list(RecordFile(path, FileKind.CSV))


def test_numbers_and_truth_values_of_a_column_are_different_cells():
    rule = CellRule(("label",), lambda record: type(record["label"]).__name__)

    def of(*cells):
        return list(rule.of(Block(range(len(cells)), {"label": cells}))[0])

    assert of(1, 0) == ["int", "int"] and of(True, None) == ["bool", "NoneType"] and of(1, True) == ["int", "bool"]


def test_equal_cells_are_read_once_and_a_fault_is_of_its_rows():
    seen = []

    def rule(record):
        seen.append(record["label"])
        if record["label"] == "bad":
            raise BadCell("it is bad", "label")
        return record["label"].upper()

    found, faults = CellRule(("label", "absent"), rule).of(Block(range(4), {"label": ["a", "bad", "a", "bad"]}))
    assert list(found) == ["A", None, "A", None] and seen == ["a", "bad"]
    assert {place: str(bad) for place, bad in faults.items()} == dict.fromkeys((1, 3), "column label: it is bad")
