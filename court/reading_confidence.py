"""Confidence in text read off a picture."""

from __future__ import annotations

from collections.abc import Sequence

from court.events import TextLine, TextRead

_MOST_LETTERS = 2
"""Maximum letters of a line that may be part of a vertical stack; OCR joins two that stand close to one line."""
_FEWEST = 4
"""Minimum lines of a stack: three letters below each other may be a list, or initials."""
_MOST_COMPARED = 100
"""Maximum number of short lines that are compared; more of them, all over the picture, have no known order either."""

_Bounds = tuple[float, float, float, float]
"""Left, top, right and bottom of a line, in pixels."""


def reading_confidence(text: TextRead) -> float:
    """Mean confidence of the reading, in [0, 1]."""
    # Lines of stacked letters count as confidence 0: each letter may be certain, but in reading order they make no
    # words.
    # By identity: of two equal lines, only one may be in a stack.
    stacked = {id(line) for line in stacked_letters(text.lines)}
    # Weighted by characters: a misread long line matters more than a stray mark.
    characters = sum(len(line.text) for line in text.lines) or 1
    return sum(len(line.text) * line.confidence for line in text.lines if id(line) not in stacked) / characters


def stacked_letters(lines: Sequence[TextLine]) -> list[TextLine]:
    """Returns lines of one or two letters, close above or below another such line; empty if they are few."""
    short = [line for line in lines if sum(map(str.isalnum, line.text)) in range(1, _MOST_LETTERS + 1)]
    # The comparison is quadratic, which a picture full of single letters would make slow.
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
    # Relative to the smaller of the two, so that a tall headline does not pull in lines near it.
    return 2 * overlap >= min(right - left, right2 - left2) and gap < min(bottom - top, bottom2 - top2)


def _bounds(line: TextLine) -> _Bounds:
    xs, ys = [x for x, _ in line.box], [y for _, y in line.box]
    return min(xs), min(ys), max(xs), max(ys)
