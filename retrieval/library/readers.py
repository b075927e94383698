"""Reads labelled memes in published formats: HarMeme, Hateful Memes (FHM), plain CSV, and our own JSON lines.

A bad row is reported by line, id and reason, and never stops the others. No message quotes a meme: published examples
of harm must not get into logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from court.precedents import PrecedentLabel
from court.verdict import Label
from retrieval.library.cells import BadCell, label_of, plain_word, require_text
from retrieval.library.sources import NOT_FOR_LIBRARIES, Problem, Row, Rows, Source, SourceFormat
from retrieval.library.tables import (
    DELIMITERS,
    csv_records,
    delimiter_of,
    header_of,
    json_records,
    parse_object,
    read_text,
    repeated_names,
)

LABEL_WORDS = {
    **dict.fromkeys(("harmful", "1", "true", "hateful", "misogynous", "somewhat harmful", "very harmful"), True),
    **dict.fromkeys(("not harmful", "0", "false", "not hateful", "not misogynous", "harmless", "benign"), False),
    **dict.fromkeys(("non harmful", "non hateful", "non misogynous"), False),
}
"""Words and numbers for the two labels, as :func:`plain_word` leaves them; True for harmful."""
_MARKS = frozenset({"not", "non", "no", "none", "normal", "benign", "ok", "0"})
"""Words that mark the benign one of two labels, wherever they stand in it."""
_STEMS = frozenset(
    {"harm", "hate", "toxic", "offensive", "offens", "abusive", "misogyn", "misogynous", "sexist", "racist"}
)
"""Words to which ``non`` or ``less`` may be joined: "nonhateful" and "harmless" are marked, "notorious" is not."""


def classes_of(counts: Mapping[str, int], harmful: Collection[str] = ()) -> dict[str, bool] | None:
    """Tells which labels are harmful; None if their words don't say.

    Args:
        counts: Number of rows by label, in the words of the data set.
        harmful: Labels that the user names as harmful; all others are then benign.

    Raises:
        BadRequest: A named label is none of them, or all are named.
    """
    if harmful:
        named = {plain_word(word) or "" for word in harmful}
        found = {label: plain_word(label) in named for label in counts}
        unknown = sorted(named - {plain_word(label) for label in counts})
        if unknown or all(found.values()):
            what = f"has {', '.join(unknown)}, which is no label" if unknown else "names every label"
            raise BadRequest(f"--harmful {what}. The labels are: {counted(counts)}.", reason="LABEL_UNKNOWN")
        return found
    words = {label: plain_word(label) or "" for label in counts}
    if all(word in LABEL_WORDS for word in words.values()):
        found = {label: LABEL_WORDS[word] for label, word in words.items()}
        return found if len(set(found.values())) == 2 else None
    # Of three labels or more, those without a mark need not be harmful: "funny" beside "hateful" and "none".
    if len(words) != 2:
        return None
    marks = {label: _marks(word, {other for other in words.values() if other != word}) for label, word in words.items()}
    # One label marked once and the other not at all; "non-benign" is marked twice, and says nothing.
    return {label: not count for label, count in marks.items()} if sorted(marks.values()) == [0, 1] else None


def _marks(word: str, others: Collection[str]) -> int:
    """Number of words and affixes that mark a label as benign; 2 for a phrase that may mean either."""
    # "No harm" is said of the degree of harm, and of jokes that do some.
    if word == "no harm":
        return 2
    stems = {*_STEMS, *(part for other in others for part in other.split())}
    stems |= {stem.removesuffix(ending) for stem in stems for ending in ("ful", "eful")}
    count = 0
    for part in word.split():
        if part in _MARKS:
            count += 1
            continue
        count += any(part.startswith(mark) and part.removeprefix(mark) in stems for mark in ("not", "non", "no"))
        count += part.endswith("less") and part.removesuffix("less") in stems
    return count


def label_counts(counts: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Labels of a column by the spelling that most rows have, without missing values; and a note on ``none``.

    Args:
        counts: Number of rows by value.
    """
    spellings: dict[str, dict[str, int]] = {}
    for value, count in counts.items():
        if (word := label_of(value, {"none"})) is not None:
            own = spellings.setdefault(word, {})
            own[value.strip()] = own.get(value.strip(), 0) + count
    note = ""
    if "none" in spellings:
        # Beside one other label it is the second class; beside several, the mark of a missing value.
        if len(spellings) == 2:
            note = "none is read as a label, as there is one other."
        else:
            note = f"none is read as a missing value ({sum(spellings.pop('none').values()):,} rows)."
    found = {max(own, key=lambda one: (own[one], one)): sum(own.values()) for own in spellings.values()}
    return found, note


