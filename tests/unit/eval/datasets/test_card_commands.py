"""Commands for cards: drafting and showing; and the folder of custom cards."""

import json

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.datasets.card import read_card
from tests.support.cards import counts_of, read_by_card, write_table
from tests.support.encoders import png_of


def run(*arguments):
    return CliRunner().invoke(cli, ["datasets", *map(str, arguments)])


def uncarded_data_set(root, form):
    """A data set without a card: two splits, and a binary, a single-label and a multi-label task."""
    for split, count in (("train", 40), ("test", 12)):
        rows = [
            {
                "meme_id": f"{split}{n}",
                "img": f"img/{split}{n}.png",
                "caption": f"a pond, seen from place {n}",
                "bad": n % 2,
                "tone": ("calm", "loud", "odd")[n % 3] if n % 5 else None,
                "kinds": ["mocking"] * (n % 3 == 0) + ["slur"] * (n % 4 == 0),
            }
            for n in range(count)
        ]
        if form == "jsonl":
            (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            cells = [[value for name, value in row.items() if name != "kinds"] for row in rows]
            write_table(root / f"{split}.csv", [name for name in rows[0] if name != "kinds"], cells)
    (root / "img").mkdir()
    (root / "img/train3.png").write_bytes(png_of((1, 2, 3)))
    return root


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_drafted_card_reads_its_data_set(tmp_path, form):
    data = uncarded_data_set(tmp_path, form)
    out = tmp_path / "mine.toml"
    ran = run("card", "new", data, "--id", "mine", "--out", out)
    assert ran.exit_code == 0 and "guesses to check" in ran.output
    card = read_card(out)
    assert [(split.name, split.role) for split in card.splits] == [("test", "test"), ("train", "train")]
    read = read_by_card(card, data, "train")
    assert (len(read.memes), read.refused, read.rows) == (40, 0, 40)
    assert counts_of(read, "bad") == {"0": 20, "1": 20} and set(counts_of(read, "tone")) == {"calm", "loud", "odd"}
    assert read.memes[3].text == "a pond, seen from place 3" and read.picture_of(read.memes[3]) is not None
    if form == "jsonl":
        assert counts_of(read, "kinds") == {"mocking": 14, "slur": 10}
    for line in out.read_text().splitlines():
        assert "# CHECK" in line or not line.startswith(("title", "role", 'id = "mine"', "map", 'kind = "b'))
    checked = run("check", data, "--dataset", out)
    assert f"train.{form}: 40 rows, 20 0, 20 1; 1 pictures" in checked.output
    assert run("card", "new", data, "--out", out).exit_code == 2


def test_draft_detects_a_split_column(tmp_path):
    rows = [(n, f"a pond {n}", ("train", "test", "dev")[n % 3], ("x", "y")[n % 2]) for n in range(30)]
    write_table(tmp_path / "all.csv", ("id", "text", "split", "label"), rows)
    out = tmp_path / "mine.toml"
    out.write_text(run("card", "new", tmp_path / "all.csv").output)
    card = read_card(out)
    assert {split.name: split.role for split in card.splits} == {"train": "train", "test": "test", "dev": "validation"}
    read = read_by_card(card, tmp_path, "dev")
    assert (len(read.memes), read.elsewhere) == (10, 20)


def test_draft_has_a_split_for_each_file(tmp_path):
    for name in ("train-2020", "train-2021", "part/val"):
        rows = [(f"{name}-{n}", f"pond {name} {n}", "xy"[n % 2]) for n in range(10)]
        write_table(tmp_path / f"{name}.csv", ("id", "text", "label"), rows)
    (tmp_path / "mine.toml").write_text(run("card", "new", tmp_path).output)
    found = [(split.name, split.role.value) for split in read_card(tmp_path / "mine.toml").splits]
    assert found == [("part_val", "validation"), ("train-2020", "train"), ("train-2021", "train")]


def test_check_reports_empty_splits_and_escapes_ids(tmp_path):
    (tmp_path / "train.csv").write_text("id,text,label\n")
    row = {"text": "a pond", "label": "x"}
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row | {"id": id_}) + "\n" for id_ in ("a", "b\x1b[2J\n")))
    # Two cards, because a card names one kind of file.
    for kind, name in (("csv", "train.csv"), ("jsonl", "test.jsonl")):
        (tmp_path / f"{kind}.toml").write_text(
            f'format = 1\nid = "a"\ntitle = "A"\nlayout = {{ kind = "{kind}" }}\n'
            f'fields = {{ id = "id", text = "text" }}\n'
            f'splits = [{{ name = "all", role = "test", files = ["{name}"] }}]\n'
            'tasks = [{ id = "t", kind = "single", of = "label", labels = ["x", "y"] }]\n'
        )
    empty = run("check", tmp_path, "--dataset", tmp_path / "csv.toml")
    assert empty.exit_code == 1 and "! all: count differs: no row is of this split" in empty.output
    twice = run("check", tmp_path, "--dataset", tmp_path / "jsonl.toml").output
    assert "text twice" in twice and "\x1b" not in twice and "(b" in twice


def test_draft_quotes_values_safely(tmp_path):
    values = ["a\nevil = 1", 'b"] #', "c\\"]
    rows = [{"id": n, "text": f"a pond, {n}", "label": values[n % 3]} for n in range(30)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "mine.toml"
    assert run("card", "new", tmp_path, "--out", out).exit_code == 0
    read = read_by_card(read_card(out), tmp_path, "all")
    assert counts_of(read, "label") == dict.fromkeys(values, 10)


def test_draft_explains_why_it_is_impossible(tmp_path):
    assert "no file of rows" in run("card", "new", tmp_path).output
    write_table(tmp_path / "a.csv", ("id", "text"), [(n, f"a pond {n}") for n in range(30)])
    assert "No column of a.csv looks like a label" in run("card", "new", tmp_path).output
    assert "is not there" in run("card", "new", tmp_path / "none").output


def test_cards_are_shown_and_read_from_a_custom_folder(tmp_path, monkeypatch):
    shown = run("card", "show", "multi3hate")
    assert shown.exit_code == 0 and 'id = "multi3hate"' in shown.output
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv("MEMECOURT_CARDS", str(tmp_path / "cards"))
    own = tmp_path / "cards/mine.toml"
    own.write_text(run("card", "show", "pridemm").output.replace('id = "pridemm"', 'id = "mine"'))
    assert "mine" in json.loads(run("--json").output) and run("card", "show", "mine").output == own.read_text()
    own.rename(tmp_path / "cards/other.toml")
    assert "Name the file mine.toml" in run("check", tmp_path, "--dataset", "other").output
    (tmp_path / "cards/other.toml").rename(tmp_path / "cards/fhm.toml")
    assert "has the name of a data set that is known" in run("check", tmp_path, "--dataset", "fhm").output
    monkeypatch.setenv("MEMECOURT_CARDS", str(tmp_path / "none"))
    assert "which is no directory" in run("check", tmp_path, "--dataset", "fhm").output
