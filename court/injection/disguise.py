"""Names the disguises of a text that people can read, to explain to reviewers why a machine could not."""

from __future__ import annotations

import re

_LOOKALIKES = "авекмнорстухіјѕԁԛԝьαβεικνορτυχγωАВЕКМНОРСТУХІЈЅ"
"""Cyrillic and Greek letters that look like Latin ones."""
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])(?=\w*[{_LOOKALIKES}])\w+\b")
_INVISIBLE = re.compile("[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u200b\u2060-\u2064\u3164\ufeff\uffa0]")
_APART = re.compile(r"(?<![^\W_])[^\W_](?:[\W_]{1,3}[^\W_](?![^\W_])){4,}")


def disguises_in(text: str) -> tuple[str, ...]:
    """Returns descriptions of a text's disguises; empty if there are none."""
    found = {
        "letters of another alphabet that look like Latin ones": _MIXED.search(text),
        "characters that are not seen": _INVISIBLE.search(text),
        "letters set apart from each other": _APART.search(text),
    }
    return tuple(name for name, match in found.items() if match)
