"""Confidence in the words that were read off a picture."""

from __future__ import annotations

from collections.abc import Sequence

from court.events import TextLine, TextRead

_MOST_LETTERS = 2
"""Letters of a line that may be part of a stack; a reader takes two for one line where they stand close."""
_FEWEST = 4
"""Lines that make a stack: three letters one under another may be a list, or initials."""
_MOST_COMPARED = 100
"""Such lines that are compared with each other; of more, all over the picture, no order is known either."""

_Bounds = tuple[float, float, float, float]
"""Left, top, right and bottom of a line, in pixels."""


def reading_confidence(text: TextRead) -> float:
    """Mean confidence of what was read, in [0, 1].

    Lines that are letters of a stack count as read with none: each letter is sure, and the words that they make in
    reading order are nonsense.
    """
    # By identity: two lines may be equal letters, and only one of them in a stack.
    stacked = {id(line) for line in stacked_letters(text.lines)}
    # By characters: a long line that was read badly matters more than a stray mark.
    characters = sum(len(line.text) for line in text.lines) or 1
    return sum(len(line.text) * line.confidence for line in text.lines if id(line) not in stacked) / characters


def stacked_letters(lines: Sequence[TextLine]) -> list[TextLine]:
    """Lines of one or two letters each that stand closely above or below another such line; none where they are few."""
    short = [line for line in lines if sum(map(str.isalnum, line.text)) in range(1, _MOST_LETTERS + 1)]
    # Each is compared with each: a picture full of single letters would take time with the square of them.
    if len(short) > _MOST_COMPARED:
        return short
    bounds = [(line.frame, _bounds(line)) for line in short]
    stacked = [
        line
        for line, (frame, place) in zip(short, bounds, strict=True)
        if any(frame == other_frame and _is_next_to(place, other) for other_frame, other in bounds)
    ]
    return stacked if len(stacked) >= _FEWEST else []


def _is_next_to(line: _Bounds, other: _Bounds) -> bool:
    """True if the other line stands under or over this one, closer than either is tall."""
    if other is line:
        return False
    (left, top, right, bottom), (left2, top2, right2, bottom2) = line, other
    overlap = min(right, right2) - max(left, left2)
    gap = max(top, top2) - min(bottom, bottom2)
    # Measured by the smaller of the two, so that a tall headline does not draw in what stands near it.
    return 2 * overlap >= min(right - left, right2 - left2) and gap < min(bottom - top, bottom2 - top2)


def _bounds(line: TextLine) -> _Bounds:
    xs, ys = [x for x, _ in line.box], [y for _, y in line.box]
    return min(xs), min(ys), max(xs), max(ys)
