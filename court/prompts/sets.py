"""Sets of prompts: the packaged ones, and custom ones in a folder, validated before any trial uses them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from court.errors import BadRequest
from court.prompts import FILES, ROLES, Prompt, PromptSet, placeholders_in

PACKAGED = "1"
"""Name of the packaged set that is used by default."""
_NEEDED = frozenset(ROLES)
_VERSION = re.compile(r"[A-Za-z0-9._-]{1,40}")
# Every call sends these prompts: longer ones would leave no room for a meme.
_MOST_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Placeholders of one template.

    Attributes:
        required: Names that it must contain: without one, a role would not see what it is asked about, or could not
            refer to a precedent.
    """

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


def _names(required: str = "", optional: str = "") -> Placeholders:
    return Placeholders(frozenset(required.split()), frozenset(optional.split()))


SYSTEM: Mapping[str, Placeholders] = {
    "proposer": _names("secret"),
    "advocate": _names("secret stance", "policy"),
    "judge": _names("secret policy"),
    "repair": _names(),
}
"""Placeholders of the system messages. Each contains the secret: a reply that repeats it leaked its instructions."""

TASKS: Mapping[str, Mapping[str, Placeholders]] = {
    "proposer": {"describe": _names(), "answer": _names("question")},
    "advocate": {
        "material": _names("text description"),
        "exchange": _names("question answer", "number"),
        "ask": _names(),
        "summarise": _names("", "opening"),
    },
    "judge": {
        "case": _names(),
        "precedent": _names("number"),
        "precedent_text": _names("number label text", "similarity"),
        "precedent_categories": _names("number categories"),
        "tally": _names("", "voters harmful probability"),
        "text": _names("text"),
        "description": _names("description"),
        "arguments": _names("accuser defender"),
        "judge": _names(),
        "odds": _names("a b"),
    },
    "repair": {"repair": _names("fault")},
}
"""Tasks of each prompt, with their placeholders."""
OPTIONAL_TASKS: Mapping[str, frozenset[str]] = {name: frozenset({"text_alone"}) for name in ("advocate", "judge")}
"""Tasks without placeholders that a set may leave to packaged words."""

_SIDES = ("accuser", "defender")
_FURTHER: Mapping[str, tuple[str, ...]] = {"advocate": ("stances", "openings"), "judge": ("label_last",)}
"""Further keys of some prompts: openings have a side reply in quotes and a reason; with ``label_last`` the Judge
gives its rationale first."""
_MOST_OPENING = 60
STANCES = ("accuser", "defender", "none")
"""Stances of the advocate."""


@cache
def packaged(version: str = PACKAGED) -> PromptSet:
    """Returns a packaged set. Raises BadRequest if there is no such version."""
    if version not in packaged_versions():
        known = ", ".join(packaged_versions())
        raise BadRequest(
            f"There are no packaged prompts of version {version}: there are {known}. A set of one's own is a folder.",
            reason="PROMPTS_UNKNOWN",
            field="trial.prompts",
        )
    return _set(version, {name: source(version, name) for name in FILES})


def packaged_versions() -> tuple[str, ...]:
    """Versions of the packaged sets, in order."""
    found = (re.fullmatch(r"judge\.(\d+)\.toml", entry.name) for entry in files("court.prompts").iterdir())
    # As numbers, so that 10 comes after 9.
    return tuple(sorted((match[1] for match in found if match), key=int))


_OPENED: dict[str, PromptSet] = {}
"""Sets opened in this process, by digest, so that messages can be rebuilt from records."""


def open_set(place: str) -> PromptSet:
    """Opens the set of prompts that a setting names.

    Args:
        place: A packaged version, or the path of a folder with ``proposer.toml``, ``advocate.toml`` and
            ``judge.toml``.

    Raises:
        BadRequest: There is no such version or folder, or the set is invalid; the message names all faults.
    """
    # A folder whose name is a number can still be named by its path: ./2.
    if place.isdecimal():
        return packaged(place)
    if not Path(place).expanduser().is_dir():
        raise BadRequest(
            f"There is no folder {folder_name(place)} of prompts. Name a packaged version "
            f"({', '.join(packaged_versions())}), or a folder; `memecourt prompts show` prints files to begin with.",
            reason="PROMPTS_MISSING",
            field="trial.prompts",
        )
    # Faults of all files are collected, so that the author of a set sees them all at once.
    faults: list[str] = []
    contents: dict[str, str] = {}
    for name in FILES:
        try:
            contents[name] = source(place, name)
        except BadRequest as error:
            faults.append(error.message)
    faults += [f"{name}.toml: {fault}" for name, text in contents.items() for fault in faults_of(name, text)]
    if faults:
        raise BadRequest(
            f"The prompts in {folder_name(place)} can't be used. " + " ".join(faults),
            reason="PROMPTS_UNUSABLE",
            field="trial.prompts",
        )
    found = _set(folder_name(place), contents)
    # By digest and not by path: files may be edited later, and records refer to the content that was used.
    _OPENED[found.digest] = found
    return found


