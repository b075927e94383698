"""Files that a run, an arena, a probe or a study keeps of itself: written so that a crash costs nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from court.errors import BadRequest

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def replace_file(path: Path, content: str) -> None:
    """Writes a file in one step, in place of one that is there: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A pipe or a device is written to as it stands: for root, a rename would take /dev/null from all programs.
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return
    # In the same folder: only within one file system is a rename a single step.
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        # Before the rename, or a power cut could leave the name on an empty file.
        os.fsync(file.fileno())
    new.replace(path)


def json_line(item: BaseModel) -> str:
    """Serialises an item as a line."""
    # ASCII only, so that no character within a text ends a line for a reader that splits at more than line feeds.
    # By alias: a mark keeps a row out of libraries only under the name that they look for.
    return json.dumps(item.model_dump(mode="json", by_alias=True), ensure_ascii=True) + "\n"


def replace_lines(path: Path, items: Iterable[BaseModel]) -> None:
    """Writes the lines of a file in one step, in place of those that are there."""
    replace_file(path, "".join(map(json_line, items)))


def stored_lines(
    path: Path, parse: Callable[[bytes], T], *, torn: bool = True, reason: str = "RUN_UNREADABLE"
) -> tuple[T, ...]:
    """Reads the lines of a file.

    Args:
        path: The file.
        parse: Reads a line.
        torn: True for a file that grows line by line: a last line that a crash cut is skipped. In a file that is
            written in one step it is a fault.
        reason: Reason of the error.

    Raises:
        FileNotFoundError: There is no such file.
        BadRequest: A line can't be read.
    """
    # What follows the last line feed is empty, or a line that a crash cut.
    *lines, last = path.read_bytes().split(b"\n")
    if last and not torn:
        lines.append(last)
    read = []
    # Line by line, since the error names the line.
    for number, line in enumerate(lines, 1):
        try:
            read.append(parse(line))
        except ValidationError:
            raise BadRequest(
                f"{path}, line {number}, can't be read. It was changed by hand, or the disk is at fault.", reason=reason
            ) from None
    return tuple(read)


def read_manifest(
    path: Path, kind: type[M], what: str, *, missing: str = "RUN_MISSING", unreadable: str = "RUN_UNREADABLE"
) -> M:
    """Reads the manifest of a folder.

    Args:
        path: The manifest's file.
        kind: Model of the manifest, with the number of its format in ``format``.
        what: Name of what the folder holds, such as ``arena``, for errors.
        missing: Reason of the error if there is no manifest.
        unreadable: Reason of the error if it is none of this format.

    Raises:
        BadRequest: There is no manifest, or none of this format.
    """
    # Two errors: a wrong folder is mended by naming another one, a wrong manifest is not.
    try:
        return kind.model_validate_json(path.read_bytes())
    # The latter where the folder is a file.
    except (FileNotFoundError, NotADirectoryError):
        raise BadRequest(f"{path.parent} holds no {what}: there is no {path.name}.", reason=missing) from None
    except OSError as error:
        raise BadRequest(f"{path} can't be read: {error.strerror}.", reason=unreadable) from None
    except ValidationError as error:
        raise BadRequest(
            f"{path} can't be read as a manifest of format {kind.model_fields['format'].default} ({what}): "
            f"{error.error_count()} fields are wrong. It is of something else, was written by another version, or was "
            "changed by hand.",
            reason=unreadable,
        ) from None
