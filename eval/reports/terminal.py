"""The report in a terminal: the figures, their limits, and where to find the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eval.reports import words
from eval.reports.gather import Group, Report
from eval.reports.wrong import VerdictFault
from eval.scores.published import PublishedRow
from eval.scores.tables import cards_table, confusion_table, table

_BESIDE = 3
"""Largest number of runs side by side, so that a line fits a terminal."""


def as_terminal(report: Report) -> str:
    """The report; untrusted text (names of runs) is made safe to print."""
    lines: list[str] = []
    if report.unfinished:
        lines += [
            "NOT FINISHED: these figures will change.",
            *(words.plain(r.unfinished_words) for r in report.unfinished),
        ]
        lines.append("")
    for group in report.groups:
        lines += _group(group)
    return "\n".join(lines).rstrip()


def _group(group: Group) -> Iterator[str]:
    yield from (f"{words.plain(group.title)}, {words.plain(group.split)}", "")
    yield from (words.plain(sentence) for sentence in group.unscored)
    for one in group.tables:
        for first in range(0, len(one.rows), _BESIDE):
            beside = one.rows[first : first + _BESIDE]
            yield from (cards_table([(words.plain(row.run.label), row.card) for row in beside]), "")
        for row in one.rows:
            yield from (f"Confusion, {words.plain(row.run.label)}", confusion_table(row.card), "")
        if one.contrasts:
            rows = [["compared meme by meme", "against", "accuracy, points", "p", "accuracy is"]]
            for each in one.contrasts:
                difference = each.comparison.difference_accuracy
                p = f"{each.comparison.mcnemar_p:.2g}"
                points = f"{words.points(difference)} [{words.points_span(difference)}]"
                rows.append([words.plain(each.label), words.plain(each.against), points, p, each.judgment])
            yield from (table(rows, numbers=False), "")
        yield from (*(words.plain(remark) for remark in one.remarks), "")
    if group.traps:
        yield from (*group.traps, "")
    if group.published:
        rows = [["published, not measured here", "split", "protocol", "memes", "accuracy", "macro-F1", "AUROC"]]
        rows += [
            [
                words.plain(row.name),
                row.split or "not said",
                str(row.protocol),
                words.NOTHING if row.n is None else f"{row.n:,}",
                words.places(row.accuracy),
                words.places(row.macro_f1),
                words.places(row.auroc),
            ]
            for row in group.published
        ]
        yield from (table(rows), "", *_sources(group.published), "")
    counts = [f"{group.count(fault):,} {fault.title.lower()}" for fault in VerdictFault if group.count(fault)]
    yield f"Wrong: {'; '.join(counts) or 'nothing that was judged'}."
    yield ""


def _sources(published: Sequence[PublishedRow]) -> Iterator[str]:
    """Sources and remarks of published figures without duplicates, each with its systems."""
    # Most rows share a source or a remark, which would fill the screen otherwise.
    systems: dict[str, list[str]] = {}
    sources = [(f"From {row.source}", row) for row in published] + [
        (row.remark, row) for row in published if row.remark
    ]
    for sentence, row in sources:
        systems.setdefault(words.plain(sentence).rstrip("."), []).append(words.plain(row.system))
    yield from (f"{sentence}: {', '.join(dict.fromkeys(named))}." for sentence, named in systems.items())
