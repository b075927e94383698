"""Reads rows of the file formats in which data sets are published, one by one: text, Parquet and Arrow."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import compress, count, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from court.errors import BadRequest
from eval.datasets.card import FileKind
from retrieval.library.picture_finder import PICTURE_ENDINGS, leads_out
from retrieval.library.tables import csv_blocks, header_of, read_text

Numbered = tuple[int, dict[str, Any] | str]
"""Number of a row, counted from 1, and the row, or a description of its fault. In text formats, the line it ends on."""
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
M = TypeVar("M", bound=BaseModel)
Cells = tuple[Sequence[int], Sequence[Sequence[str]] | str]
"""Lines of a table that are of one length, by columns; or lines and their fault."""
TEXTS = frozenset({str})
_BLANK = " ,;\t\r\n"
"""Characters of a line without cells: spreadsheets fill blank lines with delimiters."""
_SMALL = 1 << 25
"""Maximum bytes of a table whose cells are kept in memory, where they take about eight times as much."""
_PEEKED = 1 << 16
"""Bytes inspected to detect encoding and line ends."""
_BATCH = 2048
"""Rows of a columnar file that are in memory at once."""
_SMALL_BATCH = 32
"""Rows in memory at once if their pictures are read along."""
_ENDINGS = {
    ".jsonl": FileKind.JSONL,
    ".json": FileKind.JSON,
    ".csv": FileKind.CSV,
    ".tsv": FileKind.TSV,
    ".parquet": FileKind.PARQUET,
    ".arrow": FileKind.ARROW,
}


@dataclass(frozen=True, eq=False, slots=True)
class Coded(Sequence[T_co]):
    """Cells of a column in a code: work on few different ones is done once for all rows."""

    words: tuple[T_co, ...]
    codes: NDArray[np.int64]
    """Place of each row's cell among the words."""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, place: Any) -> Any:
        return Coded(self.words, self.codes[place]) if isinstance(place, slice) else self.words[self.codes[place]]

    def __iter__(self) -> Iterator[T_co]:
        return map(self.words.__getitem__, self.codes.tolist())

    @classmethod
    def of(cls, cells: Sequence[T_co]) -> Coded[T_co]:
        """Cells as they are coded, the different ones in order of their first rows."""
        if isinstance(cells, Coded):
            return cells
        places = defaultdict[T_co, int](count().__next__)
        codes = np.fromiter(map(places.__getitem__, cells), np.int64, len(cells))
        return cls(tuple(places), codes)

    def with_words(self, change: Callable[[Any], S]) -> Coded[S]:
        """Applies a change to each word that occurs in a row; a header may occur in none."""
        there = np.bincount(self.codes, minlength=len(self.words)) > 0
        return Coded(tuple(map(change, compress(self.words, there))), (np.cumsum(there) - 1)[self.codes])

    def counts(self) -> list[tuple[T_co, int]]:
        """Number of rows by word, of those that a row has."""
        counts = np.bincount(self.codes, minlength=len(self.words)).tolist()
        return [(word, count) for word, count in zip(self.words, counts, strict=True) if count]


