"""Numbers and text of strangers as a report writes them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from eval.scores.metrics import Figure

NOTHING = "–"
"""Stands where there is no figure."""


def percent(value: float | None) -> str:
    """A share as a number of percent, one place: ``84.2``."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def percent_span(figure: Figure | None) -> str:
    """Its interval: ``80.1 to 88.0``."""
    return "" if figure is None else f"{100 * figure.low:.1f} to {100 * figure.high:.1f}"


def places(value: float | None) -> str:
    """Three places: ``0.118``."""
    return NOTHING if value is None else f"{value:.3f}"


def places_span(figure: Figure | None) -> str:
    """Its interval: ``0.101 to 0.140``."""
    return "" if figure is None else f"{figure.low:.3f} to {figure.high:.3f}"


def points(figure: Figure) -> str:
    """A difference of two shares in percentage points, with its sign: ``+1.2``."""
    return _signed(figure.value)


def points_span(figure: Figure) -> str:
    """Its interval: ``−2.0 to +4.4``."""
    return f"{_signed(figure.low)} to {_signed(figure.high)}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def lower(word: object) -> str:
    """A member of one of our enumerations as a word: ``NOT_HARMFUL`` is ``not harmful``."""
    return str(word).replace("_", " ").lower()


def listed(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Cuts text of strangers where a character can't be seen: pieces, and whether each stands for such a character.

    Control, bidirectional and other invisible characters come as their code points (``U+202E``): they can turn what a
    reader sees into something else than what was judged. Line breaks and tabs stay.
    """
    plain: list[str] = []
    for character in text:
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co"):
            plain.append(character)
            continue
        if plain:
            yield "".join(plain), False
            plain.clear()
        yield f"U+{ord(character):04X}", True
    if plain:
        yield "".join(plain), False


def plain(text: object) -> str:
    """Text of strangers on one line, with invisible characters as their code points."""
    return " ".join("".join(piece for piece, _ in pieces(str(text))).split())
