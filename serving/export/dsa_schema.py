"""Checks of a statement of reasons for the EU's DSA Transparency Database, by ``dsa_schema.json``.

Source: the database's API documentation, https://transparency.dsa.ec.europa.eu/page/api-documentation, as it stands
since the categories and keywords were changed on 1 July 2025. What the words mean is explained at
https://transparency.dsa.ec.europa.eu/page/additional-explanation-for-statement-attributes. The duty is that of Articles
17 and 24(5) of Regulation (EU) 2022/2065.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.resources import files
from typing import Any

_DATA = json.loads(files(__package__).joinpath("dsa_schema.json").read_text("utf-8"))

SOURCE: str = _DATA["source"]
AS_OF: str = _DATA["as_of"]
WORDS: Mapping[str, Sequence[str]] = {**_DATA["words"], "category_addition": _DATA["words"]["category"]}
"""Fields that take certain words, and those."""
LISTS: Sequence[str] = _DATA["lists"]
"""Fields that take several, in a list."""
LENGTHS: Mapping[str, int] = _DATA["lengths"]
"""Most characters of the fields that take text."""
DATES: Mapping[str, date] = {name: date.fromisoformat(day) for name, day in _DATA["earliest"].items()}
"""Fields that take a day, and the earliest that is taken."""
REQUIRED: Sequence[str] = _DATA["required"]
"""Fields without which no statement is taken."""
RESTRICTIONS: Sequence[str] = _DATA["restrictions"]
"""Of these, at least one."""

# \Z and not $, which would let a line break at the end pass.
_PUID = re.compile(r"[A-Za-z0-9_-]{1,500}\Z")
_LANGUAGE = re.compile(r"[A-Z]{2}\Z")


def faults(statement: Mapping[str, Any]) -> Sequence[str]:
    """Lists the reasons for which the database would refuse a statement, one sentence each; empty if there are none."""
    return [*_wrong(statement), *(f"{name}: missing" for name in missing(statement))]


def missing(statement: Mapping[str, Any]) -> Sequence[str]:
    """Fields that are required and not there. Of those restrictions of which one is, the first stands for all."""
    absent = [name for name in REQUIRED if not statement.get(name)]
    if not any(statement.get(name) for name in RESTRICTIONS):
        absent.insert(0, RESTRICTIONS[0])
    absent += [
        name for name in _DATA["grounds"].get(str(statement.get("decision_ground")), ()) if not statement.get(name)
    ]
    for name in ("decision_visibility", "decision_monetary", "content_type"):
        value = statement.get(name)
        chosen = value if isinstance(value, list) else [value]
        # The database takes OTHER only together with words that say what is meant.
        if any(str(one).endswith("_OTHER") for one in chosen) and not statement.get(f"{name}_other"):
            absent.append(f"{name}_other")
    return absent


def _wrong(statement: Mapping[str, Any]) -> Iterator[str]:
    known = {*WORDS, *LENGTHS, *DATES, "content_language", "content_id"}
    for name, value in statement.items():
        if name not in known:
            yield f"{name}: there is no such field"
        # A field without a value is as good as absent; whether it may be is for missing().
        elif value is None:
            continue
        elif name in WORDS:
            yield from _words(name, value)
        elif name in DATES:
            yield from _day(name, value)
        elif name in LENGTHS and (not isinstance(value, str) or len(value) > LENGTHS[name]):
            yield f"{name}: at most {LENGTHS[name]} characters"
    if statement.get("puid") is not None and not _PUID.match(str(statement["puid"])):
        yield "puid: letters a-z and A-Z, digits, - and _ only"
    if statement.get("content_language") is not None and not _LANGUAGE.match(str(statement["content_language"])):
        yield "content_language: two capital letters of ISO 639-1"


def _words(name: str, value: Any) -> Iterator[str]:
    if name in LISTS and not (isinstance(value, list) and value):
        yield f"{name}: a list of at least one"
        return
    chosen = value if name in LISTS else [value]
    if wrong := [str(one) for one in chosen if one not in WORDS[name]]:
        yield f"{name}: {', '.join(wrong)} is none of its words"


def _day(name: str, value: Any) -> Iterator[str]:
    try:
        # fromisoformat() also reads 20250701 and week dates, which the database refuses.
        day = date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(value)) else None
    except ValueError:
        day = None
    if day is None or day < DATES[name]:
        yield f"{name}: a day as YYYY-MM-DD, not before {DATES[name]}"
