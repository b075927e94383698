"""A probe's report as a terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence

from eval.probe.report import CategoryRow, ProbeReport, Rates
from eval.scores.tables import figure, table

_TOPICS = 5
_STABLE = 150
"""Memes of a category from which on the paper found its figures stable."""


def in_words(report: ProbeReport) -> str:
    """Scores by category and by gold label, topics, and what it cost."""
    manifest, sorted_ = report.manifest, report.mined
    words = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted_.items())
    lines = [
        f"{manifest.target} on {manifest.dataset}, {manifest.split}: {len(report.memes):,} memes, {words}.",
        report.threshold_words,
        "",
        _rows("category", [*report.categories, report.overall]),
    ]
    few = [row.name for row in report.categories if row.memes < _STABLE]
    if manifest.per_category is not None and few:
        lines.append(f"Fewer than {_STABLE} memes, so that another draw may tell otherwise: {', '.join(few)}.")
    if report.gold:
        lines += ["", _rows("gold label", report.gold)]
    if report.steps:
        lines += ["", _steps(report)]
    lines += ["", *(_topic_lines(report) or ["No two misbeliefs of memes that failed share a word."]), ""]
    lines += [
        f"{one.name}: {one.calls:,} calls ({one.made:,} made now), {one.tokens_in:,} tokens read, {one.tokens_out:,} "
        f"written, {one.usd:.4f} US dollars"
        for one in report.usage
    ]
    if manifest.finished is None:
        lines.append("Not finished: these figures will change.")
    return "\n".join(lines)


def _rows(of: str, rows: Sequence[CategoryRow]) -> str:
    cells = [[of, "memes", "scored", "mean", "failed", "rewritten", "mean", "failed", "change", "together"]]
    for row in rows:
        change = "–" if row.change is None else f"{row.change.value:+.2f}"
        own = [row.name, f"{row.memes:,}", *_rates(row.before), *_rates(row.after), change]
        cells.append([*own, _failed(row.pooled)])
    return table(cells)


def _rates(rates: Rates) -> list[str]:
    lost = [f"{n} {what}" for n, what in ((rates.refused, "refused"), (rates.unscored, "unscored")) if n]
    words = f" ({', '.join(lost)})" if lost else ""
    return [
        f"{rates.scored:,}{words}",
        figure(rates.mean, ".2f"),
        _failed(rates),
    ]


def _failed(rates: Rates) -> str:
    return "–" if rates.failure is None else f"{100 * rates.failure.value:.1f} %"


def _steps(report: ProbeReport) -> str:
    cells = [["step", "searches", "as they are", "rewritten", "failed", "outcomes"]]
    for row in report.steps:
        mean, failed = figure(row.after.mean, ".2f"), _failed(row.after)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in row.outcomes.items())
        cells.append([str(row.number), f"{row.n:,}", f"{row.before:.2f}", mean, failed, outcomes])
    return table(cells)


def _topic_lines(report: ProbeReport) -> list[str]:
    if not report.topics:
        return []
    cells = [["failures are about", "misbeliefs", "failed", "mean of lowest"]]
    cells += [[one.words, f"{one.n:,}", f"{one.failed:,}", f"{one.mean:.2f}"] for one in report.topics[:_TOPICS]]
    return [table(cells)]
