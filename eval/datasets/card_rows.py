"""Turns rows of a file into memes by the rules of a card, many at once by columns.

Large tables have equal cells, to which a rule is applied once. A cell that is unusable is a fault of its row.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from court.meme import LIMITS
from eval.datasets.card import OWN, CardTask, DatasetCard, TaskKind
from eval.datasets.items import JudgedMeme, Level, Protocol
from eval.datasets.record_files import TEXTS, Block, Coded
from eval.datasets.verbs import Expression, JoinOf, compile_expression
from retrieval.library.cells import BadCell, Record, is_missing, label_of, plain_word, text_of, word_of
from retrieval.library.picture_finder import ADDRESS, leads_out
from retrieval.text import TextColumn

L = TypeVar("L")
_TRUE = {"1": True, "0": False, "yes": True, "no": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class GoldOfTask:
    """Gold of one task for a row."""

    labels: tuple[str, ...] | None
    """Labels in the task's words; None if the row has none for this task."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of annotators per label, if there are several and the card keeps their votes."""
    annotators: int = 0
    """Number of annotators; 0 if their votes are not kept."""


_NO_GOLD = GoldOfTask(None)
GoldRule = Callable[[Record], GoldOfTask | None]
"""Gold of a row, None if the card drops it."""


def compile_task(task: CardTask, join_of: JoinOf) -> GoldRule:
    """Returns a function that computes a row's gold for a task, and raises BadCell for a value that no rule names."""
    if task.columns:
        return _by_columns(task, join_of)
    assert task.of is not None
    of, value, absent = task.of, compile_expression(task.of, join_of), _absent(task)
    labels = {key: str(label) for key, label in task.map.items()} or {label: label for label in task.labels}
    to_label = _lookup(labels, task.id, of.name)
    # Created once and shared by rows.
    answers = {label: GoldOfTask((label,)) for label in task.labels}
    is_multi = task.kind is TaskKind.MULTI

    def gold(record: Record) -> GoldOfTask | None:
        found = value(record)
        if task.votes is None and not is_multi:
            return _missing(task, of, record) if absent(found) else answers[to_label(found)]
        if not isinstance(found, list) and absent(found):
            return _missing(task, of, record)
        cells = found if isinstance(found, list) else [found]
        if task.votes is None:
            # A label that a row names twice counts once.
            return GoldOfTask(tuple(dict.fromkeys(map(to_label, cells))))
        # An empty cell is an annotator who gave no answer.
        votes = Counter(to_label(cell) for cell in cells if not absent(cell))
        return _by_votes(task, votes, of.name) if votes else _missing(task, of, record)

    return gold


def _missing(task: CardTask, of: Expression, record: Record) -> GoldOfTask | None:
    if task.missing == "problem":
        if of.column not in ("", *record):
            reason = "there is no label, as in a test split: the row has no such column"
        # A missing row, column or cell: a lookup can't tell them apart.
        elif of.join is not None:
            reason = f"the label is empty, or {of.join.file} has no such row or column"
        else:
            reason = "the label is empty"
        raise BadCell(reason, of.name)
    return None if task.missing == "drop" else _NO_GOLD


def _absent(task: CardTask) -> Callable[[object], bool]:
    """Returns a test for missing values: blank cells, and words such as ``nan`` that the card names as no label."""
    # A card that tells cells true from false by a map names no label by it.
    named = {plain_word(word) or "" for word in (*task.map, *([] if task.columns else task.labels))}

    def absent(value: object) -> bool:
        return is_missing(value) or (isinstance(value, str) and label_of(value, named) is None)

    return absent


def _lookup(exact: Mapping[str, L], task: str, column: str) -> Callable[[object], L]:
    """Returns the meaning of cells: by exact spelling first, then ignoring case and punctuation."""
    words: dict[str, set[L]] = {}
    for key, meaning in exact.items():
        words.setdefault(plain_word(key) or "", set()).add(meaning)
    # Words shared by two labels are ambiguous and left out.
    loose = {word: next(iter(meanings)) for word, meanings in words.items() if len(meanings) == 1}
    if set(loose) == {"0", "1"}:
        loose |= {"true": loose["1"], "false": loose["0"]}

    def meaning_of(value: object) -> L:
        word = word_of(value, column)
        if word is None or not word.strip():
            raise BadCell(f"a label of {task} is empty", column)
        # Exact spelling first: two labels of a card may differ only in case.
        for key, table in ((word, exact), (word.strip(), exact), (plain_word(word) or "", loose)):
            if key in table:
                return table[key]
        raise BadCell(f"it is no value that the card names for {task} ({', '.join(list(exact)[:8])})", column)

    return meaning_of


