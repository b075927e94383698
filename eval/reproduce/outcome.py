"""The figures of a reproduction beside the published ones, and its claims as tests.

Differences are paired by meme; intervals are 95 %, by bootstrap over memes. A claim of several parts holds if all parts
hold, and fails if one significantly contradicts it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from eval.reproduce.debates import MEASURES
from eval.reproduce.paper import ClaimSpec, ColumnSpec, Paper, PartSpec, RowSpec, figure_of, find
from eval.runs.results import Results
from eval.scores.measure import SURE, Figure


class ClaimVerdict(StrEnum):
    """Outcome of a claim's test."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "can't be told from chance"
    UNTESTED = "not tested"


class Reached(StrEnum):
    """Relation of a published figure to ours."""

    WITHIN = "within interval"
    OUTSIDE = "outside"
    DIFFERS = "differs"
    """Ours has no interval."""
    UNREACHABLE = "unreachable on this split"
    NOT_RUN = "not run"
    NONE = "nothing published"


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One measurement of a claim."""

    what: str
    figure: Figure
    p: float | None
    """Its p-value; None if only the interval is used."""
    verdict: ClaimVerdict


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its outcome."""

    id: str
    claim: str
    verdict: ClaimVerdict
    parts: tuple[ClaimPart, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a table, beside ours."""

    row: str
    figure: str
    n: int | None
    published: float | None
    ours: Figure | None
    occurs: bool | None
    """True if the published figure can occur on the memes that were judged; None if that is not known."""
    reached: Reached
    places: int

    @property
    def difference(self) -> float | None:
        """Ours less the published one; None if either is missing."""
        return None if self.ours is None or self.published is None else self.ours.value - self.published


@dataclass(frozen=True)
class Reproduced:
    """Figures of the stages that are finished, and the reasons for the others."""

    paper: Paper
    figures: Mapping[str, Any]
    left: Mapping[str, str]
    planted: Mapping[str, Any] | None = None
    arm: Callable[[str, str], Results | None] = lambda stage, arm: None
    """Reads an arm of a stage's study; None if it was not run."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Models that were used, by their names in the paper."""
    seed: int = 0

    def tables(self) -> dict[str, list[Cell]]:
        """Cells by the id of their table."""
        return {
            one.id: [self._cell(row, column) for row in one.rows for column in one.columns] for one in self.paper.tables
        }

    def _cell(self, row: RowSpec, column: ColumnSpec) -> Cell:
        def at(content: Any, path: str) -> Any:
            # A row without a source has no published figure, whatever the rest of the path finds.
            if not path or ("{cite}" in path and not row.cite):
                return None
            return find(content, path.replace("{key}", row.key or row.name).replace("{cite}", row.cite))

        stage, times = self.figures.get(row.stage), 100.0 if column.percent else 1.0
        ours = figure_of(at(stage, column.ours), column.above, times)
        if self.planted is None or not row.stage:
            theirs = figure_of(at(self.paper.figures(), column.published))
        else:
            theirs = figure_of(at(self.planted.get(row.stage), column.ours), column.above, times)
        published, n = theirs.value if theirs else None, at(stage, column.n)
        rounding = 0.5 * 10**-column.places + 1e-9
        occurs = None
        if column.share and published is not None and isinstance(n, int):
            occurs = has_share(published / times, n, rounding / times)
        accuracy, classes = at(self.paper.figures(), column.accuracy), at(stage, column.classes)
        if accuracy is not None and published is not None and classes:
            benign, harmful = classes.values()
            occurs = is_reachable(accuracy, published, benign=benign, harmful=harmful)
        reached = _reached(published, ours, rounding, occurs=occurs)
        return Cell(
            row.name, column.title, n=n, published=published, ours=ours, occurs=occurs, reached=reached,
            places=column.places,
        )  # fmt: skip

    def claims(self) -> tuple[Claim, ...]:
        """The paper's claims, each tested if its stages are finished."""
        return tuple(map(self._claim, self.paper.claims))

    def _claim(self, spec: ClaimSpec) -> Claim:
        parts: list[ClaimPart] = []
        lacks: list[str] = []
        for one in spec.parts:
            figure, p = self._measured(one)
            if figure is None:
                lacks.append(f"{one.stage}: {one.what}")
                continue
            verdict = above(figure, one.above) if one.above is not None else below(figure, one.below or 0.0)
            # An interval that excludes the bound says little where the exact test does not agree.
            if p is not None and p >= SURE:
                verdict = ClaimVerdict.OPEN
            parts.append(ClaimPart(one.what, figure, p, verdict))
        if lacks or not parts:
            why = spec.why or f"not run, or without a figure: {'; '.join(lacks)}"
            return Claim(spec.id, spec.claim, ClaimVerdict.UNTESTED, why=why)
        verdict = whole([part.verdict for part, one in zip(parts, spec.parts, strict=True) if one.decides])
        return Claim(spec.id, spec.claim, verdict, parts=tuple(parts), why=spec.why)

    def _measured(self, one: PartSpec) -> tuple[Figure | None, float | None]:
        """The figure of a part, and its p-value if there is a test."""
        if one.measure:
            runs = [run for arm in one.arms if (run := self.arm(one.stage, arm)) is not None]
            return MEASURES[one.measure](runs, one.of, self.seed) if len(runs) == len(one.arms) else (None, None)
        stage = self.figures.get(one.stage)
        less = find(stage, one.less) if one.less else 0.0
        return figure_of(find(stage, one.path), -(less or 0.0)), find(stage, one.p) if one.p else None


def whole(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """The verdict on a claim of several parts."""
    # A significantly contradicting part makes the claim fail; an open part leaves it open.
    if ClaimVerdict.FAILS in verdicts:
        return ClaimVerdict.FAILS
    return ClaimVerdict.HOLDS if {*verdicts} == {ClaimVerdict.HOLDS} else ClaimVerdict.OPEN


def below(figure: Figure, bound: float) -> ClaimVerdict:
    """Says whether a figure is below a bound, by its whole interval."""
    if figure.high < bound:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.FAILS if figure.low > bound else ClaimVerdict.OPEN


def above(figure: Figure, bound: float) -> ClaimVerdict:
    """Says whether a figure is above a bound, by its whole interval."""
    # Mirrored, so that both directions follow one rule.
    return below(Figure(-figure.value, -figure.high, -figure.low), -bound)


def _reached(published: float | None, ours: Figure | None, rounding: float, *, occurs: bool | None) -> Reached:
    if ours is None:
        return Reached.NOT_RUN
    if published is None:
        return Reached.NONE
    if occurs is False:
        return Reached.UNREACHABLE
    # Published figures are rounded: half of the last place is allowed for.
    if ours.low == ours.high and abs(published - ours.value) > rounding:
        return Reached.DIFFERS
    return Reached.WITHIN if ours.low - rounding <= published <= ours.high + rounding else Reached.OUTSIDE


# Slightly more than half of the last place, since floats are not exact decimal fractions.
_ROUNDING = 0.005 + 1e-9
"""Largest distance, in percent, of a figure from its value rounded to two places."""


def is_reachable(accuracy: float, macro_f1: float, *, benign: int, harmful: int) -> bool:
    """True if some confusion matrix over these classes rounds to this accuracy and macro-F1, in percent.

    All ``(benign + 1) * (harmful + 1)`` matrices are tried.
    """
    if not benign + harmful:
        return False
    # Each pair: hits among the benign and among the harmful memes.
    right = np.mgrid[: benign + 1, : harmful + 1].reshape(2, -1).astype(np.int64)
    n, hits = benign + harmful, right.sum(axis=0)
    # 2 TP over predicted and gold; a class that is neither present nor predicted counts as 0.
    predicted = np.stack([right[0] + harmful - right[1], right[1] + benign - right[0]])
    f1 = 2 * right / np.maximum(predicted + np.array([[benign], [harmful]]), 1)
    close = (np.abs(100 * hits / n - accuracy) <= _ROUNDING) & (np.abs(100 * f1.mean(axis=0) - macro_f1) <= _ROUNDING)
    return bool(close.any())


def has_share(share: float, n: int, rounding: float) -> bool:
    """True if some number out of ``n`` is this share, within a rounding."""
    return bool(n) and bool(np.any(np.abs(np.arange(n + 1) / n - share) <= rounding))
