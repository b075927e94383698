"""Prompts stored next to the code that uses them: one file for each prompt and version, as in :mod:`court.prompts`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from court.prompts import Prompt
from court.untrusted import bare, secrets_in


@cache
def load(package: str, name: str, version: int = 1) -> Prompt:
    """Loads a prompt.

    Args:
        package: Package of the prompts, e.g. ``eval.arena.prompts``: a folder of files ``<name>.<version>.toml``.

    Raises:
        FileNotFoundError: There is no prompt of that name and version.
    """
    return Prompt(tomllib.loads((files(package) / f"{name}.{version}.toml").read_text("utf-8")))


def gave_away(prompt: Prompt, reply: str) -> bool:
    """Returns True if a reply contains the secret of its system message; see :class:`court.prompts.PromptSet`."""
    return bare(prompt.secret) in secrets_in(reply)
