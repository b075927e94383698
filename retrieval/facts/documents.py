"""Documents of a corpus, their passages, and the trust in each source."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from urllib.parse import urlsplit

from pydantic import Field

from court.values import Value

PASSAGE = 1000
"""Characters of a passage, at most."""
OVERLAP = 100
"""Characters that a passage shares with the one before it, at most: a sentence that is cut stands whole in one."""
MAX_TEXT = 5_000_000
"""Characters of a document, at most."""
DATE = r"^(\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?)?$"
"""A year, a month or a day, as ISO 8601 has them; empty where none is known. Documents are read by :func:`is_date`."""

# Passages end at a border in the text; the first kind of border that is far enough in is used.
_BORDERS = tuple(re.compile(border) for border in (r"\n\s*\n", r"(?<=[.!?…。！？])[\"”»')\]]*\s+|\n", r"\s+"))
# All control characters except the tab and the line feed.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALF = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which JSON may contain and UTF-8 can't encode."""
_LEAST_FILLED = 0.4
"""Share of a passage that must lie before a border for it to be used: else a heading would be a passage of its own."""


class FactDocument(Value):
    """A document of a corpus."""

    id: str = Field(min_length=1, max_length=200)
    title: str = Field(default="", max_length=500)
    text: str = Field(min_length=1, max_length=MAX_TEXT)
    url: str = Field(default="", max_length=2000)
    date: str = Field(default="", pattern=DATE)
    source: str = Field(default="", max_length=200)


def is_date(text: str) -> bool:
    """True for an empty text and for a valid year, month or day; 2024-02-30 has the form but does not exist."""
    if not re.fullmatch(DATE, text):
        return False
    try:
        # A missing month or day is filled in as the first.
        date.fromisoformat(text + "0001-01-01"[len(text) :])
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document, by its offsets in the text."""

    document: int
    start: int
    end: int


def passages_of(text: str, document: int = 0) -> Iterator[Passage]:
    """Cuts a text into passages of at most :data:`PASSAGE` characters, at paragraph borders where it has them."""
    # The passages cover all but white space. Without a paragraph border, sentences, lines or words are kept whole, in
    # this order of preference.
    start = _after_space(text, 0)
    while start < len(text):
        end = _end_of_passage(text, start)
        yield Passage(document, start, start + len(text[start:end].rstrip()))
        following = _after_space(text, end)
        if following >= len(text):
            return
        # Starts with a word that overlaps the previous passage, but never at the start of that passage.
        shared = re.compile(r"\s").search(text, max(start + 1, end - OVERLAP), end)
        start = _after_space(text, shared.end()) if shared else following


def tidy(text: str) -> str:
    """Normalises to NFC, converts line ends to line feeds, and replaces control characters by spaces."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    return _HALF.sub("\ufffd", _CONTROL.sub(" ", unicodedata.normalize("NFC", lines))).strip()


def trust_of(source: str, url: str, trust: Mapping[str, int]) -> int:
    """Trust in a document: that of its source, else of its host or the nearest parent domain, else 0."""
    if source in trust:
        return trust[source]
    host = host_of(url) or source
    while host:
        if host in trust:
            return trust[host]
        host = host.partition(".")[2]
    return 0


def host_of(url: str) -> str:
    """Host of an address, without ``www.``; empty if it has none."""
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.")
    except ValueError:
        return ""


def _end_of_passage(text: str, start: int) -> int:
    """Offset after the last character of the passage that starts at ``start``."""
    furthest = start + PASSAGE
    if furthest >= len(text):
        return len(text)
    for border in _BORDERS:
        ends = [found.start() for found in border.finditer(text, start, furthest + 1)]
        if ends and ends[-1] - start >= _LEAST_FILLED * PASSAGE:
            return ends[-1]
    return furthest


def _after_space(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index
