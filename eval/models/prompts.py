"""Prompts that are kept beside the code that uses them: one file each and version, as :mod:`court.prompts` has them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from court.prompts import Prompt
from court.untrusted import bare, secrets_in


@cache
def load(package: str, name: str, version: int = 1) -> Prompt:
    """A prompt.

    Args:
        package: Package of the prompts, e.g. ``eval.arena.prompts``: a folder of files ``<name>.<version>.toml``.
        name: Name of the prompt.
        version: Another for other words.

    Raises:
        FileNotFoundError: There is none of that name and version.
    """
    return Prompt(tomllib.loads((files(package) / f"{name}.{version}.toml").read_text("utf-8")))


def gave_away(prompt: Prompt, reply: str) -> bool:
    """True if a reply has the secret of its system message, as :class:`court.prompts.PromptSet` finds it."""
    return bare(prompt.secret) in secrets_in(reply)
