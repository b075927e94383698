"""Scores of functional tests as report sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.reports.sections import Section
from eval.scores.functional import FunctionalScores
from eval.scores.tables import figure


def functional_sections(rows: Sequence[tuple[str, FunctionalScores]], titles: Mapping[str, str]) -> list[Section]:
    """Pass rates of systems side by side, and their contrast sets.

    Args:
        rows: Name and figures of each system, on the same cases.
        titles: Title of each functionality, by id.
    """
    names = tuple(name for name, _ in rows)
    first = rows[0][1]
    table = [("functionality", "label", "cases", *names)]
    for place, one in enumerate(first.functionalities):
        rates = tuple(
            figure(scores.functionalities[place].passed) + _silent(scores.functionalities[place].silent)
            for _, scores in rows
        )
        table.append((one.id, "harmful" if one.harmful else "not harmful", f"{one.n:,}", *rates))
    table.append(("all", "", f"{first.n:,}", *(figure(scores.passed) for _, scores in rows)))
    notes = [
        f"Always saying harmful passes {first.always_harmful:.3f} of all cases, and never a pair below.",
        *(f"{id_}: {titles[id_]}." for id_ in (one.id for one in first.functionalities) if id_ in titles),
    ]
    sections = [
        Section(
            key="functionalities",
            title=f"Functional tests, {first.n:,} cases",
            rows=tuple(table),
            notes=tuple(notes),
            caption="Share of cases that passed, with Wilson's 95 % interval; without a class a case has not passed",
        )
    ]
    if first.sets:
        heads = ("system", "sets", "whole sets right", "told by the picture", "told by the words")
        sets = [
            (name, f"{scores.sets:,}", figure(scores.sets_passed), figure(scores.by_picture), figure(scores.by_text))
            for name, (_, scores) in zip(names, rows, strict=True)
        ]
        sections.append(
            Section(
                key="contrast",
                title="Contrast sets",
                rows=(heads, *sets),
                notes=(
                    "A set is two captions on two pictures that differ in a sign alone; one of the four is harmful. "
                    "Told by the picture: the same words on both pictures were both judged rightly. Told by the words: "
                    "both captions on the group's picture were.",
                ),
            )
        )
    return sections


def _silent(count: int) -> str:
    return f" ({count:,} without a class)" if count else ""
