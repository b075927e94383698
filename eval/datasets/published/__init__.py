"""Figures that others published, as printed: a file for each data set, and in ``papers`` one for each paper."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def published_file(name: str) -> Mapping[str, Any]:
    """Reads a file of published figures, such as ``harm-c`` or ``papers/memearena``; empty if there is none."""
    file = files(__name__).joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def published_ratings(paper: str, what: str) -> Mapping[str, tuple[float, float | None]]:
    """Reads people's ratings of one kind of text: mean score and agreement of raters by criterion.

    Args:
        what: Kind of text; one without published ratings has an empty table.
    """
    table = published_file(f"papers/{paper}")["rated"].get(what, {})
    return {criterion: (row["mean"], row.get("agreement")) for criterion, row in table.items()}
