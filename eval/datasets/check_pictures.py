"""Locates a split's pictures while its rows are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from court.errors import BadRequest
from eval.datasets.card_split import CardMeme, CardReader
from eval.datasets.faults import DatasetFault, DatasetFaultKind
from eval.datasets.picture_finder import DatasetPictures

T = TypeVar("T")


class PictureSearch:
    """Locates the pictures of a split and collects faults.

    Args:
        first: Its first memes.
    """

    def __init__(self, reader: CardReader, first: Sequence[CardMeme]) -> None:
        self._split, self._source_url = reader.split.name, reader.card.source_url
        # If the card has no pictures, none can be missing.
        self._pictures = reader.pictures if reader.card.fields.picture is not None else None
        self._doubt = ""
        self.found = 0
        if self._pictures is not None:
            self._in_doubt(lambda _: reader.find_picture_folder(first))

    def find(self, meme: CardMeme) -> Path | None:
        """The file of a meme's picture; None if missing."""
        path = self._in_doubt(lambda pictures: pictures.find(*meme.picture))
        # Only counted: a million paths would stay in memory.
        self.found += path is not None
        return path

    def _in_doubt(self, search: Callable[[DatasetPictures], T]) -> T | None:
        if self._pictures is None:
            return None
        try:
            return search(self._pictures)
        # Several files match: the user has to choose, and the other checks continue.
        except BadRequest as error:
            self._doubt, self._pictures = error.message, None
            return None

    def faults(self, memes: int, without: Sequence[str]) -> list[DatasetFault]:
        """Lists the faults of the pictures of all memes.

        Args:
            without: Names of the memes without a picture.
        """
        # If the folder is ambiguous, it is unknown which pictures exist.
        if self._doubt:
            what = f"{self._doubt} The pictures of later rows were not looked for."
            return [DatasetFault(DatasetFaultKind.PICTURES_DOUBTFUL, self._split, what)]
        if self._pictures is None:
            return []
        kind = DatasetFaultKind.PICTURES_MISSING
        # All missing is a different fault than some missing: the pictures were never unpacked, or are elsewhere.
        if memes and not self.found:
            what = (
                f"none of {memes:,} pictures is there (looked for in the folders of the data set and three levels "
                f"deep below the directory){f'; they are had from {self._source_url}' if self._source_url else ''}"
            )
            return [DatasetFault(kind, self._split, what, memes)]
        if self.found < memes:
            missing = tuple(without)
            what = "pictures named in the file are not in the folder of the others"
            return [DatasetFault(kind=kind, split=self._split, what=what, count=len(missing), where=missing)]
        return []
