"""Reads externally stored checkpoints (anchors) and public keys from files, for verification.

A docket is only trustworthy as far as its checkpoints are known elsewhere: anybody with its files and its key can write
another one. An anchor is a file of signed checkpoints in order, at a place that the service can append to but not
rewrite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.docket.log.errors import BadNote
from serving.docket.log.notes import VerifierKey

# Maximum size, since files are read as a whole: at about 300 bytes per note, millions of checkpoints.
_MOST_BYTES = 1 << 30
_NOTE = re.compile(r"(?:^(?!— )[^\n]+\n)+\n(?:^— [^\n]+\n)+", re.MULTILINE)
"""Pattern of a checkpoint: lines of text, an empty line, lines of signatures."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Checkpoints from one external source.

    Attributes:
        notes: Signed checkpoints, not yet verified.
    """

    name: str
    notes: tuple[str, ...]


def read_anchor(path: Path) -> Anchor:
    """Reads the checkpoints in a file: a sequence of notes, or JSON with ``checkpoint`` (a receipt or bundle).

    Raises:
        BadNote: The file can't be read, or contains no checkpoint.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadNote(f"The anchor {path.name} is larger than 1 GiB. Give a part of it.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadNote(f"The anchor {path.name} is no text.") from None
    except OSError as error:
        raise BadNote(f"The anchor {path.name} can't be read: {error.strerror}.") from None
    try:
        notes = tuple(_in_json(text) if text.lstrip().startswith(("{", "[")) else _in_text(text))
    # JSON nested too deeply for its parser.
    except RecursionError:
        notes = ()
    if not notes:
        raise BadNote(f"There is no checkpoint in the anchor {path.name}.")
    return Anchor(path.name, notes)


def read_keys(path: Path) -> list[VerifierKey]:
    """Reads the public keys in a file, one per line. Raises BadNote if it can't be read or contains none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadNote(f"The key file {path.name} is no text.") from None
    except OSError as error:
        raise BadNote(f"The key file {path.name} can't be read: {error.strerror}.") from None
    keys = [VerifierKey.parse(line) for line in lines if line.strip()]
    if not keys:
        raise BadNote(f"There is no key in the file {path.name}.")
    return keys


def _in_text(text: str) -> Iterator[str]:
    """Yields consecutive notes, with or without empty lines in between, and invalid text, which is reported later."""
    end = 0
    for found in _NOTE.finditer(text):
        if text[end : found.start()].strip():
            yield text[end : found.start()]
        yield found[0]
        end = found.end()
    if text[end:].strip():
        yield text[end:]


def _in_json(text: str) -> Iterator[str]:
    """Yields every value under ``checkpoint`` in JSON, or in any line of JSON lines."""
    try:
        values = [json.loads(text)]
    except ValueError:
        try:
            # Not splitlines(): JSON texts may contain other line separators, such as U+2028, unescaped.
            values = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError:
            return
    yield from _checkpoints(values)


def _checkpoints(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _checkpoints(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key == "checkpoint" and isinstance(one, str):
                yield one
            else:
                yield from _checkpoints(one)
