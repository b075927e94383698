"""Reads rows of the file formats in which data sets are published, one by one: text, Parquet and Arrow."""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import StringIO
from itertools import compress, count, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from court.digests import digest
from court.errors import BadRequest
from eval.datasets.card import FileKind
from retrieval.library.cells import BadCell
from retrieval.library.picture_finder import PICTURE_ENDINGS
from retrieval.library.tables import csv_blocks, header_of, parse_object, read_text

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
"""Rows in memory at once while their pictures are written."""
_LISTED = 10
"""Largest number of faults that an error message lists."""
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
    def of(cls, cells: Sequence[T_co]) -> "Coded[T_co]":
        """Cells as they are coded, the different ones in order of their first rows."""
        if isinstance(cells, Coded):
            return cells
        places = defaultdict[T_co, int](count().__next__)
        codes = np.fromiter(map(places.__getitem__, cells), np.int64, len(cells))
        return cls(tuple(places), codes)

    def with_words(self, change: Callable[[Any], S]) -> "Coded[S]":
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

    def with_columns(self, columns: Mapping[str, Sequence[Any]]) -> "Block":
        """The rows with further columns."""
        return replace(self, columns={**self.columns, **columns})

    def taken(self, here: NDArray[np.bool_]) -> "Block":
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
    unpacked: tuple[str, Path] | None = None
    """Column of pictures, and the folder that :func:`unpacked_pictures` wrote them to."""

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
                return as_blocks(_json_rows(self.path, self.kind))
            case FileKind.CSV | FileKind.TSV:
                return _table(self)
            case FileKind.PARQUET | FileKind.ARROW:
                return _column_store(self)
            case FileKind.TREE:
                return as_blocks(tree_rows(self.path))


def row_count(paths: Iterable[Path], kind: FileKind) -> int:
    """Rows of files; for JSON lines, those that are not blank. Raises BadRequest like reading them."""
    count = 0
    for path in paths:
        # Without parsing, because recognising a data set counts every candidate file.
        if kind is FileKind.JSONL:
            with path.open("rb") as lines:
                count += sum(not line.isspace() for line in lines)
        # Without columns, as a count needs none: Parquet then reads next to nothing.
        else:
            count += sum(map(len, RecordFile(path, kind, frozenset()).blocks()))
    return count


def tree_rows(folder: Path) -> Iterator[Numbered]:
    """One row for every picture in a folder and its subfolders, sorted by name."""
    # rglob does not follow links: they may lead out of the folder or form a cycle.
    paths = (
        sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_ENDINGS) if folder.is_dir() else []
    )
    for number, path in enumerate(paths, 1):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            yield number, {"@path": name, "@name": path.name, "@stem": path.stem, "@parent": path.parent.name}


def kind_of(path: Path) -> FileKind | None:
    """Format of a file by the ending of its name; None if that is unknown."""
    return _ENDINGS.get(path.suffix.lower())


@contextmanager
def _opened(path: Path, newline: str = "\n") -> Iterator[TextIO]:
    """Opens a text file in UTF-8 or UTF-16. Raises BadRequest, which names the line that is in another encoding."""
    try:
        with path.open("rb") as file:
            start = file.read(_PEEKED)
    except OSError:
        raise BadRequest(f"The file {path.name} can't be read.", reason="SOURCE_UNREADABLE") from None
    # UTF-16, other encodings with NUL bytes, and the carriage returns of old Macs: files of spreadsheets, which are
    # small, or faults.
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start or (b"\r" in start and b"\n" not in start):
        yield StringIO(read_text(path, "memes"), newline)
        return
    # `utf-8-sig` removes a byte order mark, which would otherwise become part of the first column's name.
    with path.open(encoding="utf-8-sig", newline=newline) as text:
        try:
            yield text
        except UnicodeDecodeError:
            # Raises an error with the line and advice on converting the file.
            read_text(path, "memes")
            raise


