"""Reader of files with rows about memes, such as predictions and annotators' votes."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from eval.datasets.card import FileKind
from eval.datasets.record_files import RecordFile, kind_of, parsed_rows
from retrieval.library.cells import BadCell, label_of, word_of
from retrieval.library.tables import (
    Record,
    csv_records,
    delimiter_of,
    header_of,
    json_records,
    read_text,
    repeated_names,
)


def read_meme_rows(path: Path, columns: Sequence[str], what: str) -> tuple[list[tuple[str, ...]], int]:
    """Reads the columns of a table; others are ignored.

    Args:
        columns: Names of the required columns, the first being the meme's id and the last a word that may be missing.

    Returns:
        A row per line, in order, with the text of these columns; and the number of rows whose word is missing.

    Raises BadRequest: The file can't be read, or a line is invalid; the message lists the first faults by line.
    """

    def parse(_: int, record: dict[str, Any]) -> tuple[str, ...]:
        row = []
        for column in columns:
            # Unchanged: labels are the data set's own words.
            try:
                row.append((word_of(record.get(column), column) or "").strip())
            except BadCell:
                row.append("")
            # Known only when all words are: "none" is a label beside one other.
            if not row[-1] and column != columns[-1]:
                raise BadCell(f"{column} is empty, or neither a word nor a whole number")
        return tuple(row)

    rows = parsed_rows(
        path, table_records(path, columns, what), parse, purpose=f"used as {what}", reason="ROWS_UNUSABLE"
    )
    words = {label_of(row[-1], {"none"}) for row in rows} - {None}
    # Beside one other label, "none" is one itself.
    usable = [row for row in rows if label_of(row[-1], {"none"} if len(words) == 2 else ()) is not None]
    return usable, len(rows) - len(usable)


def table_records(path: Path, columns: Sequence[str], what: str) -> Iterator[Record]:
    """Records of CSV, JSON lines or Parquet with these columns, whose names are in lower case.

    Raises BadRequest: The file can't be read.
    """
    named = " and ".join(filter(None, (", ".join(columns[:-1]), columns[-1])))
    # Of two columns with the same name the last would silently win.
    fault = iter([(1, f"the header must name {named}, and no column twice")])
    if (kind := kind_of(path)) in (FileKind.PARQUET, FileKind.ARROW):
        rows = iter(RecordFile(path, kind))
        first = list(next(([row] for row in rows), []))
        names = [name.lower() for _, row in first for name in row]
        if first and (not set(columns) <= set(names) or repeated_names(names)):
            return fault
        return (
            (place, dict(zip(names, row.values(), strict=True)))
            for place, row in chain(first, rows)
            if isinstance(row, dict)
        )
    content = read_text(path, what)
    if content.lstrip().startswith("{"):
        return json_records(content)
    if not content.strip():
        return iter(())
    delimiter = delimiter_of(content, tuple(columns))
    if delimiter is None or repeated_names(header_of(content, delimiter)):
        return fault
    return csv_records(content, delimiter)
