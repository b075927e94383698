"""Turns rows of a file into memes by the rules of a card: many at once by columns, or one by one.

By columns is several times as fast, as large tables have equal cells. A block with a cell that is unusable, or a card
with rules on several columns, is read row by row instead, which names the cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np

from court.meme import LIMITS
from eval.datasets.card import OWN, CardTask, DatasetCard, TaskKind
from eval.datasets.items import JudgedMeme, Level, Protocol
from eval.datasets.record_files import TEXTS, Block, Coded
from eval.datasets.verbs import MADE_NAMES, Compiled, Expression, JoinOf, compile_expression
from retrieval.library.cells import (
    BadCell,
    Record,
    is_missing,
    label_of,
    placeholders_of,
    plain_word,
    require_text,
    text_of,
    word_of,
)
from retrieval.library.picture_finder import ADDRESS, leads_out
from retrieval.text import TextColumn

_TRUE = {"1": "true", "0": "false", "yes": "true", "no": "false", "true": "true", "false": "false"}


@dataclass(frozen=True, slots=True)
class GoldOfTask:
    """Gold of one task for a row."""

    labels: tuple[str, ...] | None
    """Labels in the task's words; None if the row has none for this task."""
    drop: bool = False
    shares: tuple[tuple[str, float], ...] = ()
    """Share of annotators per label, if there are several and the card keeps their votes."""
    annotators: int = 0
    """Number of annotators; 0 if their votes are not kept."""


NO_GOLD = GoldOfTask(None)
_DROPPED = GoldOfTask(None, drop=True)
GoldRule = Callable[[Record], GoldOfTask]


def compile_task(task: CardTask, join_of: JoinOf) -> GoldRule:
    """Returns a function that computes a row's gold for a task, and raises BadCell for a value that no rule names."""
    if task.columns:
        return _by_columns(task, join_of)
    assert task.of is not None
    value, to_label, absent = compile_expression(task.of, join_of), _label_of(task), _absent(task)
    if task.votes is not None:
        return _by_votes(task, join_of)
    if task.kind is TaskKind.MULTI:

        def several(record: Record) -> GoldOfTask:
            found = value(record)
            if found is None or (not isinstance(found, list) and absent(found)):
                return _missing(task, task.of, record)
            items = found if isinstance(found, list) else [found]
            # A label that a row names twice counts once.
            return GoldOfTask(tuple(dict.fromkeys(to_label(item) for item in items)))

        return several
    # Created once and shared by rows.
    answers = {label: GoldOfTask((label,)) for label in task.labels}

    def one(record: Record) -> GoldOfTask:
        found = value(record)
        return _missing(task, task.of, record) if absent(found) else answers[to_label(found)]

    return one


def _missing(task: CardTask, of: Expression | None, record: Record) -> GoldOfTask:
    assert of is not None
    if task.missing == "problem":
        if of.column not in ("", *record):
            reason = "there is no label, as in a test split: the row has no such column"
        # A missing row, column or cell: a lookup can't tell them apart.
        elif of.join is not None:
            reason = f"the label is empty, or {of.join.file} has no such row or column"
        else:
            reason = "the label is empty"
        raise BadCell(reason, of.name)
    return _DROPPED if task.missing == "drop" else NO_GOLD


def _absent(task: CardTask) -> Callable[[object], bool]:
    """Returns a test for missing values: blank cells, and words such as ``nan`` that the card names as no label."""
    # A card that tells cells true from false by a map names no label by it.
    named = {plain_word(word) or "" for word in (*task.map, *([] if task.columns else task.labels))}

    def absent(value: object) -> bool:
        return is_missing(value) or (isinstance(value, str) and label_of(value, named) is None)

    return absent


def _label_of(task: CardTask) -> Callable[[object], str]:
    """Returns the lookup from cells to labels: exact spelling first, then ignoring case and punctuation."""
    mapping = {key: str(label) for key, label in task.map.items()} or {label: label for label in task.labels}
    exact = dict(mapping)
    loose = _loose(exact)
    name = task.of.name if task.of else ""

    def label(value: object) -> str:
        word = word_of(value, name)
        if word is None or not word.strip():
            raise BadCell(f"a label of {task.id} is empty", name)
        found = exact.get(word)
        if found is None:
            # Exact spelling first: two labels of a card may differ only in case.
            found = exact.get(word.strip()) or loose.get(plain_word(word) or "")
        if found is None:
            raise BadCell(f"it is no value that the card names for {task.id} ({', '.join(list(exact)[:8])})", name)
        return found

    return label


