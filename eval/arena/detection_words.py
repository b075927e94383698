"""Detection beside understanding as a section of a report."""

from __future__ import annotations

from eval.arena.detection import DetectionReport
from eval.reports.sections import Section
from eval.scores.metrics import Figure


def detection_sections(report: DetectionReport) -> list[Section]:
    """A table of models by accuracy, with their win rates, and the rank correlation."""
    table = (
        ("model", "accuracy", "macro-F1", "labelled", "win rate overall"),
        *(
            (
                row.model,
                _figure(row.accuracy, 100, "%"),
                f"{row.macro_f1:.3f}",
                f"{row.labelled:,} of {row.labelled + row.unlabelled:,}",
                "–" if row.win_rate is None else f"{100 * row.win_rate:.1f} %",
            )
            for row in report.rows
        ),
    )
    if report.spearman is None:
        together = "Fewer than three models can be ranked by both, or all are alike in one: there is no correlation."
    else:
        together = (
            f"Spearman's rank correlation of accuracy and win rate over {len(report.rows)} models is "
            f"{_figure(report.spearman, 1, '')}. With few models its interval says little."
        )
    notes = (
        f"Bare labels of {report.memes:,} memes; a meme without a usable label counts as wrong. Always naming the "
        f"larger class gets {100 * report.majority:.1f} %. Intervals are 95 %, by bootstrap over memes.",
        together,
    )
    return [Section("detection", "Detection beside understanding", table, notes)]


def _figure(figure: Figure, times: int, unit: str) -> str:
    digits = 1 if times == 100 else 2
    value, low, high = (f"{times * one:.{digits}f}" for one in (figure.value, figure.low, figure.high))
    return f"{value} [{low}, {high}] {unit}".strip()