def truths_of(cells: Sequence[Any]) -> NDArray[np.bool_]:
    """True for cells that are true in Python."""
    if isinstance(cells, Coded):
        return np.array(list(map(bool, cells.words)), np.bool_)[cells.codes]
    return np.fromiter(map(bool, cells), np.bool_, len(cells))


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a file with the same columns."""

    numbers: Sequence[int]
    """Numbers of the rows, as in :data:`Numbered`."""
    columns: Mapping[str, Sequence[Any]]
    """Cells by column."""
    fault: str = ""
    """Fault of each of the rows, which then have no cells."""
    texts: bool = False
    """True if every cell of its file is a text."""

    def __len__(self) -> int:
        return len(self.numbers)

    def kinds(self, name: str) -> frozenset[type]:
        """Types of the cells of a column."""
        # Made columns, such as the number of the row, are none of the file.
        is_text = self.texts and not name.startswith("@")
        return TEXTS if is_text else frozenset(map(type, self.columns[name]))

    def taken(self, here: NDArray[np.bool_]) -> Block:
        """The rows for which ``here`` is true."""
        places = np.flatnonzero(here).tolist()

        def pick(cells: Sequence[Any]) -> Sequence[Any]:
            if isinstance(cells, Coded):
                return Coded(cells.words, cells.codes[here])
            # In one call and by place, so that cells of other rows are not touched: most lie far apart in memory.
            return itemgetter(*places)(cells) if len(places) > 1 else [cells[place] for place in places]

        columns = {name: pick(cells) for name, cells in self.columns.items()}
        return Block(pick(self.numbers), columns, self.fault, self.texts)

    def __iter__(self) -> Iterator[Numbered]:
        names = tuple(self.columns)
        # Rows of a file whose columns are not read have no cells.
        rows = zip(*self.columns.values(), strict=True) if names else repeat(())
        for number, cells in zip(self.numbers, rows, strict=False):
            yield number, self.fault or dict(zip(names, cells, strict=True))


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of rows."""

    path: Path
    """The file; for kind ``tree``, a folder."""
    kind: FileKind
    columns: frozenset[str] | None = None
    header: tuple[str, ...] = ()
    """Names of its columns if it has no header."""
    records: str = ""
    """Key in a JSON object under which the rows are found; empty if they are the whole file."""
    pictures: Path | None = None
    """Folder that pictures which are bytes in the file are written to; None to leave them in it."""

    def __iter__(self) -> Iterator[Numbered]:
        """Reads the rows one by one. Raises BadRequest if the file as a whole can't be read."""
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Block]:
        """Reads many rows at once, as columns. Raises BadRequest if the file as a whole can't be read."""
        match self.kind:
            case FileKind.JSONL:
                return as_blocks(_json_lines(self.path))
            case FileKind.JSON | FileKind.JSON_MAP:
                return as_blocks(_json_rows(self.path, self.records, self.kind))
            case FileKind.CSV | FileKind.TSV:
                return _table(self)
            case FileKind.PARQUET | FileKind.ARROW:
                return _column_store(self.path, self.kind, self.columns, self.pictures)
            case FileKind.TREE:
                raise ValueError(f"{self.kind} is no kind of a single file")


def row_count(path: Path, kind: FileKind) -> int:
    """Rows of a file; for JSON lines, those that are not blank. Raises BadRequest like reading them."""
    # Without parsing, because recognising a data set counts every candidate file.
    if kind is FileKind.JSONL:
        with path.open("rb") as lines:
            return sum(not line.isspace() for line in lines)
    # Without columns, as a count needs none: Parquet then reads next to nothing.
    return sum(len(block.numbers) for block in RecordFile(path, kind, frozenset()).blocks())


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


def read_json_lines(path: Path, kind: type[M]) -> Iterator[tuple[int, M]]:
    """Reads the lines of a file with their numbers, counted from 1; blank lines are skipped.

    Raises:
        BadRequest: The file or a line can't be read.
    """
    try:
        # Splits at line feeds only: splitlines would also split at other characters within a text.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, ValueError):
        raise BadRequest(f"{path} can't be read.", reason="FILE_UNREADABLE") from None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            yield number, kind.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors()[0]
            raise BadRequest(
                f"{path.name}, line {number}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}.",
                reason="FILE_UNREADABLE",
            ) from None


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


def _json_rows(path: Path, records: str, kind: FileKind) -> Iterator[Numbered]:
    whole = _json(path, records)
    where = f" under {records}" if records else ""
    if kind is FileKind.JSON and not isinstance(whole, list):
        raise BadRequest(
            f"{path.name} holds no list of objects{where}. A JSON object a line is the kind jsonl; an object whose "
            "values are the rows, json-map.",
            reason="SOURCE_UNREADABLE",
        )
    if kind is FileKind.JSON_MAP and not isinstance(whole, dict):
        raise BadRequest(f"{path.name} holds no object{where} whose values are the rows.", reason="SOURCE_UNREADABLE")
    # Our key replaces the row's own key of that name, if any.
    keyed = whole.items() if isinstance(whole, dict) else ((None, row) for row in whole)
    for number, (key, row) in enumerate(keyed, 1):
        added = {} if key is None else {"@key": key}
        yield number, row | added if isinstance(row, dict) else "it is no JSON object"


def as_blocks(rows: Iterable[Numbered]) -> Iterator[Block]:
    """Collects rows that follow each other and have the same keys."""
    for keys, group in groupby(rows, lambda row: row[1] if isinstance(row[1], str) else tuple(row[1])):
        while part := list(islice(group, _BATCH)):
            numbers = [number for number, _ in part]
            if isinstance(keys, str):
                yield Block(numbers, {}, keys)
            else:
                cells = zip(*(row.values() for _, row in part if isinstance(row, dict)), strict=True)
                yield Block(numbers, dict(zip(keys, cells, strict=True)))