def counted(counts: Mapping[str, int]) -> str:
    """Labels with their numbers of rows, in words."""
    return ", ".join(f"{label} ({count:,})" for label, count in counts.items())


__all__ = ["Problem", "Row", "Rows", "Source", "SourceFormat", "read_source"]

_CSV_COLUMNS = ("id", "label")
"""Columns that a CSV file must have."""
_LOOKED_AT = 20
"""Number of rows from which the format is detected."""

# HarMeme has three degrees and the court two labels: both degrees of harm become harmful.
_HARMEME: dict[str, PrecedentLabel] = {
    "not harmful": Label.NOT_HARMFUL,
    "somewhat harmful": Label.HARMFUL,
    "very harmful": Label.HARMFUL,
}
_PIECE = 2**20
_COLUMN_STORES = (".parquet", ".arrow")
_FAULTY = 0.25
"""Share of rows with unknown labels from which on a file is taken to have labels of its own."""


def read_source(source: Source) -> Rows:
    """Reads all rows of a source.

    Raises:
        BadRequest: The file can't be read, its format is unknown, or a row is marked as not for libraries
            (:data:`~retrieval.library.sources.NOT_FOR_LIBRARIES`).
    """
    if source.rows is not None:
        for path in source.files:
            # A byte search works for every format, as nothing else has this name.
            if _holds(path, NOT_FOR_LIBRARIES.encode()):
                raise _marked(path)
        read = source.rows()
        # Under the source's name, by which a report sorts them, and which the user may have chosen.
        good = [replace(row, source=source.label) for row in read.good]
        return Rows(good, [replace(problem, source=source.label) for problem in read.problems])
    content = read_text(source.path, "labelled memes")
    _refuse_marked(source.path, content)
    layout = _detect(content)
    if layout is None:
        # Naming a layout would not help for an empty file.
        if not content.strip():
            raise BadRequest(f"{source.path.name} is empty: it has no labelled memes.", reason="SOURCE_FORMAT_UNKNOWN")
        raise BadRequest(
            f"{source.path.name} has no layout that is known ({', '.join(_PARSERS)}). A table needs id and label in "
            "its first line, and commas, semicolons or tabs between its cells; a data set with a card is named by "
            "--dataset.",
            reason="SOURCE_FORMAT_UNKNOWN",
        )
    delimiter = _delimiter(layout, content)
    if delimiter and (repeated := repeated_names(header_of(content, delimiter))):
        raise BadRequest(
            f"{source.path.name} has the column {', '.join(repeated)} twice. Rename the one that is not meant.",
            reason="SOURCE_UNREADABLE",
        )
    rows, name = Rows(), source.label
    for line, record in csv_records(content, delimiter) if delimiter else json_records(content):
        id_ = ""
        try:
            if isinstance(record, str):
                # A string in place of a record says why the line could not be read.
                raise BadCell(record)
            id_ = _id(record)
            rows.good.append(_row(_PARSERS[layout], record, line=line, id_=id_, name=name))
        except BadCell as bad:
            rows.problems.append(Problem(name, line, id_, str(bad)))
    return rows


def is_plain_table(path: Path) -> bool:
    """True for a file in none of the known layouts, or with labels in other words than ours: its columns say more."""
    if path.suffix.lower() in _COLUMN_STORES:
        return True
    try:
        content = read_text(path, "labelled memes")
    except BadRequest:
        return False  # reading it reports the fault
    if (layout := _detect(content)) not in (SourceFormat.CSV, SourceFormat.MEMECOURT):
        return layout is None and bool(content.strip()) and NOT_FOR_LIBRARIES not in content
    delimiter = _delimiter(layout, content)
    records = csv_records(content, delimiter) if delimiter else json_records(content)
    words = [_word(record.get("label")) for _, record in records if isinstance(record, dict)]
    unknown = sum(bool(word) and word not in LABEL_WORDS for word in words)
    # A few unknown words are faults of rows.
    return unknown > _FAULTY * len(words)


def _holds(path: Path, mark: bytes) -> bool:
    """True if a file contains the mark. Reads it in chunks, as it may be larger than memory."""
    # Reads to the end: a single marked row in the last line, or a column named in Parquet's footer, is enough.
    tail = b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            if mark in tail + piece:
                return True
            tail = piece[-len(mark) :]
    return False


def _refuse_marked(path: Path, content: str) -> None:
    """Refuses a file with a marked row, in any layout: adding labels by hand must not make it importable."""
    # A key of JSON, or a column; the quotes of a key within a text are escaped.
    in_header = any(NOT_FOR_LIBRARIES in header_of(content, delimiter) for delimiter in DELIMITERS)
    if in_header or re.search(rf'"{NOT_FOR_LIBRARIES}"\s*:', content):
        raise _marked(path)


