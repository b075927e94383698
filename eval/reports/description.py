"""Descriptions of data sets: what is read of their files, as tables and sections."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.card_split import CardReader
from eval.datasets.check import DatasetCheck, check
from eval.datasets.items import JudgedMeme
from eval.datasets.language import DETECT, language_of
from eval.datasets.read import row_of
from eval.reports.figures import bars, shares
from eval.reports.sections import Drawn, Section
from eval.runs.held_out import duplicate_groups
from eval.scores import description as tables
from eval.scores.bootstrap import Figure
from eval.scores.description import MONTH, Cells, Facet, Tabled, are_groups, facet_of, month_of
from eval.scores.subgroups import AXES, UNKNOWN, groups_by
from eval.scores.tables import NOTHING, figure
from eval.session.progress import Progress
from retrieval.library.cells import BadCell, is_missing, word_of

_DATES = ("date", "created_at", "created_utc", "timestamp", "published", "Published Date", "posted_at")
"""Columns that a date is looked for in, in any case."""
_DETECTED = 2_000
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
    near: bool = False
    """True to look for near-duplicates."""


@dataclass(frozen=True, slots=True)
class _Material:
    """Memes of all splits, cells of columns beside them, and the folder of each split's pictures."""

    card: DatasetCard
    wanted: DescriptionRequest
    in_parts: bool
    """True if labels may stand in one cell, with semicolons between them."""
    memes: list[JudgedMeme] = field(default_factory=list)
    cells: dict[str, list[Any]] = field(default_factory=dict)
    pictures: dict[str, Path | None] = field(default_factory=dict)

    def read(self, data: Path) -> None:
        known = {*(task.id for task in self.card.all_tasks()), *AXES, MONTH}
        names = (*self.wanted.tasks, *self.wanted.by)
        columns = [one for name in names if name not in known for one in name.rpartition("=")[2].split(",")]
        self.cells.update({name: [] for name in (*columns, *([self.wanted.date] if self.wanted.date else _DATES))})
        for split in self.card.splits:
            try:
                # Doubled ids are described like all others, and stand among the findings.
                reader = CardReader(self.card, data, split.name, doubles=True, columns=tuple(self.cells))
                memes = list(reader.with_pictures() if self.wanted.near else reader)
            except BadRequest as error:
                # The check names missing files, and splits without usable rows.
                if error.reason not in ("DATA_MISSING", "DATA_UNUSABLE"):
                    raise
                continue
            for column, cells in zip(self.cells.values(), zip(*reader.cells, strict=True), strict=False):
                column += cells
            named = ((one, reader.pictures.name_of(*one.picture) if self.wanted.near else one.image) for one in memes)
            self.memes.extend(
                one if one.image == name else one.model_copy(update={"image": name}) for one, name in named
            )
            self.pictures[split.name] = reader.pictures.folder
        if not self.memes:
            raise BadRequest(f"No split of {self.card.title} has a row that can be used.", reason="DATA_UNUSABLE")

    def facets(self, names: Sequence[str]) -> list[Facet]:
        tasks = {task.id: task.labels for task in self.card.all_tasks()}
        return [facet_of(name, self._cells_of(name, name in tasks), tasks.get(name, ())) for name in names]

    def _cells_of(self, name: str, is_task: bool) -> Cells:
        if is_task:
            found = [meme.tasks.get(name) for meme in self.memes]
            return [one and _parts(list(one), name) for one in found] if self.in_parts else found
        if several := dict(one.split("=", 1) for one in self.wanted.tasks if "=" in one).get(name):
            labels = several.split(",")
            rows = zip(*(self._column(label) for label in labels), strict=True)
            return [
                tuple(label for label, cell in zip(labels, row, strict=True) if cell and cell[0].lower() in _YES)
                for row in rows
            ]
        if name == MONTH:
            months = self.months()
            if not any(months):
                raise BadRequest("No column of dates is known by its name: name it with --date COLUMN.", field="date")
            return [(month,) if month else None for month in months]
        if name in AXES:
            # Under keys of their own, as ids may be doubled.
            keyed = [one.model_copy(update={"id": str(place)}) for place, one in enumerate(self.memes)]
            return list(groups_by(keyed, name).values())
        return self._column(name)

    def months(self) -> list[str]:
        """Month of each meme, of the first column that has any."""
        found = (
            [month_of(cell) for cell in cells]
            for name, cells in self.cells.items()
            if name in (self.wanted.date, *_DATES)
        )
        return next((months for months in found if any(months)), [""] * len(self.memes))

    def _column(self, name: str) -> Cells:
        if all(cell is None for cell in self.cells[name]):
            known = ", ".join((*(task.id for task in self.card.all_tasks()), *AXES, MONTH))
            raise BadRequest(f"There is no column {name}, and no such task or property; there are {known}.", field="by")
        return [_parts(cell, name) for cell in self.cells[name]]

    def axes(self) -> list[str]:
        groups = {meme.group for meme in self.memes}
        known = {
            "group": any(groups) and are_groups(groups, len(self.memes)),
            MONTH: any(self.months()),
            "language": any(meme.language for meme in self.memes),
        }
        by = self.wanted.by or [name for name, there in known.items() if there]
        return list(dict.fromkeys([*(["split"] if len(self.pictures) > 1 else []), *by]))


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


