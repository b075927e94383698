"""All memes of a split at once, which the product's :class:`CardReader` reads one by one."""

from pathlib import Path

from eval.datasets.card import DatasetCard
from eval.datasets.card_split import CardReader
from eval.datasets.items import JudgedMeme


class CardMemes:
    """The memes of a split, with the counts of its rows."""

    def __init__(self, reader: CardReader) -> None:
        self.memes = tuple(reader.with_pictures())
        self.split = reader.split
        self.problems = tuple(reader.problems)
        self.excluded = tuple(reader.excluded)
        self.rows, self.elsewhere, self.refused = reader.rows, reader.elsewhere, reader.refused
        self.files = reader.digests()
        self.pictures = reader.pictures

    def picture_of(self, meme: JudgedMeme) -> Path | None:
        """Returns the file of a meme's picture; None if it is missing."""
        return self.pictures.find(*meme.picture)


def read_by_card(card: DatasetCard, data: Path, split: str) -> CardMemes:
    """Reads all memes of a split."""
    return CardMemes(CardReader(card, data, split))
