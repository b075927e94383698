"""Crash-safe files of runs, arenas, probes and studies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from court.errors import BadRequest

T = TypeVar("T")


def replace_file(path: Path, content: str) -> None:
    """Replaces a file atomically: a reader sees either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A pipe or device is written to directly: as root, a rename would replace /dev/null for all programs.
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return
    # In the same folder: a rename is atomic only within one file system.
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        # Synced before the rename, or a power cut could leave an empty file under the name.
        os.fsync(file.fileno())
    new.replace(path)


def json_line(item: BaseModel) -> str:
    """Serialises an item as one line."""
    # ASCII only, so that no character in a text ends a line for readers that split at more than line feeds. By alias,
    # because libraries recognise excluded rows only by the alias of the marker field.
    return json.dumps(item.model_dump(mode="json", by_alias=True), ensure_ascii=True) + "\n"


def replace_lines(path: Path, items: Iterable[BaseModel]) -> None:
    """Replaces the lines of a file atomically."""
    replace_file(path, "".join(map(json_line, items)))


def stored_lines(
    path: Path, parse: Callable[[bytes], T], *, torn: bool = True, reason: str = "RUN_UNREADABLE"
) -> tuple[T, ...]:
    """Reads the lines of a file.

    Args:
        torn: True for a file that is appended to: a last line cut off by a crash is skipped. In a file that is replaced
            atomically it is an error.

    Raises:
        FileNotFoundError: There is no such file.
        BadRequest: A line can't be read.
    """
    # After the last line feed there is nothing, or a line cut off by a crash.
    *lines, last = path.read_bytes().split(b"\n")
    if last and not torn:
        lines.append(last)
    read = []
    # One by one, since the error names the line.
    for number, line in enumerate(lines, 1):
        try:
            read.append(parse(line))
        except ValidationError:
            raise BadRequest(
                f"{path}, line {number}, can't be read. It was changed by hand, or the disk is at fault.", reason=reason
            ) from None
    return tuple(read)
