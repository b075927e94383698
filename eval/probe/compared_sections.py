"""A comparison of probes as sections of a report."""

from __future__ import annotations

from eval.datasets.published import published_file
from eval.probe.compare import CHANGE, FAILURE, FAILURE_BEFORE, MEAN, SCORE, ProbeComparison
from eval.reports.sections import Section
from eval.scores.bootstrap import Figure
from eval.scores.tables import figure

_MARKS = {"best": "¹", "second": "²"}


def comparison_lead(comparison: ProbeComparison) -> list[str]:
    """Sentences before the tables."""
    lead = [
        f"{len(comparison.targets)} targets, the same {comparison.memes:,} memes, references and seeds. "
        f"An explanation has failed with a score of {comparison.threshold} or less.",
        "Intervals are 95 %, by bootstrap over memes. ¹ surely ahead of all others, ² of all but one: by paired "
        "differences over the same drawn memes, each at 95 %.",
    ]
    if comparison.unfinished:
        lead.append(f"Not finished, so that figures will change: {', '.join(comparison.unfinished)}.")
    return lead


def comparison_sections(comparison: ProbeComparison) -> list[Section]:
    """The tables: scores, failure rates, the change by rewriting, and what was published."""
    paper = published_file("papers/adammeme")
    header = ("target", *comparison.categories)

    def table(metric: str) -> tuple[tuple[str, ...], ...]:
        return (
            header,
            *(
                (target, *(_cell(comparison, target, category, metric) for category in comparison.categories))
                for target in comparison.targets
            ),
        )

    changes = [
        (
            target,
            *(
                _shown(comparison.cells[target, MEAN].figures[metric], metric, interval=True)
                for metric in (FAILURE_BEFORE, FAILURE, CHANGE)
            ),
            f"{comparison.cells[target, MEAN].scored:,}",
            f"{comparison.cells[target, MEAN].rewritten:,}",
        )
        for target in comparison.targets
    ]
    return [
        Section("scores", "Mean score of the memes as they are, 1 to 10", table(SCORE)),
        Section(
            "failures",
            "Failure rate, memes as they are and rewritten together, %",
            table(FAILURE),
            ("As the published tables have it: (failed before + failed after) / (scored before + scored after).",),
        ),
        Section(
            "refinement",
            "Change by rewriting, mean of categories",
            (("target", "as they are, %", "together, %", "change, points", "scored", "rewritten"), *changes),
        ),
        Section(
            "published",
            "Published",
            (
                ("target", "mean score", "together, %", "as they are, %"),
                *(
                    (
                        one["target"],
                        f"{one['score']:.2f}",
                        f"{100 * one['failure']:.2f}",
                        f"{100 * one['failure_before']:.2f}",
                    )
                    for one in paper["targets"]
                ),
            ),
            (
                f"{paper['source']}, tables 1 and 2: 1,577 memes, other controllers and references. For "
                "orientation, not for a comparison.",
            ),
        ),
    ]


def _cell(comparison: ProbeComparison, target: str, category: str, metric: str) -> str:
    cell = comparison.cells[target, category]
    return _shown(cell.figures[metric], metric, interval=category == MEAN) + _MARKS.get(cell.surely.get(metric, ""), "")


def _shown(found: Figure | None, metric: str, *, interval: bool) -> str:
    form, times = (".2f", 1.0) if metric == SCORE else ("+.1f" if metric == CHANGE else ".1f", 100.0)
    return figure(found if interval or found is None else found.value, form, times=times)
