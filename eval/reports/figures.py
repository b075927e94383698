"""The figures of a report.

Each is drawn from plain values and has a text alternative. It is None only if there is nothing to draw: the page then
says why.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from court.events import Side
from eval.reports.svg import TIP, Ink, drawing, themed
from eval.scores.courses import Rounds
from eval.scores.measure import TaskArrays, right_answers
from eval.scores.metrics import Bin

GOLD_WORDS = ("not harmful", "harmful")
_TIPS = 30
"""Points of a curve that tell their values, roughly."""


def calibration(bins: Sequence[Bin], name: str) -> str | None:
    """Share of harmful memes against mean score, bin by bin, with the range of each bin and its number of memes."""
    if not bins:
        return None
    with drawing(name):
        figure, (axes,) = _sheet(3.4, 3.3)
        axes.plot([0, 1], [0, 1], color=Ink.MUTED, linestyle=(0, (4, 3)), linewidth=1)
        scores, shares = [one.mean_score for one in bins], [one.share_harmful for one in bins]
        axes.hlines(shares, [one.low for one in bins], [one.high for one in bins], color=Ink.DEFENDER, alpha=0.4)
        axes.plot(scores, shares, color=Ink.DEFENDER, linewidth=1.6)
        for one in bins:
            tip = f"{one.n:,} memes, scores {one.low:.2f} to {one.high:.2f}: {one.share_harmful:.0%} harmful"
            point = (one.mean_score, one.share_harmful)
            axes.plot(*point, color=Ink.DEFENDER, marker="o", markersize=5, gid=f"{TIP}{tip}")
            axes.annotate(f"{one.n:,}", point, (4, -9), textcoords="offset points", fontsize=7, color=Ink.MUTED)
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.06, 1.04), xlabel="harm score", ylabel="share of harmful memes")
        axes.grid(visible=True)
        words = "; ".join(
            f"mean score {one.mean_score:.2f}: {one.share_harmful:.2f} of {one.n} harmful" for one in bins
        )
        return themed(figure, name, f"Calibration curve. {words}.")


def rounds(found: Sequence[Rounds], name: str) -> str | None:
    """Share of memes by number of rounds, per side, one bar for each gold label."""
    if not found:
        return None
    numbers = sorted({number for one in found for number in one.counts})
    sides = [side for side in Side if any(one.side is side for one in found)]
    with drawing(name):
        figure, sheets = _sheet(5.6, 2.5, columns=len(sides), sharey=True)
        for side, axes in zip(sides, sheets, strict=True):
            for one in (one for one in found if one.side is side):
                axes.bar(
                    [number + (0.2 if one.harmful else -0.2) for number in numbers],
                    [one.counts.get(number, 0) / one.n for number in numbers],
                    width=0.36,
                    color=Ink.BAD if one.harmful else Ink.GOOD,
                    alpha=0.75,
                    label=f"{GOLD_WORDS[one.harmful]}, mean {one.mean:.1f} (n {one.n:,})",
                )
            axes.set_title(str(side).capitalize())
            axes.set_xticks(numbers)
            axes.set_xlabel("rounds")
            axes.set_ylim(0, 1.28)  # room for the legend
            axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
            axes.legend(loc="upper left", fontsize=7.5, borderaxespad=0, handlelength=1)
        sheets[0].set_ylabel("share of memes")
        words = "; ".join(
            f"{one.side.lower()}, gold {GOLD_WORDS[one.harmful]}: mean {one.mean:.2f} over {one.n} memes"
            for one in found
        )
        return themed(figure, name, f"Rounds per side by gold label. {words}.")


def curves(arrays: TaskArrays, name: str) -> list[tuple[str, str]]:
    """Name and figure of the ROC, precision-recall and risk-coverage curve; none without scores of both classes."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    there = ~np.isnan(arrays.scores[:, -1])
    gold, scores, faults = arrays.gold[there, -1], arrays.scores[there, -1], ~right_answers(arrays)[there]
    if len(np.unique(gold)) < 2:
        return []
    false, true, at = roc_curve(gold, scores, drop_intermediate=True)
    precision, recall, cuts = precision_recall_curve(gold, scores, drop_intermediate=True)
    # The surest first: the risk of deciding only the memes whose score is far from one half.
    distance, decided = np.abs(scores - 0.5), np.arange(1, len(scores) + 1)
    surest = np.lexsort((faults, distance))[::-1]
    wrong, share = np.cumsum(faults[surest]) / decided, decided / len(there)
    found, scored_by = "harmful memes found", "from score"
    drawn = {
        "ROC": (("false alarms", false), (found, true), (scored_by, at)),
        "Precision and recall": ((found, recall[:-1]), ("precision", precision[:-1]), (scored_by, cuts)),
        "Risk and coverage": (("coverage", share), ("risk", wrong), ("distance from 0.5", distance[surest])),
    }
    return [(title, _curve(f"{name}-{number}", axes)) for number, (title, axes) in enumerate(drawn.items())]


def _curve(name: str, named: Sequence[tuple[str, Sequence[float]]]) -> str:
    """A curve whose points tell their values."""
    (across, x), (up, y), (what, at) = named
    with drawing(name):
        figure, (axes,) = _sheet(3.4, 3.3)
        axes.plot(x, y, color=Ink.DEFENDER, linewidth=1.6)
        for index in range(0, len(x), max(1, len(x) // _TIPS)):
            tip = f"{across} {x[index]:.2f}, {up} {y[index]:.2f}, {what} {at[index]:.2f}"
            axes.plot(x[index], y[index], color=Ink.DEFENDER, marker="o", markersize=4, gid=f"{TIP}{tip}")
        axes.set(xlim=(-0.04, 1.04), ylim=(-0.06, 1.04), xlabel=across, ylabel=up)
        axes.grid(visible=True)
        few = slice(None, None, max(1, len(x) // 5))
        values = ", ".join(f"{b:.2f} at {a:.2f}" for a, b in zip(x[few], y[few], strict=True))
        return themed(figure, name, f"{up} by {across}: {values}.")


def shares(columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], name: str) -> str | None:
    """Shares as cells of a matrix, the darker the larger; empty where there is none."""
    from matplotlib.patches import Rectangle

    if not rows:
        return None
    with drawing(name):
        figure, (axes,) = _sheet(1.6 + 0.62 * len(columns), 0.8 + 0.24 * len(rows))
        for row, cells in enumerate(rows.values()):
            for column, share in enumerate(cells):
                if share is None:
                    continue
                corner, shade = (column - 0.48, row - 0.46), 0.04 + 0.7 * share
                axes.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=Ink.DEFENDER, alpha=shade, linewidth=0))
                axes.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=7.5, color=Ink.TEXT)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks(range(len(columns)), [_short(label, 12) for label in columns], rotation=30, ha="right")
        axes.set_yticks(range(len(rows)), [_short(label) for label in rows])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        words = "; ".join(
            f"{label}: "
            + ", ".join(f"{column} {one:.0%}" for column, one in zip(columns, cells, strict=True) if one is not None)
            for label, cells in rows.items()
        )
        return themed(figure, name, f"Shares of each row. {words}.")


def _sheet(width: float, height: float, *, columns: int = 1, sharey: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """A figure of the given size in inches, and its axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, sharey=sharey, squeeze=False)
    return figure, tuple(axes.flat)


def _short(label: str, most: int = 28) -> str:
    line = " ".join(label.split())
    return line if len(line) <= most else line[: most - 1] + "…"
