"""Pictures found by their names: a folder for each split, names that fit two files, accents, missing files."""

import unicodedata

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.card import card_of
from eval.datasets.read import read_split
from retrieval.library.picture_finder import ADDRESS, DatasetPictures
from tests.support.cards import write_table
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
    return card_of(
        {
            "format": 1,
            "id": "mine",
            "title": "Mine",
            "layout": {"kind": "csv", "pictures": layout_pictures},
            "fields": {"id": "id", "picture": "img", "text": "text"},
            "splits": splits,
            "tasks": [
                {
                    "id": "harm",
                    "kind": "binary",
                    "of": "label",
                    "map": {"0": "good", "1": "bad"},
                    "court": {"harmful": ["bad"], "benign": ["good"]},
                }
            ],
        },
        "mine.toml",
    )


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


def test_drafts_see_folders_named_like_splits(tmp_path):
    split_folders(tmp_path)
    assert 'pictures = ["{split}_images"]' in CliRunner().invoke(cli, ["datasets", "card", "new", str(tmp_path)]).output


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
