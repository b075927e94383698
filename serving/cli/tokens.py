"""``memecourt tokens``: who may call a server, and what each may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from serving.cli.common import printable

if TYPE_CHECKING:
    from serving.access.tokens import Entry

T = TypeVar("T")

_file = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="MEMECOURT_TOKENS",
    help="The file of tokens. [default: MEMECOURT_TOKENS]",
)


@click.group()
def tokens() -> None:
    """Says who may call a server, and what each caller may do.

    The file holds no token, only the hash of each. A server that was started with it (--tokens FILE) heeds changes
    within two seconds.
    """


@tokens.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["judge", "review", "admin", "view"]),
    multiple=True,
    required=True,
    help="What it may do: judge (have memes tried, search precedents), review (read records, review verdicts), admin "
    "(change the library), view (read trials in the console). Give the option once for each.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Whose content it may hand in and see; once for each. [default: everybody's]",
)
@_file
def add(name: str, scopes: tuple[str, ...], namespaces: tuple[str, ...], path: Path) -> None:
    """Makes a token for the caller NAME and prints it, this once.

    A caller may have several: that is how one is replaced. NAME stands in records, as who reviewed a verdict.
    """
    from serving.access import tokens as file
    from serving.access.callers import Scope

    token = _done(lambda: file.add(path, name, [Scope(scope) for scope in dict.fromkeys(scopes)], namespaces or None))
    click.echo(token)
    click.echo("This is the only time that it is shown: hand it over now.", err=True)


@tokens.command("list")
@_file
def list_tokens(path: Path) -> None:
    """Lists who may call: name, first digits of the token's hash, scopes, namespaces."""
    from serving.access import tokens as file

    for entry in _done(lambda: file.read(path)):
        click.echo(_line(entry))


@tokens.command()
@click.argument("name")
@click.option("--number", help="First digits of the hash of the one that is meant, as listed. [default: all of NAME's]")
@_file
def remove(name: str, number: str | None, path: Path) -> None:
    """Takes the tokens of the caller NAME out of the file; comments in it are lost."""
    from serving.access import tokens as file

    for entry in _done(lambda: file.remove(path, name, number)):
        click.echo(f"removed {_line(entry)}")


def _line(entry: Entry) -> str:
    whose = "of everybody" if entry.namespaces is None else "of " + ", ".join(map(repr, entry.namespaces))
    return f"{printable(entry.name)}  {entry.sha256[:12]}  {','.join(entry.scopes)}  {printable(whose)}"


def _done(work: Callable[[], T]) -> T:
    from court.errors import BadRequest

    try:
        return work()
    except BadRequest as error:
        raise click.ClickException(error.message) from None
