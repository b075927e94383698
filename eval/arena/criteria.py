"""Criteria for comparing two answers: the arena's own, those named after ProBench, or a custom file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from court.errors import BadRequest
from eval.arena.words import OVERALL

_MOST = 12
"""Criteria at most: a verdict for each is a word of the judge's reply."""


class Criterion(BaseModel):
    """One criterion for comparing answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name in replies and in reports."""
    words: str = Field(min_length=10, max_length=400)
    """Question that a judge answers about each of the two."""

    @property
    def title(self) -> str:
        """Name as shown in reports."""
        return self.key.replace("_", " ")


MEMEARENA_CRITERIA = (
    Criterion(
        key="instruction_following",
        words="does it answer this question, from the standpoint asked for, in the form asked for?",
    ),
    Criterion(key="correctness", words="are its facts about picture, words and background right?"),
    Criterion(
        key="redundancy",
        words="does it say each thing once, and nothing that is beside the point? The better one has less of that.",
    ),
    Criterion(key="relevance", words="does what it says bear on this very meme, and not on memes in general?"),
    Criterion(key="accuracy", words="does its reasoning get to the harm that is there, and to none that is not?"),
    Criterion(
        key=OVERALL,
        words="which one helps more to understand whether and how this meme is harmful? Weigh the others as this "
        "question needs it.",
    ),
)
"""The five dimensions of MemeArena (arXiv 2510.27196, section 3) in our words, and the verdict overall."""
_OVERALL = Criterion(
    key=OVERALL, words="which one is the better answer to this question? Weigh the others as the question needs it."
)
PROBENCH_CRITERIA = (
    Criterion(key="correctness", words="are its facts and its conclusions right, and in the language asked for?"),
    Criterion(key="helpfulness", words="does it give the person who asks what they need?"),
    Criterion(key="relevance", words="does all that it says bear on the question?"),
    Criterion(key="conciseness", words="does it say that in no more words than it takes?"),
    Criterion(key="completeness", words="does it leave out nothing that the question calls for?"),
    _OVERALL,
)
"""The five criteria of ProBench (arXiv 2503.06885) in our words, and the verdict overall."""
_SETS = {"memearena": MEMEARENA_CRITERIA, "probench": PROBENCH_CRITERIA}
_CRITERIA: TypeAdapter[tuple[Criterion, ...]] = TypeAdapter(tuple[Criterion, ...])


def read_criteria(named: str, folder: Path) -> tuple[Criterion, ...]:
    """Returns the criteria of a name, with the overall verdict last.

    Args:
        named: ``memearena``, ``probench``, or a TOML file with tables ``[[criteria]]`` (``key``, ``words``).

    Raises:
        BadRequest: The file does not exist or does not contain valid criteria.
    """
    if named in _SETS:
        return _SETS[named]
    path = folder / named
    try:
        content = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise BadRequest(
            f"There are no criteria {named!r}: name {', '.join(_SETS)}, or a file; there is no {path}.",
            reason="ARENA_SETTINGS",
        ) from None
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} can't be read as TOML: {error}.", reason="ARENA_SETTINGS") from None
    if unknown := content.keys() - {"criteria"}:
        raise BadRequest(f"{path} has what nobody reads: {', '.join(sorted(unknown))}.", reason="ARENA_SETTINGS")
    try:
        return complete(_CRITERIA.validate_python(content.get("criteria", ())))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{path}, [[criteria]] {place}: {first['msg']}.", reason="ARENA_SETTINGS") from None
    except ValueError as error:
        raise BadRequest(f"{path}: {error}.", reason="ARENA_SETTINGS") from None


def complete(criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Returns the criteria with the overall verdict last, adding it if it is missing.

    Raises:
        ValueError: There are no criteria, too many, or duplicates.
    """
    keys = [one.key for one in criteria]
    if len(set(keys)) < len(keys):
        raise ValueError("each criterion is named once")
    # Judges give their reasons under this key.
    if "why" in keys:
        raise ValueError("no criterion can be called why: the reasons are")
    others = [one for one in criteria if one.key != OVERALL]
    if not 1 <= len(others) <= _MOST:
        raise ValueError(f"there are from 1 to {_MOST} criteria beside {OVERALL}, not {len(others)}")
    overall = next((one for one in criteria if one.key == OVERALL), _OVERALL)
    return (*others, overall)


def keys_of(criteria: Sequence[Any]) -> tuple[str, ...]:
    """Returns the keys of criteria, in order."""
    return tuple(one.key for one in criteria)
