"""Helpers of tests of cards."""

import csv
from pathlib import Path

from eval.datasets.card import DatasetCard, card_of
from eval.datasets.card_split import CardReader
from eval.datasets.items import JudgedMeme


def write_table(path: Path, header, rows, delimiter=",", encoding="utf-8", end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        writer.writerows([header, *rows])


class CardMemes:
    """The memes of a split, with the counts of its rows."""

    def __init__(self, reader: CardReader) -> None:
        self.memes = tuple(reader.with_pictures())
        self.split = reader.split
        self.problems = tuple(reader.problems)
        self.rows, self.elsewhere = reader.rows, reader.elsewhere
        self.refused, self.excluded = reader.refused, reader.excluded
        self.files = reader.digests()
        self.pictures = reader.pictures

    def picture_of(self, meme: JudgedMeme) -> Path | None:
        """Returns the file of a meme's picture; None if it is missing."""
        return self.pictures.find(*meme.picture)


def read_by_card(card: DatasetCard, data: Path, split: str) -> CardMemes:
    """Reads all memes of a split."""
    return CardMemes(CardReader(card, data, split))


def counts_of(read, task):
    found = {}
    for meme in read.memes:
        for label in meme.tasks.get(task, ()):
            found[label] = found.get(label, 0) + 1
    return found


HARM = {
    "id": "harm",
    "kind": "binary",
    "of": "label",
    "map": {"1": "harmful", "0": "harmless"},
    "court": {"harmful": ["harmful"], "benign": ["harmless"]},
}


def own_card(kind: str, files: list[str], **changes) -> DatasetCard:
    content = {
        "format": 1,
        "id": "ours",
        "title": "Ours",
        "layout": {"kind": kind, "pictures": ["images"]},
        "splits": [{"name": "all", "role": "test", "files": files}],
        "fields": {"id": "id", "text": "text", "picture": "image"},
        "tasks": [HARM],
    }
    return card_of(content | changes, "ours.toml")
