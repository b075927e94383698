"""Protocols of a library: a read-only snapshot, and a writer of single changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from court.precedents import LibraryIdentity, PrecedentLabel
from retrieval.embed.encoder import EncoderIdentity
from retrieval.index.exact import Hits
from retrieval.library.change_rules import (
    CurrentLibrary,
    PlannedChange,
    plan_add,
    plan_relabel,
    plan_remove,
    plan_revoke,
)
from retrieval.library.changes import Change, Recorded
from retrieval.library.filters import Filter
from retrieval.library.manifest import MAX_KEPT_BYTES, Counts, LabelledMeme, Tuning

Plan: TypeAlias = Callable[[CurrentLibrary], PlannedChange]
"""Plans a change of a library as it is by then; raises BadRequest if it does not fit."""


class Writer(ABC):
    """Changes a library by the rules of :mod:`retrieval.library.change_rules`, and raises as they do.

    Each method raises BadLibrary if the library is damaged, and Unavailable if another writer holds it for too long.
    """

    @property
    @abstractmethod
    def encoder(self) -> EncoderIdentity:
        """Identity of the encoder that made the library."""

    def add(
        self, meme: LabelledMeme, vector: NDArray[np.float32], picture: bytes | None, *, who: str, why: str
    ) -> Change:
        """Adds a meme with its vector, shape (text_dim + picture_dim,), and its thumbnail as JPEG.

        Raises:
            CantChange: Too many changes since a library on disk was last compacted.
            OSError: The disk is full or can't be written to; the library is unchanged.
            ValueError: The picture is too large, or the vector does not fit the meme.
        """
        if picture and len(picture) > MAX_KEPT_BYTES:
            raise ValueError(f"a picture of {len(picture)} bytes is larger than any that is kept")
        # A copy: the caller may change its array before it is written, perhaps by another thread.
        vector = np.array(vector, dtype=np.float32)
        return self._made(lambda now: plan_add(now, meme, vector, picture, who=who, why=why))

    def remove(self, id_: str, *, who: str, why: str) -> Change:
        """Removes a meme; this can be revoked."""
        return self._made(lambda now: plan_remove(now, id_, who=who, why=why))

    def relabel(self, id_: str, label: PrecedentLabel, *, who: str, why: str, binding: bool = True) -> Change:
        """Changes the label of a meme; the new label counts as verified, and settles exact copies if it binds."""
        return self._made(lambda now: plan_relabel(now, id_, label, who=who, why=why, binding=binding))

    def revoke(self, number: int, *, who: str, why: str) -> Change:
        """Undoes a change by recording an opposite one."""
        return self._made(lambda now: plan_revoke(now, number, who=who, why=why))

    @abstractmethod
    def forget(self) -> None:
        """Permanently deletes removed memes; the history still says who removed which id, when and why."""

    @abstractmethod
    def meme(self, id_: str) -> LabelledMeme | None:
        """Returns the current meme of this id; None if there is none."""

    @abstractmethod
    def history(self, meme: str | None = None) -> list[Recorded]:
        """Returns all recorded changes, of one meme or of all, in order."""

    @abstractmethod
    def _made(self, plan: Plan) -> Change:
        """Plans a change of the current library and stores it."""


class LibraryView(Protocol):
    """A consistent snapshot of a library, isolated from concurrent searches and changes."""

    @property
    def identity(self) -> LibraryIdentity:
        """Identity for records."""

    @property
    def tuning(self) -> Tuning:
        """Settings of search and vote."""

    @property
    def counts(self) -> Counts:
        """Number of memes."""

    def rows_of(self, ids: Collection[str]) -> list[int]:
        """Returns the rows of memes by id; unknown ids are skipped."""

    def count(self, where: Filter) -> int:
        """Counts the memes that a filter admits."""

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """The memes in these rows, in this order."""

    def halves(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Vectors of the texts, shape (n, text_dim), and of the pictures, shape (n, picture_dim), of at least one row,
        in this order; zeros where there is none."""  # noqa: D205, D209

    def search(
        self,
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        *,
        alpha: float,
        k: int,
        exclude: Collection[int] = (),
        where: Filter | None = None,
        harmful: bool | None = None,
    ) -> Hits:
        """Searches as :meth:`~retrieval.index.exact.FusedIndex.search`, within ``where`` or one label."""
