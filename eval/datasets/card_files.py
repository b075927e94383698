"""Finds a card's files below the directory that the user names, and joins separate files to the rows of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard, FileKind, LabelFile
from eval.datasets.record_files import Numbered, RecordFile, kind_of, parse_object
from eval.datasets.verbs import MADE_NAMES, Join
from retrieval.library.cells import BadCell, Record, fill, placeholders_of, word_of
from retrieval.library.picture_finder import PICTURE_ENDINGS
from retrieval.library.sources import Problem
from retrieval.library.tables import read_text

_NONE: dict[str, Any] = {}
_BY_ROW = "@row"


def first_present(data: Path, folders: Iterable[str], names: Sequence[str]) -> tuple[Path, ...]:
    """The first of these files that exists, folder by folder; empty if there is none.

    A name with ``*`` stands for all matching files, sorted by name: the shards of a split.

    Raises:
        BadRequest: A file is a symlink that leads out of the directory.
    """
    for folder in folders:
        for name in names:
            place = data / folder
            # The shards of a split are read in the order of their names.
            paths = sorted(place.glob(name)) if "*" in name and place.is_dir() else [place / name]
            found = tuple(path for path in paths if path.is_file())
            for path in found:
                refuse_link_out(path, data)
            if found:
                return found
    return ()


def refuse_link_out(path: Path, data: Path) -> None:
    """Refuses a file that is a symlink to a target outside the data set. Raises BadRequest."""
    # Users link folders on purpose; a link in place of a file comes from an archive and may be hostile.
    if not path.is_symlink():
        return
    root = data.resolve()
    # The cache of the Hugging Face hub stores files outside the snapshots that link to them.
    if root.parent.name == "snapshots":
        root = root.parents[1]
    if not path.resolve().is_relative_to(root):
        raise BadRequest(
            f"{path.name} is a link that leads out of {data}. Put the file itself there.", reason="DATA_LINK"
        )


def located(card: DatasetCard, data: Path, names: Sequence[str]) -> tuple[tuple[Path, ...], bool] | None:
    """Files of a split, and True if they are in a folder that only this data set uses; None if there are none.

    For a tree of pictures, the folder that contains some.
    """
    layout = card.layout
    named = data.resolve().name in {folder for folder in layout.own if folder and "/" not in folder}
    # The data set's own folders first: parts of HarMeme stored side by side have the same file names.
    found: tuple[Path, ...]
    for folders, surely in ((layout.own, True), (layout.folders, named)):
        if layout.kind is FileKind.TREE:
            found = next(((p,) for f in folders for name in names if any(tree_rows(p := data / f / name))), ())
        else:
            found = first_present(data, folders, names)
        if found:
            return found, surely
    return None


def find_files(card: DatasetCard, data: Path, split: CardSplit, names: Sequence[str]) -> tuple[Path, ...]:
    """Files of a split, as returned by :func:`located`.

    Raises:
        BadRequest: There are none: the message lists the names, the expected places, and the source of the data.
    """
    found = located(card, data, names)
    if found is None:
        raise missing(card, data, f"no split {split.name} of {card.title}", names)
    return found[0]


def missing(card: DatasetCard, data: Path, what: str, names: Sequence[str]) -> BadRequest:
    """Error for a missing file."""
    folders = [
        f"{folder}/" if folder else "the directory itself" for folder in (*card.layout.own, *card.layout.folders)
    ]
    source = f" It is had from {card.source_url}." if card.source_url else ""
    return BadRequest(
        f"{data} has {what}: {' or '.join(names)} is not there (looked for in {', '.join(folders[:4])}"
        f"{', …' if len(folders) > 4 else ''}).{source}",
        reason="DATA_MISSING",
    )


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


class JoinedFiles:
    """Files joined to the rows of a split, each read once, when first needed.

    Args:
        beside: Folder of the split's rows, searched first.
        problems: List that receives unusable lines.
    """

    def __init__(self, card: DatasetCard, data: Path, split: CardSplit, beside: Path, problems: list[Problem]) -> None:
        self._card, self._data, self._split, self._beside, self._problems = card, data, split, beside, problems
        # Keyed by file names and key column: several columns may use the same file.
        self._tables: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
        self._by_row: list[tuple[Path, int]] = []
        self.paths: list[Path] = []
        """Files that were read, except those for single memes."""

    def columns(self) -> set[str]:
        """Columns of the rows that serve as lookup keys."""
        joins = [one.join for one in self._card.expressions() if one.join is not None]
        named = {name for join in joins for name in placeholders_of(join.file + join.column)}
        # These are made by the reader and are no columns.
        return {name for name in named if name not in ("id", "language", "group", "variant", "split")}

    def of(self, join: Join) -> Callable[[Record], Record]:
        """Returns a function that finds the joined row, or an empty one if there is none."""
        # Files for single rows are not cached: there may be as many as rows.
        if placeholders_of(join.file):
            return lambda record: self._single(join, record)
        key = _BY_ROW if join.on == _BY_ROW else join.key or join.on

        def joined(record: Record) -> Record:
            table: dict[str, dict[str, Any]] = self._table(
                (join.file,), key, join.kind, join.columns, what="joined file"
            )
            # In a file for all languages or splits, the id is the row's own, without the prefix that makes it unique.
            word = word_of(record.get(join.on), join.on)
            found: Record = table.get((word or "").strip(), _NONE)
            return found

        return joined

    def add_labels(self, labels: LabelFile, record: dict[str, Any]) -> None:
        """Adds the columns of the split's label file to a row, without overwriting the row's own."""
        table = self._table(labels.files, labels.on, labels.kind.value, labels.columns, what="labels")
        word = (word_of(record.get(labels.on), labels.on) or "").strip()
        for name, value in table.get(word, _NONE).items():
            record.setdefault(name, value)

    def ids(self) -> set[str] | None:
        """Ids of the split if a file lists them, else None."""
        if self._split.members or not self._split.ids:
            return set(self._split.members) or None
        path = self._find(self._split.ids, "list of ids")
        # Not parsed as JSON: lists of ids have one id per line.
        found = {line.strip() for line in read_text(path, "ids").split("\n") if line.strip()}
        if not found:
            raise BadRequest(f"{path.name} lists no id.", reason="DATA_UNUSABLE")
        return found

    def check_rows(self, rows: int, path: Path) -> None:
        """Refuses files joined by position whose number of rows differs. Raises BadRequest."""
        for other, count in self._by_row:
            # With a join by position, one row more or less shifts every label after it.
            if count != rows:
                raise BadRequest(
                    f"{path.name} has {rows:,} rows and {other.name} {count:,}: they can't be joined by their order.",
                    reason="DATA_UNUSABLE",
                )

    def _single(self, join: Join, record: Record) -> Record:
        name = fill(join.file, record)
        paths = first_present(self._data, self._folders(), (name,))
        if not paths:
            return _NONE
        path = paths[0]
        found = parse_object(read_text(path, "a record"))
        if found is None:
            raise BadCell(f"its file {path.name} is no JSON object", join.column)
        return found

    def _folders(self) -> tuple[str, ...]:
        layout = self._card.layout
        return (self._beside.relative_to(self._data).as_posix(), *layout.own, *layout.folders)

    def _find(self, names: tuple[str, ...], what: str) -> Path:
        paths = first_present(self._data, self._folders(), names)
        if not paths:
            title = f"the split {self._split.name} of {self._card.title} without its {what}"
            raise missing(self._card, self._data, title, names)
        path = paths[0]
        if path not in self.paths:
            self.paths.append(path)
        return path

    def _table(
        self, names: tuple[str, ...], key: str, kind: str, columns: tuple[str, ...], *, what: str
    ) -> dict[str, dict[str, Any]]:
        known = (*names, key)
        if known not in self._tables:
            path = self._find(names, what)
            form = FileKind(kind) if kind else kind_of(path) or self._card.layout.kind
            self._tables[known] = self._read(RecordFile(path, form, header=columns), key)
        return self._tables[known]

    def _read(self, file: RecordFile, key: str) -> dict[str, dict[str, Any]]:
        table: dict[str, dict[str, Any]] = {}
        rows = 0
        for number, record in file:
            rows += 1
            if isinstance(record, str):
                self._problems.append(Problem(file.path.name, number, "", record))
                continue
            # Excluded columns are not read from joined files either; a joined file holds no pictures.
            for name in (*self._card.layout.never_read, *MADE_NAMES, "@picture"):
                record.pop(name, None)
            try:
                # Position of the row, counting unusable rows too: a damaged line also takes up a position.
                word = str(rows) if key == _BY_ROW else (word_of(record.get(key), key) or "").strip()
            except BadCell as bad:
                self._problems.append(Problem(file.path.name, number, "", str(bad)))
                continue
            if not word:
                self._problems.append(Problem(file.path.name, number, "", f"column {key}: it is empty"))
            # On duplicate keys the first row is used and the second is reported.
            elif word in table:
                self._problems.append(Problem(file.path.name, number, word, "it stands in the file already"))
            else:
                table[word] = record
        if key == _BY_ROW:
            self._by_row.append((file.path, rows))
        return table
