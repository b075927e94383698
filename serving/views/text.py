"""What templates turn values into: text of strangers made safe, moments, durations and counts for people."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime

from markupsafe import Markup, escape


def show_hidden(text: object) -> Markup:
    """Text of strangers with everything visible: what can't be seen stands as its code point, marked as ours."""
    parts = []
    for piece, hidden in split_hidden(str(text)):
        if hidden:
            parts.append(Markup('<span class="unseen" title="a character that can’t be seen">{}</span>').format(piece))
        else:
            parts.append(escape(piece))
    return Markup("").join(parts)


def when(at: datetime) -> Markup:
    """A moment, for people and machines."""
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc.day} {utc:%b %Y %H:%M}"
    )


def clock(at: datetime) -> Markup:
    """The time of day of a moment, where the day stands elsewhere."""
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{:%H:%M:%S}</time>').format(utc.isoformat(timespec="milliseconds"), utc)


def kind(name: str) -> str:
    """The kind of an event as words: ``NearDuplicatesFound`` is ``near duplicates found``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def word(value: object) -> str:
    """A member of one of our enumerations as a word: ``NOT_HARMFUL`` is ``not harmful``."""
    return str(value).replace("_", " ").lower()


def seconds(value: float) -> str:
    """A duration: ``840 ms``, ``3.1 s``, ``2 min 5 s``."""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value // 60:.0f} min {value % 60:.0f} s"


def number(value: int) -> str:
    """A count, its thousands apart by narrow spaces."""
    return f"{value:,}".replace(",", "\u202f")


FILTERS = {
    "seen": show_hidden,
    "when": when,
    "clock": clock,
    "kind": kind,
    "word": word,
    "seconds": seconds,
    "number": number,
}
"""All of them, by the names that templates know."""


_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u2800\u3164\uffa0")
"""Letters, marks and symbols that show nothing, and separators that break a line without saying so."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors: one after a character says how it looks, more can carry anything."""
_OF_EMOJI = "\ufe0e\ufe0f"


def split_hidden(text: str) -> Iterator[tuple[str, bool]]:
    """Cuts text where a character can't be seen: pieces, and whether each stands for such a character.

    Control, bidirectional and other invisible characters come as their code points (``U+202E``). Line breaks and tabs
    stay, and so does one selector after a symbol: it makes the symbol an emoji.
    """
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
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