def _loose(exact: dict[str, str]) -> dict[str, str]:
    """Labels by their values in plain words, as far as those are unambiguous; 1 and 0 also as true and false."""
    words: dict[str, set[str]] = {}
    for key, label in exact.items():
        words.setdefault(plain_word(key) or "", set()).add(label)
    # Words shared by two labels are ambiguous and left out.
    loose = {word: next(iter(labels)) for word, labels in words.items() if len(labels) == 1}
    if set(loose) == {"0", "1"}:
        loose |= {"true": loose["1"], "false": loose["0"]}
    return loose


def _by_columns(task: CardTask, join_of: JoinOf) -> GoldRule:
    absent = _absent(task)
    columns = [(label, compile_expression(of, join_of), of) for label, of in task.columns.items()]
    exact = {key: bool(value) for key, value in task.map.items()}
    loose = {plain_word(key): value for key, value in exact.items()}
    loose = loose or {word: meaning == "true" for word, meaning in _TRUE.items()}

    def several(record: Record) -> GoldOfTask:
        found: list[str] = []
        for label, value, of in columns:
            cell = value(record)
            if absent(cell):
                # One empty cell makes the whole answer unknown: treating it as "no" would be a guess.
                return _missing(task, of, record)
            word = word_of(cell, of.name) or ""
            named = exact.get(word)
            if named is None:
                named = loose.get(plain_word(word))
            if named is None:
                raise BadCell(
                    f"it is no value that the card names for {task.id} ({', '.join(exact or _TRUE)})", of.name
                )
            if named:
                found.append(label)
        return GoldOfTask(tuple(found))

    return several


def _by_votes(task: CardTask, join_of: JoinOf) -> GoldRule:
    assert task.of is not None and task.votes is not None
    value, to_label, name, votes = compile_expression(task.of, join_of), _label_of(task), task.of.name, task.votes
    absent = _absent(task)

    def voted(record: Record) -> GoldOfTask:
        found = value(record)
        cells = found if isinstance(found, list) else [found]
        # An empty cell is an annotator who gave no answer.
        counts = Counter(to_label(cell) for cell in cells if not absent(cell))
        total = sum(counts.values())
        if not total:
            return _missing(task, task.of, record)
        # In the task's order, so that equal votes are written identically.
        shares = tuple((label, counts[label] / total) for label in task.labels if counts[label]) if votes.keep else ()
        annotators = total if shares else 0
        most = max(counts.values())
        first = [label for label, count in counts.items() if count == most]
        if len(first) > 1 or most < votes.least:
            if task.missing == "problem":
                raise BadCell(f"no label of {task.id} has the most votes, and {votes.least} or more", name)
            # A tie yields no label, but the shares are kept all the same.
            return GoldOfTask(None, task.missing == "drop", shares, annotators)
        return GoldOfTask((first[0],), shares=shares, annotators=annotators)

    return voted


T = TypeVar("T")
_SIMPLE = frozenset({str, int, bool, type(None)})
"""Types of cells that are equal if they mean the same."""


