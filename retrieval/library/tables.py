"""Reads tables of memes or predictions: CSV as written by spreadsheets and pandas, and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from court.errors import BadRequest

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

DELIMITERS = (",", ";", "\t")
"""Cell delimiters; spreadsheets write semicolons in locales where the comma is the decimal separator."""
_VISIBLE, _LINE_END = re.compile(r"\S"), re.compile(r"[\r\n]")
_BLOCK = 1024
"""Rows that are read at once."""
_MOST_LINES = 100
"""Maximum lines in a cell; more means that an unclosed quote has swallowed rows."""
# The default limit of 128 Ki characters would end a record in the middle of a cell and read the rest as rows. The whole
# content is in memory already, so no limit is needed.
csv.field_size_limit(sys.maxsize)

Record = tuple[int, dict[str, Any] | str]
"""Line number, counted from 1, on which a record ends, and the record or the fault of the line."""


def read_text(path: Path, what: str) -> str:
    """The text of a UTF-8 or UTF-16 file.

    Args:
        what: Its content in words, for messages.

    Raises:
        BadRequest: The file can't be read, or is in another encoding.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise BadRequest(f"The file of {what}, {path.name}, can't be read.", reason="SOURCE_UNREADABLE") from None
    if data.startswith(b"PK\x03\x04"):
        raise BadRequest(
            f"{path.name} is a workbook of a spreadsheet or another archive, whatever its name. Save its table as CSV.",
            reason="SOURCE_UNREADABLE",
        )
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\x00" in data and not marked:
        raise BadRequest(
            f"{path.name} is no text, or UTF-16 without a mark at its beginning. Save it as UTF-8.",
            reason="SOURCE_UNREADABLE",
        )
    try:
        # Spreadsheets also write a byte order mark in UTF-8.
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        if marked:
            raise BadRequest(
                f"{path.name} begins as UTF-16 and is damaged or cut off. Save it once more, as UTF-8.",
                reason="SOURCE_UNREADABLE",
            ) from None
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRequest(
            f"{path.name} is not UTF-8 text: line {line:,} has bytes of another encoding, such as windows-1252. Save "
            f"it as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8-{path.name}",
            reason="SOURCE_UNREADABLE",
        ) from None
    # A file with carriage returns only, as old Macs write it, would be one line. In other files they may be in a cell.
    return text if "\n" in text else text.replace("\r", "\n")


def json_records(content: str) -> Iterator[Record]:
    """Records of a JSON lines file."""
    # Not splitlines(): it also splits at characters that may occur inside a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            record = parse_object(line)
            yield number, "the line is no JSON object" if record is None else record


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object in a text; None if it is not one."""
    # orjson is several times faster, but strict; lines that it refuses are parsed again below.
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python's json writes NaN, Infinity and lone surrogates, which are not valid JSON, so files contain them.
        try:
            record = json.loads(text)
        # Deep nesting raises RecursionError, which counts as a fault of the line and must not stop the reader.
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def csv_records(content: str, delimiter: str) -> Iterator[Record]:
    """Records under a header, whose column names are lowercased."""
    # Line ends are kept: one within quotes belongs to the cell. Strict, so that bad quotes are reported rather than
    # guessed at.
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    for lines, rows in csv_blocks(reader):
        for line, cells in zip(lines, repeat(rows) if isinstance(rows, str) else rows, strict=False):
            if isinstance(cells, str):
                yield line, cells
            elif not any(map(str.strip, cells)):
                continue
            elif header is None:
                header = _named(cells)
            # Spreadsheets pad rows with empty cells.
            elif len(cells) < len(header) or any(map(str.strip, cells[len(header) :])):
                yield line, f"the line has {len(cells)} cells under a header of {len(header)}"
            else:
                yield line, dict(zip(header, cells, strict=False))


def csv_blocks(reader: CsvReader) -> Iterator[tuple[Sequence[int], list[list[str]] | str]]:
    """Cells of many rows at once, with the lines on which these end, or lines and their fault.

    An unreadable row yields a fault for each of its lines: an unclosed quote swallows rows, and they must be counted.
    """
    done = 0
    while True:
        rows, fault = list[list[str]](), ""
        try:
            # Not in one call, which need not keep the rows before an error.
            for cells in islice(reader, _BLOCK):
                rows.append(cells)
        # The reader continues after an error, so that a bad quote doesn't cost the rest of the file.
        except csv.Error:
            fault = "the line is no CSV"
        if not rows and not fault:
            return
        # Nearly always a line is a row; else the line ends within its cells are counted.
        if not fault and reader.line_num - done == len(rows):
            yield range(done + 1, reader.line_num + 1), rows
            done = reader.line_num
            continue
        lines, good = list[int](), list[list[str]]()
        for cells in rows:
            first = done + 1
            done = first + sum(cell.count("\n") + cell.count("\r") - cell.count("\r\n") for cell in cells)
            if done - first < _MOST_LINES:
                lines.append(done)
                good.append(cells)
                continue
            yield lines, good
            yield range(first, done + 1), f"a quote that opens in line {first} swallows the line"
            lines, good = [], []
        yield lines, good
        if fault:
            if reader.line_num - done > 1:
                fault = f"a quote that opens in line {done + 1} swallows the line"
            yield range(done + 1, reader.line_num + 1), fault
            done = reader.line_num


def _named(cells: Sequence[str]) -> list[str]:
    """Column names in lower case, without trailing empty ones."""
    names = [cell.strip().lower() for cell in cells]
    while names and not names[-1]:
        names.pop()
    return names


def delimiter_of(content: str, columns: Collection[str]) -> str | None:
    """The delimiter with which the header contains all columns; None if no delimiter does."""
    for delimiter in DELIMITERS:
        if set(columns) <= set(header_of(content, delimiter)):
            return delimiter
    return None


def header_of(content: str, delimiter: str) -> list[str]:
    """Column names, in lower case, from the first line that is not blank."""
    # Accepts any line end, as for the records: a file of carriage returns may have line feeds within its cells.
    # Only this line is taken from the text, which may be long.
    visible = _VISIBLE.search(content)
    start = visible.start() if visible else 0
    end = _LINE_END.search(content, start)
    first = content[max(content.rfind(sign, 0, start) for sign in "\r\n") + 1 : end.start() if end else None]
    try:
        return _named(next(csv.reader([first], delimiter=delimiter), []))
    except csv.Error:
        return []


def repeated_names(header: Collection[str]) -> list[str]:
    """Duplicate column names, of which the last would silently win; empty names may repeat."""
    return [name for name, times in Counter(filter(None, header)).items() if times > 1]
