"""Memes of a split by its data set's card, read one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from court.errors import BadRequest, BadText
from court.meme import check_text
from eval.datasets.card import CardSplit, DatasetCard, FileKind
from eval.datasets.card_joins import JoinedFiles
from eval.datasets.card_places import find_files, tree_rows
from eval.datasets.items import _ItemModel
from eval.datasets.label_rules import compile_task
from eval.datasets.picture_finder import DatasetPictures, leads_out
from eval.datasets.record_files import Numbered, RecordFile
from eval.datasets.verbs import BadCell, Compiled, Expression, Record, compile_expression, word_of
from retrieval.library.sources import Problem

_LONGEST_ID = 200
_TEXTS = ("text", "ocr", "caption", "group")
_JSON_KINDS = (FileKind.JSONL, FileKind.JSON, FileKind.JSON_MAP)


class CardMeme(_ItemModel):
    """A meme of a data set with its gold labels of every task, which :class:`JudgedMeme` has of one question alone.

    ``gold["stance"] == ("skeptical",)``: of a task with one label, a tuple of it; of one with several, in the order of
    the card or the row, and an empty tuple where the meme has none of them. A task that is absent from ``gold`` has no
    gold label for this meme (its annotators left it open, or it is asked of some memes alone): it is not scored.
    """

    id: str = Field(min_length=1)
    split: str
    file: str
    """Name of its file below the data set's directory."""
    line: int = Field(ge=0)
    """Where it stands in its file, counted from 1: a line, or a row where there are none."""
    image: str = ""
    """Name of its picture as the row has it; :meth:`CardMemes.picture_of` finds the file."""
    text: str = ""
    ocr: str = ""
    caption: str = ""
    """Description of the picture by the data set's authors."""
    language: str = ""
    group: str = ""
    """Template, family or source."""
    gold: dict[str, tuple[str, ...]]
    shares: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Share of the annotators by label, by task, where there are several of them."""

    @property
    def picture(self) -> tuple[str, dict[str, str]]:
        """Name of its picture, and the fields that may stand in the name of a folder."""
        return self.image, {"id": self.id, "language": self.language, "group": self.group}


@dataclass(frozen=True, slots=True)
class CardMemes:
    """Content read from a split.

    Attributes:
        card: The card that it was read by.
        split: The split.
        memes: In the order of the files; ids are unique.
        problems: Rows that were refused, and lines of other files that can't be used.
        excluded: Rows that the card leaves out: those without a label where it says ``missing = "drop"``.
        rows: Rows of the files: those read, refused, left out, and of other splits.
        elsewhere: Rows of other splits in the same files.
        files: SHA-256 of every file that was read, by its name below the directory.
        pictures: Finder of the pictures, which has looked for their folder.
        refused: Rows that can't be used: with those read, ``excluded`` and ``elsewhere`` they are all ``rows``.
    """

    card: DatasetCard
    split: CardSplit
    memes: tuple[CardMeme, ...]
    problems: tuple[Problem, ...]
    excluded: tuple[Problem, ...]
    rows: int
    elsewhere: int
    files: dict[str, str]
    pictures: DatasetPictures
    refused: int

    def picture_of(self, meme: CardMeme) -> Path | None:
        """Finds the file of a meme's picture; None where it is not there. Raises BadRequest where several fit."""
        return self.pictures.find(*meme.picture)


def read_by_card(card: DatasetCard, data: Path, split: str) -> CardMemes:
    """Reads all memes of a split.

    Raises:
        BadRequest: There is no such split, its files are not there, or no row of them can be used.
    """
    reader = CardReader(card, data, split)
    memes = tuple(reader)
    reader.pictures.look(meme.picture for meme in memes)
    if not memes:
        why = reader.problems[0].reason if reader.problems else "no row is of this split"
        raise BadRequest(
            f"No row of {', '.join(path.name for path in reader.paths)} can be used as the split {split} of "
            f"{card.title}: {why}.{f' The data are had from {card.source_url}.' if card.source_url else ''}",
            reason="DATA_UNUSABLE",
        )
    return CardMemes(
        card=card,
        split=reader.split,
        memes=memes,
        problems=tuple(reader.problems),
        excluded=tuple(reader.excluded),
        rows=reader.rows,
        elsewhere=reader.elsewhere,
        files=reader.digests(),
        pictures=reader.pictures,
        refused=reader.refused,
    )


