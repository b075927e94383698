"""Turns rows of a file into memes by the rules of a card, many at once by columns.

Large tables have equal cells, to which a rule is applied once. A cell that is unusable is a fault of its row.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np

from court.meme import LIMITS
from eval.datasets.card import OWN, CardTask, DatasetCard, TaskKind
from eval.datasets.items import JudgedMeme, Level, Protocol
from eval.datasets.record_files import TEXTS, Block, Coded
from eval.datasets.verbs import Compiled, Expression, JoinOf, compile_expression
from retrieval.library.cells import BadCell, Record, is_missing, label_of, plain_word, require_text, text_of, word_of
from retrieval.library.picture_finder import ADDRESS, leads_out
from retrieval.text import TextColumn

L = TypeVar("L")
_TRUE = {"1": True, "0": False, "yes": True, "no": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class GoldOfTask:
    """Gold of one task for a row."""

    labels: tuple[str, ...] | None
    """Labels in the task's words; None if the row has none for this task."""
    drop: bool = False
    shares: dict[str, float] = field(default_factory=dict)
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
    value, absent = compile_expression(task.of, join_of), _absent(task)
    labels = {key: str(label) for key, label in task.map.items()} or {label: label for label in task.labels}
    to_label = _lookup(labels, task.id, task.of.name)
    if task.votes is not None:
        return _by_votes(task, value, to_label)
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

    def several(record: Record) -> GoldOfTask:
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


def _by_votes(task: CardTask, value: Compiled, to_label: Callable[[object], str]) -> GoldRule:
    assert task.of is not None and task.votes is not None
    name, votes, absent = task.of.name, task.votes, _absent(task)

    def voted(record: Record) -> GoldOfTask:
        found = value(record)
        cells = found if isinstance(found, list) else [found]
        # An empty cell is an annotator who gave no answer.
        counts = Counter(to_label(cell) for cell in cells if not absent(cell))
        total = sum(counts.values())
        if not total:
            return _missing(task, task.of, record)
        # In the task's order, so that equal votes are written identically.
        shares = {label: counts[label] / total for label in task.labels if counts[label]} if votes.keep else {}
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
Faults = dict[int, BadCell]
"""Faults of rows, by place in their block."""


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
                **{name: getattr(gold, name) for name in RowGold.__slots__},
                **dict(zip(self.fields, cells, strict=True)),
            )


@dataclass(frozen=True, slots=True)
class CellRule(Generic[T]):
    """A rule on some columns, which is applied once to equal cells."""

    names: Collection[str] | None
    """Columns that it reads; None if only a row tells, as for a column whose name another cell completes."""
    rule: Callable[[dict[str, Any]], T]
    """Raises BadCell for cells that it can't use."""

    def of(self, block: Block) -> tuple[Sequence[T | None], Faults]:
        """Results for the rows, None for those with a fault."""
        columns = block.columns
        names = tuple(columns if self.names is None else (name for name in self.names if name in columns))
        results: Sequence[T | BadCell]
        if not names:
            results = Coded((self._try({}),), np.zeros(len(block), np.int64))
        # 1 and true are equal in Python, and two labels.
        elif self.names is None or not all(
            kinds <= _SIMPLE and not {int, bool} <= kinds for kinds in map(block.kinds, names)
        ):
            results = [
                self._try(dict(zip(names, cells, strict=True)))
                for cells in zip(*map(columns.__getitem__, names), strict=True)
            ]
        elif len(names) == 1:
            results = Coded.of(columns[names[0]]).with_words(lambda cell: self._try({names[0]: cell}))
        else:
            rows = list(zip(*map(columns.__getitem__, names), strict=True))
            results = Coded.of(rows).with_words(lambda cells: self._try(dict(zip(names, cells, strict=True))))
        if not any(isinstance(one, BadCell) for one in (results.words if isinstance(results, Coded) else results)):
            return cast(Sequence[T | None], results), {}
        faults = {place: one for place, one in enumerate(results) if isinstance(one, BadCell)}
        return [None if isinstance(one, BadCell) else one for one in results], faults

    def _try(self, record: dict[str, Any]) -> T | BadCell:
        try:
            return self.rule(record)
        except BadCell as bad:
            return bad


def _columns_of(*expressions: Expression) -> tuple[str, ...] | None:
    """Columns that expressions take their values from, for a rule on cells."""
    if any(one.is_named_by_row for one in expressions):
        return None
    return tuple(sorted({name for one in expressions for name in one.columns()}))


