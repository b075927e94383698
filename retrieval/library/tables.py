"""Tables that people bring, of memes or of predictions: CSV as spreadsheets and pandas write it, and JSON a line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from court.errors import BadRequest

DELIMITERS = (",", ";", "\t")
"""Characters between cells; spreadsheets write semicolons where the comma is the decimal sign."""
LABEL_WORDS = {
    **dict.fromkeys(("harmful", "1", "true", "hateful", "misogynous"), True),
    **dict.fromkeys(("not harmful", "0", "false", "not hateful", "not misogynous", "harmless", "benign"), False),
}
"""Words and numbers for the two labels, as :func:`plain_word` leaves them; True for harmful."""

Record = tuple[int, dict[str, Any] | str]
"""Line number, counted from 1, on which a record ends, and the record; or what is wrong with the line."""


def read_text(path: Path, what: str) -> str:
    """The text of a file in UTF-8 or UTF-16, its lines ending with a line feed however they do in the file.

    Args:
        path: The file.
        what: Its content in words, for messages.

    Raises:
        BadRequest: The file can't be read, or is in another encoding.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise BadRequest(f"The file of {what}, {path.name}, can't be read.", reason="SOURCE_UNREADABLE") from None
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\x00" in data and not marked:
        raise BadRequest(
            f"{path.name} is no text, or UTF-16 without a mark at its beginning. Save it as UTF-8.",
            reason="SOURCE_UNREADABLE",
        )
    try:
        # Spreadsheets also put a mark at the beginning of UTF-8.
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(
            f"{path.name} is not UTF-8 text: line {line:,} has bytes of another encoding, such as windows-1252. Save "
            f"it as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8-{path.name}",
            reason="SOURCE_UNREADABLE",
        ) from None
    # A file with carriage returns alone, as old Macs write it, would be one line. In others they may stand in a cell.
    return text if "\n" in text else text.replace("\r", "\n")


def json_records(content: str) -> Iterator[Record]:
    """Records of which each is a JSON object on a line of its own."""
    # Not splitlines(): that also cuts at characters that may stand within a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            record = parse_json(line)
            yield number, record if isinstance(record, dict) else "the line is no JSON object"


def parse_json(line: str) -> Any:
    """The value that a line holds; None where it is no JSON."""
    try:
        return json.loads(line)
    # Brackets that are nested deeply enough raise the latter, which is no ValueError.
    except (ValueError, RecursionError):
        return None


def csv_records(content: str, delimiter: str) -> Iterator[Record]:
    """Records under a header, the names of which are made lower case."""
    # Line ends as they stand: one within quotes is the cell's. Strict: what is wrong with the quotes must be reported
    # rather than guessed at.
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield reader.line_num, "the line is no CSV"
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip().lower() for cell in cells]
        elif len(cells) != len(header):
            yield reader.line_num, f"the line has {len(cells)} cells under a header of {len(header)}"
        else:
            yield reader.line_num, dict(zip(header, cells, strict=True))


def delimiter_of(content: str, columns: Collection[str]) -> str | None:
    """The character between cells with which the first line names all columns; None where there is none."""
    for delimiter in DELIMITERS:
        if set(columns) <= set(header_of(content, delimiter)):
            return delimiter
    return None


def header_of(content: str, delimiter: str) -> list[str]:
    """Names in the first line that is not blank, in lower case."""
    first = next((line for line in content.split("\n") if line.strip()), "")
    try:
        return [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
    except csv.Error:
        return []


def plain_word(value: Any) -> str | None:
    """A label in lower case with single spaces, whole numbers without a fraction; None for anything else.

    pandas writes whole numbers as 1.0 where others in the column are missing.
    """
    if value is None:
        return ""
    # Before numbers: to Python a bool is an int.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        return None
    return " ".join(str(value).replace("_", " ").replace("-", " ").lower().split()).removesuffix(".0")
