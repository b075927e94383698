"""Tables that describe the labels of a data set: alone, in pairs, by properties of the memes, by lengths of texts.

Two values against two are tested by Fisher's exact test, more by Pearson's chi-square, lengths by Mann and Whitney's;
the p-values of a table are corrected by Holm's procedure.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.stats import chi2_contingency, fisher_exact, mannwhitneyu

from court.errors import BadRequest
from eval.datasets.card_rows import RowGold
from eval.datasets.record_files import Coded
from eval.scores.measure import Figure, holm, wilson

MONTH = "month"
_ALIKE = {str, tuple, type(None), RowGold}
"""Types of cells that mean the same if they are equal."""
_MONTH, _SECONDS = re.compile(r"(\d{4})[-/.](0?[1-9]|1[0-2])(?!\d)"), re.compile(r"\d{9,10}(\.\d*)?")
FEW = 10
"""Memes of a value below which it is tested together with others."""
_SHOWN = 12
"""Values of a property that have a row of their own, the most frequent ones; months all have one."""
_MOST, _LONGEST = 1000, 100
"""Number and length of a column's values above which they are texts and no groups."""


@dataclass(frozen=True, slots=True)
class Tabled:
    """A table of a description: names, counts, shares and p-values."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str | int | float | Figure | None, ...], ...]
    notes: tuple[str, ...] = ()
    shares: bool = False
    """True if the cells after the second are counts of the memes there, of which a reader wants the share."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A property of memes: which of its values each meme has."""

    name: str
    values: tuple[str, ...]
    kinds: NDArray[np.int64]
    """1 where a kind of cell has a value; shape (kinds, values). Large tables have few different cells."""
    of: NDArray[np.int64]
    """Kind of each meme's cell, -1 if it is unknown; shape (memes,)."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """True for memes whose values are known; shape (memes,)."""
        return self.of >= 0

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Memes of each kind; shape (kinds,)."""
        return np.bincount(self.of[self.known], minlength=len(self.kinds))

    @property
    def exclusive(self) -> bool:
        """True if no meme has several values."""
        return bool((self.kinds.sum(axis=1) <= 1).all())


