"""The weakness page: what a probe found, in the look of the benchmark's report, pictures and texts hidden at first."""

from __future__ import annotations

from pathlib import Path

from eval.probe import figures
from eval.probe.folder import StepOutcome
from eval.probe.pictures import small_pictures
from eval.probe.report import ProbeReport
from eval.reports.page import Drawn, need_page, render

SHOWN = 100
"""Largest number of failures shown individually; all are in the probe's files."""
_SIDE = 320
"""Longest side of a picture, in pixels."""


def as_html(report: ProbeReport, root: Path) -> str:
    """The page; the same for the same report.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    failures = report.failures[:SHOWN]
    chart = figures.by_category(report.categories, report.threshold, "by-category")
    course = figures.by_step(report.steps, report.threshold, "by-step")
    return render(
        "weakness.html",
        package="eval.probe",
        style="weakness.css",
        report=report,
        failures=failures,
        # By meme: one that has failed in several categories or steps is made small once.
        pictures={meme: small_pictures(root, report.memes[meme], _SIDE) for meme in {one.meme for one in failures}},
        key={row.name: f"c{number}" for number, row in enumerate(report.categories)},
        outcomes=list(StepOutcome),
        drawn=[
            Drawn(
                "Mean score by category",
                chart or "",
                "Of the memes as they are, and of those that were rewritten, with 95 % intervals. Dashed: up to there "
                "an explanation has failed."
                if chart
                else "Nothing was scored.",
            ),
            Drawn(
                "Mean score by step",
                course or "",
                "Above it, how many searches came so far: one ends where the rewritten meme's score is not below the "
                "meme's, so that later steps are of other memes than earlier ones."
                if course
                else "Nothing was rewritten.",
            ),
        ],
    )
