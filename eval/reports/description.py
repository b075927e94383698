"""Descriptions of data sets: what is read of their files, as tables and sections."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.card_rows import MemeBlock, RowGold
from eval.datasets.card_split import CardReader
from eval.datasets.check import DatasetCheck, check
from eval.datasets.read import DETECT, language_of
from eval.reports.sections import Section
from eval.scores import description as tables
from eval.scores.description import MONTH, Facet, Tabled, are_groups, facet_of, month_of
from eval.scores.measure import NOTHING, Figure, figure
from eval.scores.subgroups import AXES, UNKNOWN, axis_rule
from retrieval.library.cells import BadCell, is_missing, word_of

_DATES = ("date", "created_at", "created_utc", "timestamp", "published", "Published Date", "posted_at")
"""Columns that a date is looked for in, in any case."""
_DETECTED = 500
"""Texts whose language is detected if no card names it, evenly spread over the data set."""
_YES = frozenset({"1", "true", "yes", "y"})
_BINS = (0, 1, 5, 10, 20, 40, 80, 160)
"""Lower bounds of the classes of lengths, in words."""


@dataclass(frozen=True, slots=True)
class DescriptionRequest:
    """The user's own words on a description."""

    tasks: tuple[str, ...] = ()
    """Tasks of the card, columns, or ``NAME=COLUMN,COLUMN`` with yes or no in each; all tasks if empty."""
    by: tuple[str, ...] = ()
    """Properties of memes, tasks, columns, or ``month``."""
    date: str = ""
    """Column of dates; looked for by its name if empty."""


class _Material:
    """Memes of all splits with cells of columns beside them, as blocks of columns.

    Args:
        in_parts: True if labels may stand in one cell, with semicolons between them.
    """

    def __init__(self, card: DatasetCard, wanted: DescriptionRequest, *, in_parts: bool) -> None:
        self.card, self.wanted, self._in_parts = card, wanted, in_parts
        known = {*(task.id for task in card.all_tasks()), *AXES, MONTH}
        names = (*wanted.tasks, *wanted.by)
        named = [one for name in names if name not in known for one in name.rpartition("=")[2].split(",")]
        self.columns = (*named, *([wanted.date] if wanted.date else _DATES))
        self._blocks: list[MemeBlock] = []
        self.words: list[int] = []
        """Number of words of each text."""
        self.splits: dict[str, None] = {}

    def add(self, _: CardReader, block: MemeBlock) -> None:
        """Adds memes of a split."""
        self._blocks.append(block)
        self.words += block.text_column.word_counts()
        self.splits[block.split] = None

    def values(self, name: str) -> list[Any]:
        """Values of a field, of each meme."""
        return list(chain.from_iterable(block.values(name) for block in self._blocks))

    def facet(self, name: str) -> Facet:
        """The facet of a task, column, property of memes, or month."""
        task = next((task for task in self.card.all_tasks() if task.id == name), None)
        if task is not None:
            golds = list(chain.from_iterable(block.golds for block in self._blocks))
            return facet_of(name, golds, self._labels_of(name), task.labels)
        if several := dict(one.split("=", 1) for one in self.wanted.tasks if "=" in one).get(name):
            labels = several.split(",")
            cells = list(zip(*map(self._column, labels), strict=True))
            return facet_of(name, cells, lambda row: tuple(compress(labels, map(_is_yes, row))))
        if name == MONTH:
            if not self.months:
                raise BadRequest("No column of dates is known by its name: name it with --date COLUMN.", field="date")
            return facet_of(name, self.months, lambda month: (month,) if month else None)
        if name in AXES:
            names, group = axis_rule(name)
            # One field is looked up by its values, without a row for each meme.
            if len(names) == 1:
                return facet_of(name, self.values(*names), group)
            return facet_of(name, list(zip(*map(self.values, names), strict=True)), lambda values: group(*values))
        return facet_of(name, self._column(name), lambda cell: _parts(cell, name))

    def _labels_of(self, task: str) -> Callable[[RowGold], tuple[str, ...] | None]:
        def labels(gold: RowGold) -> tuple[str, ...] | None:
            found = gold.tasks.get(task)
            return _parts(list(found), task) if found and self._in_parts else found

        return labels

    def _cells(self, column: str) -> list[Any]:
        return list(chain.from_iterable(block.cells(column) for block in self._blocks))

    @cached_property
    def months(self) -> list[str]:
        """Month of each meme, of the first column that has any."""
        names = [name for name in self.columns if name in (self.wanted.date, *_DATES)]
        named = [name for name in names if any(any(block.cells(name)) for block in self._blocks)]
        found = (list(map(month_of, self._cells(name))) for name in named)
        return next((months for months in found if any(months)), [])

    def _column(self, name: str) -> list[Any]:
        cells = self._cells(name)
        if all(cell is None for cell in cells):
            known = ", ".join((*(task.id for task in self.card.all_tasks()), *AXES, MONTH))
            raise BadRequest(f"There is no column {name}, and no such task or property; there are {known}.", field="by")
        return cells

    def axes(self) -> list[str]:
        groups = self.values("group")
        known = {
            "group": any(groups) and are_groups(set(groups), len(groups)),
            MONTH: bool(self.months),
            "language": any(self.values("language")),
        }
        by = self.wanted.by or [name for name, there in known.items() if there]
        return list(dict.fromkeys([*(["split"] if len(self.splits) > 1 else []), *by]))


