"""JSON lines that people or other programs wrote, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from court.errors import BadRequest

T = TypeVar("T", bound=BaseModel)


def read_json_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Reads the lines of a file with their numbers, counted from 1; empty ones are passed over.

    Args:
        path: The file.
        kind: Model of a line.

    Raises:
        BadRequest: The file or a line can't be read.
    """
    try:
        # At line feeds alone: a text may hold other characters that end a line for splitlines.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, ValueError):
        raise BadRequest(f"{path} can't be read.", reason="FILE_UNREADABLE") from None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            yield number, kind.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors()[0]
            raise BadRequest(
                f"{path.name}, line {number}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}.",
                reason="FILE_UNREADABLE",
            ) from None
