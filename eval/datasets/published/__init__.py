"""Figures that others published, as printed: a file for each data set, and in ``papers`` one for each paper.

``read_in`` names where we read a figure. A figure on another split, other classes or another version of the data can't
be compared with ours: ``remark`` says why.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from eval.datasets.card import DatasetCard
from eval.datasets.protocol import Protocol


@cache
def published_file(name: str) -> Mapping[str, Any]:
    """Reads a file of published figures, such as ``harm-c`` or ``papers/memearena``; empty if there is none."""
    file = files(__name__).joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def published_ratings(paper: str, what: str) -> Mapping[str, tuple[float, float | None]]:
    """Reads people's ratings of one kind of text: mean score and agreement of raters by criterion.

    Args:
        what: Kind of text; one without published ratings has an empty table.
    """
    table = published_file(f"papers/{paper}")["rated"].get(what, {})
    return {criterion: (row["mean"], row.get("agreement")) for criterion, row in table.items()}


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One system's figures on one data set."""

    dataset: str
    """Dataset of :mod:`eval.datasets.known`."""
    split: str
    """Split of the data set; empty if the publication does not say which."""
    protocol: Protocol
    """Protocol by which labels became two classes."""
    system: str
    year: int | None
    """Year of publication; None if a card doesn't name it."""
    source: str
    """The paper, and the table if known."""
    read_in: str
    """Publication in which we read the figure."""
    accuracy: float | None = None
    """Accuracy, as a share; like the other figures None if it is not reported or could not be read."""
    macro_f1: float | None = None
    """Macro-F1, as a share."""
    auroc: float | None = None
    """AUROC, as a share."""
    mmae: float | None = None
    """Macro-averaged mean absolute error, in levels."""
    n: int | None = None
    """Number of memes that it was measured on; None if unknown."""
    remark: str = ""

    @property
    def name(self) -> str:
        """System and year, as reports name it."""
        return f"{self.system} ({self.year})" if self.year else self.system


_SHOWN = ("accuracy", "macro-f1", "auroc", "mmae")
"""Metrics that a row has a column for."""


def rows_of_card(card: DatasetCard, split: str, protocols: Sequence[Protocol]) -> tuple[PublishedRow, ...]:
    """Figures that a card quotes for the task that trials are scored on, on one split, under these protocols."""
    task = card.court_task
    # Without a task for trials there is no verdict to compare with.
    if task is None:
        return ()
    rows = []
    for protocol in protocols:
        for one in card.published_on(task.id, split, protocol):
            # Metrics without a column of their own go into the remark, so that nothing published is dropped.
            accuracy, macro_f1, auroc, mmae = (one.figures.get(name) for name in _SHOWN)
            others = [f"{name} {value:.3f}" for name, value in one.figures.items() if name not in _SHOWN]
            rows.append(
                PublishedRow(
                    dataset=card.id,
                    split=split,
                    protocol=protocol,
                    system=f"{one.system}, {one.setup}" if one.setup else one.system,
                    year=one.year,
                    source=one.source,
                    # The card's author read it; the card itself says where.
                    read_in="the data set's card",
                    accuracy=accuracy,
                    macro_f1=macro_f1,
                    auroc=auroc,
                    mmae=mmae,
                    n=one.n,
                    remark=" ".join([*(f"{words}." for words in others), one.remark]).strip(),
                )
            )
    return tuple(rows)


def with_numbers(row: PublishedRow, split: str, memes: Mapping[Protocol, Collection[int]]) -> PublishedRow:
    """The row, with a remark if it was measured on another number of memes than our figures on the same split.

    Args:
        memes: Numbers of memes that our figures were measured on, by protocol.
    """
    ours = set(memes.get(row.protocol, ()))
    # On another split the numbers differ in any case, and the row says which split it is.
    if row.split != split or row.n is None or not ours or ours == {row.n}:
        return row
    counted = " or ".join(f"{n:,}" for n in sorted(ours))
    return replace(row, remark=f"{row.remark} On {row.n:,} memes, and not on {counted} as here.".strip())


def caveats(dataset: str) -> tuple[str, ...]:
    """Returns the caveats of one data set, to be shown above its published rows."""
    return tuple(published_file(dataset).get("caveats", ()))


@cache
def published(dataset: str) -> tuple[PublishedRow, ...]:
    """The rows of one data set. Those of Harm-P are listed for either version, since none says which it used."""
    source = published_file(dataset).get("rows_of", dataset)
    return tuple(
        PublishedRow(**{**row, "dataset": source, "split": row.get("split", ""), "protocol": Protocol(row["protocol"])})
        for row in published_file(source).get("rows", ())
    )
