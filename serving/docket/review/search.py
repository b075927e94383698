"""Grammar of a search: words, ids and filters such as ``label:harmful``, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from court.display import word
from court.errors import BadRequest
from court.events import ReviewOutcome
from court.record import TrialState
from court.verdict import Label
from serving.docket.review.projection import ReviewPriority
from serving.docket.store.listing import TrialFilter

_LONGEST, _MOST = 1000, 50
"""Characters and terms: each term is a condition, and databases limit their number."""
_TERM = re.compile(r'(?:(?P<key>[A-Za-z]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"(?!\S)|(?P<bare>\S*))\s*')


def _named(members: Any) -> Mapping[str, Any]:
    return {word(member).replace(" ", "-"): member for member in members}


_IS: Mapping[str, Mapping[str, Any]] = {
    "waiting": {"waiting": True},
    "reviewed": {"reviewed": True},
    "unreviewed": {"reviewed": False},
    "doubtful": {"needs_review": True},
    **{name: {"outcomes": frozenset({each})} for name, each in _named(ReviewOutcome).items()},
    "running": {"states": frozenset({TrialState.OPEN})},
    "decided": {"states": frozenset({TrialState.DECIDED})},
    "failed": {"states": frozenset({TrialState.FAILED})},
    "erased": {"erased": True},
}
CHOICES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "label": {name: {"holds": frozenset({each})} for name, each in _named(Label).items()},
    "is": _IS,
    "reason": {name: {"reasons": frozenset({str(each)})} for name, each in _named(ReviewPriority).items()},
    "court": {name: {"labels": frozenset({each})} for name, each in _named(Label).items()},
}
"""Filters with fixed values, each with the fields of :class:`TrialFilter` that it sets."""
FREE: Final[Mapping[str, str]] = {
    **{"namespace": "namespace", "content": "content_id", "request": "request_id", "id": "trial_id", "model": "model"},
    **{"category": "category", "reviewer": "reviewer", "since": "opened_from", "until": "opened_until"},
    "under": "decided_under_s",
}
"""Filters with any value, each with the field that it sets."""
KEYS: Final = (*CHOICES, *FREE)
"""Names of all filters."""


@dataclass(frozen=True, slots=True)
class Search:
    """Terms of a search as they are written, and the filter that they make."""

    terms: tuple[str, ...]
    which: TrialFilter


def parse_search(text: str) -> Search:
    """Reads a search. Raises BadRequest that says which filter or value is unknown, and which there are."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise _refusal(f"A search has at most {_LONGEST:,} characters.")
    if text != text.encode("utf-8", "replace").decode() or "\0" in text:
        raise _refusal("A search is text in UTF-8, without the character NUL.")
    terms, words, fields = list[str](), list[str](), dict[str, Any]()
    for key, value, bare in _terms(text):
        terms.append(_written(key, value))
        if key is None:
            words.append(value)
            continue
        for name, new in _fields(key, value, quoted=not bare).items():
            old = fields.get(name)
            # Values of one filter are alternatives: label:harmful label:undecided finds both.
            if isinstance(old, frozenset):
                new |= old
            elif name in fields and old != new:
                raise _refusal(f"`{key}:` stands twice, and no trial meets both.")
            fields[name] = new
    if len(terms) > _MOST:
        raise _refusal(f"Search for at most {_MOST} words and filters at once.")
    return Search(tuple(terms), TrialFilter(words=tuple(dict.fromkeys(words)), **fields))


def _terms(text: str) -> Iterator[tuple[str | None, str, bool]]:
    for found in _TERM.finditer(text):
        key, quoted, bare = found["key"], found["quoted"], found["bare"]
        value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        if key is not None or value:
            yield key and key.lower(), value, quoted is None


def _written(key: str | None, value: str) -> str:
    # Written back so that reading it gives the same term again.
    plain = value and not re.search(r'[\s"\\]', value) and (key is not None or not re.match("[A-Za-z]+:", value))
    shown = value if plain else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return shown if key is None else f"{key}:{shown}"


def _fields(key: str, value: str, *, quoted: bool) -> Mapping[str, Any]:
    if key in CHOICES:
        found = CHOICES[key].get(value.lower().replace("_", "-"))
        if found is None:
            raise _refusal(f"unknown value `{key}:{value}`; known: {', '.join(CHOICES[key])}.")
        return found
    if key not in FREE:
        raise _refusal(
            f"unknown filter `{key}:`; known: {', '.join(KEYS)}. Put words with a colon between quotation marks."
        )
    if not value and not quoted:
        raise _refusal(f"`{key}:` needs a value behind the colon.")
    if key in ("since", "until"):
        return {FREE[key]: day_of(key, value)}
    if key == "under":
        if not re.fullmatch(r"[0-9]{1,4}s", value):
            raise _refusal("`under:` takes the seconds of a decision, such as 2s.")
        return {FREE[key]: float(value[:-1])}
    return {FREE[key]: value}


def day_of(key: str, value: str) -> datetime | None:
    """Returns the bound that a day is; None for the end of the calendar. Raises BadRequest."""
    try:
        if (ago := re.fullmatch(r"([0-9]{1,4})d", value)) is not None:
            return datetime.now(UTC) - timedelta(days=int(ago[1]))
        # The last day is inclusive.
        return datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=key == "until")
    except OverflowError:
        return None  # the end of the calendar is no bound
    except ValueError:
        raise _refusal(f"`{key}:` takes a day such as 2026-11-22, or 7d for the last seven.") from None


def _refusal(text: str) -> BadRequest:
    return BadRequest(text, reason="BAD_SEARCH", field="q")