_kept: ContextVar[dict[Path, list[Cells]] | None] = ContextVar("_kept", default=None)


@contextmanager
def keep_tables() -> Iterator[None]:
    """Keeps the cells of small tables, for work that reads them several times: as text, they are parsed slowly."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _cells(file: RecordFile) -> Iterator[Cells]:
    tables = _kept.get()
    if tables is not None and file.path in tables:
        yield from tables[file.path]
        return
    # Line ends are preserved: one within quotes belongs to the cell.
    with _opened(file.path, newline="") as lines:
        delimiter = "\t" if file.kind is FileKind.TSV else "," if file.header else delimiter_in(header_line(file.path))
        # Strict: faulty quotes must be reported rather than guessed at.
        cells = _by_length(csv_blocks(csv.reader(lines, delimiter=delimiter, strict=True)))
        if tables is not None and file.path.stat().st_size <= _SMALL:
            tables[file.path] = _faultless_cells(file.path, delimiter) or list(cells)
            cells = iter(tables[file.path])
        yield from cells


def _faultless_cells(path: Path, delimiter: str) -> list[Cells]:
    """Cells of a table that has a line for each row and no doubtful quote, by pyarrow; else none.

    It takes half the time of csv, but forgives quotes that csv refuses, and counts no lines.
    """
    try:
        import pyarrow as arrow
        from pyarrow import csv as arrow_csv
    except ImportError:
        return []
    data = path.read_bytes()
    signs = np.frombuffer(data, np.uint8)
    quotes, lines = np.flatnonzero(signs == ord('"')), data.count(b"\n")
    between = np.isin(np.arange(256), list(map(ord, f"{delimiter}\r\n")))
    if (
        data[-1:] != b"\n"
        # Quotes open and close cells in turn, and none has one within.
        or (np.diff(quotes) == 1).any()
        or not between[signs[quotes[::2] - 1]].all()
        or not between[signs[quotes[1::2] + 1]].all()
    ):
        return []
    names = [f"f{place}" for place in range(data.count(delimiter.encode(), 0, data.index(b"\n")) + 1)]
    try:
        table = arrow_csv.read_csv(
            arrow.BufferReader(data),
            arrow_csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            arrow_csv.ParseOptions(delimiter=delimiter),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, arrow.string())),
        )
    except arrow.ArrowException:
        return []
    # Line ends within cells make fewer rows, and so do blank lines, which pyarrow leaves out; carriage returns more.
    if table.num_rows != lines:
        return []
    columns = [_shared(column) for column in table.columns]
    if not all(map(str.strip, columns[0])):
        return []
    return [
        (
            range(start + 1, min(start + _BATCH, lines) + 1),
            [cells[start : start + _BATCH] for cells in columns],
        )
        for start in range(0, lines, _BATCH)
    ]


def _shared(column: Any) -> Sequence[str]:
    """Cells of a column of texts."""
    if len(column.slice(0, _BATCH).unique()) * 10 > min(len(column), _BATCH):
        return tuple(column.to_pylist())
    coded = column.combine_chunks().dictionary_encode()
    return Coded(tuple(coded.dictionary.to_pylist()), coded.indices.to_numpy())


def _by_length(blocks: Iterable[tuple[Sequence[int], list[list[str]] | str]]) -> Iterator[Cells]:
    for numbers, rows in blocks:
        if isinstance(rows, str):
            yield numbers, rows
            continue
        columns = list(zip(*rows, strict=True)) if len(set(map(len, rows))) == 1 else []
        if columns and all(map(str.strip, columns[0])):
            yield numbers, columns
            continue
        # Blank lines are no rows; spreadsheets fill them with commas.
        full = [any(map(str.strip, cells)) for cells in rows]
        numbers, rows = list(compress(numbers, full)), list(compress(rows, full))
        for _, group in groupby(zip(numbers, rows, strict=True), lambda row: len(row[1])):
            some, cells = zip(*group, strict=True)
            yield some, list(zip(*cells, strict=True))


def header_line(path: Path) -> str:
    """First line of a table that is not blank. Raises BadRequest if it can't be read."""
    with _opened(path, newline="") as lines:
        return next((line for line in lines if line.strip(_BLANK)), "")