class _TextRule:
    """Texts of a field of the memes.

    Args:
        finish: Last step, which may raise BadCell.
    """

    def __init__(
        self, expression: Expression, join_of: JoinOf, finish: Callable[[str], str] = str, *, is_id: bool = False
    ) -> None:
        value, column = compile_expression(expression, join_of), expression.name

        def text(record: dict[str, Any]) -> str:
            found = value(record)
            # bool is a subclass of int in Python, but true is not a valid id.
            if is_id and (isinstance(found, bool) or not isinstance(found, str | int | float)):
                absent = bool(expression.column) and column not in record
                raise BadCell("it has no id" + ": the row has no such column" * absent, column)
            return finish(text_of(found, column))

        self._rule = CellRule(_columns_of(expression), text)
        self._column = expression.column if expression.model_fields_set == {"column"} else ""
        self._finish = finish

    def of(self, block: Block) -> tuple[Sequence[str], Faults]:
        """The texts, empty for missing ones and those with a fault."""
        words = _plain_texts(block, self._column) if self._column in block.columns else None
        # Nearly every cell of a large table is a text that can be taken as it is.
        with suppress(BadCell):
            if words is not None:
                return words if self._finish is str else list(map(self._finish, words)), {}
        found, faults = self._rule.of(block)
        return [word or "" for word in found] if faults else cast(Sequence[str], found), faults


def _plain_texts(block: Block, column: str) -> Sequence[str] | None:
    """Cells of a column as texts that can be stored; None if these have to be looked at one by one."""
    kinds, cells = block.kinds(column), block.columns[column]
    if kinds == {int}:
        return list(map(str, cells))
    if not TEXTS.issuperset(kinds - {type(None)}):
        return None
    words = cells if kinds == TEXTS else [cell or "" for cell in cells]
    joined = "".join(words)
    fits = joined.isascii() and (len(joined) <= LIMITS.max_text or max(map(len, words)) <= LIMITS.max_text)
    if not fits:
        try:
            for word in words:
                require_text(word)
        except BadCell:
            return None
    return words


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
        fields = card.fields
        self.id_column = fields.id.name
        self._id = _TextRule(fields.id, join_of, self._stripped_id, is_id=True)
        self._language = _TextRule(fields.language, join_of, str.strip) if fields.language else None
        self._texts = {
            name: _TextRule(expression, join_of)
            for name in TEXT_FIELDS
            if (expression := getattr(fields, name)) is not None
        }
        self._picture_column = fields.picture.name if fields.picture else ""
        self._picture = _TextRule(fields.picture, join_of, self._image) if fields.picture else None
        self._tasks = [(task, compile_task(task, join_of)) for task in card.all_tasks()]
        self._harm = card.court_task
        names = _columns_of(*(one for task in card.all_tasks() for one in task.expressions()))
        self._gold = CellRule(None if any(task.variants for task in card.tasks) else names, self._gold_of)

    def with_ids(self, block: Block, language: str) -> tuple[Block, Sequence[str], Faults]:
        """The ids of rows, and the rows with their own ids as ``@id`` and, if known, ``@language``.

        Args:
            language: Language of their file; empty if the split has one file.
        """
        columns, faults = dict(block.columns), Faults()
        # The file's language takes precedence over a column, since it is part of the id.
        if language:
            columns["@language"] = (language,) * len(block)
        elif self._language is not None:
            columns["@language"], faults = self._language.of(replace(block, columns=columns))
        ids, bad = self._id.of(replace(block, columns=columns))
        # `@id` stays the row's own id, which joins use; ids repeat across language files.
        columns["@id"] = ids
        if language:
            ids = [f"{language}-{id_}" for id_ in ids]
        if max(map(len, ids), default=0) > _LONGEST_ID:
            long = BadCell(f"its id is longer than {_LONGEST_ID} characters", self.id_column)
            bad = {place: long for place, id_ in enumerate(ids) if len(id_) > _LONGEST_ID} | bad
        return replace(block, columns=columns), ids, bad | faults

    def fields_of(self, block: Block) -> tuple[dict[str, Sequence[str]], Sequence[RowGold | None], Faults]:
        """Texts of rows by field of a meme, and their gold labels, None for those that a task drops.

        Args:
            block: Rows with ids, as by :meth:`with_ids`.
        """
        values, faults = dict[str, Sequence[str]](), Faults()

        def note(bad: Faults) -> None:
            # The first fault of a row is reported.
            faults.update({place: one for place, one in bad.items() if place not in faults})

        for name, rule in self._texts.items():
            values[name], bad = rule.of(block)
            note(bad)
        # Set after the texts are computed, since the group is one of them.
        group = values.get("group") or Coded(("",), np.zeros(len(block), np.int64))
        block = replace(block, columns={**block.columns, "@group": group})
        golds, bad = self._gold.of(block)
        note(bad)
        if self._picture is not None:
            values["image"], bad = self._picture.of(block)
            note(bad)
        values["language"] = block.columns.get("@language") or [""] * len(block)
        return values, golds, faults

    def _stripped_id(self, word: str) -> str:
        if not (id_ := word.strip()):
            raise BadCell("it has no id", self.id_column)
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
            found = gold_of(record)
            if found.labels is not None:
                gold[task.id] = found.labels
            elif found.drop:
                return None
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
