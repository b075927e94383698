"""Filter for queries to a remote search endpoint: no contact data, and no names known only from the picture.

Names can't be recognised reliably by code. The filter removes anything formed like an e-mail address, a handle or a
telephone number, and words that are capitalised in the picture's description but absent from the meme's text, so that
persons seen in a picture are not looked up. A name that a model knows by itself or spells differently gets through.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

HELD_BACK = "QUERY_HELD_BACK"
"""Failure code of a search whose query is empty after filtering."""

# Claims are often about figures and dates, so a number counts as a telephone number only with a country prefix, a trunk
# prefix and nine digits, an area code in brackets, or the usual North American grouping.
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
_WORD = re.compile(r"[^\W\d_]+")
_NO_NAMES = frozenset(
    _WORD.findall(
        "a above all an and another are as at behind below beside between both by each he her here his in is it its "
        "next no of on one other she some that the their there these they this those three to two under with man men "
        "woman women person people child children picture image photo photograph drawing cartoon text words"
    )
)
"""Words that often begin sentences of an English description and that a query would miss."""
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")


@dataclass(frozen=True, slots=True)
class OutgoingQuery:
    """A filtered query."""

    text: str
    held_back: int = 0


def names_of_picture(text: str, description: str | None) -> frozenset[str]:
    """Returns case-folded words of a picture's description that may be names and are absent from the meme's text."""
    # Words that also occur in lower case, and words that commonly begin sentences, are not names; any other first word
    # of a sentence may be one.
    if description is None:
        return frozenset()
    # Normalised, as the same letter may be encoded as one character or two.
    words = _WORD.findall(unicodedata.normalize("NFKC", _POSSESSIVE.sub("", description)))
    # Unlike names, ordinary words usually also occur in lower case.
    small = {_folded(word) for word in words if not word[0].isupper()}
    known = _NO_NAMES | small | {_folded(word) for word in _WORD.findall(unicodedata.normalize("NFKC", text))}
    return frozenset(_folded(word) for word in words if word[0].isupper()) - known


def outgoing(query: str, names: Collection[str]) -> OutgoingQuery:
    """Removes contact data and names from a query."""
    left, held_back = _CONTACT.subn(" ", unicodedata.normalize("NFKC", query))

    def without(match: re.Match[str]) -> str:
        nonlocal held_back
        if _folded(match[0]) not in names:
            return match[0]
        held_back += 1
        return " "

    left = _WORD.sub(without, _POSSESSIVE.sub("", left) if names else left)
    # Unchanged if nothing had to be removed.
    if not held_back:
        return OutgoingQuery(query)
    # Drops punctuation left over around removed words.
    sent = [word for word in left.split() if any(char.isalnum() for char in word)]
    return OutgoingQuery(" ".join(sent), held_back)


def _folded(word: str) -> str:
    return word.casefold()
