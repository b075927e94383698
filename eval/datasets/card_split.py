"""Reads the memes of a split one by one, by the card of its data set: files, files joined to them, and pictures."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from court.digests import sha256_of
from court.errors import BadRequest
from eval.datasets.card import CardLayout, CardSplit, DatasetCard, FileKind, LabelFile
from eval.datasets.card_rows import TEXT_FIELDS, ColumnRule, MemeBlock, RowRules, column_rule, faults_of
from eval.datasets.items import JudgedMeme
from eval.datasets.record_files import (
    Block,
    Coded,
    Numbered,
    RecordFile,
    as_blocks,
    kind_of,
    tree_rows,
    truths_of,
    unpacked_pictures,
)
from eval.datasets.verbs import MADE_NAMES, Join
from retrieval.library.cells import BadCell, Record, fill, placeholders_of, word_of
from retrieval.library.picture_finder import DatasetPictures
from retrieval.library.sources import Problem
from retrieval.library.tables import parse_object, read_text

_NONE: dict[str, Any] = {}
_BY_ROW = "@row"
T = TypeVar("T")


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


def _readable(columns: Mapping[str, T], layout: CardLayout) -> dict[str, T]:
    """Columns of a file without those that a card excludes, and those that could pass for computed values.

    They are dropped before any other code sees the rows, so that no value gets into a message or a meme.
    """
    never = {*layout.never_read, *MADE_NAMES}
    return {name: cell for name, cell in columns.items() if name not in never and not name.startswith("@@")}


class JoinedFiles:
    """Files joined to the rows of a split, each read once, when first needed.

    Args:
        first: Folder of the split's rows, searched first.
        problems: List that receives unusable lines.
    """

    def __init__(self, card: DatasetCard, data: Path, split: CardSplit, first: Path, problems: list[Problem]) -> None:
        self._card, self._data, self._split, self._first, self._problems = card, data, split, first, problems
        # Keyed by file names and key column: several columns may use the same file.
        self._tables: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
        self._by_row: list[tuple[Path, int]] = []
        self.paths: list[Path] = []
        """Files that were read, except those for single memes."""

    def of(self, join: Join) -> Callable[[Record], Record]:
        """Returns a function that finds the joined row, or an empty one if there is none."""
        # Files for single rows are not cached: there may be as many as rows.
        if placeholders_of(join.file):
            return lambda record: self._single(join, record)
        return lambda record: self._row_of(record, (join.file,), join.on, "joined file")

    def with_labels(self, labels: LabelFile, rows: Iterable[Numbered]) -> Iterator[Numbered]:
        """Adds the columns of the split's label file to rows, without overwriting the rows' own."""
        for number, record in rows:
            try:
                if not isinstance(record, str):
                    joined = self._row_of(record, labels.files, labels.on, "labels", columns=labels.columns)
                    record = {**joined, **record}
                yield number, record
            except BadCell as bad:
                yield number, str(bad)

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
        return (self._first.relative_to(self._data).as_posix(), *layout.own, *layout.folders)

    def _find(self, names: tuple[str, ...], what: str) -> Path:
        paths = first_present(self._data, self._folders(), names)
        if not paths:
            title = f"the split {self._split.name} of {self._card.title} without its {what}"
            raise missing(self._card, self._data, title, names)
        path = paths[0]
        if path not in self.paths:
            self.paths.append(path)
        return path

    def _row_of(
        self, record: Record, names: tuple[str, ...], on: str, what: str, *, columns: tuple[str, ...] = ()
    ) -> Record:
        """A row's row in the first of these files that exists, or an empty one."""
        if (known := (*names, on)) not in self._tables:
            path = self._find(names, what)
            kind = kind_of(path) or self._card.layout.kind
            self._tables[known] = self._read(RecordFile(path, kind, header=columns), on)
        # In a file for all languages or splits, the id is the row's own, without the prefix that makes it unique.
        found: Record = self._tables[known].get((word_of(record.get(on), on) or "").strip(), _NONE)
        return found

    def _read(self, file: RecordFile, key: str) -> dict[str, dict[str, Any]]:
        table: dict[str, dict[str, Any]] = {}
        # Position of the row, counting unusable rows too: a damaged line also takes up a position.
        rows = 0
        for rows, (number, record) in enumerate(file, 1):
            word = ""
            try:
                if isinstance(record, str):
                    raise BadCell(record)
                record = _readable(record, self._card.layout)
                word = str(rows) if key == _BY_ROW else (word_of(record.get(key), key) or "").strip()
                if not word:
                    raise BadCell("it is empty", key)
                # On duplicate keys the first row is used and the second is reported.
                if table.setdefault(word, record) is not record:
                    raise BadCell("it stands in the file already")
            except BadCell as bad:
                self._problems.append(Problem(file.path.name, number, word, str(bad)))
        if key == _BY_ROW:
            self._by_row.append((file.path, rows))
        return table


