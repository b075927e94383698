"""Sorts the lines of a picture into reading order: rows from top to bottom, in the orientation of most of the text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from court.events import TextLine

_Point = tuple[float, float]
_Corners = Sequence[_Point]
_Span = tuple[float, float]
"""Top and bottom of a line, in pixels."""


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """The lines in rows from top to bottom, each row left to right, in the orientation of most of the text.

    A line belongs to a row if they overlap by at least half the height of the less tall one. It is compared with the
    mean of the row and not with the last line; otherwise a staircase of lines would form a single row.
    """
    found = list(lines)
    quarters = _quarters(found)
    upright = [(line, _upright(line, quarters)) for line in found]
    rows: list[list[tuple[TextLine, _Corners]]] = []
    # By vertical centre: the sum of top and bottom gives the same order as their mean.
    for line, corners in sorted(upright, key=lambda one: (sum(_span(one[1])), _left(one[1]))):
        if rows and _shares(_mean_span([other for _, other in rows[-1]]), _span(corners)):
            rows[-1].append((line, corners))
        else:
            rows.append([(line, corners)])
    return [line for row in rows for line, _ in sorted(row, key=lambda one: _left(one[1]))]


def _quarters(lines: Iterable[TextLine]) -> int:
    """Returns the number of clockwise quarter turns of most of the text, 0 to 3; longer lines count for more."""
    lengths = [0.0] * 4
    for line in lines:
        (x0, y0), (x1, y1) = line.box[:2]
        lengths[_quarters_of(line)] += math.hypot(x1 - x0, y1 - y0)
    return lengths.index(max(lengths))


def _quarters_of(line: TextLine) -> int:
    (x0, y0), (x1, y1) = line.box[:2]
    return round(math.atan2(y1 - y0, x1 - x0) / (math.pi / 2)) % 4


def _upright(line: TextLine, quarters: int) -> _Corners:
    """The corners of a line after rotating the picture back by quarter turns, beginning with the upper left one."""
    # In a line turned differently from most, another corner is the upper left one.
    first = (quarters - _quarters_of(line)) % 4
    corners = [*line.box[first:], *line.box[:first]]
    for _ in range(quarters):
        # A quarter turn counter-clockwise as seen, because y grows downwards.
        corners = [(y, -x) for x, y in corners]
    return corners


def _shares(row: _Span, line: _Span) -> bool:
    shared = min(row[1], line[1]) - max(row[0], line[0])
    # shared > 0, as two lines of zero height would otherwise pass.
    return shared > 0 and shared >= 0.5 * min(row[1] - row[0], line[1] - line[0])


def _mean_span(row: list[_Corners]) -> _Span:
    spans = [_span(corners) for corners in row]
    return sum(top for top, _ in spans) / len(spans), sum(bottom for _, bottom in spans) / len(spans)


def _span(corners: _Corners) -> _Span:
    """Vertical extent by the midpoints of the long edges, so that a slanted line is no taller than its text."""
    upper_left, upper_right, lower_right, lower_left = corners
    return (upper_left[1] + upper_right[1]) / 2, (lower_left[1] + lower_right[1]) / 2


def _left(corners: _Corners) -> float:
    return min(x for x, _ in corners)
