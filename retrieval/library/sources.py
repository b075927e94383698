"""Sources of labelled memes, and the result of reading them row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from court.precedents import PrecedentLabel

NOT_FOR_LIBRARIES = "memecourt_not_for_libraries"
"""Name of a field, or column, that marks a row as never to become a precedent, such as a meme that was rewritten to be
harder to recognise. A file with one such row is refused as a whole."""


class SourceFormat(StrEnum):
    """Layout of a file of labelled memes."""

    HARMEME = "harmeme"
    """JSON a line: ``id``, ``image``, ``labels`` (the first is the label, the others are targets), ``text``."""
    CSV = "csv"
    """Header ``id,label`` and any of ``text,image,categories``; categories parted by semicolons."""
    MEMECOURT = "memecourt"
    """JSON a line: ``id``, ``label``, ``text``, ``categories`` and ``image`` (``img`` in Hateful Memes); and, where
    somebody has confirmed the label, ``verified_by`` and ``verified_on``."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Properties of the origin of memes, by which searches can be filtered.

    Attributes:
        verified: True if people have confirmed the labels for this court; the labels of a data set are not.
        binding_by: Person who answers for each label, which then settles exact copies; empty if nobody does.
        verified_by_row: True to believe the rows that name who has confirmed them; a stranger's file may name anybody.
    """

    split: str = ""
    namespace: str = ""
    language: str = ""
    policy: str = ""
    verified: bool = False
    binding_by: str = ""
    verified_by_row: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Source of labelled memes.

    Attributes:
        pictures: Directory that image names are relative to; None to go by the texts alone.
        rows: Reads the rows of a data set or plain table, in any layout that a card describes; None for files in a
            known layout.
        files: All files that the rows are read from, if these are not ``path``.
        notes: Sentences on how its rows are read, to be said before they are.
        recipe: Digest of the rules by which rows are read from them; empty if the format determines them.
    """

    path: Path
    name: str = ""
    pictures: Path | None = None
    provenance: Provenance = Provenance()
    rows: Callable[[], Rows] | None = None
    files: tuple[Path, ...] = ()
    recipe: str = ""
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Source name of its precedents."""
        return self.name or self.path.stem


@dataclass(frozen=True, slots=True)
class Row:
    """One meme as given by its source.

    Attributes:
        verified_by: Person who has confirmed the label of this row; empty for none.
    """

    line: int
    id: str
    label: PrecedentLabel
    source_label: str
    text: str
    categories: tuple[str, ...] = ()
    image: str = ""
    source: str = ""
    verified_by: str = ""
    verified_on: datetime | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Fault of a row, quoting nothing of the meme; ``kept`` if it was imported by its text alone."""

    source: str
    line: int
    id: str
    reason: str
    kept: bool = False


@dataclass(slots=True)
class Rows:
    """Rows read from a source."""

    good: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
