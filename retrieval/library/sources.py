"""Sources of labelled memes, and the result of reading them row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from court.precedents import PrecedentLabel

NOT_FOR_LIBRARIES = "memecourt_not_for_libraries"
"""A field, or column, by which a row says that it is never to become a precedent, such as a meme that was rewritten to
be harder to recognise. A file with one such row is refused as a whole."""


class SourceFormat(StrEnum):
    """Layout of a file of labelled memes."""

    HARMEME = "harmeme"
    """JSON a line: ``id``, ``image``, ``labels`` (the first is the label, the others are targets), ``text``."""
    FHM = "fhm"
    """JSON a line: ``id``, ``img``, ``label`` (1 hateful, 0 not, absent in test splits), ``text``."""
    CSV = "csv"
    """Header ``id,label`` and any of ``text,image,categories``; categories parted by semicolons."""
    MEMECOURT = "memecourt"
    """JSON a line: ``id``, ``label``, ``text``, ``categories`` and either ``image`` or ``scene``."""
    MAMI = "mami"
    """Cells between tabs under the header ``file_name``, ``misogynous`` (1 or 0), ``shaming``, ``stereotype``,
    ``objectification``, ``violence``, ``Text Transcription``; for the test split all but the first and the last stand
    in a file of their own, which has no header."""
    CARD = "card"
    """Any layout that a data-set card describes; the source brings its reader along."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Further origin of memes, by which searches can be limited.

    Attributes:
        split: Split of their data set; empty if it has none.
        namespace: Namespace of their content.
        language: BCP 47 tag of their texts; empty where that is not known.
        policy: Name of the policy that they were labelled by.
        verified: True if people have confirmed the labels for this court; the labels of a data set are not.
    """

    split: str = ""
    namespace: str = ""
    language: str = ""
    policy: str = ""
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Source of labelled memes.

    Attributes:
        path: The file.
        name: Source name of its precedents; the file's own name if empty.
        pictures: Directory that image names are relative to; None to go by the texts alone.
        format: None to tell it from the content.
        labels: The file that the labels stand in where they stand apart, as those of MAMI's test split; else None.
        provenance: Further origin of its memes.
        rows: Reads the rows of a source of format ``card``; None for the others.
        files: All files that the rows are made of, where they are not ``path`` and ``labels``.
        recipe: Digest of the rules by which the rows are made of them; empty where the format says it.
    """

    path: Path
    name: str = ""
    pictures: Path | None = None
    format: SourceFormat | None = None
    labels: Path | None = None
    provenance: Provenance = Provenance()
    rows: Callable[[], Rows] | None = None
    files: tuple[Path, ...] = ()
    recipe: str = ""

    @property
    def label(self) -> str:
        """Source name of its precedents."""
        return self.name or self.path.stem


@dataclass(frozen=True, slots=True)
class Row:
    """One meme as its source has it.

    Attributes:
        line: Line number, counted from 1.
        id: Its name.
        label: Ours.
        source_label: In the source's words.
        text: Empty where there is none.
        categories: In the source's words.
        image: Name of the picture's file; empty where there is none.
        scene: Scene to draw instead of reading a file; empty if there is a file or none.
        source: Name of the source.
    """

    line: int
    id: str
    label: PrecedentLabel
    source_label: str
    text: str
    categories: tuple[str, ...] = ()
    image: str = ""
    scene: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Fault of a row.

    Attributes:
        source: Name of the source.
        line: Line number, counted from 1.
        id: Its name; empty where that could not be read.
        reason: In words, without any of the meme.
        kept: True if the meme went in all the same, by its text alone.
    """

    source: str
    line: int
    id: str
    reason: str
    kept: bool = False


@dataclass(slots=True)
class Rows:
    """Rows read from a source.

    Attributes:
        format: Layout of the source.
        good: The rows to go on with.
        problems: The others.
    """

    format: SourceFormat
    good: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
