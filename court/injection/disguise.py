"""Names the disguises of a text that people can read, to explain to reviewers why a machine could not."""

from __future__ import annotations

import re
import unicodedata

_LOOKALIKES = "авекмнорстухіјѕԁԛԝьαβεικνορτυχγωАВЕКМНОРСТУХІЈЅ"
"""Cyrillic and Greek letters that look like Latin ones."""
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])(?=\w*[{_LOOKALIKES}])\w+\b")
_NO_SPACES = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff"
"""Scripts that mark the ends of words by a zero-width space, such as Thai, Lao, Tibetan, Burmese and Khmer."""
_INVISIBLE = re.compile(
    f"[\u00ad\u034f\u115f\u1160\u2060-\u2064\u3164\ufeff\uffa0]|(?<![{_NO_SPACES}])\u200b(?![{_NO_SPACES}])"
)
_DECORATION = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]")
"""Marks that belong to no script and can be put on any letter."""
_SYLLABLE_ENDS = str.maketrans("", "", "\u0f0b\u0f0c\u200b\u200c\u200d")
"""Signs within words: between syllables of Tibetan, and joiners."""
_APART = re.compile(r"(?<![^\W_])[^\W_](?:[\W_]{1,3}[^\W_](?![^\W_])){4,}")


def disguises_in(text: str) -> tuple[str, ...]:
    """Returns descriptions of a text's disguises; empty if there are none."""
    found = {
        "letters of another alphabet that look like Latin ones": _MIXED.search(text),
        "characters that are not seen": _INVISIBLE.search(text),
        "letters set apart from each other": _APART.search(_letters_of(text)),
    }
    return tuple(name for name, match in found.items() if match)


def _letters_of(text: str) -> str:
    """Returns the text with marks that write vowels as letters, as they are in the scripts that have them."""
    bare = _DECORATION.sub("", text).translate(_SYLLABLE_ENDS)
    return "".join("x" if unicodedata.category(letter)[0] == "M" else letter for letter in bare)
