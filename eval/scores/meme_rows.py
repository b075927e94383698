"""Reader of files with rows about memes, such as annotators' votes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from court.errors import BadRequest
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

_LISTED = 10
"""Largest number of faults that an error message lists."""


def read_meme_rows(path: Path, columns: Sequence[str], what: str) -> tuple[list[tuple[str, ...]], int]:
    """Reads CSV with a header or JSON lines; other columns are ignored.

    Args:
        columns: Names of the required columns, the first being the meme's id and the last a word that may be missing.

    Returns:
        A row per line, in order, with the text of these columns; and the number of rows whose word is missing.

    Raises BadRequest: The file can't be read, or a line is invalid; the message lists the first faults by line.
    """
    rows: list[tuple[str, ...]] = []
    faults: list[str] = []
    for line, record in table_records(path, columns, what):
        fault, row = record if isinstance(record, str) else "", []
        for column in columns if not fault else ():
            value = None if isinstance(record, str) else record.get(column)
            # Unchanged: labels are the data set's own words.
            try:
                word = (word_of(value, column) or "").strip()
            except BadCell:
                word = ""
            # Known only when all words are: "none" is a label beside one other.
            if not word and column != columns[-1]:
                fault = f"{column} is empty, or neither a word nor a whole number"
                # One fault per line is enough to find the line.
                break
            row.append(word)
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
    words = {label_of(row[-1], {"none"}) for row in rows} - {None}
    # Beside one other label, "none" is one itself.
    usable = [row for row in rows if label_of(row[-1], {"none"} if len(words) == 2 else ()) is not None]
    return usable, len(rows) - len(usable)


def table_records(path: Path, columns: Sequence[str], what: str) -> Iterator[Record]:
    """Records of a CSV or JSON lines file whose header must name these columns. Raises BadRequest as above."""
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