def with_digest(wanted: str) -> PromptSet:
    """Returns the set with that digest if it is packaged or was opened in this process, otherwise the usual one."""
    known = _OPENED | {each.digest: each for each in map(packaged, packaged_versions())}
    return known.get(wanted) or packaged()


def folder_name(place: str) -> str:
    """Returns the name of a folder of prompts: the last part of its path."""
    return Path(place).expanduser().absolute().name or "prompts"


def source(place: str, name: str) -> str:
    """Returns the TOML of one prompt of a set. Raises BadRequest if it can't be read."""
    if place.isdecimal():
        return (files("court.prompts") / f"{name}.{place}.toml").read_text("utf-8")
    path = Path(place).expanduser() / f"{name}.toml"
    try:
        # Only if the file is absent: one that can't be read is an error, not a request for the packaged prompt.
        if name not in _NEEDED and not path.exists():
            return source(PACKAGED, name)
        with path.open("rb") as file:
            # One byte beyond the limit shows that it is exceeded, without reading the rest.
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadRequest(f"{name}.toml is larger than {_MOST_BYTES:,} bytes.", reason="PROMPTS_UNREADABLE")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise BadRequest(
            f"There is no {name}.toml: `memecourt prompts show {name}` prints one to begin with.",
            reason="PROMPTS_MISSING",
        ) from None
    except (OSError, UnicodeDecodeError):
        raise BadRequest(f"{name}.toml can't be read as UTF-8.", reason="PROMPTS_UNREADABLE") from None


def faults_of(name: str, text: str) -> list[str]:
    """Returns all faults of a prompt's TOML, as sentences; empty if it is valid."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [f"It is no TOML: {error}."]
    return [*_head_faults(name, content), *_template_faults(name, content)]


def _head_faults(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    known = {"id", "version", "system", "tasks", *_FURTHER.get(name, ())}
    if unknown := content.keys() - known:
        yield f"It has {_list(unknown)}, which nothing uses."
    if content.get("id") != name:
        yield f'Its id must be "{name}".'
    version = content.get("version")
    # In Python a bool is an int, and TOML has both.
    if isinstance(version, bool) or not isinstance(version, str | int) or not _VERSION.fullmatch(str(version)):
        yield "Its version must be a number, or a word of letters, digits, dots, dashes and underscores."
    if not isinstance(content.get("label_last", False), bool):
        yield "Its label_last must be true or false."
    openings = content.get("openings", dict.fromkeys(_SIDES, "x"))
    valid = isinstance(openings, Mapping) and openings.keys() == set(_SIDES)
    if not (
        valid and all(isinstance(each, str) and 0 < len(each.strip()) <= _MOST_OPENING for each in openings.values())
    ):
        yield f"[openings] must hold accuser and defender, in at most {_MOST_OPENING} characters each."


def _template_faults(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    yield from _faults_in("system", content.get("system"), SYSTEM[name])
    tables: tuple[tuple[Literal["tasks", "stances"], Mapping[str, Placeholders]], ...] = (("tasks", TASKS[name]),)
    if name == "advocate":
        tables = (*tables, ("stances", dict.fromkeys(STANCES, Placeholders())))
    for table, wanted in tables:
        section = content.get(table)
        if not isinstance(section, Mapping):
            yield f"It has no table [{table}]."
            continue
        if table == "tasks":
            wanted = {**wanted, **dict.fromkeys(OPTIONAL_TASKS.get(name, frozenset()) & section.keys(), Placeholders())}
        if unknown := section.keys() - wanted.keys():
            yield f"[{table}] has {_list(unknown)}, which nothing uses."
        for key, placeholders in wanted.items():
            yield from _faults_in(f"{table}.{key}", section.get(key), placeholders)


def _faults_in(key: str, template: Any, wanted: Placeholders) -> Iterator[str]:
    # The repair prompt has an empty system message, as it continues under the role's.
    if not isinstance(template, str) or (not template.strip() and key != "system"):
        yield f"{key} is missing, or no text."
        return
    named = placeholders_in(template)
    if missing := wanted.required - named:
        yield f"{key} must name {_list('{{' + each + '}}' for each in missing)}."
    if unknown := named - wanted.required - wanted.optional:
        may = wanted.required | wanted.optional
        instead = f"it may name {_list('{{' + each + '}}' for each in may)}" if may else "it may name none"
        yield f"{key} names {_list('{{' + each + '}}' for each in unknown)}, which has no value there; {instead}."
    # The set of names above does not count occurrences.
    if template.count("{{secret}}") > 1:
        yield f"{key} must name {{{{secret}}}} once."


def _list(names: Any) -> str:
    return ", ".join(sorted(names))


def _set(name: str, contents: Mapping[str, str]) -> PromptSet:
    prompts = {
        file: Prompt(
            tomllib.loads(text),
            optional={part: wanted.optional for part, wanted in {"system": SYSTEM[file], **TASKS[file]}.items()},
        )
        for file, text in contents.items()
    }
    return PromptSet(name=name, **prompts)
