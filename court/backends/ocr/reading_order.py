"""The order in which people read lines that stand anywhere on a picture: rows from the top, each from the left."""

from __future__ import annotations

from collections.abc import Iterable

from court.events import TextLine

_Span = tuple[float, float]
"""Top and bottom, in pixels."""


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """The lines in rows from top to bottom, each row from left to right.

    Two lines stand in one row where they share at least half the height of the lower one. Each is held against the
    mean of its row, not against the last: of a staircase of lines, the last would otherwise join the first.
    """
    rows: list[list[TextLine]] = []
    for line in sorted(lines, key=lambda line: (_middle(line), _left(line))):
        if rows and _shares(_mean_span(rows[-1]), _span(line)):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=_left)]


def _shares(row: _Span, line: _Span) -> bool:
    shared = min(row[1], line[1]) - max(row[0], line[0])
    return shared > 0 and shared >= 0.5 * min(row[1] - row[0], line[1] - line[0])


def _mean_span(row: list[TextLine]) -> _Span:
    spans = [_span(line) for line in row]
    return sum(top for top, _ in spans) / len(spans), sum(bottom for _, bottom in spans) / len(spans)


def _span(line: TextLine) -> _Span:
    """The middles of the two long edges, so that a slanting line is no taller than its text."""
    upper_left, upper_right, lower_right, lower_left = line.box
    return (upper_left[1] + upper_right[1]) / 2, (lower_left[1] + lower_right[1]) / 2


def _middle(line: TextLine) -> float:
    return sum(_span(line)) / 2


def _left(line: TextLine) -> float:
    return min(x for x, _ in line.box)
