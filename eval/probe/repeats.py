"""Repeats of a probe with other seeds: mean and spread of scores and failure rates by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.probe.report import CategoryRow, ProbeReport
from eval.reports.repeats import Repeats, over_repeats, repeats_section
from eval.reports.sections import Section


def repeated_probe(reports: Sequence[ProbeReport]) -> Repeats:
    """Puts reports of repeats together, by category; all categories together are ``all``.

    Raises BadRequest: There are fewer than two, or they are of different targets or memes.
    """

    def figures(row: CategoryRow) -> dict[str, float | None]:
        shown = (("score", row.before.mean), ("failure", row.before.failure), ("pooled", row.pooled.failure))
        return {name: one.value if one else None for name, one in shown}

    repeats = over_repeats(
        [report.manifest for report in reports],
        # Categories may be added during sorting, and not in every repeat.
        [{row.name: figures(row) for row in (*report.categories, report.overall)} for report in reports],
        [{"target": one.manifest.target, "models": one.manifest.models, "memes": list(one.memes)} for one in reports],
    )
    last = reports[0].overall.name
    ordered = sorted(repeats.rows, key=lambda name: (name == last, name))
    return replace(repeats, rows={name: repeats.rows[name] for name in ordered})


def repeat_section(repeats: Repeats) -> Section:
    """Means and spreads as a table."""
    columns = {
        "score": ("score", ".2f", 1.0),
        "failure": ("failed, %", ".1f", 100.0),
        "pooled": ("together, %", ".1f", 100.0),
    }
    note = "“Together”: the memes as they are and rewritten, as the published tables have it."
    return repeats_section(repeats, "category", columns, notes=[note])
