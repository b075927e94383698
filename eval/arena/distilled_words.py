"""A judge of one's own beside its teacher, as a section of a report."""

from __future__ import annotations

from eval.arena.distilled import BOUND, DistilReport
from eval.reports.sections import Section
from eval.scores.metrics import Figure
from serving.docket.review.agreement import Kappa


def distil_sections(report: DistilReport) -> list[Section]:
    """A table of the student and the baselines."""
    table = (
        (
            "judge",
            "error of ratings, held-out families",
            "rank correlation",
            "agreement with the teacher",
            "κ",
            "first shown won",
            "same in both orders",
            "own family's lift",
            "unusable",
            "US$ per 1,000",
        ),
        *(
            (
                one.judge,
                _number(one.rmse, 1),
                _number(one.spearman, 2),
                _figure(one.agreement, 100, " %"),
                _kappa(one.kappa),
                "–" if one.first_share is None else f"{100 * one.first_share:.0f} %",
                "–" if one.consistent is None else f"{100 * one.consistent:.0f} %",
                _figure(one.own_lift, 1, ""),
                f"{one.unusable:,}",
                _number(report.usd_per_1000.get(one.judge), 2),
            )
            for one in report.checks
        ),
    )
    student = report.checks[0]
    bound = (
        "It judged nothing."
        if student.rmse is None
        else f"{student.judge} is {'within' if student.rmse <= BOUND else 'not within'} the bound of {BOUND:.0f}."
    )
    ceiling = (
        "The teacher did not judge both orders, so that there is no ceiling to hold agreement against."
        if report.ceiling is None
        else f"The teacher agrees with itself in the other order with κ {_kappa(report.ceiling)}: no student can be "
        "asked for more."
    )
    notes = (
        f"On {report.comparisons:,} comparisons about held-out memes, or with a model of a held-out family "
        f"({', '.join(report.held_out)}). Errors are in points of a Bradley-Terry rating. {bound}",
        ceiling,
    )
    return [Section("distilled", "A judge of one's own beside its teacher", table, notes)]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _kappa(kappa: Kappa) -> str:
    return "–" if kappa.value is None else f"{kappa.value:.2f}"


def _figure(figure: Figure | None, times: int, unit: str) -> str:
    if figure is None:
        return "–"
    digits = 0 if times == 100 else 2
    value, low, high = (f"{times * one:.{digits}f}" for one in (figure.value, figure.low, figure.high))
    return f"{value}{unit} [{low}, {high}]"
