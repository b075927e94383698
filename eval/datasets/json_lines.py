"""Reads JSON lines written by people or other programs, with errors that name file and line."""

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
    """Reads the lines of a file with their numbers, counted from 1; blank lines are skipped.

    Raises:
        BadRequest: The file or a line can't be read.
    """
    try:
        # Splits at line feeds only: splitlines would also split at other characters within a text.
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
    """The JSON object in a text; None if it is not one."""
    # orjson is several times faster, but strict; lines that it refuses are parsed again below.
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python's json writes NaN, Infinity and lone surrogates, which are not valid JSON, so files contain them.
        try:
            record = json.loads(text)
        # Deep nesting raises RecursionError, which counts as a fault of the line and must not stop the reader.
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None
