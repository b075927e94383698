"""Descriptions of data sets: what is read of their files, as tables and sections."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
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


class _Material:
    """Memes of all splits with cells of columns beside them, as blocks of columns.

    Args:
        in_parts: True if labels may stand in one cell, with semicolons between them.
    """

    def __init__(
        self, card: DatasetCard, tasks: Sequence[str], by: Sequence[str], date: str, *, in_parts: bool
    ) -> None:
        self._by, self._in_parts = by, in_parts
        self._labels = {task.id: task.labels for task in card.all_tasks()}
        self._of_columns = {name: of.split(",") for name, equals, of in (one.partition("=") for one in tasks) if equals}
        self.tasks = tuple(one.partition("=")[0] for one in tasks) or tuple(self._labels)
        self._dates = (date,) if date else _DATES
        known = {*self._labels, *self._of_columns, *AXES, MONTH}
        named = [one for one in (*self.tasks, *by) if one not in known]
        self.columns = (*named, *chain.from_iterable(self._of_columns.values()), *self._dates)
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
        if name in self._labels:

            def labels(gold: RowGold) -> tuple[str, ...] | None:
                found = gold.tasks.get(name)
                return _parts(list(found), name) if found and self._in_parts else found

            golds = list(chain.from_iterable(block.golds for block in self._blocks))
            return facet_of(name, golds, labels, self._labels[name])
        if columns := self._of_columns.get(name):
            cells = list(zip(*map(self._column, columns), strict=True))
            return facet_of(name, cells, lambda row: tuple(compress(columns, map(_is_yes, row))))
        if name == MONTH:
            if not self._months:
                raise BadRequest("No column of dates is known by its name: name it with --date COLUMN.", field="date")
            return facet_of(name, self._months, lambda month: (month,) if month else None)
        if name in AXES:
            names, group = axis_rule(name)
            # One field is looked up by its values, without a row for each meme.
            if len(names) == 1:
                return facet_of(name, self.values(*names), group)
            return facet_of(name, list(zip(*map(self.values, names), strict=True)), lambda values: group(*values))
        return facet_of(name, self._column(name), lambda cell: _parts(cell, name))

    def _column(self, name: str) -> list[Any]:
        cells = list(chain.from_iterable(block.cells(name) for block in self._blocks))
        if all(cell is None for cell in cells):
            known = ", ".join((*self._labels, *AXES, MONTH))
            raise BadRequest(f"There is no column {name}, and no such task or property; there are {known}.", field="by")
        return cells

    @cached_property
    def _months(self) -> list[str]:
        """Month of each meme, of the first column that has any."""
        for name in self._dates:
            if any(any(block.cells(name)) for block in self._blocks):
                months = list(map(month_of, self._column(name)))
                if any(months):
                    return months
        return []

    def axes(self) -> list[str]:
        """Properties by which labels are counted."""
        groups = self.values("group")
        known = {
            "group": any(groups) and are_groups(set(groups), len(groups)),
            MONTH: bool(self._months),
            "language": any(self.values("language")),
        }
        by = self._by or [name for name, there in known.items() if there]
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
    card: DatasetCard,
    data: Path,
    *,
    tasks: Sequence[str] = (),
    by: Sequence[str] = (),
    date: str = "",
    in_parts: bool = False,
) -> list[Tabled]:
    """Describes all splits of a data set.

    Args:
        tasks: Tasks of the card, columns, or ``NAME=COLUMN,COLUMN`` with yes or no in each; all tasks if empty.
        by: Properties of memes, tasks, columns, or ``month``.
        date: Column of dates; looked for by its name if empty.
        in_parts: True if several labels may stand in one cell, with semicolons between them.

    Raises:
        BadRequest: A file can't be read, or there is no such task, property or column.
    """
    material = _Material(card, tasks, by, date, in_parts=in_parts)
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
    tasks, axes = [[material.facet(name) for name in names] for names in (material.tasks, material.axes())]
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
