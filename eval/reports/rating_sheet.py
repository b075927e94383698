"""A blind sheet for people to rate: as JSON lines, and as a self-contained page that saves the ratings.

Items are in random order under meaningless names; some come twice, to measure raters' self-agreement. The origin of
each item is in a separate key, which raters are not given.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.digests import digest
from court.errors import BadRequest
from eval.reports.page import need_page, render
from retrieval.library.sources import NOT_FOR_LIBRARIES
from serving.access.private_files import hand_on


@dataclass(frozen=True, slots=True)
class Criterion:
    """A question that each item is scored by."""

    key: str
    words: str
    low: int = 1
    high: int = 3


EXPLANATION_CRITERIA = (
    Criterion("conciseness", "Does it say what it says without repetition or filler? (3: nothing could go)"),
    Criterion("informativeness", "Does it tell what one has to know to see the harm? (3: nothing is missing)"),
    Criterion("persuasiveness", "Do its reasons convince? (3: fully)"),
    Criterion("readability", "Is it easy to read and well ordered? (3: at once)"),
    Criterion("soundness", "Is it right about the meme, without errors or leaps? (3: in all)"),
)
"""Criteria by which MemeArena and AdamMeme had explanations of a meme's harm rated."""


@dataclass(frozen=True, slots=True)
class RatedItem:
    """Something to be rated.

    Attributes:
        parts: Texts that raters are shown, each with a heading.
        origin: Origin of the item, for the key only: strings, numbers and lists of them.
        pictures: JPEG files that are shown above the texts.
    """

    parts: tuple[tuple[str, str], ...]
    origin: Mapping[str, Any]
    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SheetLine:
    """An item at its position in the sheet.

    Attributes:
        repeat_of: Name of the item's first occurrence; empty if this is the first.
    """

    id: str
    item: RatedItem
    repeat_of: str = ""


class KeyEntry(BaseModel):
    """Entry of the key: an item of the sheet with its origin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat_of: str = ""
    origin: dict[str, Any]


class SheetKey(BaseModel):
    """The key of a sheet, ``NAME.key.json``: raters are not given it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    seed: int
    criteria: dict[str, tuple[int, int]]
    """Lowest and highest score of each criterion."""
    items: dict[str, KeyEntry] = Field(min_length=1)

    @property
    def repeat_of(self) -> dict[str, str]:
        """Original of each repeated item."""
        return {name: entry.repeat_of for name, entry in self.items.items() if entry.repeat_of}


def lay_out(items: Sequence[RatedItem], *, seed: int, repeats: float = 0.1) -> tuple[SheetLine, ...]:
    """Puts items into random order and repeats some of them.

    Args:
        seed: Seed of the order.
        repeats: Share of items that are repeated in the second half.
    """
    rng = random.Random(f"rating sheet {seed}")
    order = list(range(len(items)))
    rng.shuffle(order)
    # Items of the first half are repeated in the second, so that a repeat always follows its original.
    again = rng.sample(order[: len(order) // 2 + 1], min(round(repeats * len(items)), len(order) // 2 + 1))
    first, second = order[: len(order) // 2 + 1], [*order[len(order) // 2 + 1 :], *again]
    rng.shuffle(second)
    width = len(str(len(items) + len(again)))
    lines: list[SheetLine] = []
    named: dict[int, str] = {}
    for number, place in enumerate([*first, *second], 1):
        name = f"r{number:0{width}}"
        lines.append(SheetLine(name, items[place], repeat_of=named.get(place, "")))
        # The first place of an item; a later one repeats it.
        named.setdefault(place, name)
    return tuple(lines)


def write_sheet(
    stem: Path, what: str, lines: Sequence[SheetLine], criteria: Sequence[Criterion], *, seed: int, mark: str = ""
) -> tuple[Path, Path, Path]:
    """Writes a sheet as JSON lines and as a page, and its key.

    Args:
        stem: Path of the files without their endings.
        mark: Mark that keeps each line out of every library of precedents; empty for none.

    Returns:
        The paths of the lines, of the page, and of the key.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    scales = {one.key: {"question": one.words, "low": one.low, "high": one.high} for one in criteria}
    rows = [
        {
            **({NOT_FOR_LIBRARIES: mark} if mark else {}),
            "item": line.id,
            "parts": dict(line.item.parts),
            "criteria": scales,
        }
        for line in lines
    ]
    key = SheetKey(
        what=what,
        seed=seed,
        criteria={one.key: (one.low, one.high) for one in criteria},
        items={line.id: KeyEntry(repeat_of=line.repeat_of, origin=dict(line.item.origin)) for line in lines},
    )
    page = render(
        "rating.html",
        script="rating.js",
        what=what,
        lines=list(lines),
        criteria=list(criteria),
        mark=mark,
        # The page stores ratings in the browser under this digest: a new sheet starts empty, the same one is resumed.
        sheet=digest(rows),
    )
    paths = (stem.with_suffix(".jsonl"), stem.with_suffix(".html"), stem.with_suffix(".key.json"))
    contents = (
        "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows),
        page,
        key.model_dump_json(indent=2) + "\n",
    )
    stem.parent.mkdir(parents=True, exist_ok=True)
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content, encoding="utf-8")
        # The process creates files readable by their owner only; a sheet is for others, as far as the umask allows.
        hand_on(path)
    return paths


def read_key(path: Path) -> SheetKey:
    """Reads the key of a sheet. Raises BadRequest if it can't be read."""
    try:
        return SheetKey.model_validate_json(path.read_bytes())
    except OSError:
        raise BadRequest(f"{path} can't be read: name the sheet's key.", reason="FILE_UNREADABLE") from None
    except ValidationError:
        raise BadRequest(f"{path.name} is no key of a sheet.", reason="FILE_UNREADABLE") from None