def parsed_rows(
    path: Path,
    records: Iterable[Numbered],
    parse: Callable[[int, dict[str, Any]], S],
    *,
    purpose: str,
    reason: str,
    unit: str = "line",
) -> list[S]:
    """Results of a function for each row of a file, which is used as a whole or not at all.

    Args:
        parse: Function that raises BadCell for a fault.
        purpose: Words after "can't be", for the message.

    Raises:
        BadRequest: There is no row, or one has a fault: the message lists the first of them.
    """
    found, faults = list[S](), list[str]()
    for number, record in records:
        try:
            if isinstance(record, str):
                raise BadCell(record)
            found.append(parse(number, record))
        except BadCell as bad:
            faults.append(f"{unit} {number}: {bad}")
    if not found and not faults:
        faults.append("it holds no rows")
    if faults:
        # All faults are counted but only a few are shown: a file with mixed-up columns has one in each line.
        more = f"\n… and {len(faults) - _LISTED:,} more" if len(faults) > _LISTED else ""
        message = f"{path.name} can't be {purpose}:\n" + "\n".join(faults[:_LISTED]) + more
        raise BadRequest(message, reason=reason)
    return found


def read_json_lines(path: Path, kind: type[M]) -> list[tuple[int, M]]:
    """Reads a file of JSON lines, which may be empty, with their numbers. Raises BadRequest as :func:`parsed_rows`."""

    def parse(number: int, record: dict[str, Any]) -> tuple[int, M]:
        try:
            return number, kind.model_validate(record)
        except ValidationError as error:
            fault = error.errors()[0]
            raise BadCell(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None

    rows = list(_json_lines(path))
    return parsed_rows(path, rows, parse, purpose="used", reason="FILE_UNREADABLE") if rows else []


def _json_lines(path: Path) -> Iterator[Numbered]:
    # One line at a time: such files may exceed memory.
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            record = parse_object(line)
            yield number, "the line is no JSON object" if record is None else record


def _json_rows(path: Path, kind: FileKind) -> Iterator[Numbered]:
    text = read_text(path, "memes")
    try:
        whole = json.loads(text)
    # As for single lines: a hostile or damaged file must give a message.
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"{path.name}{where}: the file is no JSON.", reason="SOURCE_UNREADABLE") from None
    if not isinstance(whole, list if kind is FileKind.JSON else dict):
        what = "list of objects" if kind is FileKind.JSON else "object whose values are the rows"
        raise BadRequest(
            f"{path.name} holds no {what}. A JSON object a line is the kind jsonl; a list of objects, json; an object "
            "whose values are the rows, json-map.",
            reason="SOURCE_UNREADABLE",
        )
    # Our key replaces the row's own key of that name, if any.
    keyed: Iterable[tuple[dict[str, Any], Any]] = (({}, row) for row in whole)
    if isinstance(whole, dict):
        keyed = (({"@key": key}, row) for key, row in whole.items())
    for number, (key, row) in enumerate(keyed, 1):
        yield number, row | key if isinstance(row, dict) else "it is no JSON object"


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
        (range(start + 1, min(start + _BATCH, lines) + 1), [cells[start : start + _BATCH] for cells in columns])
        for start in range(0, lines, _BATCH)
    ]


def _shared(column: Any) -> Sequence[str]:
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
    """Indices of the columns that are read, by a card's names. Raises BadRequest for doubles and other tables."""
    found: list[tuple[str, int]] = []
    # If all columns are read, those without a name are left out, as no card can refer to them.
    for name in dict.fromkeys(filter(None, header)) if file.columns is None else sorted(file.columns):
        exact = [place for place, one in enumerate(header) if one == name]
        # Spellings differ between copies of a file: Image_name, image_name.
        places = exact or [place for place, one in enumerate(header) if one.lower() == name.lower()]
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


def unpacked_pictures(paths: Sequence[Path], kind: FileKind, column: str) -> Path | None:
    """Folder of the pictures that are bytes in a column of these files, written when first asked for.

    None if the column holds no bytes. A picture's name is that of its file, with the number of its row.
    """
    if column not in picture_columns(paths[0], kind):
        return None
    from serving.settings import Settings

    # By their contents' age and size, as data sets of one name are replaced by others.
    states = [[str(one.resolve()), one.stat().st_size, one.stat().st_mtime_ns] for one in paths]
    folder = Settings().home / "unpacked" / digest(states).removeprefix("sha256:")[:24]
    folder.mkdir(parents=True, exist_ok=True)
    return folder if any([_unpacked_rows(path, kind, column, folder) for path in paths]) else None


