"""The report as one self-contained HTML page (:mod:`eval.reports.page`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from court.transcript import transcript
from eval.reports import words
from eval.reports.gather import Group, Report, RunView, Table
from eval.reports.page import Drawn, need_page, render
from eval.reports.wrong import VerdictFault


def as_html(report: Report) -> str:
    """The page; deterministic for a given report.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    return render(
        "page.html",
        report=report,
        title=_title(report.groups),
        faults=list(VerdictFault),
        tables={table.key: _figures_of(table) for group in report.groups for table in group.tables},
        examinations={run.key: _examination_of(run) for run in report.runs},
        transcript=transcript,
    )


def _title(groups: Sequence[Group]) -> str:
    return words.listed(f"{group.title}, {group.split}" for group in groups)


def _figures_of(table: Table) -> dict[str, Any]:
    """Draws the figures of one table: over all runs, and per run."""
    from eval.reports import figures

    bars = [
        figures.Bar(
            label=words.plain(row.run.label),
            accuracy=row.card.strict.accuracy,
            macro_f1=row.card.strict.macro_f1,
            calls=row.run.cost.calls if row.run.cost else 0.0,
            tokens=row.run.cost.tokens if row.run.cost else 0.0,
        )
        for row in table.rows
        # An unfinished run has no strict figures, and so no bar.
        if row.run.finished
    ]
    first = table.rows[0].card
    if len(bars) < 2:
        alone = "One finished run alone can't be set beside another. What it cost stands below, with the run."
        together = [Drawn("Runs side by side", "", alone)]
    else:
        caption = "Strict figures with 95 % intervals. Dashed: always saying the more frequent class."
        if len({(row.card.n, row.card.harmful) for row in table.rows}) > 1:
            caption += f" The runs judged different memes; the dashed line is that of {table.rows[0].run.label}."
        drawn = figures.side_by_side(bars, first.majority, first.majority_macro_f1, f"{table.key}-bars")
        cost = figures.costs(bars, f"{table.key}-costs")
        what = (
            "What a trial takes, whether or not its calls came out of the store."
            if cost
            else "No model was asked, so there is no cost to be set against accuracy."
        )
        together = [Drawn("Runs side by side", drawn, caption), Drawn("Cost against accuracy", cost or "", what)]
    by_run = {}
    for row in table.rows:
        card, name = row.card, f"{table.key}-{row.run.key}"
        curve = figures.calibration(card.calibration, f"{name}-calibration")
        by_run[row.run.key] = [
            Drawn(
                "Confusion matrix", figures.confusion(card, f"{name}-confusion"), "Counts, and their share of the row."
            ),
            Drawn(
                "Calibration",
                curve or "",
                f"{card.scored:,} memes with a score, in bins of nearly equal numbers. On the dashed line a score is "
                "the share of harmful memes among those that have it."
                if curve
                else "No meme has a score, so there is nothing to calibrate.",
            ),
        ]
    return {"together": together, "by_run": by_run}


def _examination_of(run: RunView) -> list[Drawn]:
    from court.events import Side
    from eval.reports import figures

    chart = figures.rounds(run.rounds, f"{run.key}-rounds")
    course = figures.entropies({Side(side): found for side, found in run.entropies.items()}, f"{run.key}-entropy")
    none = "No side examined the Proposer in this run, so there are no rounds."
    return [
        Drawn(
            "Rounds per side by gold label", chart or "", "Share of the memes of each gold label." if chart else none
        ),
        Drawn(
            "Entropy by round",
            course or "",
            "Of the sides' summaries: median, and the band between the quartiles. Above it, the number of summaries: a "
            "side that has rested writes no more."
            if course
            else none,
        ),
    ]
