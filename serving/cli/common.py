"""What the commands share: common options, exit codes, errors, and text that is safe to print."""

from __future__ import annotations

import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from serving.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

EXIT_NOT_HARMFUL = 0
EXIT_ERROR = 1
EXIT_HARMFUL = 10
EXIT_UNDECIDED = 11

library_option = click.option(
    "--library",
    type=click.Path(path_type=Path),
    help="The library of precedents. [default: MEMECOURT_LIBRARY, else the starter library]",
)
docket_option = click.option(
    "--docket",
    type=click.Path(path_type=Path),
    help="The file that records are kept in. [default: MEMECOURT_DOCKET, else in MEMECOURT_HOME]",
)


def settings_of(**given: Any) -> Settings:
    """Settings from the environment, overruled by what was given as options."""
    from pydantic import ValidationError

    from serving.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        # Names and reasons only: a value from the environment may be a secret.
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        raise click.ClickException(f"Settings can't be used: {faults}") from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's work; what goes wrong on purpose becomes a message and exit code 1."""
    import asyncio

    from court.errors import CourtError

    try:
        return asyncio.run(work)
    except CourtError as error:
        raise click.ClickException(error.message) from None


def tell(sentence: str) -> None:
    """Says on standard error what takes long."""
    click.echo(sentence, err=True)


def printable(text: str) -> str:
    """Text of strangers, safe for a terminal: control, bidirectional and other invisible characters become visible.

    Line breaks stay; everything else of the Unicode categories C (but not unassigned) is written as its code point.
    """
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co")
        else f"<U+{ord(character):04X}>"
        for character in text
    )


def excerpt(text: str, most: int = 60) -> str:
    """One printable line of at most ``most`` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def paragraph(text: str, indent: str = "  ") -> str:
    """Printable text, wrapped to the terminal and indented; its own line breaks kept."""
    width = max(40, min(100, shutil.get_terminal_size().columns))
    return "\n".join(
        textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent) if line.strip() else ""
        for line in printable(text).splitlines()
    )
