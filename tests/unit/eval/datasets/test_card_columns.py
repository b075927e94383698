"""Rows read by columns, which give what they give one by one."""

import pytest

from eval.datasets.card import FileKind
from eval.datasets.card_rows import column_rule, faults_of
from eval.datasets.record_files import Block, RecordFile, keep_tables
from retrieval.library.cells import BadCell
from retrieval.text import TextColumn, text_key


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
    rule = column_rule(("label",), lambda record: type(record["label"]).__name__)

    def of(*cells):
        return list(rule(Block(range(len(cells)), {"label": cells})))

    assert of(1, 0) == ["int", "int"] and of(True, None) == ["bool", "NoneType"] and of(1, True) == ["int", "bool"]


def test_equal_cells_are_read_once_and_a_fault_is_of_its_rows():
    seen = []

    def rule(record):
        seen.append(record["label"])
        if record["label"] == "bad":
            raise BadCell("it is bad", "label")
        return record["label"].upper()

    found = column_rule(("label", "absent"), rule)(Block(range(4), {"label": ["a", "bad", "a", "bad"]}))
    assert list(found)[::2] == ["A", "A"] and seen == ["a", "bad"]
    assert {place: str(bad) for place, bad in faults_of(found).items()} == dict.fromkeys(
        (1, 3), "column label: it is bad"
    )
