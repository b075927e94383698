"""Reads rows of the file formats in which data sets are published, one by one: text, Parquet and Arrow."""

from __future__ import annotations

import csv
import json
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from court.errors import BadRequest
from eval.datasets.card import FileKind
from eval.datasets.json_lines import parse_object
from retrieval.library.tables import csv_rows, read_text

Numbered = tuple[int, dict[str, Any] | str]
"""Number of a row, counted from 1, and the row, or a description of its fault. In text formats, the line it ends on."""
_PEEKED = 1 << 16
"""Bytes inspected to detect encoding and line ends."""
_BATCH = 2048
"""Rows of a columnar file that are in memory at once."""
_ENDINGS = {
    ".jsonl": FileKind.JSONL,
    ".json": FileKind.JSON,
    ".csv": FileKind.CSV,
    ".tsv": FileKind.TSV,
    ".parquet": FileKind.PARQUET,
    ".arrow": FileKind.ARROW,
}


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of rows.

    Attributes:
        path: The file; for kind ``tree``, a folder.
        header: Names of its columns if it has no header.
        records: Key in a JSON object under which the rows are found; empty if they are the whole file.
    """

    path: Path
    kind: FileKind
    columns: frozenset[str] | None = None
    header: tuple[str, ...] = ()
    records: str = ""

    def __iter__(self) -> Iterator[Numbered]:
        """Reads the rows. Raises BadRequest if the file as a whole can't be read."""
        match self.kind:
            case FileKind.JSONL:
                rows = _json_lines(self.path)
            case FileKind.JSON:
                rows = _json_list(self.path, self.records)
            case FileKind.JSON_MAP:
                rows = _json_map(self.path, self.records)
            case FileKind.CSV | FileKind.TSV:
                return _table(self)
            case FileKind.PARQUET | FileKind.ARROW:
                rows = _column_store(self.path, self.kind, self.columns)
            case FileKind.TREE:
                raise ValueError(f"{self.kind} is no kind of a single file")
        return rows


def row_count(path: Path, kind: FileKind) -> int:
    """Rows of a file; for JSON lines, those that are not blank. Raises BadRequest like reading them."""
    # Without parsing, because recognising a data set counts every candidate file.
    if kind is FileKind.JSONL:
        with path.open("rb") as lines:
            return sum(not line.isspace() for line in lines)
    # Without columns, as a count needs none: Parquet then reads next to nothing.
    return sum(1 for _ in RecordFile(path, kind, frozenset()))


def kind_of(path: Path) -> FileKind | None:
    """Format of a file by the ending of its name; None if that is unknown."""
    return _ENDINGS.get(path.suffix.lower())