def _by_columns(task: CardTask, join_of: JoinOf) -> GoldRule:
    absent, mapping = _absent(task), {key: bool(value) for key, value in task.map.items()} or _TRUE
    columns = [
        (label, compile_expression(of, join_of), _lookup(mapping, task.id, of.name), of)
        for label, of in task.columns.items()
    ]

    def several(record: Record) -> GoldOfTask | None:
        found: list[str] = []
        for label, value, is_named, of in columns:
            cell = value(record)
            if absent(cell):
                # One empty cell makes the whole answer unknown: treating it as "no" would be a guess.
                return _missing(task, of, record)
            if is_named(cell):
                found.append(label)
        return GoldOfTask(tuple(found))

    return several


def _by_votes(task: CardTask, counts: Counter[str], column: str) -> GoldOfTask | None:
    assert task.votes is not None
    total = counts.total()
    # In the task's order, so that equal votes are written identically.
    shares = {label: counts[label] / total for label in task.labels if counts[label]} if task.votes.keep else {}
    most = max(counts.values())
    first = [label for label, count in counts.items() if count == most]
    if len(first) == 1 and most >= task.votes.least:
        return GoldOfTask((first[0],), shares=shares, annotators=total if shares else 0)
    if task.missing == "problem":
        raise BadCell(f"no label of {task.id} has the most votes, and {task.votes.least} or more", column)
    # A tie yields no label, but the shares are kept all the same.
    return None if task.missing == "drop" else GoldOfTask(None, shares, total if shares else 0)


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
    rows: Block
    """Their rows, with what the card makes of them in columns of :class:`RowRules`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> Sequence[str]:
        """Ids, which are unique in a data set without faults."""
        return self.rows.columns["@@id"]

    @property
    def golds(self) -> Sequence[RowGold]:
        """Gold labels."""
        return self.rows.columns["@@gold"]

    def values(self, name: str) -> Sequence[Any]:
        """Values of any field of a meme, empty ones if the card does not fill it."""
        if name in RowGold.__slots__:
            return list(map(attrgetter(name), self.golds))
        columns, known = self.rows.columns, f"@{name}" if name in ("language", "group") else f"@@{name}"
        return [self.split] * len(self) if name == "split" else columns.get(known, [""] * len(self))

    def cells(self, column: str) -> Sequence[Any]:
        """Cells of a column of the file that the reader was asked for."""
        return self.rows.columns.get(column, [None] * len(self))

    @cached_property
    def text_column(self) -> TextColumn:
        """The memes' texts, for work on all of them."""
        return TextColumn(self.values("text"))

    def pictures(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Names of the pictures, as :attr:`~eval.datasets.items.JudgedMeme.picture` of each meme."""
        names = ("language", "group")
        for image, id_, *others in zip(self.values("image"), self.ids, *map(self.values, names), strict=True):
            yield image, {"id": id_, **dict(zip(names, others, strict=True))}

    def memes(self) -> Iterator[JudgedMeme]:
        """The memes one by one."""
        names = (*TEXT_FIELDS, "image", "language")
        columns = (self.ids, self.rows.numbers, self.golds, *map(self.values, names))
        for id_, line, gold, *texts in zip(*columns, strict=True):
            yield JudgedMeme(
                id=id_,
                split=self.split,
                file=self.file,
                line=line,
                **{name: getattr(gold, name) for name in RowGold.__slots__},
                **dict(zip(names, texts, strict=True)),
            )


_SIMPLE = frozenset({str, int, bool, type(None)})
"""Types of cells that are equal if they mean the same."""
ColumnRule = Callable[[Block], Sequence[Any]]
"""A value for each row, or in its place the row's fault, a BadCell."""


def column_rule(names: Collection[str] | None, rule: Callable[[dict[str, Any]], Any]) -> ColumnRule:
    """Makes a rule for some columns one for many rows, which is applied once to equal cells.

    Args:
        names: Columns that it reads; None if only a row tells, as for a column whose name another cell completes.
        rule: Rule, which raises BadCell for cells that it can't use.
    """

    def tried(record: dict[str, Any]) -> Any:
        try:
            return rule(record)
        except BadCell as bad:
            return bad

    def values(block: Block) -> Sequence[Any]:
        columns = block.columns
        read = tuple(columns if names is None else (name for name in names if name in columns))
        if not read:
            return Coded((tried({}),), np.zeros(len(block), np.int64))
        rows = columns[read[0]] if len(read) == 1 else list(zip(*map(columns.__getitem__, read), strict=True))

        def value(row: Any) -> Any:
            return tried(dict(zip(read, (row,) if len(read) == 1 else row, strict=True)))

        # 1 and true are equal in Python, and two labels.
        if names is None or not all(kinds <= _SIMPLE and not {int, bool} <= kinds for kinds in map(block.kinds, read)):
            return list(map(value, rows))
        return Coded.of(rows).with_words(value)

    return values


def faults_of(values: Sequence[Any]) -> dict[int, BadCell]:
    """Faults of rows among the values of a rule, by place."""
    if BadCell not in set(map(type, values.words if isinstance(values, Coded) else values)):
        return {}
    return {place: one for place, one in enumerate(values) if isinstance(one, BadCell)}


def _columns_of(*expressions: Expression) -> tuple[str, ...] | None:
    """Columns that expressions take their values from, for a rule on cells."""
    if any(one.is_named_by_row for one in expressions):
        return None
    return tuple(sorted({name for one in expressions for name in one.columns()}))


def _text_rule(
    expression: Expression, join_of: JoinOf, finish: Callable[[str], str] = str, *, is_id: bool = False
) -> ColumnRule:
    """Rule for the texts of a field of the memes, empty for missing ones; the last step may raise BadCell."""
    value, column = compile_expression(expression, join_of), expression.name

    def text(record: dict[str, Any]) -> str:
        found = value(record)
        # bool is a subclass of int in Python, but true is not a valid id.
        if is_id and (isinstance(found, bool) or not isinstance(found, str | int | float)):
            absent = bool(expression.column) and column not in record
            raise BadCell("it has no id" + ": the row has no such column" * absent, column)
        return finish(text_of(found, column))

    one_by_one = column_rule(_columns_of(expression), text)
    is_column = expression.model_fields_set == {"column"}

    def texts(block: Block) -> Sequence[Any]:
        # Nearly every cell of a large table is a text that can be taken as it is.
        words = block.columns[column] if is_column and column in block.columns and block.kinds(column) == TEXTS else ()
        joined = "".join(words)
        if words and joined.isascii() and (len(joined) <= LIMITS.max_text or max(map(len, words)) <= LIMITS.max_text):
            with suppress(BadCell):
                return words if finish is str else list(map(finish, words))
        return one_by_one(block)

    return texts


TEXT_FIELDS = ("text", "ocr", "caption", "group")
_LONGEST_ID = 200
_LONGEST_NAME = 250
"""Bytes of a file name, leaving room for an ending; file systems allow 255."""
_LONGEST_PATH = 500
"""Characters of a picture's name including its folders."""


class RowRules:
    """The rules of a card, compiled once into functions of many rows.

    Args:
        join_of: Factory of functions that find joined rows.
    """

    def __init__(self, card: DatasetCard, join_of: JoinOf) -> None:
        fields, tasks = card.fields, card.all_tasks()
        self.id_column = fields.id.name
        # Ids repeat across files of languages, and have these as a prefix.
        self._prefix = max((len(one) + 1 for split in card.splits for one in split.languages), default=0)
        self._picture_column = fields.picture.name if fields.picture else ""
        self._tasks = [(task, compile_task(task, join_of)) for task in tasks]
        self._harm = card.court_task
        columns = _columns_of(*(one for task in tasks for one in task.expressions()))
        by_jury = any(task.variants for task in card.tasks)
        self.language = _text_rule(fields.language, join_of, str.strip) if fields.language else None
        # The row's own id, which joins use.
        self.id = _text_rule(fields.id, join_of, self._stripped_id, is_id=True)
        self.fields: list[tuple[str, ColumnRule]] = [
            *(
                ("@group" if name == "group" else f"@@{name}", _text_rule(expression, join_of))
                for name in TEXT_FIELDS
                if (expression := getattr(fields, name)) is not None
            ),
            ("@@gold", column_rule(None if by_jury else columns, self._gold_of)),
            *([("@@image", _text_rule(fields.picture, join_of, self._image))] if fields.picture else []),
        ]
        """Columns of a meme's fields with their rules, in the order in which a row's first fault is found.

        Later rules find those with one ``@`` by their names in braces. Labels are None if a task drops the row.
        """

    def _stripped_id(self, word: str) -> str:
        if not (id_ := word.strip()):
            raise BadCell("it has no id", self.id_column)
        if len(id_) + self._prefix > _LONGEST_ID:
            raise BadCell(f"its id is longer than {_LONGEST_ID - self._prefix} characters", self.id_column)
        return id_

    def _gold_of(self, record: dict[str, Any]) -> RowGold | None:
        gold: dict[str, tuple[str, ...]] = {}
        shares: dict[str, dict[str, float]] = {}
        annotators: dict[str, int] = {}
        for task, gold_of in self._tasks:
            # Gold is filled in the card's order, so a task that others depend on comes before them.
            if any(gold.get(other) != (label,) for other, label in task.when.items()):
                continue
            # A label depends on the row's language only if there are several juries.
            if task.variants:
                record["@variant"] = _variant_of(task, record.get("@language", ""))
            if (found := gold_of(record)) is None:
                return None
            if found.labels is not None:
                gold[task.id] = found.labels
            # Stored even without a label: the disagreement of annotators is known all the same.
            if found.shares:
                shares[task.id] = found.shares
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

    def _image(self, name: str) -> str:
        image = name.strip()
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


def _variant_of(task: CardTask, language: str) -> str:
    """The jury whose labels are read: for the variant ``own``, that of the meme's language."""
    if task.variant != OWN:
        return task.variant
    if language not in task.variant_of:
        raise BadCell("no jury of the card is its language's", "language")
    return task.variant_of[language]
