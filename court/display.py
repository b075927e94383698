"""Formatting of enumerations, scores and untrusted text for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u2800\u3164\uffa0")
"""Invisible letters, marks and symbols, and line separators."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors: one selects a character's appearance, several can carry hidden data."""
_OF_EMOJI = "\ufe0e\ufe0f"


def word(value: object) -> str:
    """Formats a member of an enumeration as words: ``NOT_HARMFUL`` becomes ``not harmful``."""
    return str(value).replace("_", " ").lower()


CLOSE_CALL = 0.35
"""Risk above which a verdict is shown as a close call, whatever strengths its score leads to."""


def shown_score(score: float | None, risk: float | None, *, harmful: bool) -> float | None:
    """Returns the probability of harm to show people: that of the risk, which knows how far the precedents are."""
    if score is None or risk is None:
        return score
    p = 1 - risk if harmful else risk
    return min(max(p, CLOSE_CALL), 1 - CLOSE_CALL) if risk > CLOSE_CALL else p


def split_hidden(text: str) -> Iterator[tuple[str, bool]]:
    """Splits text at invisible characters; yields each piece and True if it represents such a character."""
    # Control, bidirectional and other invisible characters become code points (``U+202E``). Line breaks and tabs stay,
    # and so does one variation selector after a symbol, which makes it an emoji.
    plain: list[str] = []
    before = ""
    for character in text:
        if _shows(character, before):
            plain.append(character)
        else:
            if plain:
                yield "".join(plain), False
                plain.clear()
            yield f"U+{ord(character):04X}", True
        before = character
    if plain:
        yield "".join(plain), False


def _shows(character: str, before: str) -> bool:
    if character in "\n\t":
        return True
    if character in _OF_EMOJI:
        return bool(before) and (unicodedata.category(before) in ("So", "Sm") or before in "#*0123456789‼⁉")
    if character in _FILLERS or any(ord(character) in selectors for selectors in _SELECTORS):
        return False
    # Control, format, surrogate, private-use and unassigned characters.
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