def delimiter_in(header: str) -> str:
    """Delimiter of a table that is called CSV: in locales with decimal commas, spreadsheets write semicolons."""
    header = header.lstrip(_BLANK)
    return ";" if len(header_of(header, ";")) > len(header_of(header, ",")) else ","


def _table(file: RecordFile) -> Iterator[Block]:
    header = [name.strip() for name in file.header]
    places = _places(file, header) if header else []
    for numbers, columns in _cells(file):
        if isinstance(columns, str):
            yield Block(numbers, {}, columns)
            continue
        # The header is the first line that is not blank.
        if not header:
            header = [column[0].strip() for column in columns]
            places = _places(file, header)
            numbers, columns = numbers[1:], [column[1:] for column in columns]
        if len(columns) != len(header):
            yield Block(numbers, {}, f"the line has {len(columns)} cells and not {len(header)}")
        elif numbers:
            yield Block(numbers, {name: columns[place] for name, place in places}, texts=True)


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
            f"{'tabs' if file.kind is FileKind.TSV else 'commas or semicolons'}.",
            reason="SOURCE_UNREADABLE",
        )
    return found


def class_names(path: Path, kind: FileKind) -> dict[str, tuple[str, ...]]:
    """Names of the labels that numbers in columns stand for, as the ``datasets`` library stores them with its files."""
    if kind not in (FileKind.PARQUET, FileKind.ARROW):
        return {}
    stored = (_schema(path, kind).metadata or {}).get(b"huggingface", b"{}")
    info = (parse_object(stored.decode("utf-8", "replace")) or {}).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    found = {}
    for name, feature in features.items() if isinstance(features, dict) else ():
        # A list of labels has the names one level deeper.
        one = feature.get("feature", feature) if isinstance(feature, dict) else {}
        names = one.get("names") if isinstance(one, dict) else None
        if isinstance(names, list) and all(isinstance(word, str) for word in names):
            found[name] = tuple(names)
    return found


def picture_columns(path: Path, kind: FileKind) -> tuple[str, ...]:
    """Columns of a Parquet or Arrow file that hold pictures: as bytes, or as a struct of name and bytes."""
    if kind not in (FileKind.PARQUET, FileKind.ARROW):
        return ()
    return tuple(one.name for one in _schema(path, kind) if _is_picture(one.type))


def holds_pictures(path: Path, kind: FileKind, column: str) -> bool:
    """True if the first rows of a Parquet or Arrow file have the bytes of their pictures in a column."""
    if column not in picture_columns(path, kind):
        return False
    with _readable(path, kind) as (_, parquet):
        batches = (
            parquet.ParquetFile(path).iter_batches(_SMALL_BATCH, columns=[column])
            if kind is FileKind.PARQUET
            else _arrow_batches(path, (column,))
        )
        cells = next(iter(batches)).slice(0, _SMALL_BATCH).column(0).to_pylist()
    return any(cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells)


def _schema(path: Path, kind: FileKind) -> Any:
    with _readable(path, kind) as (arrow, parquet):
        if kind is FileKind.PARQUET:
            return parquet.read_schema(path)
        with arrow.memory_map(str(path)) as source:
            return _arrow_reader(source).schema


def _arrow_reader(source: Any) -> Any:
    import pyarrow as arrow

    # The datasets library saves streams; Feather and Polars save files.
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)


def _is_picture(kind: Any) -> bool:
    import pyarrow as arrow

    if arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind):
        return True
    # Only structs of the `datasets` library; one with further fields belongs to the data set.
    parts = {part.name for part in kind} if arrow.types.is_struct(kind) else set()
    return bool(parts) and parts <= {"path", "bytes"}


