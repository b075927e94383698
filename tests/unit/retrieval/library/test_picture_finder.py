"""Pictures found by their names: a folder for each split, names that fit two files, accents, missing files."""

import json
import unicodedata

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.read import read_split
from retrieval.library.picture_finder import ADDRESS, DatasetPictures
from serving.cli.main import cli as memecourt
from tests.support.cards import own_card, write_table
from tests.support.encoders import png_of


def split_folders(root):
    for split, shade in (("train", 40), ("test", 220)):
        (root / f"{split}_images").mkdir()
        rows = []
        for n in range(12):
            (root / f"{split}_images/{n}.png").write_bytes(png_of((shade, n, 0)))
            rows.append((f"{split}-{n}", f"{n}.png", f"{split} {n}", n % 2))
        write_table(root / f"{split}.csv", ("id", "img", "text", "label"), rows)
    return root


def card_with(layout_pictures, split_pictures=None):
    splits = [{"name": name, "role": name, "files": [f"{name}.csv"]} for name in ("train", "test")]
    for split in splits:
        if split_pictures:
            split["pictures"] = [split_pictures.format(split["name"])]
    fields = {"id": "id", "picture": "img", "text": "text"}
    return own_card("csv", [], layout={"kind": "csv", "pictures": layout_pictures}, fields=fields, splits=splits)


@pytest.mark.parametrize("card", [card_with(["{split}_images"]), card_with([""], "{}_images")])
def test_each_split_has_its_own_folder(tmp_path, card):
    split_folders(tmp_path)
    for split, shade in (("train", 40), ("test", 220)):
        read = read_split(card, tmp_path, split)
        assert (read.pictures / read.memes[3].image).read_bytes() == png_of((shade, 3, 0))


def test_a_name_in_two_folders_is_refused_unless_the_files_are_equal(tmp_path):
    split_folders(tmp_path)
    with pytest.raises(BadRequest, match=r"0\.png is in test_images and train_images, and the two differ"):
        read_split(card_with([""]), tmp_path, "train")
    for n in range(12):
        (tmp_path / f"test_images/{n}.png").write_bytes(png_of((40, n, 0)))
    assert read_split(card_with([""]), tmp_path, "train").pictures == tmp_path / "test_images"


@pytest.mark.parametrize(("stored", "written"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_accents_written_apart_and_together_are_one_name(tmp_path, stored, written):
    (tmp_path / "deep/er").mkdir(parents=True)
    file = tmp_path / "deep/er" / unicodedata.normalize(stored, "é.png")
    file.write_bytes(png_of((1, 2, 3)))
    finder = DatasetPictures(tmp_path, tmp_path, ("",))
    name = unicodedata.normalize(written, "é.png")
    assert finder.find_folder([(name, {})]) == tmp_path / "deep/er"
    assert finder.find(name, {}) == file and finder.named


def test_addresses_are_called_addresses(tmp_path):
    rows = [(f"t{n}", f"https://example.org/{n}.png", f"pond {n}", n % 2) for n in range(10)]
    write_table(tmp_path / "train.csv", ("id", "img", "text", "label"), rows)
    with pytest.raises(BadRequest, match=ADDRESS):
        read_split(card_with([""]), tmp_path, "train")


TABLE = ("filename", "text", "label")


def named_table(root, names):
    rows = [(name, f"pond number {n}", ("toxic", "ok")[n % 2]) for n, name in enumerate(names)]
    write_table(root / "memes.csv", TABLE, rows)
    predictions = [(name, ("toxic", "ok")[n % 2]) for n, name in enumerate(names)]
    write_table(root / "said.csv", ("id", "label"), predictions)


def drawn(file, shade):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(png_of((shade, 30, 60)))


def commands(root):
    """Every command that looks for the pictures of a table, by its name."""
    table = str(root / "memes.csv")
    pictures = ("--pictures", str(root))
    run = ("--test-share", ".5", "--out", str(root / "run"), *pictures)
    return {
        "check": ("datasets", "check", table),
        "score": ("score", str(root / "said.csv"), "--data", table, "--split", "all", *pictures),
        "run": ("run", "--data", table, *run),
        "build": ("precedents", "build", str(root / "library"), table, *pictures),
    }


def outcome_of(root, name):
    words = commands(root)[name]
    ran = CliRunner().invoke(memecourt if words[0] == "precedents" else cli, list(words))
    return ran.exit_code, " ".join(ran.output.split())


@pytest.mark.parametrize("name", ["check", "score", "run", "build"])
def test_commands_refuse_a_name_that_fits_two_pictures(tmp_path, name):
    names = [f"{n}.png" for n in range(8)]
    named_table(tmp_path, names)
    for n, picture in enumerate(names):
        drawn(tmp_path / "one" / picture, n)
        drawn(tmp_path / "two" / picture, 100 + n)
    code, output = outcome_of(tmp_path, name)
    assert code and "0.png is in one and two, and the two differ" in output and "--pictures FOLDER" in output


@pytest.mark.parametrize("name", ["check", "score", "run", "build"])
def test_commands_call_addresses_addresses(tmp_path, name):
    named_table(tmp_path, [f"https://example.org/{n}.png" for n in range(8)])
    code, output = outcome_of(tmp_path, name)
    assert code and "its picture is an address" in output


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
def test_library_finds_pictures_whatever_their_accents_and_folders(tmp_path, stored):
    written = [f"C:\\memes\\é{n}.PNG" for n in range(8)]
    rows = [{"id": str(n), "img": name, "text": f"pond {n}", "label": n % 2} for n, name in enumerate(written)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for n in range(8):
        drawn(tmp_path / "img" / unicodedata.normalize(stored, f"é{n}.png"), n)
    options = ("--pictures", str(tmp_path / "img"), "--max-lost", "0")
    build = ["precedents", "build", str(tmp_path / "library"), str(tmp_path / "rows.jsonl"), *options]
    ran = CliRunner().invoke(memecourt, build)
    assert ran.exit_code == 0 and "8 with picture" in ran.output, ran.output


# Predictions are scored without their pictures.
@pytest.mark.parametrize("name", ["check", "run", "build"])
def test_names_that_exist_nowhere_are_missing_pictures(tmp_path, name):
    named_table(tmp_path, [f"{n}.png" for n in range(8)])
    code, output = outcome_of(tmp_path, name)
    messages = ("none of 8 pictures is there", "its picture is missing (8)", "4 of 4 pictures are missing")
    assert code and any(each in output for each in messages), output
    assert "--pictures FOLDER" in output or name != "run"
