"""Order in which the lines of a picture are read: rows from top to bottom, as most of the text is turned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from court.events import TextLine

_Point = tuple[float, float]
_Corners = Sequence[_Point]
_Span = tuple[float, float]
"""Top and bottom of a line, in pixels."""


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """The lines in rows from top to bottom, each row from left to right, as most of the text is turned.

    Two lines stand in one row where they share at least half the height of the lower one. Each is held against the
    mean of its row, not against the last: of a staircase of lines, the last would otherwise join the first.
    """
    found = list(lines)
    quarters = _quarters(found)
    upright = [(line, _upright(line, quarters)) for line in found]
    rows: list[list[tuple[TextLine, _Corners]]] = []
    # By the middle of its height: top and bottom added up give the same order as their mean.
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
    """The corners of a line when all is turned back by so many quarters, beginning with the upper left one."""
    # A line that is turned otherwise than most has another corner at its upper left.
    first = (quarters - _quarters_of(line)) % 4
    corners = [*line.box[first:], *line.box[:first]]
    for _ in range(quarters):
        # A quarter turn counter-clockwise as it is seen, for y grows downwards.
        corners = [(y, -x) for x, y in corners]
    return corners


def _shares(row: _Span, line: _Span) -> bool:
    shared = min(row[1], line[1]) - max(row[0], line[0])
    # Two lines without height would share half of nothing.
    return shared > 0 and shared >= 0.5 * min(row[1] - row[0], line[1] - line[0])


def _mean_span(row: list[_Corners]) -> _Span:
    spans = [_span(corners) for corners in row]
    return sum(top for top, _ in spans) / len(spans), sum(bottom for _, bottom in spans) / len(spans)


def _span(corners: _Corners) -> _Span:
    """The middles of the two long edges, so that a slanting line is no taller than its text."""
    upper_left, upper_right, lower_right, lower_left = corners
    return (upper_left[1] + upper_right[1]) / 2, (lower_left[1] + lower_right[1]) / 2


def _left(corners: _Corners) -> float:
    return min(x for x, _ in corners)
