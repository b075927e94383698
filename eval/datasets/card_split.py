"""Reads the memes of a split one by one, by the card of its data set."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from court.digests import digest
from court.errors import BadRequest
from eval.datasets.card import DatasetCard, FileKind
from eval.datasets.card_files import JoinedFiles, find_files, tree_rows
from eval.datasets.card_rows import TEXT_FIELDS, RowRules
from eval.datasets.items import JudgedMeme
from eval.datasets.record_files import Numbered, RecordFile, holds_pictures
from eval.datasets.verbs import MADE_NAMES
from retrieval.library.cells import BadCell, Record, word_of
from retrieval.library.picture_finder import LOOKED_FOR, DatasetPictures
from retrieval.library.sources import Problem

_FIRST = 5_000
"""Maximum number of memes held in memory while the folder of pictures is searched for."""

DOUBLED = "its id stands in the file already"
"""Reason for which a row with the id of another is refused."""


def first_memes(memes: Iterator[JudgedMeme]) -> list[JudgedMeme]:
    """Takes the first memes of a split, which suffice to find the folder of its pictures before the rest is read."""
    first: list[JudgedMeme] = []
    named = 0
    for meme in memes:
        first.append(meme)
        named += bool(meme.image)
        # If most rows have no picture, many are read, but not all: they are held in memory.
        if named == LOOKED_FOR or len(first) == _FIRST:
            break
    return first


class CardReader:
    """Iterates over the memes of a split; only a bounded number of ids is held in memory.

    Args:
        doubles: True to yield memes with duplicate ids too, which are refused otherwise.
        pictures: Folder of the pictures in place of those that the card names.
        columns: Columns whose cells are collected beside the memes.

    Attributes:
        cells: Cells of those columns, of each meme yielded so far.
        problems: Rows refused so far, and unusable lines of other files.
        rows: Rows read from the files so far: accepted, excluded, refused, and of other splits.
        elsewhere: Rows of other splits so far.

    Raises:
        BadRequest: There is no such split, or its files are missing.
    """

    def __init__(
        self,
        card: DatasetCard,
        data: Path,
        split: str,
        *,
        doubles: bool = False,
        pictures: Path | None = None,
        columns: Collection[str] = (),
    ) -> None:
        self.card, self.data, self.split = card, data, card.split(split)
        self._columns, self.cells = tuple(columns), list[tuple[Any, ...]]()
        self._doubles = doubles
        if not data.is_dir():
            raise BadRequest(f"{data} is no directory. Name the one that {card.title} was unpacked in.")
        self.problems: list[Problem] = []
        self.excluded: list[Problem] = []
        self.rows = self.elsewhere = self.refused = 0
        languages = self.split.languages or ("",)
        self._files = [
            (language, path)
            for language in languages
            for path in find_files(card, data, self.split, self.split.files_of(language))
        ]
        self.paths = tuple(path for _, path in self._files)
        # Pictures may also be next to the rows: parts of a data set may be stored side by side.
        name = self.split.name.partition(":")[0]
        patterns = [one.replace("{split}", name) for one in self.split.pictures or card.layout.pictures]
        self.pictures = DatasetPictures(data, self.paths[0].parent, patterns)
        self._unpacked = self._folder_of_bytes()
        if self._unpacked is not None:
            self.pictures = DatasetPictures(self._unpacked, self._unpacked, ("",))
        elif pictures is not None:
            self.pictures = DatasetPictures(pictures, pictures, ("",))
        self._joins = JoinedFiles(card, data, self.split, beside=self.paths[0].parent, problems=self.problems)
        self._rules = RowRules(card, self.split.name, self._joins.of)

    def with_pictures(self) -> Iterator[JudgedMeme]:
        """The memes; the folder of their pictures is located before the first one is yielded.

        Raises:
            BadRequest: No row is usable, or a file can't be read.
        """
        memes = iter(self)
        first = first_memes(memes)
        self.find_picture_folder(first)
        if not first:
            why = "no row is of this split"
            if self.problems:
                # Nearly always all rows have the same fault, such as a renamed column.
                fault = self.problems[0]
                why = f"line {fault.line}: {fault.reason}" if fault.line else fault.reason
            source = f" The data are had from {self.card.source_url}." if self.card.source_url else ""
            raise BadRequest(
                f"No row of {', '.join(path.name for path in self.paths)} can be used as the split {self.split.name} "
                f"of {self.card.title}: {why}.{source}",
                reason="DATA_UNUSABLE",
            )
        yield from chain(first, memes)

    def find_picture_folder(self, first: Sequence[JudgedMeme]) -> None:
        """Locates the folder of the pictures by the first memes. Raises BadRequest if several files match a name."""
        if self.card.fields.picture is None:
            return
        named: Iterable[JudgedMeme] = first
        # None of the first rows has a picture: read the file again to find the first rows that have one.
        if len(first) == _FIRST and not any(meme.image for meme in first):
            named = CardReader(self.card, self.data, self.split.name)
        self.pictures.find_folder(meme.picture for meme in named)

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
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(self.data).as_posix()] = sha256
        return found

    def _folder_of_bytes(self) -> Path | None:
        """Folder for pictures that are bytes in the files; None if the pictures are files themselves."""
        field, path = self.card.fields.picture, self.paths[0]
        if field is None or not holds_pictures(path, self.card.layout.kind, field.column):
            return None
        from serving.settings import Settings

        # By their contents' age and size, as data sets of one name are replaced by others.
        states = [[str(one.resolve()), one.stat().st_size, one.stat().st_mtime_ns] for one in self.paths]
        return Settings().home / "unpacked" / digest(states).removeprefix("sha256:")[:24]

    def _records(self, path: Path) -> Iterator[Numbered]:
        layout = self.card.layout
        if layout.kind is FileKind.TREE:
            yield from tree_rows(path)
            return
        columns = self.card.columns() | self._joins.columns() | set(self._columns)
        # Column names with a placeholder are not known in advance: then every column is read.
        whole = any("{" in name for one in self.card.expressions() for name in one.columns())
        # Includes our own names: a column with such a name could pass for a computed value.
        never = (*layout.never_read, *MADE_NAMES)
        file = RecordFile(
            path,
            layout.kind,
            None if whole else frozenset(columns),
            records=layout.records,
            pictures=self._unpacked,
        )
        for number, record in file:
            if isinstance(record, dict):
                # Dropped before any other code sees the row, so that no value of these columns gets into a message or a
                # meme.
                for name in never:
                    record.pop(name, None)
            yield number, record

    def __iter__(self) -> Iterator[JudgedMeme]:
        # Counters restart with each iteration.
        self.excluded.clear()
        self.cells.clear()
        self.rows = self.elsewhere = self.refused = 0
        seen = set[str]()
        listed = self._joins.ids()
        where = self._where()
        unseen = self._field_columns()
        # Counted over all files of a language, which form one list of rows: `@row` may serve as an id or join key.
        counted: Counter[str] = Counter()
        for language, path in self._files:
            name = path.relative_to(self.data).as_posix()
            for number, record in self._records(path):
                counted[language] += 1
                self.rows += 1
                id_ = ""
                try:
                    if isinstance(record, str):
                        raise BadCell(record)
                    if unseen:
                        # Only fields whose columns have not been seen yet are still tracked.
                        unseen = {name: columns for name, columns in unseen.items() if not columns & record.keys()}
                    # Stored in the row itself, where expressions and joins find it like a column.
                    record["@row"] = counted[language]
                    if self.split.labels is not None:
                        self._joins.add_labels(self.split.labels, record)
                    # Checked before the id: rows of other splits may have invalid ids.
                    if where is not None and not where(record):
                        self.elsewhere += 1
                        continue
                    id_ = self._rules.id_of(record, language)
                    if listed is not None and id_ not in listed:
                        self.elsewhere += 1
                        continue
                    # Labels are read before duplicates are checked: a duplicate is refused only if it would have
                    # counted.
                    meme = self._rules.meme_of(record, id_, file=name, line=number)
                    if meme is None:
                        self.excluded.append(Problem(path.name, number, id_, "it has no label that is used"))
                        continue
                    # Records, predictions and leaks refer to memes by id, so duplicates could not be told apart.
                    if id_ in seen and not self._doubles:
                        raise BadCell(DOUBLED, self._rules.id_column)
                except BadCell as bad:
                    self.refused += 1
                    self.problems.append(Problem(path.name, number, id_, str(bad)))
                    continue
                # Added after the row was accepted: a refused row leaves its id free for another.
                seen.add(id_)
                if self._columns:
                    self.cells.append(tuple(record.get(name) for name in self._columns))
                yield meme
        for language, path in self._files:
            self._joins.check_rows(counted[language], path)
        # Without rows there is nothing to report about columns.
        for name, columns in unseen.items() if self.rows else ():
            names = ", ".join(sorted(columns))
            reason = f"no row has the column {names}, which the card makes the {name} of"
            self.problems.append(Problem(self.paths[0].name, 0, "", reason))
        # Ids of refused rows were already reported with their reason.
        if listed is not None:
            listed -= {problem.id for problem in self.problems}
            if absent := sum(id_ not in seen for id_ in listed):
                self.problems.append(
                    Problem(
                        self.split.ids[0] if self.split.ids else self.paths[0].name,
                        0,
                        "",
                        f"{absent:,} ids of the split have no row in the file",
                    )
                )

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

    def _where(self) -> Callable[[Record], bool] | None:
        """Returns a predicate that is true for rows of this split; a row that belongs to no split is refused."""
        if not self.split.where:
            return None
        files = self.split.files
        known: dict[str, set[str]] = {}
        for split in self.card.splits:
            # Values of all splits in the same file are valid; any other value is a fault of the row or the card.
            for column, values in split.where.items() if split.files == files else ():
                known.setdefault(column, set()).update([values] if isinstance(values, str) else values)
        wanted = {
            column: {values} if isinstance(values, str) else set(values) for column, values in self.split.where.items()
        }

        def is_here(record: Record) -> bool:
            for column, values in wanted.items():
                word = (word_of(record.get(column), column) or "").strip()
                if word not in known[column]:
                    raise BadCell(f"it names no split of the card ({', '.join(sorted(known[column]))})", column)
                if word not in values:
                    return False
            return True

        return is_here