@contextmanager
def _readable(path: Path, kind: FileKind, after: Callable[[], int] = lambda: 0) -> Iterator[tuple[Any, Any]]:
    """Modules of pyarrow; their errors become BadRequest, with the row ``after`` which one was raised."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadRequest(
            f"{path.name} is read by pyarrow. Install it: pip install 'memecourt[datasets]'", reason="NOT_INSTALLED"
        ) from None
    try:
        yield arrow, parquet
    # Damage only shows at the row where it lies, during the iteration.
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadRequest(f"The file {path.name} is not there.", reason="SOURCE_UNREADABLE") from None
        raise BadRequest(
            f"{path.name}, after row {after():,}: can't be read as {kind} ({type(error).__name__}).",
            reason="SOURCE_UNREADABLE",
        ) from None


def _column_store(
    path: Path, kind: FileKind, columns: Collection[str] | None, pictures: Path | None
) -> Iterator[Block]:
    number = 0
    batches: Iterator[Any]
    written = _WrittenPictures(path, pictures)
    # One column at most is a meme's picture.
    picture_names = [name for name in picture_columns(path, kind) if columns is None or name in columns][:1]
    picture_names = picture_names if pictures is not None else []
    with _readable(path, kind, lambda: number) as (_, parquet):
        if kind is FileKind.PARQUET:
            file = parquet.ParquetFile(path)
            # Columns missing from the file are absent values, as in the other formats.
            wanted = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            leaves = _leaves(file, wanted, with_bytes=written.needed)
            batches = file.iter_batches(_SMALL_BATCH if written.needed else _BATCH, columns=leaves)
        else:
            batches = _arrow_batches(path, columns)
        for batch in batches if written.needed else map(_without_bytes, batches):
            pictured = [name for name in picture_names if name in batch.schema.names]
            # Record batches may be of any size; rows are converted to Python objects in slices.
            for start in range(0, batch.num_rows, _BATCH):
                part = batch.slice(start, _BATCH)
                cells = part.to_pydict()
                first, number = number + 1, number + part.num_rows
                numbers = range(first, number + 1)
                for name in pictured:
                    cells[name] = list(map(written.name_of, numbers, cells[name]))
                yield Block(numbers, cells)
    written.finish()


class _WrittenPictures:
    """Pictures of a file that are bytes in it, written to a folder, where they are found like all others.

    Args:
        folder: Folder for them; None to leave them in the file.
    """

    def __init__(self, file: Path, folder: Path | None) -> None:
        self._stem, self.folder = file.stem, folder
        self._index = folder / f".{file.name}.json" if folder else None
        self.needed = self._index is not None and not self._index.exists()
        """True if the bytes have to be read, because not all pictures are in the folder yet."""
        self._names: dict[str, str] = json.loads(self._index.read_text()) if self._index and not self.needed else {}
        self._taken = set[str]()

    def name_of(self, row: int, cell: Any) -> str | None:
        """Name of the picture in a cell, which is written if it is not there yet; None if there is none."""
        data, name = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        name = cell if isinstance(cell, str) else name
        if not self.needed or not data:
            return self._names.get(str(row)) or (str(name) if name else None)
        assert self.folder is not None
        own = str(name or "").replace("\\", "/")
        # Two rows may name different pictures alike, and most name none.
        usable = own.lower().endswith(PICTURE_ENDINGS) and not leads_out(own) and own not in self._taken
        own = own if usable else f"{self._stem}-{row:06}{_ending(data)}"
        self._taken.add(own)
        self._names[str(row)] = own
        path = self.folder / own
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return own

    def finish(self) -> None:
        """Notes that every picture of the file is in the folder."""
        if self.needed and self._index is not None and self._index.parent.is_dir():
            # Renamed at the end, so that a killed process leaves no half index.
            new = self._index.with_suffix(".new")
            new.write_text(json.dumps(self._names), encoding="utf-8")
            new.replace(self._index)


def _ending(data: bytes) -> str:
    """Ending for a picture's file, by its first bytes."""
    kinds = {b"\xff\xd8": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}
    return next((ending for start, ending in kinds.items() if data.startswith(start)), ".png")


def _leaves(file: Any, columns: Sequence[str] | None, *, with_bytes: bool) -> list[str]:
    """Columns of a Parquet file, nested ones by their leaves; the bytes of pictures only if they are needed."""
    paths = [file.schema.column(place).path for place in range(len(file.schema))]
    wanted = (path for path in paths if columns is None or path.split(".")[0] in columns)
    return [path for path in wanted if with_bytes or not path.endswith(".bytes")]


def _arrow_batches(path: Path, columns: Collection[str] | None) -> Iterator[Any]:
    import pyarrow as arrow

    # Memory-mapped instead of read: a file may exceed memory.
    with arrow.memory_map(str(path)) as source:
        reader = _arrow_reader(source)
        names = [name for name in reader.schema.names if columns is None or name in columns]
        # A file has numbered batches, a stream is read one after the other.
        is_file = hasattr(reader, "num_record_batches")
        for batch in (reader.get_batch(n) for n in range(reader.num_record_batches)) if is_file else reader:
            yield batch.select(names)


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