async def describe(
    card: DatasetCard, data: Path, wanted: DescriptionRequest, progress: Progress, *, in_parts: bool = False
) -> list[Tabled]:
    """Describes all splits of a data set.

    Args:
        in_parts: True if several labels may stand in one cell, with semicolons between them.

    Raises:
        BadRequest: A file can't be read, or there is no such task, property or column.
    """
    checked = await check(card, data)
    material = _Material(card, wanted, in_parts)
    await asyncio.to_thread(material.read, data)
    near = await _count_duplicates(material, progress) if wanted.near else []
    return await asyncio.to_thread(lambda: list(_tables(checked, material, near)))


def _tables(checked: DatasetCheck, material: _Material, near: list[tuple[str, str, int]]) -> Iterator[Tabled]:
    splits = [(one.split, one.rows, one.memes, one.excluded + one.refused, one.pictures) for one in checked.splits]
    yield Tabled("splits", "Splits", ("split", "rows", "memes", "left out or refused", "pictures"), rows=tuple(splits))
    found = [(str(one.kind), one.split.replace("+", " + "), one.count) for one in checked.findings]
    yield Tabled(
        "findings",
        "Doubles, leaks and other findings",
        head=("finding", "splits", "memes or groups"),
        rows=(*found, *near),
        notes=(
            "memecourt-eval datasets check lists the memes. What two splits share, joined by +, leaks from one to the "
            f"other.{'' if near else ' Near-duplicates were not looked for: --near.'}",
        ),
    )
    names = [one.partition("=")[0] for one in material.wanted.tasks]
    tasks = material.facets(names or [task.id for task in material.card.all_tasks()])
    axes = material.facets(material.axes())
    words = np.array([len(meme.text.split()) for meme in material.memes], dtype=np.int64)
    for task in tasks:
        yield tables.labels_table(task)
        if not task.exclusive:
            yield tables.pairs_table(task)
        yield from (tables.by_table(task, axis) for axis in axes if axis.name != task.name)
        if words.any():
            yield tables.lengths_table(task, words)
    counts = np.histogram(words, (*_BINS, np.inf))[0].tolist()
    rows = [(f"from {low}", count, count / len(words)) for low, count in zip(_BINS, counts, strict=True)]
    yield Tabled("words", "Words of the texts", ("words", "memes", "share"), rows=tuple(rows), plot="bars")
    texts = [meme.text for meme in material.memes if meme.text]
    languages = Counter(meme.language for meme in material.memes if meme.language)
    notes = []
    if not languages:
        texts = texts[:: -(-len(texts) // _DETECTED) or 1]
        languages = Counter(language_of(text, DETECT) or UNKNOWN for text in texts)
        notes.append(f"Detected in {len(texts):,} texts.")
    shared = [(name, count, count / languages.total()) for name, count in languages.most_common()]
    yield Tabled("languages", "Languages", ("language", "memes", "share"), rows=tuple(shared), notes=tuple(notes))


async def _count_duplicates(material: _Material, progress: Progress) -> list[tuple[str, str, int]]:
    """Counts near-duplicates by picture and text: groups of them, and memes of a split with one in another split."""
    splits = {name: [one for one in material.memes if one.split == name] for name in material.pictures}
    parts = [(list(map(row_of, memes)), material.pictures[name]) for name, memes in splits.items()]
    numbers = iter(await duplicate_groups(parts, progress))
    of_split = {name: Counter(next(numbers) for _ in memes) for name, memes in splits.items()}
    sizes, kind = sum(of_split.values(), Counter[int]()), "near-duplicates"
    between = [
        (f"{kind}: memes of {b} with one in {a}", f"{a} + {b}", sum(of_split[b][one] for one in of_split[a]))
        for a, b in combinations(splits, 2)
    ]
    return [(f"{kind}: groups", " + ".join(splits), sum(size > 1 for size in sizes.values())), *between]


def description_sections(found: Sequence[Tabled], *, page: bool = False) -> list[Section]:
    """The tables as sections; with plots for a page."""
    return [_section(one, page=page) for one in found]


def _section(found: Tabled, *, page: bool) -> Section:
    rows, svg = [tuple(map(_cell, row)) for row in found.rows], None
    if found.plot == "shares":
        counts = {str(name): [float(one or 0) / (n or 1) for one in line] for name, n, *line in found.rows[:-1]}  # type: ignore[arg-type, operator]
        rows = [
            (*row[:2], *(f"{cell} ({share:.0%})" for cell, share in zip(row[2:], shared, strict=True)))
            for row, shared in zip(rows, counts.values(), strict=False)
        ] + rows[-1:]
        svg = shares(found.head[2:], counts, found.key) if page else None
    elif found.plot and page:
        svg = bars([str(row[0]) for row in found.rows], [row[-1] or 0.0 for row in found.rows], found.key)  # type: ignore[misc]
    drawn = (Drawn(found.title, svg, "Shares of the memes"),) if svg else ()
    return Section(found.key, found.title, (found.head, *rows) if rows else (), notes=found.notes, drawn=drawn)


def _cell(value: str | int | float | Figure | None) -> str:
    match value:
        case str():
            return value or NOTHING
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
    return figure(value)
