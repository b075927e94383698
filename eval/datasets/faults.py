"""Findings on the files of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DatasetFaultKind(StrEnum):
    """Kind of a finding."""

    FILE_MISSING = "file missing"
    ROW_DAMAGED = "row damaged"
    ID_TWICE = "id twice"
    TEXT_TWICE = "text twice"
    PICTURE_TWICE = "picture twice"
    LABELS_CONFLICT = "labels conflict"
    PICTURES_MISSING = "pictures missing"
    PICTURES_DOUBTFUL = "pictures doubtful"
    PICTURE_UNREADABLE = "picture unreadable"
    COUNT_DIFFERS = "count differs"
    OTHER_DATA_SET = "other data set"


@dataclass(frozen=True, slots=True)
class DatasetFault:
    """A fault in a data set.

    Attributes:
        split: Name of the split; several, joined by ``+``, if the fault lies between them.
        what: One-sentence description, without any content of a meme.
        count: Number of memes, or groups of memes, concerned.
        where: Positions of the fault: lines of files, or ids that belong together.
    """

    kind: DatasetFaultKind
    split: str
    what: str
    count: int = 1
    where: tuple[str, ...] = ()
