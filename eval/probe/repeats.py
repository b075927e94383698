"""Repeats of a probe with other seeds: mean and spread of scores and failure rates by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from court.errors import BadRequest
from eval.probe.report import CategoryRow, ProbeReport
from eval.reports.sections import Section
from eval.scores.means import RepeatedFigure, repeated
from eval.scores.measure import figure
from eval.session.sampled import require_repeats

ALL = "all"


@dataclass(frozen=True, slots=True)
class RepeatedCategory:
    """A category over all repeats, or all of them together."""

    name: str
    score: RepeatedFigure
    failure: RepeatedFigure
    pooled: RepeatedFigure


@dataclass(frozen=True, slots=True)
class RepeatedProbe:
    """A probe over all repeats."""

    target: str
    seeds: tuple[int, ...]
    finished: bool
    categories: tuple[RepeatedCategory, ...]
    """Figures by category; those of all together are last."""


def repeated_probe(reports: Sequence[ProbeReport]) -> RepeatedProbe:
    """Puts reports of repeats together.

    Raises BadRequest: There are fewer than two, or they are of different targets or memes.
    """
    require_repeats(len(reports))
    first = reports[0]
    for other in reports[1:]:
        if (first.manifest.target, first.manifest.models, list(first.memes)) != (
            other.manifest.target,
            other.manifest.models,
            list(other.memes),
        ):
            raise BadRequest(
                "Repeats are of the same probe; these differ in their target, models or memes.", reason="REPEATS_DIFFER"
            )
    rows = [{row.name: row for row in report.categories} for report in reports]
    # Categories may be added during sorting, and not in every repeat.
    names = sorted({name for of_repeat in rows for name in of_repeat})
    return RepeatedProbe(
        target=first.manifest.target,
        seeds=tuple(report.manifest.seed for report in reports),
        finished=all(report.manifest.finished is not None for report in reports),
        categories=(
            # A repeat without the category has None there, which is left out of mean and spread: it has
            # no score of 0.
            *(_category(name, [of_repeat.get(name) for of_repeat in rows]) for name in names),
            _category(ALL, [report.overall for report in reports]),
        ),
    )


def repeat_section(probe: RepeatedProbe) -> Section:
    """Means and spreads as a table."""
    count = range(1, len(probe.seeds) + 1)
    header = (
        *("category", "score", "SD", *(f"score {n}" for n in count)),
        *("failed, %", "SD", "together, %", "SD", *(f"together {n}" for n in count)),
    )
    rows = [
        (
            one.name,
            *(figure(value, ".2f") for value in (one.score.mean, one.score.sd, *one.score.values)),
            *(_percent(one.failure.mean), _percent(one.failure.sd)),
            *(_percent(one.pooled.mean), _percent(one.pooled.sd), *map(_percent, one.pooled.values)),
        )
        for one in probe.categories
    ]
    notes = (
        "SD is the standard deviation over repeats, of those that have a figure. “Together”: the memes as they are and "
        "rewritten, as the published tables have it.",
    )
    return Section("repeats", "Over all repeats", (header, *rows), notes)


def _category(name: str, rows: Sequence[CategoryRow | None]) -> RepeatedCategory:
    means = [row.before.mean if row else None for row in rows]
    failures = [row.before.failure if row else None for row in rows]
    pooled = [row.pooled.failure if row else None for row in rows]
    figures = [
        repeated([figure.value if figure else None for figure in figures]) for figures in (means, failures, pooled)
    ]
    return RepeatedCategory(name, *figures)


def _percent(share: float | None) -> str:
    return figure(share, ".1f", times=100)
