"""Tests of row counts for every kind of file: rows read, refused, excluded and elsewhere add up to all rows."""

import json
import shutil

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.datasets import record_files
from eval.datasets.card import FileKind
from eval.datasets.card_split import CardReader
from retrieval.library import tables
from tests.support.cards import HARM, own_card, write_table

COLUMNS = ("n", "id", "text", "image", "label", "part")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_cells(path, rows):
    cells = [[row.get(name, "") for name in COLUMNS] for row in rows]
    write_table(path, COLUMNS, cells, delimiter="\t" if path.suffix == ".tsv" else ",", end="\r\n")


def table_of(rows):
    columns = {
        name: [
            None if (cell := row.get(name)) is None else cell if isinstance(cell, str) else json.dumps(cell)
            for row in rows
        ]
        for name in COLUMNS
    }
    return arrow.table(columns, schema=arrow.schema([(name, arrow.string()) for name in COLUMNS]))


def write_arrow(path, rows):
    table = table_of(rows)
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_tree(path, rows):
    for row in rows:
        (path / str(row["part"])).mkdir(parents=True, exist_ok=True)
        (path / str(row["part"]) / f"{row['n']}.png").write_bytes(b"picture")
    path.mkdir(exist_ok=True)


WRITERS = {
    FileKind.JSONL: write_lines,
    FileKind.JSON: lambda path, rows: path.write_text(json.dumps(rows), "utf-8"),
    FileKind.JSON_MAP: lambda path, rows: path.write_text(json.dumps({row["n"]: row for row in rows}), "utf-8"),
    FileKind.CSV: write_cells,
    FileKind.TSV: write_cells,
    FileKind.PARQUET: lambda path, rows: parquet.write_table(table_of(rows), path),
    FileKind.ARROW: write_arrow,
    FileKind.TREE: write_tree,
}
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(["", " ", "0", "1", "1.0", "here", "there", "nowhere", "../m1.png", "C:\\m1.png", "m1.png", "NaN"]),
    st.integers(-1, 2),
    st.just(float("nan")),
    st.lists(st.integers(0, 1), max_size=2),
    # Without NUL: a file that contains one is not text and is refused as a whole.
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
)
ROWS = st.lists(
    st.fixed_dictionaries({name: CELLS for name in ("id", "text", "image", "label")}, optional={}).flatmap(
        lambda row: st.sampled_from(["here", "here", "there", "nowhere"]).map(lambda part: row | {"part": part})
    ),
    max_size=12,
)


def test_each_file_kind_has_a_writer():
    assert WRITERS.keys() == set(FileKind)


@pytest.mark.parametrize("kind", FileKind)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, missing=st.sampled_from(["problem", "none", "drop"]))
def test_read_refused_excluded_and_elsewhere_rows_add_up_to_all_rows(tmp_path, kind, rows, missing):
    rows = [row | {"n": f"r{n}"} for n, row in enumerate(rows)]
    data = tmp_path / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    name = "rows" if kind is FileKind.TREE else f"rows.{kind}"
    WRITERS[kind](data / name, rows)
    task = {name: HARM[name] for name in ("id", "kind", "of", "map")} | {"missing": missing}
    tree = {"fields": {"id": "@name", "picture": "@path"}, "tasks": [task | {"of": "@parent"}]}
    column = "@parent" if kind is FileKind.TREE else "part"
    parts = [{"name": part, "role": "test", "files": [name], "where": {column: part}} for part in ("here", "there")]
    card = own_card(str(kind), [name], splits=parts, **({"tasks": [task]} | (tree if kind is FileKind.TREE else {})))
    if kind is FileKind.TREE and not rows:
        return  # a folder without pictures is not a tree
    found = []
    # In a block of one row no cell is that of another.
    for size in (1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "_BLOCK", size)
            patch.setattr(record_files, "_BATCH", size)
            found.append([read(card, data, part, doubles) for part in ("here", "there") for doubles in (True, False)])
    assert found[0] == found[1]
    for memes, _, problems, (all_rows, refused, elsewhere, excluded) in found[0]:
        # At least one finding for each refused row; a fault of a whole column adds one.
        assert len(problems) >= refused
        assert len(memes) + refused + excluded + elsewhere == all_rows == len(rows)


def read(card, data, part, doubles):
    reader = CardReader(card, data, part, doubles=doubles, columns=("n", "absent"))
    blocks = list(reader.blocks())
    memes = [meme for block in blocks for meme in block.memes()]
    cells = [row for block in blocks for row in zip(*map(block.cells, ("n", "absent")), strict=True)]
    return memes, cells, reader.problems, (reader.rows, reader.refused, reader.elsewhere, reader.excluded)
