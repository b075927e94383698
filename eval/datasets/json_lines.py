"""JSON lines that people or other programs wrote, with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import orjson
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


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text holds; None where it is none."""
    # orjson is several times faster, and refuses what is no JSON; only such lines are tried again.
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python's writes NaN, Infinity and lone surrogates, which are no JSON, and so files hold them.
        try:
            record = json.loads(text)
        # Deep nesting raises RecursionError, which is a fault of the line and must not end the reading
        # of the file.
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None
