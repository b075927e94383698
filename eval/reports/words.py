"""Formatting of numbers and untrusted text in reports."""

from __future__ import annotations

from collections.abc import Iterable

from court.display import split_hidden
from eval.scores.bootstrap import Figure

NOTHING = "–"
"""Placeholder for a missing figure."""


def percent(value: float | None) -> str:
    """A share in percent, with one decimal: ``84.2``."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def percent_span(figure: Figure | None) -> str:
    """Interval of a share in percent: ``80.1 to 88.0``."""
    return "" if figure is None else f"{100 * figure.low:.1f} to {100 * figure.high:.1f}"


def places(value: float | None) -> str:
    """A value with three decimals: ``0.118``."""
    return NOTHING if value is None else f"{value:.3f}"


def places_span(figure: Figure | None) -> str:
    """Interval of a value: ``0.101 to 0.140``."""
    return "" if figure is None else f"{figure.low:.3f} to {figure.high:.3f}"


def points(figure: Figure) -> str:
    """A difference of two shares in percentage points, with its sign: ``+1.2``."""
    return _signed(figure.value)


def points_span(figure: Figure) -> str:
    """Interval of a difference in percentage points: ``−2.0 to +4.4``."""
    return f"{_signed(figure.low)} to {_signed(figure.high)}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def listed(parts: Iterable[str]) -> str:
    """Joins words: ``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def traps_in_words(caveats: Iterable[str]) -> list[str]:
    """Caveats of a data set's card, as sentences."""
    return [f"On this data set: {plain(caveat).rstrip('.')}." for caveat in caveats]


def plain(text: object) -> str:
    """Untrusted text on one line, with invisible characters as code points."""
    return " ".join("".join(piece for piece, _ in split_hidden(str(text))).split())
