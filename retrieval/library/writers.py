"""What changes a library one meme at a time, wherever it lies: on disk or in a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from court.precedents import PrecedentLabel
from retrieval.encoders.embedding import EncoderIdentity
from retrieval.library.changes import Change, Recorded
from retrieval.library.manifest import LabelledMeme
from retrieval.library.writer import LibraryWriter
from retrieval.postgres.address import Address
from retrieval.postgres.writer import PostgresWriter
from retrieval.search.finder import LibraryFinder
from retrieval.search.pgvector import PgvectorFinder


class Writer(Protocol):
    """Changes a library. Each method raises as :class:`retrieval.library.writer.LibraryWriter` does."""

    @property
    def encoder(self) -> EncoderIdentity:
        """What the library was made with."""
        ...

    def add(
        self, meme: LabelledMeme, vector: NDArray[np.float32], picture: bytes | None, *, who: str, why: str
    ) -> Change:
        """Puts a meme in, with its vector, shape (text_dim + picture_dim,), and the JPEG that is kept of it."""
        ...

    def remove(self, id_: str, *, who: str, why: str) -> Change:
        """Takes a meme out; it can come back."""
        ...

    def relabel(self, id_: str, label: PrecedentLabel, *, who: str, why: str) -> Change:
        """Gives a meme another label, which counts as verified."""
        ...

    def revoke(self, number: int, *, who: str, why: str) -> Change:
        """Undoes a change, by another change."""
        ...

    def forget(self) -> None:
        """What was removed is lost for good; the history still says who removed which id, when and why."""
        ...

    def meme(self, id_: str) -> LabelledMeme | None:
        """The meme of this id as it is now; None where there is none."""
        ...

    def history(self, meme: str | None = None) -> list[Recorded]:
        """Every change that is recorded, of one meme or of all, in order."""
        ...


@contextmanager
def open_writer(place: Path | Address) -> Iterator[Writer]:
    """What changes the library in this directory or database.

    Raises:
        BadLibrary: On disk there is none, or it is damaged. In a database that is found by the first call.
        NotLoaded: It lies in a database, and the driver is not installed.
    """
    if isinstance(place, Address):
        with PostgresWriter(place) as writer:
            yield writer
    else:
        yield LibraryWriter.open(place)


@contextmanager
def open_writer_of(finder: LibraryFinder | PgvectorFinder) -> Iterator[Writer]:
    """What changes the library that is searched here, for as long as it is: nothing is read twice.

    Raises:
        NotLoaded: It lies in a database, and the driver is not installed.
    """
    if isinstance(finder, PgvectorFinder):
        with PostgresWriter(finder.address) as writer:
            yield writer
    else:
        yield LibraryWriter(finder.searched)