def _unpacked_rows(path: Path, kind: FileKind, column: str, folder: Path) -> set[int]:
    """Rows that have a picture, which is written to the folder if it is not there yet."""
    index = folder / f".{path.name}.json"
    if index.exists():
        return set(json.loads(index.read_text()))
    row, rows = 0, list[int]()
    with _readable(path, kind, lambda: row):
        for batch in _batches(path, kind, (column,), _SMALL_BATCH, with_bytes=True):
            for cell in batch.column(0).to_pylist():
                row += 1
                if data := cell.get("bytes") if isinstance(cell, dict) else cell:
                    (folder / _picture_name(path, row)).write_bytes(data)
                    rows.append(row)
    # Renamed at the end, so that a killed process leaves no half index.
    new = index.with_suffix(".new")
    new.write_text(json.dumps(rows))
    new.replace(index)
    return set(rows)


def _picture_name(path: Path, row: int) -> str:
    return f"{path.stem}-{row:06}"


def _schema(path: Path, kind: FileKind) -> Any:
    with _readable(path, kind):
        import pyarrow as arrow
        from pyarrow import parquet

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

    # Only structs of the `datasets` library; one with further fields belongs to the data set.
    parts = _parts_of(kind)
    return (
        arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind) or bool(parts and parts <= {"path", "bytes"})
    )


def _parts_of(kind: Any) -> set[str]:
    import pyarrow as arrow

    return {part.name for part in kind} if arrow.types.is_struct(kind) else set()


@contextmanager
def _readable(path: Path, kind: FileKind, after: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turns errors of pyarrow into BadRequest, with the row ``after`` which one was raised."""
    try:
        import pyarrow as arrow
    except ImportError:
        raise BadRequest(
            f"{path.name} is read by pyarrow. Install it: pip install 'memecourt[datasets]'", reason="NOT_INSTALLED"
        ) from None
    try:
        yield
    # Damage only shows at the row where it lies, during the iteration.
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise BadRequest(f"The file {path.name} is not there.", reason="SOURCE_UNREADABLE") from None
        raise BadRequest(
            f"{path.name}, after row {after():,}: can't be read as {kind} ({type(error).__name__}).",
            reason="SOURCE_UNREADABLE",
        ) from None


def _column_store(file: RecordFile) -> Iterator[Block]:
    number = 0
    made, folder = file.unpacked or ("", file.path)
    pictured = _unpacked_rows(file.path, file.kind, made, folder) if made else set()
    with _readable(file.path, file.kind, lambda: number):
        names = [one.name for one in _schema(file.path, file.kind)]
        # Columns missing from the file are absent values, as in the other formats.
        wanted = [name for name in names if name != made and (file.columns is None or name in file.columns)]
        for batch in map(_without_bytes, _batches(file.path, file.kind, wanted, _BATCH)):
            numbers = range(number + 1, number + batch.num_rows + 1)
            number += batch.num_rows
            cells = batch.to_pydict()
            if made:
                cells[made] = [_picture_name(file.path, row) if row in pictured else None for row in numbers]
            yield Block(numbers, cells)


def _batches(
    path: Path, kind: FileKind, columns: Collection[str], rows: int, *, with_bytes: bool = False
) -> Iterator[Any]:
    """Some columns of a file, at most so many rows at once; the bytes of pictures only if they are needed."""
    import pyarrow as arrow
    from pyarrow import parquet

    if kind is FileKind.PARQUET:
        file = parquet.ParquetFile(path)
        # Nested columns by their leaves.
        leaves = [file.schema.column(place).path for place in range(len(file.schema))]
        named = [leaf for leaf in leaves if leaf.split(".")[0] in columns]
        yield from file.iter_batches(rows, columns=[leaf for leaf in named if with_bytes or leaf[-6:] != ".bytes"])
        return
    # Memory-mapped instead of read: a file may exceed memory.
    with arrow.memory_map(str(path)) as source:
        reader = _arrow_reader(source)
        # A file has numbered batches, a stream is read one after the other.
        is_file = hasattr(reader, "num_record_batches")
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            # Record batches may be of any size.
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows).select(list(columns))


def _without_bytes(batch: Any) -> Any:
    """Reduces pictures to their names: the ``datasets`` library stores a picture as a struct of name and bytes."""
    import pyarrow.compute as compute

    for place, one in enumerate(batch.schema):
        if _is_picture(one.type) and "path" in _parts_of(one.type):
            batch = batch.set_column(place, one.name, compute.struct_field(batch.column(place), "path"))
    return batch
