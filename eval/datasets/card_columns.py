"""Reads many rows at once by columns, which is several times as fast as row by row: large tables have equal cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from court.meme import LIMITS
from eval.datasets.items import JudgedMeme
from eval.datasets.protocol import Level
from eval.datasets.record_files import TEXTS, Block, Coded
from eval.datasets.verbs import MADE_NAMES, Compiled, Expression
from retrieval.library.cells import BadCell, Record, placeholders_of, require_text
from retrieval.text import TextColumn

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