@dataclass(slots=True)
class _Row:
    """The rules of a card as functions of a row."""

    id: Compiled
    texts: tuple[tuple[str, Compiled, str], ...]
    picture: Compiled | None
    language: Compiled | None
    tasks: tuple[tuple[str, Callable[[Record], Any], tuple[tuple[str, str], ...], Callable[[str], str] | None], ...]


class CardReader:
    """The memes of a split, read while they are iterated over; nothing of them but their ids stays in memory.

    Args:
        card: Card of the data set.
        data: Directory of the data set.
        split: Name of the split.
        doubles: True to have memes whose id stood before too, which are refused otherwise.

    Attributes:
        problems: Rows refused so far, and lines of other files that can't be used.
        excluded: Rows left out so far.
        refused: Number of rows refused so far.
        rows: Rows of the files so far: read, excluded, refused, and elsewhere.
        elsewhere: Rows of other splits so far.
        paths: Files of the rows.
        pictures: Finder of the pictures.

    Raises:
        BadRequest: There is no such split, or its files are not there.
    """

    def __init__(self, card: DatasetCard, data: Path, split: str, *, doubles: bool = False) -> None:
        self.card, self.data, self.split = card, data, card.split(split)
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
        self.pictures = DatasetPictures(data, self.paths[0].parent, card.layout.pictures)
        self._joins = JoinedFiles(card, data, self.split, self.paths[0].parent, self.problems)
        self._row = self._compile()

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file that was read, in hex, by its name below the directory."""
        found: dict[str, str] = {}
        for path in (*self.paths, *self._joins.paths):
            if path.is_file():
                with path.open("rb") as file:
                    found[path.relative_to(self.data).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
        return found

    def _compile(self) -> _Row:
        fields = self.card.fields

        def compiled(expression: Expression) -> Compiled:
            return compile_expression(expression, self._joins.of)

        texts = tuple(
            (name, compiled(expression), expression.name)
            for name in _TEXTS
            if (expression := getattr(fields, name)) is not None
        )
        tasks = []
        for task in self.card.all_tasks():
            variant = _variant_of(task.variant, task.variant_of) if task.variants else None
            tasks.append((task.id, compile_task(task, self._joins.of), tuple(task.when.items()), variant))
        return _Row(
            compiled(fields.id),
            texts,
            compiled(fields.picture) if fields.picture else None,
            compiled(fields.language) if fields.language else None,
            tuple(tasks),
        )

    def _records(self, path: Path) -> Iterator[Numbered]:
        layout = self.card.layout
        if layout.kind is FileKind.TREE:
            yield from tree_rows(path)
            return
        columns = self.card.columns() | self._joins.columns()
        # Names with a field in them are not known beforehand: then every column is read.
        whole = any("{" in name for one in self.card.expressions() for name in one.columns())
        never = layout.never_read
        file = RecordFile(path, layout.kind, None if whole else frozenset(columns), records=layout.records)
        for number, record in file:
            if never and isinstance(record, dict):
                for name in never:
                    record.pop(name, None)
            yield number, record

    def __iter__(self) -> Iterator[CardMeme]:
        self.excluded.clear()
        self.rows = self.elsewhere = self.refused = 0
        seen: set[str] = set()
        listed = self._joins.ids()
        where = self._where()
        unseen = self._field_columns()
        for language, path in self._files:
            name, row = path.relative_to(self.data).as_posix(), 0
            for number, record in self._records(path):
                row += 1
                self.rows += 1
                id_ = ""
                try:
                    if isinstance(record, str):
                        raise BadCell(record)
                    if unseen:
                        unseen = {name: columns for name, columns in unseen.items() if not columns & record.keys()}
                    record["@row"] = row
                    self._joins.add_labels(record, row)
                    if where is not None and not where(record):
                        self.elsewhere += 1
                        continue
                    id_ = self._id(record, language)
                    if listed is not None and id_ not in listed:
                        self.elsewhere += 1
                        continue
                    meme = self._meme(record, id_, file=name, line=number)
                    if meme is None:
                        self.excluded.append(Problem(path.name, number, id_, "it has no label that is used"))
                        continue
                    # Records, predictions and leaks all go by ids: the second of an id could not be told apart.
                    if id_ in seen and not self._doubles:
                        raise BadCell("its id stands in the file already")
                except BadCell as bad:
                    self.refused += 1
                    self.problems.append(Problem(path.name, number, id_, str(bad)))
                    continue
                seen.add(id_)
                yield meme
            self._joins.check_rows(row, path)
        for name, columns in unseen.items() if self.rows else ():
            told = ", ".join(sorted(columns))
            reason = f"no row has the column {told}, which the card makes the {name} of"
            self.problems.append(Problem(self.paths[0].name, 0, "", reason))
        if listed is not None and (absent := listed - seen - {problem.id for problem in self.problems}):
            self.problems.append(
                Problem(self.split.ids[0], 0, "", f"{len(absent):,} ids of the split have no row in the file")
            )

    def _field_columns(self) -> dict[str, set[str]]:
        """Columns of the rows that each field is made of; a field of none, or of others' columns, is left out."""
        found: dict[str, set[str]] = {}
        for name in ("picture", *_TEXTS):
            expression = getattr(self.card.fields, name)
            columns = {one for one in expression.columns() if "{" not in one} if expression else set()
            if columns and not any(one.startswith("@") for one in columns) and expression.join is None:
                found[name] = columns
        return found

    def _where(self) -> Callable[[Record], bool] | None:
        """Makes a test of rows for being of this split; a row of no split at all is refused."""
        if not self.split.where:
            return None
        files = self.split.files
        known: dict[str, set[str]] = {}
        for split in self.card.splits:
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

    def _id(self, record: dict[str, Any], language: str) -> str:
        row, fields = self._row, self.card.fields
        if language:
            record["@language"] = language
        elif row.language is not None:
            word = word_of(row.language(record), "language")
            record["@language"] = (word or "").strip()
        found = row.id(record)
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise BadCell("it has no id", fields.id.name)
        id_ = (word_of(found, fields.id.name) or "").strip()
        if not id_:
            raise BadCell("it has no id", fields.id.name)
        record["@id"] = id_
        if language:
            id_ = f"{language}-{id_}"
        if len(id_) > _LONGEST_ID:
            raise BadCell(f"its id is longer than {_LONGEST_ID} characters", fields.id.name)
        return id_

    def _meme(self, record: dict[str, Any], id_: str, *, file: str, line: int) -> CardMeme | None:
        """The meme of a row; None where a task leaves it out."""
        row, values = self._row, {}
        for name, value, column in row.texts:
            found = value(record)
            if isinstance(found, bool):
                raise BadCell("it is no text", column)
            values[name] = word_of(found, column) or ""
            _check(values[name], column)
        record["@group"] = values.get("group", "")
        image = ""
        if row.picture is not None:
            column = self.card.fields.picture.name if self.card.fields.picture else ""
            image = (word_of(row.picture(record), column) or "").strip()
            _check(image, column)
            if leads_out(image):
                raise BadCell(
                    'the name of its picture leads out of the data set; take = "basename" in the card takes the last '
                    "part of a path",
                    column,
                )
        gold: dict[str, tuple[str, ...]] = {}
        shares: dict[str, dict[str, float]] = {}
        for task, rule, when, variant in row.tasks:
            if any(gold.get(other) != (label,) for other, label in when):
                continue
            if variant is not None:
                record["@variant"] = variant(record.get("@language", ""))
            found = rule(record)
            if found.drop:
                return None
            if found.labels is not None:
                gold[task] = found.labels
            if found.shares:
                shares[task] = dict(found.shares)
        _check(id_, self.card.fields.id.name)
        language = record.get("@language", "")
        return CardMeme(
            id=id_,
            split=self.split.name,
            file=file,
            line=line,
            image=image,
            language=language,
            gold=gold,
            shares=shares,
            **values,
        )


def _variant_of(variant: str, by_language: dict[str, str]) -> Callable[[str], str]:
    if variant != "own":
        return lambda _: variant

    def own(language: str) -> str:
        if language not in by_language:
            raise BadCell("no jury of the card is its language's", "language")
        return by_language[language]

    return own


def _check(text: str, column: str) -> None:
    """Refuses what can't be stored and shown as text."""
    try:
        check_text(text)
    except BadText as error:
        reason = "it holds bytes that are not UTF-8" if error.reason == "TEXT_NOT_UNICODE" else "its text is too long"
        raise BadCell(reason, column) from None