@contextmanager
def _opened(path: Path, newline: str = "\n") -> Iterator[TextIO]:
    """Opens a text file in UTF-8 or UTF-16.

    Args:
        newline: Line ends, as for ``open``; carriage returns if the file has no others.

    Raises:
        BadRequest: The file can't be read or is in another encoding: the message names the line.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_PEEKED)
    except OSError:
        raise BadRequest(f"The file {path.name} can't be read.", reason="SOURCE_UNREADABLE") from None
    # UTF-16 is recognised by its byte order mark; without one it looks like damage.
    marked = start[:2] in (b"\xff\xfe", b"\xfe\xff")
    # NUL bytes without a mark: a binary file, or an encoding with two bytes per character.
    if b"\0" in start and not marked:
        read_text(path, "memes")  # raises the precise error
    # Carriage returns alone, as on old Macs: else the file would be one line.
    # Latin-1 decodes any bytes, and its line ends are those of UTF-8.
    beginning = start.decode("utf-16" if marked else "latin-1", errors="ignore")
    if "\r" in beginning and "\n" not in beginning:
        newline = "\r"
    # `utf-8-sig` removes a byte order mark, which would otherwise become part of the first column's name.
    with path.open(encoding="utf-16" if marked else "utf-8-sig", newline=newline) as text:
        try:
            yield text
        except UnicodeDecodeError:
            # Raises an error with the line and advice on converting the file.
            read_text(path, "memes")
            raise


def _json_lines(path: Path) -> Iterator[Numbered]:
    # One line at a time: such files may exceed memory.
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            record = parse_object(line)
            yield number, "the line is no JSON object" if record is None else record


def _json(path: Path, records: str) -> Any:
    text = read_text(path, "memes")
    try:
        whole = json.loads(text)
    # As for single lines: a hostile or damaged file must give a message.
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"{path.name}{where}: the file is no JSON.", reason="SOURCE_UNREADABLE") from None
    for name in records.split(".") if records else ():
        # A path that leads nowhere gives None, which callers report with the expected type.
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole


def _json_list(path: Path, records: str) -> Iterator[Numbered]:
    rows = _json(path, records)
    if not isinstance(rows, list):
        where = f" under {records}" if records else ""
        raise BadRequest(
            f"{path.name} holds no list of objects{where}. A JSON object a line is the kind jsonl; an object whose "
            "values are the rows, json-map.",
            reason="SOURCE_UNREADABLE",
        )
    for number, row in enumerate(rows, 1):
        yield number, row if isinstance(row, dict) else "it is no JSON object"


def _json_map(path: Path, records: str) -> Iterator[Numbered]:
    rows = _json(path, records)
    if not isinstance(rows, dict):
        raise BadRequest(f"{path.name} holds no object whose values are the rows.", reason="SOURCE_UNREADABLE")
    for number, (key, row) in enumerate(rows.items(), 1):
        # Our key replaces the row's own key of that name, if any.
        yield number, {**row, "@key": key} if isinstance(row, dict) else "it is no JSON object"


def _table(file: RecordFile) -> Iterator[Numbered]:
    # Line ends are preserved: one within quotes belongs to the cell.
    with _opened(file.path, newline="") as lines:
        # Strict: faulty quotes must be reported rather than guessed at.
        reader = csv.reader(lines, delimiter="\t" if file.kind is FileKind.TSV else ",", strict=True)
        header = [name.strip() for name in file.header]
        names, pick = _picker(_places(file, header) if header else [])
        for number, cells in csv_rows(reader):
            if isinstance(cells, str):
                yield number, cells
                continue
            # Cheap check first: only rows that are short, long or begin with an empty cell are inspected further.
            if not cells or len(cells) != len(header) or not cells[0].strip():
                # Blank lines are no rows; spreadsheets fill them with commas.
                if not any(cell.strip() for cell in cells):
                    continue
                # The header is the first line that is not blank.
                if not header:
                    header = [name.strip() for name in cells]
                    names, pick = _picker(_places(file, header))
                    continue
                if len(cells) != len(header):
                    yield number, f"the line has {len(cells)} cells and not {len(header)}"
                    continue
            yield number, dict(zip(names, pick(cells), strict=True))


def _picker(places: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], Callable[[list[str]], Sequence[str]]]:
    """Names of the columns, and a function that extracts their cells from a row."""
    names = tuple(name for name, _ in places)
    # itemgetter returns a tuple only for two or more indices.
    if len(places) > 1:
        return names, operator.itemgetter(*(place for _, place in places))
    return names, lambda cells: [cells[place] for _, place in places]


def _places(file: RecordFile, header: Sequence[str]) -> list[tuple[str, int]]:
    """Indices of the columns that are read, under the names that a card uses.

    Raises:
        BadRequest: A column occurs twice, or the separator is that of another kind of table.
    """
    exact = {name: [place for place, one in enumerate(header) if one == name] for name in dict.fromkeys(header)}
    lower = {name.lower(): [place for place, one in enumerate(header) if one.lower() == name.lower()] for name in exact}
    found: list[tuple[str, int]] = []
    # If all columns are read, those without a name are left out, as no card can refer to them.
    for name in sorted(file.columns) if file.columns is not None else [name for name in exact if name]:
        # Spellings differ between copies of a file: Image_name, image_name.
        places = exact.get(name) or lower.get(name.lower(), [])
        # Two columns with one name are ambiguous.
        if len(places) > 1:
            raise BadRequest(
                f"{file.path.name} has the column {name} {len(places)} times. Rename those that are not meant.",
                reason="SOURCE_UNREADABLE",
            )
        if places:
            found.append((name, places[0]))
    # Nearly always a wrong separator, which makes the whole header one name.
    if file.columns and not found:
        raise BadRequest(
            f"{file.path.name} has none of the columns {', '.join(sorted(file.columns))} when its cells are parted by "
            f"{'tabs' if file.kind is FileKind.TSV else 'commas'}.",
            reason="SOURCE_UNREADABLE",
        )
    return found


def _column_store(path: Path, kind: FileKind, columns: Collection[str] | None) -> Iterator[Numbered]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadRequest(
            f"{path.name} is read by pyarrow. Install it: pip install 'memecourt[datasets]'", reason="NOT_INSTALLED"
        ) from None
    number = 0
    batches: Iterator[Any]
    try:
        if kind is FileKind.PARQUET:
            file = parquet.ParquetFile(path)
            # Columns missing from the file are absent values, as in the other formats.
            wanted = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            leaves = _leaves(file, wanted)
            batches = map(_without_bytes, file.iter_batches(_BATCH, columns=leaves))
        else:
            batches = _arrow_batches(path, columns)
        for batch in batches:
            # Record batches may be of any size; rows are converted to Python objects in slices.
            for start in range(0, batch.num_rows, _BATCH):
                for row in batch.slice(start, _BATCH).to_pylist():
                    number += 1
                    yield number, row
    # Damage only shows at the row where it lies, during the iteration.
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadRequest(f"The file {path.name} is not there.", reason="SOURCE_UNREADABLE") from None
        raise BadRequest(
            f"{path.name}, after row {number:,}: can't be read as {kind} ({type(error).__name__}).",
            reason="SOURCE_UNREADABLE",
        ) from None


def _leaves(file: Any, columns: Sequence[str] | None) -> list[str]:
    """Columns of a Parquet file, nested ones by their leaves, without the bytes of embedded pictures."""
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    wanted = (path for path in paths if columns is None or path.split(".")[0] in columns)
    return [path for path in wanted if not path.endswith(".bytes")]


def _arrow_batches(path: Path, columns: Collection[str] | None) -> Iterator[Any]:
    import pyarrow as arrow

    # Memory-mapped instead of read: a file may exceed memory.
    with arrow.memory_map(str(path)) as source:
        # The datasets library saves streams; Feather and Polars save files.
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)
        names = [name for name in reader.schema.names if columns is None or name in columns]
        batches = (reader.get_batch(n) for n in range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            yield _without_bytes(batch.select(names))


def _without_bytes(batch: Any) -> Any:
    """Reduces pictures to their names: the ``datasets`` library stores a picture as a struct of name and bytes."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    for place, one in enumerate(batch.schema):
        parts = {part.name for part in one.type} if arrow.types.is_struct(one.type) else set()
        # Only structs of the `datasets` library; one with further fields belongs to the data set.
        if "path" in parts and parts <= {"path", "bytes"}:
            batch = batch.set_column(place, one.name, compute.struct_field(batch.column(place), "path"))
    return batch
