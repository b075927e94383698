"""Boards by group as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from eval.arena.boards import BoardRow
from eval.arena.groups import LEVEL, BoardsBy, GroupBoard
from eval.reports.sections import Section


def group_sections(found: Sequence[BoardsBy], models: Sequence[str]) -> list[Section]:
    """A table for each key: models down, groups across.

    Args:
        found: Boards by each key.
        models: Models in the order in which they are shown.
    """
    return [_section(one, models) for one in found]


def _section(by: BoardsBy, models: Sequence[str]) -> Section:
    header = ("model", *(f"{group.name} ({group.tasks:,})" for group in by.groups))
    rows = [
        (model, *(_cell(group, next(row for row in group.board.rows if row.model == model)) for group in by.groups))
        for model in models
    ]
    notes = [
        "Ratings with 95 % intervals, each group by its own battles, with the anchor or mean of the whole board; "
        "shares are battles won. In brackets: questions.",
        *_test_words(by),
        *(f"{group.name}: {group.not_rated}" for group in by.groups if group.not_rated),
    ]
    if by.ungrouped:
        notes.append(f"{by.ungrouped:,} questions belong to no group.")
    return Section(f"by-{by.key}", f"By {by.key}", (header, *rows), tuple(notes))


def _test_words(by: BoardsBy) -> list[str]:
    if by.test is None or by.p is None:
        return ["Fewer than two groups have questions enough to be compared."]
    p = f"p = {by.p:.3f}, likelihood ratio, {by.test.deals:,} random deals of groups over memes"
    if not by.shown:
        return [f"That models rank differently in these groups is not shown ({p}): nobody is weaker in one of them."]
    sure = [one for one in by.test.differences if one.p < LEVEL]
    told = [
        f"{one.model} is {'stronger' if one.points > 0 else 'weaker'} in {one.group} than elsewhere: {one.points:+.0f} "
        f"points [{one.low:+.0f}, {one.high:+.0f}], p = {one.p:.3f}."
        for one in sorted(sure, key=lambda one: one.points)
    ]
    return [
        f"Models rank differently in these groups ({p}).",
        *(told or ["Which of them do is not shown: no difference is sure by itself."]),
    ]


def _cell(group: GroupBoard, row: BoardRow) -> str:
    if group.not_rated or row.rating is None:
        return "–" if row.win_rate is None else f"{100 * row.win_rate:.0f} %"
    one = row.rating
    span = "" if one.low is None or one.high is None else f" [{one.low:.0f}, {one.high:.0f}]"
    return f"{one.value:.0f}{span}"
