"""Words of a query that may go to a search endpoint: no contact data, and no name that only the picture gave.

Code can't tell a name by itself. It holds back what has the form of an e-mail address, a handle or a telephone number,
and words that the description of the picture begins with a capital letter and that the meme's text does not hold: who
is seen in a picture is nobody's to look up. A name that a model knows by itself, or spells otherwise, gets through.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

HELD_BACK = "QUERY_HELD_BACK"
"""Failure of a search of whose query nothing may go out."""

# Figures and dates are what claims are about: a number is taken for that of a telephone only where it has the country's
# prefix, a trunk prefix and nine digits, an area in brackets, or the groups that are usual in North America.
_CONTACT = re.compile(
    r"""
      [^\s@<>()"',;]+@[^\s@<>()"',;]+\.[^\s@<>()"',;]+            # an e-mail address
    | (?<![\w.])@\w(?:[\w.]*\w)?                                  # a handle
    | (?<![\w.,])(?:\+|00)[1-9](?:[\s().\-/]{0,2}\d){6,}
    | (?<![\w.,])0[1-9](?:[\s.\-/]{0,2}\d){7,}
    | (?<![\w.,])\(\d{2,5}\)(?:[\s.\-/]{0,2}\d){5,}
    | (?<![\w.,\-])\d{3}[\s.\-]\d{3}[\s.\-]\d{4}(?![\w\-])
    """,
    re.VERBOSE,
)
# Words that an English description begins sentences with and that would be missed in a query.
# fmt: off
_NO_NAMES = frozenset((
    "a", "above", "all", "an", "and", "another", "are", "as", "at", "behind", "below", "beside", "between", "both",
    "by", "each", "he", "her", "here", "his", "in", "is", "it", "its", "next", "no", "of", "on", "one", "other",
    "she", "some", "that", "the", "their", "there", "these", "they", "this", "those", "three", "to", "two", "under",
    "with", "man", "men", "woman", "women", "person", "people", "child", "children", "picture", "image", "photo",
    "photograph", "drawing", "cartoon", "text", "words",
))
# fmt: on
_WORD = re.compile(r"[^\W\d_]+")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")


@dataclass(frozen=True, slots=True)
class OutgoingQuery:
    """A query as it may be sent.

    Attributes:
        text: Its words; empty where none is left.
        held_back: Number of words, addresses and numbers that were left out.
    """

    text: str
    held_back: int = 0


def names_of_picture(text: str, description: str | None) -> frozenset[str]:
    """Words of a picture's description that may be names and that the meme's text does not hold, folded.

    Words that the description writes with a small letter as well are none, nor are those that sentences usually begin
    with; any other first word of a sentence may be one.
    """
    if description is None:
        return frozenset()
    # Of one form: the same letter may be written as one character or as two.
    words = _WORD.findall(unicodedata.normalize("NFKC", _POSSESSIVE.sub("", description)))
    # What is a word of the language stands somewhere in small letters, as names do not.
    small = {_folded(word) for word in words if not word[0].isupper()}
    known = _NO_NAMES | small | {_folded(word) for word in _WORD.findall(unicodedata.normalize("NFKC", text))}
    return frozenset(_folded(word) for word in words if word[0].isupper()) - known


def outgoing(query: str, names: Collection[str]) -> OutgoingQuery:
    """The query without contact data and names."""
    left, held_back = _CONTACT.subn(" ", unicodedata.normalize("NFKC", query))

    def without(match: re.Match[str]) -> str:
        nonlocal held_back
        if _folded(match[0]) not in names:
            return match[0]
        held_back += 1
        return " "

    left = _WORD.sub(without, _POSSESSIVE.sub("", left) if names else left)
    # Letter for letter as it was, where nothing had to go.
    if not held_back:
        return OutgoingQuery(query)
    # Signs that stood around what is gone find nothing.
    sent = [word for word in left.split() if any(char.isalnum() for char in word)]
    return OutgoingQuery(" ".join(sent), held_back)


def _folded(word: str) -> str:
    return word.casefold()