def _marked(path: Path) -> BadRequest:
    return BadRequest(
        f"{path.name} holds memes that are marked as not for libraries ({NOT_FOR_LIBRARIES}), such as those that "
        "memecourt-eval probe has rewritten to be hard to recognise. They become no precedents.",
        reason="SOURCE_NOT_FOR_LIBRARIES",
    )


def _delimiter(layout: SourceFormat, content: str) -> str:
    """Cell delimiter of a layout; empty if the layout is not a table."""
    return delimiter_of(content, _CSV_COLUMNS) or "," if layout is SourceFormat.CSV else ""


def _detect(content: str) -> SourceFormat | None:
    # Splits only as many lines as needed, as these files may be large.
    for line in content.split("\n", _LOOKED_AT)[:_LOOKED_AT]:
        record = parse_object(line)
        if record is not None and "id" in record:
            # Only HarMeme has a list of labels.
            return SourceFormat.HARMEME if "labels" in record else SourceFormat.MEMECOURT
    return SourceFormat.CSV if delimiter_of(content, _CSV_COLUMNS) else None


def _row(
    parse: Callable[[Mapping[str, Any]], dict[str, Any]], record: Mapping[str, Any], line: int, id_: str, name: str
) -> Row:
    text = record.get("text")
    if not isinstance(text, str | None):
        raise BadCell("the text is no text")
    row = Row(line=line, id=id_, text=text or "", source=name, **parse(record))
    # All of these are stored and shown, so each must be valid text.
    for part in (row.id, row.text, row.image, row.source_label, row.verified_by, *row.categories):
        require_text(part)
    return row


def _id(record: Mapping[str, Any]) -> str:
    id_ = record.get("id")
    # A bool is an int in Python, but never an id.
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise BadCell("it has no id")
    # LabelledMeme has the same bound, but its error would end the whole import; here it costs one row.
    if len(str(id_)) > 200:
        raise BadCell("its id is longer than 200 characters")
    return str(id_).strip()


def _parse_harmeme(record: Mapping[str, Any]) -> dict[str, Any]:
    labels = record.get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise BadCell("the label is empty")
    label = labels[0].strip().lower()
    if label not in _HARMEME:
        raise BadCell("the label is none of HarMeme's" if label else "the label is empty")
    return {
        "label": _HARMEME[label],
        "source_label": label,
        # The first of HarMeme's labels is the degree of harm; the others name its targets.
        "categories": tuple(labels[1:]),
        "image": _name(record.get("image")),
    }


def _parse_plain(record: Mapping[str, Any]) -> dict[str, Any]:
    label, categories = record.get("label"), record.get("categories") or ()
    word = _word(label)
    if word is None or word not in LABEL_WORDS:
        raise BadCell(
            ("the label is empty" if "label" in record else "it has no label, as in a test split")
            if word is None
            else "the label is none that is known (1, 0, harmful, not_harmful, hateful, true, false)"
        )
    if isinstance(categories, str):
        categories = categories.split(";")
    if not isinstance(categories, list | tuple) or not all(isinstance(category, str) for category in categories):
        raise BadCell("the categories are no texts")
    verified_by = str(record.get("verified_by") or "").strip()
    try:
        day = datetime.fromisoformat(str(record.get("verified_on"))).replace(tzinfo=UTC) if verified_by else None
    except ValueError:
        raise BadCell("it has a verified_by and no day (2026-11-29) as verified_on") from None
    return {
        "label": _label(word),
        "verified_by": verified_by,
        "verified_on": day,
        "source_label": str(label).strip(),
        "categories": tuple(category.strip() for category in categories if category.strip()),
        # Also accepts the field name of Hateful Memes, whose rows are often passed on as a table.
        "image": _name(record.get("image") or record.get("img")),
    }


def _word(value: Any) -> str | None:
    """A label in plain words; None for a missing one, and for lists and objects."""
    return label_of(value) if isinstance(value, str | int | float | None) else None


def _label(word: str) -> PrecedentLabel:
    return Label.HARMFUL if LABEL_WORDS[word] else Label.NOT_HARMFUL


def _name(value: Any) -> str:
    if not isinstance(value, str | None):
        raise BadCell("the name of its picture is no text")
    # Must be text: the name becomes part of a path below the directory of pictures.
    return (value or "").strip()


_PARSERS: dict[SourceFormat, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    SourceFormat.HARMEME: _parse_harmeme,
    SourceFormat.CSV: _parse_plain,
    SourceFormat.MEMECOURT: _parse_plain,
}
