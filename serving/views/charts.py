"""SVG charts for the pages, without script or inline style; colours come from the page's classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from court.events import Side

_WIDTH, _HEIGHT = 300.0, 84.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 34.0, 10.0, 10.0, 20.0


@dataclass(frozen=True, slots=True)
class Point:
    """The entropy of a summary.

    Attributes:
        round: Counted from 1.
        counts: True if the round counts; one that was run ahead, after the side had already stopped, does not.
    """

    round: int
    bits: float
    counts: bool = True


def curve(side: Side, points: Sequence[Point], *, lowest: float, highest: float, rounds: int) -> Markup:
    """Entropy by round, of one side.

    Args:
        lowest: Lower end of the scale, in bits: the same for both sides, so that they can be compared.
    """
    # A nearly level curve stays level: noise drawn over the whole height would look like change.
    low, high = (lowest, highest) if highest - lowest >= 0.2 else (lowest - 0.1, highest + 0.1)

    def x(number: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((number - 1) / (rounds - 1) if rounds > 1 else 0.5)

    def y(bits: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - bits) / (high - low)

    described = ", ".join(f"round {point.round} {point.bits:.2f}" for point in points)
    parts = [_grid_line(y(bits), f"{bits:.1f}") for bits in (high, low)]
    parts += [_scale(x(point.round), _HEIGHT - 5, "middle", point.round) for point in points]
    parts.append(_polyline(f"{x(point.round):.1f},{y(point.bits):.1f}" for point in points))
    for point in points:
        parts.append(
            Markup('<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{title}</title></circle>').format(
                kind="dot" if point.counts else "dot ahead",
                x=x(point.round),
                y=y(point.bits),
                title=f"round {point.round}: {point.bits:.3f} bit",
            )
        )
    return _svg(side.lower(), f"Entropy of the summaries in bits: {described}", parts)


def _svg(kind: str, label: str, parts: Iterable[Markup]) -> Markup:
    box = f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"
    words = Markup('<svg class="curve {}" viewBox="{}" role="img" aria-label="{}">{}</svg>')
    return words.format(kind, box, label, Markup("").join(parts))


def _scale(x: float, y: float, anchor: str, words: object) -> Markup:
    return Markup('<text class="scale" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, words)


def _grid_line(y: float, words: str) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, _WIDTH - _RIGHT, y, y)
    return line + _scale(_LEFT - 5, y + 3.5, "end", words)


def _polyline(points: Iterable[str]) -> Markup:
    return Markup('<polyline class="line" points="{}"/>').format(" ".join(points))


class Column(NamedTuple):
    """A value of a chart, or None where there is none, with its name and its words for people."""

    name: str
    value: float | None
    words: str


def columns(label: str, values: Sequence[Column], *, highest: float | None = None) -> Markup:
    """Values side by side as bars, or as a line where their highest possible value is given.

    Args:
        highest: Upper end of the scale; None for that of the values.
    """
    top = highest or max([each.value or 0.0 for each in values] + [1.0])
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    floor = _HEIGHT - _BOTTOM

    def y(value: float) -> float:
        return floor - (floor - _TOP) * min(value / top, 1.0)

    described = "; ".join(f"{each.name}: {each.words}" for each in values if each.value) or "nothing yet"
    parts = [_grid_line(y(value), f"{value:.0%}" if highest else f"{value:,.0f}") for value in (top, 0.0)]
    for number, each in enumerate(values):
        left = _LEFT + number * step
        # All names where they fit, else the first and the last.
        if len(values) <= 6 or number in (0, len(values) - 1):
            anchor = "middle" if len(values) <= 6 else "end" if number else "start"
            at = left + step * (0.5 if len(values) <= 6 else float(bool(number)))
            parts.append(_scale(at, _HEIGHT - 5, anchor, each.name))
        if each.value is None:
            continue
        title = Markup("<title>{}: {}</title>").format(each.name, each.words)
        if highest:
            mark = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3">{}</circle>').format(
                left + step / 2, y(each.value), title
            )
        else:
            mark = Markup(
                '<rect class="column" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}">'
                "{title}</rect>"
            ).format(
                left=left + step * 0.15, top=y(each.value), width=step * 0.7, height=floor - y(each.value), title=title
            )
        parts.append(mark)
    if highest:
        # A gap where there is no value: a line through it would make one up.
        run: list[str] = []
        for number, each in enumerate([*values, Column("", None, "")]):
            if each.value is not None:
                run.append(f"{_LEFT + (number + 0.5) * step:.1f},{y(each.value):.1f}")
                continue
            if len(run) > 1:
                parts.append(_polyline(run))
            run = []
    return _svg("chart", f"{label}. {described}", parts)


def bar(begin: float, length: float, *, whole: float, kind: str, cached: float = 0.0) -> Markup:
    """One bar of a waterfall.

    Args:
        cached: Share of it that is drawn lighter: of its tokens, those that the model server had in its cache.
    """
    # No step took any time that could be measured.
    if whole <= 0:
        whole = 1.0
    left = 100 * min(max(begin / whole, 0.0), 1.0)
    # A minimum width keeps the bar of the shortest step visible.
    wide = max(0.4, min(100 * length / whole, 100 - left))
    drawn = Markup('<rect class="bar-{kind}" x="{left:.2f}%" y="2" width="{wide:.2f}%" height="10" rx="2"/>').format(
        kind=kind, left=left, wide=wide
    )
    if cached > 0:
        drawn += Markup('<rect class="bar-cached" x="{left:.2f}%" y="9" width="{wide:.2f}%" height="3"/>').format(
            left=left, wide=wide * cached
        )
    return Markup('<svg class="waterfall-bar" width="100%" height="14" aria-hidden="true">{}</svg>').format(drawn)


def gauge(probability: float) -> Markup:
    """Draws a probability of harm as a mark on a line; the page states the figure beside it."""
    at = 100 * min(max(probability, 0.0), 1.0)
    # Not quite to the ends, where the mark would overhang the line.
    return Markup(
        '<svg class="gauge-line" width="100%" height="14" aria-hidden="true"><rect class="gauge-benign" y="4" '
        'width="50%" height="6"/><rect class="gauge-harm" x="50%" y="4" width="50%" height="6"/>'
        '<rect class="gauge-mark" x="{:.2f}%" width="4" height="14" rx="2"/></svg>'
    ).format(min(at, 99.0))