def _parts(cell: Any, column: str) -> tuple[str, ...] | None:
    """Values of a cell: elements of a list, or parts of a text between semicolons; None if it is missing."""
    if not isinstance(cell, list) and is_missing(cell):
        return None
    try:
        words = [word_of(part, column) or "" for part in (cell if isinstance(cell, list) else [cell])]
    except BadCell as bad:
        raise BadRequest(f"{bad}.", field="by") from None
    parts = (" ".join(part.split()) for word in words for part in word.split(";"))
    return tuple(dict.fromkeys(part for part in parts if part))


def _is_yes(cell: Any) -> bool:
    return (_parts(cell, "labels") or ("",))[0].lower() in _YES


async def describe(
    card: DatasetCard, data: Path, wanted: DescriptionRequest, *, in_parts: bool = False
) -> list[Tabled]:
    """Describes all splits of a data set.

    Args:
        in_parts: True if several labels may stand in one cell, with semicolons between them.

    Raises:
        BadRequest: A file can't be read, or there is no such task, property or column.
    """
    material = _Material(card, wanted, in_parts=in_parts)
    # Doubled ids are described like all others, and stand among the findings.
    checked = await check(card, data, columns=material.columns, visit=material.add)
    if not material.splits:
        raise BadRequest(f"No split of {card.title} has a row that can be used.", reason="DATA_UNUSABLE")
    return await asyncio.to_thread(lambda: list(_tables(checked, material)))


def _tables(checked: DatasetCheck, material: _Material) -> Iterator[Tabled]:
    splits = [(one.split, one.rows, one.memes, one.excluded + one.refused, one.pictures) for one in checked.splits]
    yield Tabled("splits", "Splits", ("split", "rows", "memes", "left out or refused", "pictures"), rows=tuple(splits))
    found = [(str(one.kind), one.split.replace("+", " + "), one.count) for one in checked.findings]
    yield Tabled(
        "findings",
        "Doubles, leaks and other findings",
        head=("finding", "splits", "memes or groups"),
        rows=tuple(found),
        notes=(
            "memecourt-eval datasets check lists the memes. What two splits share, joined by +, leaks from one to the "
            "other.",
        ),
    )
    names = [one.partition("=")[0] for one in material.wanted.tasks]
    tasks = [material.facet(name) for name in names or [task.id for task in material.card.all_tasks()]]
    axes = [material.facet(name) for name in material.axes()]
    words = np.array(material.words, dtype=np.int64)
    for task in tasks:
        yield tables.labels_table(task)
        if not task.exclusive:
            yield tables.pairs_table(task)
        yield from (tables.by_table(task, axis) for axis in axes if axis.name != task.name)
        if words.any():
            yield tables.lengths_table(task, words)
    counts = np.histogram(words, (*_BINS, np.inf))[0].tolist()
    rows = [(f"from {low}", count, count / len(words)) for low, count in zip(_BINS, counts, strict=True)]
    yield Tabled("words", "Words of the texts", ("words", "memes", "share"), rows=tuple(rows))
    languages = Counter(filter(None, material.values("language")))
    notes = []
    if not languages:
        texts = list(compress(material.values("text"), words))
        texts = texts[:: -(-len(texts) // _DETECTED) or 1]
        languages = Counter(language_of(text, DETECT) or UNKNOWN for text in texts)
        notes.append(f"Detected in {len(texts):,} texts.")
    shared = [(name, count, count / languages.total()) for name, count in languages.most_common()]
    yield Tabled("languages", "Languages", ("language", "memes", "share"), rows=tuple(shared), notes=tuple(notes))


def description_sections(found: Sequence[Tabled]) -> list[Section]:
    """The tables as sections."""
    return [Section(one.key, one.title, (one.head, *_rows(one)) if one.rows else (), notes=one.notes) for one in found]


def _rows(found: Tabled) -> Iterator[tuple[str, ...]]:
    for place, row in enumerate(found.rows, 1):
        cells = tuple(map(_cell, row))
        # The last row has p-values.
        if found.shares and place < len(found.rows):
            _, n, *counts = row
            of = n if isinstance(n, int) and n else 1
            cells = (*cells[:2], *(f"{one:,} ({one / of:.0%})" for one in counts if isinstance(one, int)))
        yield cells


def _cell(value: str | int | float | Figure | None) -> str:
    match value:
        case str():
            return value or NOTHING
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
    return figure(value)