def are_groups(values: Collection[str], memes: int) -> bool:
    """True if memes share these values, and False for texts, which a description never shows."""
    few = len(values) <= min(_MOST, max(_SHOWN, memes // 2))
    return few and all(len(value) <= _LONGEST for value in values)


def facet_of(
    name: str,
    cells: Sequence[Any],
    rule: Callable[[Any], tuple[str, ...] | None] = lambda cell: cell,
    order: Sequence[str] = (),
) -> Facet:
    """The facet of cells, with its values in an order, months by time, and others by frequency.

    Args:
        rule: Function from a cell to its values, None if they are unknown; applied once to equal cells.
        order: Labels of a task, which stand first and need no test whether they are groups.

    Raises BadRequest: The values are too many or too long for groups.
    """
    # Equal numbers may be different cells, as 1 and true.
    if not set(map(type, cells)) <= _ALIKE:
        cells, rule = list(map(rule, cells)), lambda cell: cell
    coded = Coded.of(cells).with_words(rule)
    counted = Counter[str]()
    for several, count in coded.counts():
        counted.update(dict.fromkeys(several or (), count))
    if not order and name != MONTH and not are_groups(counted, len(cells)):
        raise BadRequest(f"{name} has {len(counted):,} different values: these are texts, and no groups.", field="by")
    values = dict.fromkeys(one for one in (*order, *(one for one, _ in counted.most_common())) if one in counted)
    places = {value: place for place, value in enumerate(sorted(values) if name == MONTH else values)}
    kinds = [one for one in dict.fromkeys(coded.words) if one is not None]
    rows: dict[tuple[str, ...] | None, int] = {one: row for row, one in enumerate(kinds)} | {None: -1}
    has = np.zeros((len(kinds), len(places)), dtype=np.int64)
    for row, one in enumerate(kinds):
        has[row, [places[value] for value in one]] = 1
    return Facet(name, tuple(places), has, np.array([rows[one] for one in coded.words], dtype=np.int64)[coded.codes])


def month_of(cell: object) -> str:
    """The month of a date, ``2024-05``: of ISO 8601, or of seconds since 1970; empty if it is neither."""
    text = str(cell or "").strip()
    if found := _MONTH.match(text):
        return f"{found[1]}-{found[2]:0>2}"
    if not _SECONDS.fullmatch(text):
        return ""
    date = datetime.fromtimestamp(float(text), UTC)
    return f"{date.year}-{date.month:02}"


def labels_table(task: Facet) -> Tabled:
    """Memes of each label, and their share with Wilson's interval."""
    sizes = task.sizes
    n, none = int(sizes.sum()), int(sizes[~task.kinds.any(axis=1)].sum())
    counts = zip(task.values, (sizes @ task.kinds).tolist(), strict=True)
    notes = [f"{n:,} memes have a gold label, {len(task.of) - n:,} have none."]
    if none:
        notes.append(f"{none:,} were labelled as having none of the labels.")
    return Tabled(
        f"labels-{task.name}",
        f"Labels: {task.name}",
        head=("label", "memes", "share"),
        rows=tuple((label, count, wilson(count, n)) for label, count in counts),
        notes=(*notes, "Shares have Wilson's 95 % intervals."),
    )


def pairs_table(task: Facet) -> Tabled:
    """Tests every two labels of a task for co-occurrence, by Fisher's exact test; the surest first."""
    sizes = task.sizes
    n, both = int(sizes.sum()), (task.kinds.T @ (sizes[:, None] * task.kinds)).tolist()
    found: list[tuple[Any, ...]] = []
    for a, b in combinations(range(len(task.values)), 2):
        of_a, of_b, together = both[a][a], both[b][b], both[a][b]
        test = fisher_exact([[together, of_a - together], [of_b - together, n - of_a - of_b + together]])
        name = f"{task.values[a]} + {task.values[b]}"
        # Infinite or undefined where a cell is empty, which JSON can't hold.
        odds = float(test.statistic) if isfinite(test.statistic) else None
        found.append((name, together, of_a * of_b / n, odds, float(test.pvalue)))
    corrected = holm([one[-1] for one in found])
    rows = sorted(zip(found, corrected, strict=True), key=lambda row: row[1])
    return Tabled(
        f"pairs-{task.name}",
        f"Labels together: {task.name}",
        head=("labels", "both", "expected", "odds ratio", "p", "p, corrected"),
        rows=tuple((*one, p) for one, p in rows),
        notes=("An odds ratio above 1 says that two labels occur together more often than by chance.",),
    )


def by_table(task: Facet, axis: Facet) -> Tabled:
    """Labels of a task by the values of another property, with a test of each label."""
    known = task.known & axis.known
    # Memes of each two kinds; most pairs of many have none.
    pairs = coo_array(
        (known[known].astype(np.int64), (axis.of[known], task.of[known])), (len(axis.kinds), len(task.kinds))
    )
    groups, names, n = axis.kinds, axis.values, int(known.sum())
    if axis.name != MONTH and len(names) > _SHOWN:
        groups = np.column_stack([groups[:, :_SHOWN], groups[:, _SHOWN:].max(axis=1)])
        names = (*names[:_SHOWN], f"{len(names) - _SHOWN} others")
    sizes, counts = pairs.sum(axis=1) @ groups, groups.T @ (pairs @ task.kinds)
    totals = pairs.sum(axis=0) @ task.kinds
    # Values of few memes stand together in a test, or its approximation would not hold.
    few = sizes < FEW
    tested = np.vstack([counts[~few], counts[few].sum(axis=0)])
    of = np.append(sizes[~few], sizes[few].sum())[:, None]
    every = None if axis.exclusive else np.array([totals, n - totals])
    ps = [
        _p_of(np.hstack([own[:, None], of - own[:, None]])[of[:, 0] > 0].T, None if every is None else every[:, place])
        for place, own in enumerate(tested.T)
    ]
    corrected = iter(holm([one for one in ps if one is not None]))
    notes = [
        f"{len(known) - n:,} of {len(known):,} memes are left out, as one of the two is unknown. Each label is "
        f"tested against all values; those of fewer than {FEW} memes stand together in the tests."
    ]
    square = tested[:, tested.any(axis=0)][tested.any(axis=1)]
    if every is None and min(square.shape) > 1:
        test = chi2_contingency(square, correction=False)
        if task.exclusive:
            notes.append(f"Of the whole table, chi-square({test.dof}) = {test.statistic:.2f}, p = {test.pvalue:.2g}.")
        if (test.expected_freq < 5).mean() > 0.2:
            notes.append("Over a fifth of the expected counts are below 5: chi-square is a rough approximation here.")
    return Tabled(
        f"{task.name}-by-{axis.name}",
        f"{task.name} by {axis.name}",
        head=(axis.name, "memes", *task.values),
        rows=(
            *((name, *line) for name, *line in zip(names, sizes.tolist(), *counts.T.tolist(), strict=True)),
            ("p, corrected", None, *(None if one is None else next(corrected) for one in ps)),
        ),
        notes=tuple(notes),
        shares=True,
    )


def _p_of(table: NDArray[np.int64], totals: NDArray[np.int64] | None) -> float | None:
    """p-value of a label, from counts of memes that have and lack it, of shape (2, values); None if nothing varies.

    Args:
        totals: The same counts of all memes, if a meme may have several values; then the smallest p-value of the
            values, corrected for their number.
    """
    if totals is not None:
        parts = [np.stack([column, totals - column]) for column in table.T]
        found = [
            float(fisher_exact(part).pvalue) for part in parts if part.any(axis=0).all() and part.any(axis=1).all()
        ]
        return min(holm(found), default=None)
    if table.shape[1] < 2 or not table.any(axis=1).all():
        return None
    return float((fisher_exact(table) if table.shape[1] == 2 else chi2_contingency(table, correction=False)).pvalue)


def lengths_table(task: Facet, words: NDArray[np.int64]) -> Tabled:
    """Quartiles of the words in each label's texts, tested against those of the memes without the label."""
    found: list[tuple[Any, ...]] = []
    words, of = words[task.known], task.of[task.known]
    # Two labels of which each meme has one are a single test.
    single = len(task.values) == 2 and bool((task.kinds.sum(axis=1) == 1).all())
    for label, kinds in zip(task.values, task.kinds.T.astype(np.bool_), strict=True):
        own, others = words[kinds[of]], words[~kinds[of]]
        p = found[0][-1] if found and single else float(mannwhitneyu(own, others).pvalue) if len(others) else None
        found.append((label, len(own), *np.percentile(own, (25, 50, 75)).tolist(), p))
    corrected = iter(holm([one[-1] for one in found if one[-1] is not None]))
    return Tabled(
        f"lengths-{task.name}",
        f"Words of the texts: {task.name}",
        head=("label", "memes", "lower quartile", "median", "upper quartile", "p, corrected"),
        rows=tuple((*line, None if p is None else next(corrected)) for *line, p in found),
    )
