"""Reasons for rejecting a picture, and their messages.

Messages (``refusals.toml``) are built here and not in the worker, which only sends a reason and integers, so that
nothing from a decoder (heap addresses, paths) or from an untrusted file can get into a message.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from court.errors import BadPicture


@cache
def words() -> Mapping[str, str]:
    """Messages by reason, with figures in braces. Read when first needed, and never in a worker."""
    return tomllib.loads((files(__package__) / "refusals.toml").read_text("utf-8"))


class Refused(Exception):
    """Raised in a worker to reject a picture."""

    def __init__(self, reason: str, **figures: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.figures = figures


def bad_picture(reason: str, figures: Mapping[str, int]) -> BadPicture:
    """Builds the error for callers from a rejection.

    Raises:
        KeyError: There is no such reason, or a figure is missing.
    """
    return BadPicture(words()[reason].format_map(figures), reason=reason)
