"""Replies of the probe's agents, parsed strictly: unreadable ones are faults, never scores."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from court.replies import Reply, TextBounds, UnusableReply, Words, object_schema, parse
from eval.probe.taxonomy import NAME, Category, Taxonomy

LOWEST, HIGHEST = 1, 10
"""Lowest and highest score."""
REASON, SENTENCE, DEFINITION, TEXT, ANSWER = 500, 300, 200, 300, 1600
"""Longest reason, misbelief, definition, rewritten text and reference, in characters."""

_REFUSED = "refused"
# Whatever stands where a rating belongs is matched, also what can't be one: passed over, an earlier rating that the
# reply quotes would count.
_RATING = re.compile(r"\[\[\s*([^\[\]\n]{0,300}?)\s*\]\]")
_PLAIN = re.compile(
    r"\brating\W{0,5}?([-\u2212]?(?:\d+(?:[.,]\d+)?|refused)\b(?:\s*(?:[/%]|(?:out\s+)?of\s+\d|(?:[-\u2013]|to\b)\s*\d))?)",
    re.IGNORECASE,
)
"""The fallback: ``Rating: 7``, also in bold or in single brackets; not ``7/10``, ``7 out of 5``, ``7-8`` or ``-7``."""
_SCORE = re.compile(r"\d{1,2}")


_Reason = Annotated[Words, TextBounds(most=REASON), Field(max_length=REASON)]


class _Sorting(Reply):
    categories: list[str] = Field(max_length=50)
    new_name: str = Field(max_length=30)
    new_definition: str = Field(max_length=DEFINITION)


class Sorting(Reply):
    """Reply of a Miner."""

    categories: tuple[str, ...]
    new: Category | None


class Presence(Reply):
    """Reply of the Examiner about a category in a meme."""

    reason: _Reason
    present: bool


class Keeping(Reply):
    """Reply of the Examiner about a misbelief in a rewritten meme."""

    reason: _Reason
    keeps: bool


class Admission(Reply):
    """Reply of the Judge about a proposed category."""

    reason: _Reason
    distinct: bool
    right_grain: bool


class Misbelief(Reply):
    """Reply of the Narrator."""

    misbelief: Annotated[Words, TextBounds(most=SENTENCE), Field(max_length=SENTENCE)]


class Reference(Reply):
    """Reply of the senior."""

    answer: Annotated[Words, TextBounds(most=ANSWER), Field(max_length=ANSWER)]


class Rewriting(Reply):
    """Reply of the Refiner."""

    explanation: _Reason
    rewritten: Annotated[Words, TextBounds(most=TEXT), Field(max_length=TEXT)]


class Refused(Exception):
    """The Scorer says that the answer declined to look at the meme."""


def longest(kind: type[Reply]) -> int:
    """Returns the maximum length of the texts of a reply together, in characters."""
    marks = (mark for info in kind.model_fields.values() for mark in info.metadata)
    return sum(mark.most for mark in marks if isinstance(mark, TextBounds))


def sorting_schema(taxonomy: Taxonomy) -> dict[str, Any]:
    """JSON schema of a Miner's reply."""
    return object_schema(
        {
            "categories": {
                "type": "array",
                "items": {"type": "string", "enum": list(taxonomy.names)},
                "maxItems": len(taxonomy.names),
            },
            # Without a pattern, which many servers refuse in a schema: :func:`parse_sorting` checks the form.
            "new_name": {"type": "string", "maxLength": 30},
            "new_definition": {"type": "string", "minLength": 0, "maxLength": DEFINITION},
        }
    )


def parse_sorting(text: str, taxonomy: Taxonomy) -> Sorting:
    """A Miner's vote. A "new" category that is already listed counts as a vote for it. Raises Fault."""
    sorting = parse(_Sorting, text)
    if unknown := set(sorting.categories) - set(taxonomy.names):
        raise UnusableReply("REPLY_MALFORMED", f"{len(unknown)} of its categories are not on the list")
    name, definition = " ".join(sorting.new_name.split()), " ".join(sorting.new_definition.split())
    voted = dict.fromkeys(sorting.categories)
    # Before the form is checked: a listed name need not be new, nor come with a definition.
    if name in taxonomy:
        return Sorting(categories=tuple({**voted, name: None}), new=None)
    if not name:
        return Sorting(categories=tuple(voted), new=None)
    if not NAME.fullmatch(name):
        raise UnusableReply("REPLY_MALFORMED", "the new name must be one to three words in small letters, or empty")
    if not definition:
        raise UnusableReply("REPLY_MALFORMED", "the new category needs a definition")
    return Sorting(categories=tuple(voted), new=Category(name=name, definition=definition))


def parse_rewriting(text: str, before: str) -> Rewriting:
    """A rewritten text that differs from the one before. Raises Fault."""
    rewriting = parse(Rewriting, text)
    # Differences in white space alone do not count.
    if rewriting.rewritten.split() == before.split():
        raise UnusableReply("REPLY_MALFORMED", "the rewritten text is the one that was to be rewritten")
    return rewriting


def parse_rating(text: str) -> int:
    """The score in a Scorer's reply, 1 to 10.

    The last ``[[n]]`` counts, as the reply may quote others before it. If there is none, the last ``Rating: n`` counts.
    Anything but an integer from 1 to 10 is rejected, not rounded, clipped or guessed.

    Raises:
        Refused: The reply says that the answer declined.
        Fault: The reply has no readable rating.
    """
    # The form that was asked for goes before the plain one, wherever in the reply they stand.
    found = _RATING.findall(text) or _PLAIN.findall(text)
    if not found:
        raise UnusableReply("REPLY_MALFORMED", "it ends with no rating like Rating: [[7]]")
    # The last one: reasons before it may speak of other scores.
    last = found[-1].lower()
    if last == _REFUSED:
        raise Refused
    if not _SCORE.fullmatch(last) or not LOWEST <= int(last) <= HIGHEST:
        raise UnusableReply("REPLY_MALFORMED", f"its rating is no whole number from {LOWEST} to {HIGHEST}")
    return int(last)