@dataclass(frozen=True, eq=False, slots=True)
class RowGold:
    """Gold labels of a row, shared by rows with equal cells."""

    tasks: dict[str, tuple[str, ...]]
    shares: dict[str, dict[str, float]]
    annotators: dict[str, int]
    harmful: bool | None = None
    level: Level | None = None
    source_label: str = ""
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemeBlock:
    """Memes of rows that follow each other, by columns."""

    split: str
    file: str
    """Name of their file below the data set's directory."""
    lines: Sequence[int]
    ids: Sequence[str]
    fields: Mapping[str, Sequence[str]]
    """Texts by field of a meme, for the fields that the card fills."""
    golds: Sequence[RowGold]
    cells: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Cells of further columns that the reader was asked for."""

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self, name: str) -> Sequence[str]:
        """Values of a field, empty ones if the card does not fill it."""
        return self.fields.get(name) or ("",) * len(self)

    @cached_property
    def text_column(self) -> TextColumn:
        """The memes' texts, for work on all of them."""
        return TextColumn(self.texts("text"))

    def values(self, name: str) -> Iterable[Any]:
        """Values of any field of a meme."""
        if name == "split":
            return repeat(self.split, len(self))
        return map(attrgetter(name), self.golds) if name in RowGold.__slots__ else self.texts(name)

    def pictures(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Names of the pictures, as :attr:`~eval.datasets.items.JudgedMeme.picture` of each meme."""
        for image, id_, language, group in zip(
            self.texts("image"), self.ids, self.texts("language"), self.texts("group"), strict=True
        ):
            yield image, {"id": id_, "language": language, "group": group}

    def memes(self) -> Iterator[JudgedMeme]:
        """The memes one by one."""
        values = zip(*self.fields.values(), strict=True) if self.fields else iter([()] * len(self))
        for id_, line, gold, cells in zip(self.ids, self.lines, self.golds, values, strict=True):
            yield JudgedMeme(
                id=id_,
                split=self.split,
                file=self.file,
                line=line,
                tasks=gold.tasks,
                shares=gold.shares,
                annotators=gold.annotators,
                harmful=gold.harmful,
                level=gold.level,
                source_label=gold.source_label,
                targets=gold.targets,
                **dict(zip(self.fields, cells, strict=True)),
            )


@dataclass(frozen=True, slots=True)
class CellRule(Generic[T]):
    """A rule on some columns, which is applied once to equal cells."""

    names: Collection[str]
    rule: Callable[[Record], T]

    def of(self, block: Block) -> Coded[T]:
        """Results for the rows. Raises BadCell if these can't be had by columns."""
        columns = block.columns
        names = tuple(name for name in self.names if name in columns)
        if not names:
            return Coded((self.rule({}),), np.zeros(len(block), np.int64))
        # 1 and true are equal in Python, and two labels.
        if not all(kind <= _SIMPLE and not {int, bool} <= kind for kind in map(block.kinds, names)):
            raise BadCell("its cells have to be compared one by one")
        if len(names) == 1:
            return Coded.of(columns[names[0]]).with_words(lambda cell: self.rule({names[0]: cell}))
        rows = list(zip(*(columns[name] for name in names), strict=True))
        return Coded.of(rows).with_words(lambda cells: self.rule(dict(zip(names, cells, strict=True))))


def column_rule(expression: Expression, compiled: Compiled) -> Callable[[Block], Sequence[str]] | None:
    """Returns an expression as a function of columns, ``@row`` among them; None if it takes several of them.

    The function returns texts, empty for missing ones, and raises BadCell for other cells than texts and whole numbers.
    """
    column = expression.column
    if expression.else_ is None and expression.const is not None:
        return lambda block: _words([compiled({})] * len(block), TEXTS)
    made = column in MADE_NAMES and column != "@row"
    if expression.else_ is not None or not column or made or placeholders_of(column):
        return None
    if expression == Expression(column=column):
        return lambda block: _words(block.columns[column], block.kinds(column))

    def computed(block: Block) -> Sequence[str]:
        cells = [compiled({column: cell}) for cell in block.columns[column]]
        return _words(cells, frozenset(map(type, cells)))

    return computed


def _words(cells: Sequence[Any], kinds: Collection[type]) -> Sequence[str]:
    if kinds == {int}:
        return list(map(str, cells))
    if not TEXTS.issuperset({*kinds} - {type(None)}):
        raise BadCell("its cells have to be read one by one")
    words = cells if kinds == TEXTS else [cell or "" for cell in cells]
    joined = "".join(words)
    if not joined.isascii() or (len(joined) > LIMITS.max_text and max(map(len, words)) > LIMITS.max_text):
        for word in words:
            require_text(word)
    return words


TEXT_FIELDS = ("text", "ocr", "caption", "group")
_LONGEST_ID = 200
_LONGEST_NAME = 250
"""Bytes of a file name, leaving room for an ending; file systems allow 255."""
_LONGEST_PATH = 500
"""Characters of a picture's name including its folders."""


@dataclass(frozen=True, slots=True)
class _TaskRule:
    """Gold of a task as a function of a row."""

    id: str
    gold: GoldRule
    when: tuple[tuple[str, tuple[str, ...]], ...]
    variant: Callable[[str], str] | None


class RowRules:
    """The rules of a card, compiled once into functions that are applied to each row.

    Args:
        join_of: Factory of functions that find joined rows.
    """

    def __init__(self, card: DatasetCard, join_of: JoinOf) -> None:
        fields = card.fields

        def compiled(expression: Expression | None) -> Compiled | None:
            return compile_expression(expression, join_of) if expression else None

        self._id, self.id_column = compile_expression(fields.id, join_of), fields.id.name
        self._is_plain = bool(fields.id.column)
        self._language, self._picture = compiled(fields.language), compiled(fields.picture)
        self._picture_column = fields.picture.name if fields.picture else ""
        self._language_column = fields.language.name if fields.language else ""
        self._texts = [
            (name, compile_expression(expression, join_of), expression.name)
            for name in TEXT_FIELDS
            if (expression := getattr(fields, name)) is not None
        ]
        self._tasks = [
            _TaskRule(
                task.id,
                compile_task(task, join_of),
                tuple((other, (label,)) for other, label in task.when.items()),
                # A label depends on the row's language only if there are several juries.
                _variant_of(task.variant, task.variant_of) if task.variants else None,
            )
            for task in card.all_tasks()
        ]
        self._harm = card.court_task
        self.names = (*(name for name, _, _ in self._texts), *(["image"] if fields.picture else []), "language")
        """Fields of a meme that the card fills."""
        self._id_rule = column_rule(fields.id, self._id)
        self._column_rules = {name: column_rule(getattr(fields, name), value) for name, value, _ in self._texts}
        if fields.picture is not None and self._picture is not None:
            self._column_rules["image"] = column_rule(fields.picture, self._picture)
        if fields.language is not None and self._language is not None:
            self._column_rules["language"] = column_rule(fields.language, self._language)
        expressions = [one for task in card.all_tasks() for one in task.expressions()]
        columns = {name for one in expressions for name in one.columns()}
        is_own = not any(one.join for one in card.expressions()) and not any(task.variants for task in card.tasks)
        is_own = is_own and not any(name in MADE_NAMES or "{" in name for name in columns)
        self._gold_rule = CellRule(sorted(columns), lambda cells: self._gold_of(dict(cells))) if is_own else None

    def id_of(self, record: dict[str, Any], language: str) -> str:
        """The id of a row; also sets ``@language``, if known, and the row's own id as ``@id``.

        Args:
            language: Language of its file; empty if the split has one file.

        Raises:
            BadCell: The id is missing or unusable.
        """
        if language:
            record["@language"] = language
        # The file's language takes precedence over a column, since it is part of the id.
        elif self._language is not None:
            record["@language"] = text_of(self._language(record), self._language_column).strip()
        found = self._id(record)
        # bool is a subclass of int in Python, but true is not a valid id.
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            absent = self._is_plain and self.id_column not in record
            raise BadCell("it has no id" + ": the row has no such column" * absent, self.id_column)
        id_ = text_of(found, self.id_column).strip()
        if not id_:
            raise BadCell("it has no id", self.id_column)
        record["@id"] = id_
        # Ids repeat across language files; `@id` stays the row's own id, which joins use.
        if language:
            id_ = f"{language}-{id_}"
        if len(id_) > _LONGEST_ID:
            raise BadCell(f"its id is longer than {_LONGEST_ID} characters", self.id_column)
        return id_

    def row_of(self, record: dict[str, Any]) -> tuple[tuple[str, ...], RowGold] | None:
        """The fields of a row, in the order of ``names``, and its gold labels; None if a task drops it.

        Args:
            record: The row, already passed to :meth:`id_of`.

        Raises:
            BadCell: A cell is unusable.
        """
        values = {name: text_of(value(record), column) for name, value, column in self._texts}
        # Set after the texts are computed, since the group is one of them.
        record["@group"] = values.get("group", "")
        gold = self._gold_of(record)
        if gold is None:
            return None
        if self._picture is not None:
            values["image"] = self._image(text_of(self._picture(record), self._picture_column).strip())
        values["language"] = record.get("@language", "")
        return tuple(values[name] for name in self.names), gold

    def columns_of(self, block: Block) -> tuple[tuple[Sequence[str], ...], Sequence[RowGold]]:
        """Returns what :meth:`row_of` does, for many rows at once.

        Raises:
            BadCell: They have to be read row by row: a cell is unusable, or the card is none of single columns.
        """
        if not all(self._column_rules.values()) or self._gold_rule is None:
            raise BadCell("its card takes values of several columns")
        values: dict[str, Sequence[str]] = {
            # A column that the rows don't have is no value, and reported by the reader.
            name: rule(block)
            for name, rule in self._column_rules.items()
            if rule is not None
        }
        values["language"] = list(map(str.strip, values.get("language", ()))) or [""] * len(block)
        if "image" in values:
            values["image"] = [self._image(word.strip()) for word in values["image"]]
        golds = self._gold_rule.of(block)
        if None in golds.words:
            raise BadCell("it is dropped")
        return tuple(values[name] for name in self.names), cast(Sequence[RowGold], golds)

    def ids_of(self, block: Block) -> list[str]:
        """The ids of many rows of a file without a language. Raises BadCell as :meth:`columns_of`."""
        if self._id_rule is None:
            raise BadCell("its id is none of a single column", self.id_column)
        ids = list(map(str.strip, self._id_rule(block)))
        if not all(ids) or max(map(len, ids)) > _LONGEST_ID:
            raise BadCell("an id is unusable", self.id_column)
        return ids

    def _gold_of(self, record: dict[str, Any]) -> RowGold | None:
        gold: dict[str, tuple[str, ...]] = {}
        shares: dict[str, dict[str, float]] = {}
        annotators: dict[str, int] = {}
        for task in self._tasks:
            # Gold is filled in the card's order, so a task that others depend on comes before them.
            if task.when and any(gold.get(other) != label for other, label in task.when):
                continue
            if task.variant is not None:
                record["@variant"] = task.variant(record.get("@language", ""))
            found = task.gold(record)
            if found.labels is not None:
                gold[task.id] = found.labels
            elif found.drop:
                return None
            # Stored even without a label: the disagreement of annotators is known all the same.
            if found.shares:
                shares[task.id] = dict(found.shares)
                annotators[task.id] = found.annotators
        return RowGold(gold, shares, annotators, **self._harm_of(gold))

    def _harm_of(self, gold: dict[str, tuple[str, ...]]) -> dict[str, Any]:
        """Fields of a meme that the task on harm fills; none if the meme has no gold label of it."""
        task = self._harm
        if task is None or task.court is None or task.id not in gold:
            return {}
        (label,) = gold[task.id]
        return {
            "harmful": label in task.court.harmful,
            # Cards with this protocol list their labels in ascending order; validation enforces it.
            "level": Level(task.labels.index(label)) if Protocol.MERGED in task.protocols else None,
            "source_label": label,
            "targets": gold.get(task.court.targets, ()),
        }

    def _image(self, image: str) -> str:
        if "://" in image:
            raise BadCell(ADDRESS, self._picture_column)
        # The picture's name comes from an untrusted row: it must not open anything outside the data set.
        if leads_out(image):
            raise BadCell(
                'the name of its picture leads out of the data set; take = "basename" in the card takes the last part '
                "of a path",
                self._picture_column,
            )
        # Too long: a path, an address, or a text in the wrong column, for which the system would raise an error. Files
        # from Windows use backslashes as separators.
        parts = image.replace("\\", "/").split("/")
        if len(image) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise BadCell("the name of its picture is longer than that of a file can be", self._picture_column)
        return image


def _variant_of(variant: str, by_language: dict[str, str]) -> Callable[[str], str]:
    if variant != OWN:
        return lambda _: variant

    def own(language: str) -> str:
        if language not in by_language:
            raise BadCell("no jury of the card is its language's", "language")
        return by_language[language]

    return own
