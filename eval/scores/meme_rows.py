"""Rows about memes from a file: votes of annotators, membership in groups, and whatever else an id can be given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
from retrieval.library.tables import (
    Record,
    csv_records,
    delimiter_of,
    header_of,
    json_records,
    read_text,
    repeated_names,
)

_LISTED = 10
"""Faults that an error message lists."""
_SHOWN = 60
"""Characters of a word that a message shows."""


def read_meme_rows(
    path: Path, columns: Sequence[str], what: str, *, ids: Collection[str] | None = None
) -> list[tuple[str, ...]]:
    """Reads CSV with a header or JSON a line; other columns are passed over.

    Args:
        path: The file.
        columns: Names of the columns, the first being that of the meme's id; each must be there and not empty.
        what: Content of the file in words, for messages.
        ids: Ids of the memes that it is to be about; any where it is None.

    Returns:
        A row for each line, in order, with the words of these columns.

    Raises:
        BadRequest: The file can't be read, or a line is at fault; the first faults are listed by line.
    """
    rows: list[tuple[str, ...]] = []
    faults: list[str] = []
    for line, record in table_records(path, columns, what):
        fault, row = record if isinstance(record, str) else "", []
        for column in columns if not fault else ():
            value = None if isinstance(record, str) else record.get(column)
            # As it stands: labels are words of the data set's own.
            word = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
            if not word:
                fault = f"{column} is empty, or neither a word nor a whole number"
                # One fault of a line is enough to find it.
                break
            row.append(word)
        if not fault and ids is not None and row[0] not in ids:
            fault = f"no meme here has the id {row[0][:_SHOWN]!r}"
        if fault:
            faults.append(f"line {line}: {fault}")
        else:
            rows.append(tuple(row))
    if not rows and not faults:
        faults.append("it holds no rows")
    if faults:
        more = f"\n… and {len(faults) - _LISTED:,} more" if len(faults) > _LISTED else ""
        raise BadRequest(
            f"{path.name} can't be used as {what}:\n" + "\n".join(faults[:_LISTED]) + more, reason="ROWS_UNUSABLE"
        )
    return rows


def table_records(path: Path, columns: Sequence[str], what: str) -> Iterator[Record]:
    """Records of a file of CSV or JSON a line, whose header must name these columns. Raises BadRequest as above."""
    content = read_text(path, what)
    if content.lstrip().startswith("{"):
        return json_records(content)
    if not content.strip():
        return iter(())
    delimiter = delimiter_of(content, tuple(columns))
    if delimiter is None or repeated_names(header_of(content, delimiter)):
        named = " and ".join(filter(None, (", ".join(columns[:-1]), columns[-1])))
        return iter([(1, f"the header must name {named}, and no column twice")])
    return csv_records(content, delimiter)
