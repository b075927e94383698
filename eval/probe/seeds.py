"""Memes that searches begin with, as a list that several targets can share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from court.errors import BadRequest

SEEDS = "seeds.json"
SeedSet = Mapping[str, tuple[str, ...]]
"""Memes that searches begin with, by category and in order."""
_SEEDS = TypeAdapter(dict[str, tuple[str, ...]])


def seed_content(seeds: SeedSet) -> dict[str, list[str]]:
    """The content of ``seeds.json``."""
    return {name: list(memes) for name, memes in seeds.items()}


def read_seeds(path: Path) -> SeedSet:
    """Reads the seeds of another probe: its folder, or its ``seeds.json``. Raises BadRequest if there are none."""
    file = path / SEEDS if path.is_dir() else path
    try:
        return _SEEDS.validate_json(file.read_bytes())
    except OSError:
        raise BadRequest(
            f"{file} can't be read. Name the folder of a probe that has come to its refinement, or its {SEEDS}.",
            reason="FILE_UNREADABLE",
        ) from None
    except ValidationError:
        raise BadRequest(
            f"{file} is no list of seeds: an object with lists of memes by category.", reason="FILE_UNREADABLE"
        ) from None
