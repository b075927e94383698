"""Other files of a data set that its rows take values from: labels apart, ids of splits, a record a meme."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from court.errors import BadRequest
from eval.datasets.card import CardSplit, DatasetCard, FileKind, LabelFile
from eval.datasets.card_places import first_present, missing
from eval.datasets.json_lines import parse_object
from eval.datasets.record_files import RecordFile, kind_of
from eval.datasets.verbs import MADE_NAMES, BadCell, Join, Record, fill, placeholders_of, word_of
from retrieval.library.sources import Problem
from retrieval.library.tables import read_text

_NONE: dict[str, Any] = {}
_BY_ROW = "@row"


class JoinedFiles:
    """Files that are joined to the rows of a split, each read once and when it is first needed.

    Args:
        card: Card of the data set.
        data: Directory of the data set.
        split: The split.
        beside: Folder of its rows, which is looked into first.
        problems: Takes the lines that can't be used.
    """

    def __init__(self, card: DatasetCard, data: Path, split: CardSplit, beside: Path, problems: list[Problem]) -> None:
        self._card, self._data, self._split, self._beside, self._problems = card, data, split, beside, problems
        # By names and key: one file may be looked up in by several columns.
        self._tables: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
        self._by_row: list[tuple[Path, int]] = []
        self.paths: list[Path] = []
        """Files that were read, but for those of single memes."""

    def columns(self) -> set[str]:
        """Columns of the rows that are looked up by."""
        joins = [one.join for one in self._card.expressions() if one.join is not None]
        named = {name for join in joins for name in placeholders_of(join.file + join.column)}
        # Made by the reader, and no columns.
        return {name for name in named if name not in ("id", "language", "group", "variant", "split")}

    def of(self, join: Join) -> Callable[[Record], Record]:
        """Makes a function that finds the joined row; an empty one where there is none."""
        # Files of single rows are kept in no table: there may be as many as rows.
        if placeholders_of(join.file):
            return lambda record: self._single(join, record)
        key = _BY_ROW if join.on == _BY_ROW else join.key or join.on

        def joined(record: Record) -> Record:
            table: dict[str, dict[str, Any]] = self._table(
                (join.file,), key, join.kind, join.columns, what="joined file"
            )
            # Of a file for all languages or splits, an id is the row's own, without what makes it unique.
            word = word_of(record.get(join.on), join.on)
            found: Record = table.get((word or "").strip(), _NONE)
            return found

        return joined

    def add_labels(self, labels: LabelFile, record: dict[str, Any]) -> None:
        """Adds the columns of the split's file of labels to a row; the row's own stay."""
        table = self._table(labels.files, labels.on, labels.kind.value, labels.columns, what="labels")
        word = (word_of(record.get(labels.on), labels.on) or "").strip()
        for name, value in table.get(word, _NONE).items():
            record.setdefault(name, value)

    def ids(self) -> set[str] | None:
        """Ids of the split, where files list them; None where they do not."""
        if not self._split.ids:
            return None
        path = self._find(self._split.ids, "list of ids")
        # Lines and not JSON: lists of ids have one in each line.
        found = {line.strip() for line in read_text(path, "ids").split("\n") if line.strip()}
        if not found:
            raise BadRequest(f"{path.name} lists no id.", reason="DATA_UNUSABLE")
        return found

    def check_rows(self, rows: int, path: Path) -> None:
        """Refuses files joined by the order of their rows where one has more. Raises BadRequest."""
        for other, count in self._by_row:
            # Joined by order alone, one row more or less shifts every label that follows.
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
            # Columns that are never read are not read from joined files either; nor is there a picture in one.
            for name in (*self._card.layout.never_read, *MADE_NAMES, "@picture"):
                record.pop(name, None)
            try:
                # The number of the row, counted with those that can't be used: a damaged line takes its
                # place in the order too.
                word = str(rows) if key == _BY_ROW else (word_of(record.get(key), key) or "").strip()
            except BadCell as bad:
                self._problems.append(Problem(file.path.name, number, "", str(bad)))
                continue
            if not word:
                self._problems.append(Problem(file.path.name, number, "", f"column {key}: it is empty"))
            # Which of two is meant can't be told; the first stays, and the second is reported.
            elif word in table:
                self._problems.append(Problem(file.path.name, number, word, "it stands in the file already"))
            else:
                table[word] = record
        if key == _BY_ROW:
            self._by_row.append((file.path, rows))
        return table