DOUBLED = "its id stands in the file already"
"""Reason for which a row with the id of another is refused."""


class CardReader:
    """Iterates over the memes of a split; only a bounded number of ids is held in memory.

    Args:
        doubles: True to yield memes with duplicate ids too, which are refused otherwise.
        columns: Columns whose cells stand beside the memes of a block.

    Attributes:
        problems: Rows refused so far, and unusable lines of other files.
        rows: Rows read from the files so far: accepted, excluded, refused, and of other splits.
        elsewhere: Rows of other splits so far.
        excluded: Rows that the card drops so far.
        labels: Memes by label of each task so far.

    Raises:
        BadRequest: There is no such split, or its files are missing.
    """

    def __init__(
        self, card: DatasetCard, data: Path, split: str, *, doubles: bool = False, columns: Collection[str] = ()
    ) -> None:
        self.card, self.data, self.split = card, data, card.split(split)
        self._columns = tuple(columns)
        self._doubles = doubles
        if not data.is_dir():
            raise BadRequest(f"{data} is no directory. Name the one that {card.title} was unpacked in.")
        self.problems: list[Problem] = []
        self.rows = self.elsewhere = self.refused = self.excluded = 0
        self.labels: dict[str, Counter[str]] = {}
        self._files: list[tuple[str, Path]] = []
        for language in self.split.languages or ("",):
            names = self.split.files_of(language)
            if (found := located(card, data, names)) is None:
                raise missing(card, data, f"no split {self.split.name} of {card.title}", names)
            self._files += ((language, path) for path in found[0])
        self.paths = tuple(path for _, path in self._files)
        # Pictures may also be next to the rows: parts of a data set may be stored side by side.
        name = self.split.name.partition(":")[0]
        patterns = [one.replace("{split}", name) for one in self.split.pictures or card.layout.pictures]
        self._picture = card.fields.picture.column if card.fields.picture else ""
        self._unpacked = unpacked_pictures(self.paths, card.layout.kind, self._picture)
        elsewhere = self._unpacked or (Path(card.layout.pictures_at) if card.layout.pictures_at else None)
        places = (elsewhere, elsewhere, ("",)) if elsewhere else (data, self.paths[0].parent, patterns)
        self.pictures = DatasetPictures(*places)
        self._joins = JoinedFiles(card, data, self.split, first=self.paths[0].parent, problems=self.problems)
        self._rules, self._where = RowRules(card, self._joins.of), self._rows_of_split()

    def with_pictures(self) -> Iterator[JudgedMeme]:
        """The memes one by one, as by :meth:`pictured_blocks`. Raises BadRequest: A file can't be read."""
        for block in self.pictured_blocks():
            yield from block.memes()

    def pictured_blocks(self, doubts: list[str] | None = None) -> Iterator[MemeBlock]:
        """Like :meth:`blocks`, with the folder of the pictures located before the first of them is yielded.

        Args:
            doubts: List that receives the error if several files match a name; None to raise it.
        """
        if self.card.fields.picture is not None:
            # Named by a reader of its own, which stops after the first names.
            first = CardReader(self.card, self.data, self.split.name)
            names = (one for block in first.blocks() for one in block.pictures() if one[0])
            try:
                self.pictures.find_folder(names)
            except BadRequest as error:
                if doubts is None:
                    raise
                doubts.append(error.message)
        yield from self.blocks()

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file read, in hex, by its name below the directory; for a tree, of its file names."""
        found: dict[str, str] = {}
        # Excludes files for single memes: there may be one for each row.
        for path in (*self.paths, *self._joins.paths):
            if path.is_dir():
                names = "".join(f"{record['@path']}\n" for _, record in tree_rows(path) if isinstance(record, dict))
                # File names need not be UTF-8 and must be hashed as they are.
                sha256 = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()
            else:
                sha256 = sha256_of(path)
            found[path.relative_to(self.data).as_posix()] = sha256
        return found

    def _blocks(self, path: Path) -> Iterator[Block]:
        layout = self.card.layout
        columns = self.card.columns() | set(self._columns)
        # Column names with a placeholder are not known in advance: then every column is read.
        whole = any("{" in name for one in self.card.expressions() for name in one.columns())
        file = RecordFile(
            path,
            layout.kind,
            None if whole else frozenset(columns),
            unpacked=(self._picture, self._unpacked) if self._unpacked else None,
        )
        for block in file.blocks():
            yield replace(block, columns=_readable(block.columns, layout))

    def blocks(self) -> Iterator[MemeBlock]:
        """The memes by columns, many at once."""
        # Counters restart with each iteration.
        self.rows = self.elsewhere = self.refused = self.excluded = 0
        self.labels = {task.id: Counter() for task in self.card.all_tasks()}
        self._seen = set[str]()
        self._listed = listed = self._joins.ids()
        unseen = self._field_columns()
        # Counted over all files of a language, which form one list of rows: `@row` may serve as an id or join key.
        counted: Counter[str] = Counter()
        for language, path in self._files:
            for whole in self._blocks(path):
                start = counted[language]
                counted[language] += len(whole)
                self.rows += len(whole)
                if unseen and not whole.fault:
                    # Only fields whose columns have not been seen yet are still tracked.
                    unseen = {name: columns for name, columns in unseen.items() if not columns & whole.columns.keys()}
                # Stored like a column, where expressions and joins find it.
                rows = whole.with_columns({"@row": range(start + 1, counted[language] + 1)})
                apart = self.split.labels
                for block in (rows,) if apart is None else as_blocks(self._joins.with_labels(apart, rows)):
                    if len(memes := self._memes_of(block, path, language)):
                        yield MemeBlock(self.split.name, path.relative_to(self.data).as_posix(), memes)
        for language, path in self._files:
            self._joins.check_rows(counted[language], path)
        # Without rows there is nothing to report about columns.
        for name, columns in unseen.items() if self.rows else ():
            names = ", ".join(sorted(columns))
            reason = f"no row has the column {names}, which the card makes the {name} of"
            self.problems.append(Problem(self.paths[0].name, 0, "", reason))
        # Ids of refused rows were already reported with their reason.
        absent = (listed or set()) - {problem.id for problem in self.problems} - self._seen
        if absent:
            source = self.split.ids[0] if self.split.ids else self.paths[0].name
            self.problems.append(Problem(source, 0, "", f"{len(absent):,} ids of the split have no row in the file"))

    def _memes_of(self, block: Block, path: Path, language: str) -> Block:
        """The rows of a block that are memes of the split; others are counted and noted."""
        problems: list[Problem] = []

        def add(name: str, values: Sequence[Any]) -> None:
            """Adds a column, and refuses rows with a fault in it."""
            nonlocal block
            block = block.with_columns({name: values})
            if faults := faults_of(values):
                ids = block.columns.get("@@id", ("",) * len(block))
                problems.extend(Problem(path.name, block.numbers[at], ids[at], str(bad)) for at, bad in faults.items())
                good = np.ones(len(block), np.bool_)
                good[list(faults)] = False
                block = block.taken(good)

        def keep(name: str, values: Sequence[Any]) -> int:
            """Adds a column, goes on with rows that are true in it, and returns the number of others."""
            nonlocal block
            add(name, values)
            good = truths_of(block.columns[name])
            if not good.all():
                block = block.taken(good)
            return len(good) - int(good.sum())

        if block.fault:
            add("@@fault", [BadCell(block.fault)] * len(block))
        # Checked before the id: rows of other splits may have invalid ids.
        if self._where is not None and len(block):
            self.elsewhere += keep("@@here", self._where(block))
        # The file's language takes precedence over a column, since it is part of the id.
        if language:
            add("@language", (language,) * len(block))
        elif self._rules.language is not None:
            add("@language", self._rules.language(block))
        add("@id", self._rules.id(block))
        own = block.columns["@id"]
        # Ids repeat across language files.
        add("@@id", [f"{language}-{id_}" for id_ in own] if language else own)
        if self._listed is not None:
            self.elsewhere += keep("@@here", [id_ in self._listed for id_ in block.columns["@@id"]])
        for name, rule in self._rules.fields:
            add(name, rule(block))
        self.excluded += keep("@@gold", self._golds_of(block))
        if not self._doubles or self._listed is not None:
            self._seen.update(block.columns["@@id"])
        # Rows with equal labels share them.
        for gold, count in Coded.of(block.columns["@@gold"]).counts():
            for task, labels in gold.tasks.items():
                self.labels[task].update(dict.fromkeys(labels, count))
        self.refused += len(problems)
        self.problems += sorted(problems, key=lambda problem: problem.line)
        return block

    def _golds_of(self, block: Block) -> Sequence[Any]:
        """Labels of rows, or the fault that a row's id stands in another."""
        ids, golds = block.columns["@@id"], block.columns["@@gold"]
        if self._doubles or (len(set(ids)) == len(ids) and self._seen.isdisjoint(ids)):
            return golds
        found = list(golds)
        for place, id_ in enumerate(ids):
            # A row that is dropped leaves its id free for another, as one that is refused has done.
            if found[place] is None:
                continue
            # Records, predictions and leaks refer to memes by id, so duplicates could not be told apart.
            if id_ in self._seen:
                found[place] = BadCell(DOUBLED, self._rules.id_column)
            self._seen.add(id_)
        return found

    def _field_columns(self) -> dict[str, set[str]]:
        """Columns that each field is computed from; fields without columns or with joined columns are left out."""
        found: dict[str, set[str]] = {}
        for name in ("picture", *TEXT_FIELDS):
            expression = getattr(self.card.fields, name)
            columns = {one for one in expression.columns() if "{" not in one} if expression else set()
            # @-names exist in each row; joined files are checked elsewhere.
            if columns and not any(one.startswith("@") for one in columns) and expression.join is None:
                found[name] = columns
        return found

    def _rows_of_split(self) -> ColumnRule | None:
        """Returns a rule that is true for rows of this split; a row that belongs to no split is refused."""
        if not self.split.where:
            return None

        def words(values: str | Sequence[str]) -> set[str]:
            return {values} if isinstance(values, str) else set(values)

        known: dict[str, set[str]] = {}
        for split in self.card.splits:
            # Values of all splits in the same file are valid; any other value is a fault of the row or the card.
            for column, values in split.where.items() if split.files == self.split.files else ():
                known.setdefault(column, set()).update(words(values))

        def is_here(record: Record) -> bool:
            for column, values in self.split.where.items():
                word = (word_of(record.get(column), column) or "").strip()
                if word not in known[column]:
                    raise BadCell(f"it names no split of the card ({', '.join(sorted(known[column]))})", column)
                if word not in words(values):
                    return False
            return True

        return column_rule(tuple(self.split.where), is_here)
