"""Joins other files of a data set to its rows: separate label files, lists of ids, one record per meme."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard, FileKind, LabelFile
from eval.datasets.card_places import first_present, missing
from eval.datasets.json_lines import parse_object
from eval.datasets.record_files import RecordFile, kind_of
from eval.datasets.verbs import MADE_NAMES, Join
from retrieval.library.cells import BadCell, Record, fill, placeholders_of, word_of
from retrieval.library.sources import Problem
from retrieval.library.tables import read_text

_NONE: dict[str, Any] = {}
_BY_ROW = "@row"


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
        if not self._split.ids:
            return None
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
