"""The figures of the weakness page: drawn from plain values, each says in words what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.probe.replies import HIGHEST, LOWEST
from eval.probe.report import CategoryRow, StepRow
from eval.reports.svg import Ink, drawing, themed
from eval.scores.bootstrap import Figure as Estimate
from eval.scores.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHORT = 24


def by_category(rows: Sequence[CategoryRow], threshold: int, name: str) -> str | None:
    """Mean scores as they are and rewritten, with their intervals; None where nothing was scored."""
    shown = [row for row in rows if row.before.mean is not None or row.after.mean is not None]
    if not shown:
        return None
    from matplotlib.figure import Figure

    with drawing(name):
        figure = Figure(figsize=(5.4, 1.1 + 0.42 * len(shown)), layout="constrained")
        axes = figure.subplots()
        _mark(axes, [row.before.mean for row in shown], shift=-0.13, ink=Ink.DEFENDER, shape="o", label="as they are")
        _mark(axes, [row.after.mean for row in shown], shift=0.13, ink=Ink.ACCUSER, shape="D", label="rewritten")
        axes.axvline(threshold, color=Ink.BAD, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_xlim(LOWEST - 0.3, HIGHEST + 0.3)
        axes.set_xticks(range(LOWEST, HIGHEST + 1))
        axes.set_yticks(range(len(shown)), [_cut(row.name) for row in shown])
        # Downwards, so that the first row is on top.
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("mean score")
        axes.grid(visible=True, axis="x")
        figure.legend(loc="outside upper left", ncols=2)
        description = "; ".join(
            f"{row.name}: {_value_text(row.before.mean)} as they are, {_value_text(row.after.mean)} rewritten"
            for row in shown
        )
        return themed(figure, name, f"Mean score by category. {description}.")


def by_step(rows: Sequence[StepRow], threshold: int, name: str) -> str | None:
    """Mean score of the memes as they are and of the rewritten ones, step by step; None where there is no step."""
    if not rows:
        return None
    from matplotlib.figure import Figure

    with drawing(name):
        figure = Figure(figsize=(5.2, 2.8), layout="constrained")
        axes = figure.subplots()
        at = [row.number for row in rows]
        axes.plot(at, [row.before for row in rows], color=Ink.DEFENDER, marker="o", markersize=4, label="as they are")
        scored = [row for row in rows if row.after.mean is not None]
        means = [row.after.mean.value for row in scored if row.after.mean]
        axes.plot([row.number for row in scored], means, color=Ink.ACCUSER, marker="D", markersize=4, label="rewritten")
        for row in rows:
            top = max(row.before, row.after.mean.value if row.after.mean else 0.0)
            axes.annotate(
                f"{row.n:,}",
                (row.number, top),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=Ink.MUTED,
            )
        axes.axhline(threshold, color=Ink.BAD, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_ylim(LOWEST - 0.3, HIGHEST + 0.8)
        axes.set_yticks(range(LOWEST, HIGHEST + 1))
        axes.set_xticks(at)
        axes.set_xlabel("step")
        axes.set_ylabel("mean score")
        axes.grid(visible=True, axis="y")
        figure.legend(loc="outside upper left", ncols=2)
        description = "; ".join(
            f"step {row.number}: {row.before:.1f} as they are, {_value_text(row.after.mean)} rewritten" for row in rows
        )
        return themed(figure, name, f"Mean score by step. {description}.")


def _mark(axes: Axes, means: Sequence[Estimate | None], shift: float, ink: str, shape: str, label: str) -> None:
    there = [(index, mean) for index, mean in enumerate(means) if mean is not None]
    axes.errorbar(
        [mean.value for _, mean in there],
        [index + shift for index, _ in there],
        xerr=[
            # By rounding a mean may lie just outside of its interval, and matplotlib takes no negative length.
            [max(0.0, mean.value - mean.low) for _, mean in there],
            [max(0.0, mean.high - mean.value) for _, mean in there],
        ],
        fmt=shape,
        markersize=5,
        color=ink,
        ecolor=ink,
        elinewidth=1.4,
        label=label,
    )


def _value_text(mean: Estimate | None) -> str:
    return "none" if mean is None else f"{mean.value:.1f}"


def _cut(name: str) -> str:
    line = plain(name)
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"
