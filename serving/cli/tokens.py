"""``memecourt tokens``: who may call a server, and what each may do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from serving.access import tokens as file
from serving.access.callers import Scope
from serving.access.tokens import Entry
from serving.cli.common import NEW_FILE, printable

_file = click.option(
    "--file",
    "path",
    type=NEW_FILE,
    required=True,
    envvar="MEMECOURT_TOKENS",
    help="Token file. [default: MEMECOURT_TOKENS]",
)


@click.group()
def tokens() -> None:
    """Manages the file of the callers of a server, and what each may do.

    The file holds no token, only the hash of each. A server that was started with it (--tokens FILE) applies
    changes within two seconds.
    """


@tokens.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["judge", "review", "admin", "view"]),
    multiple=True,
    required=True,
    help=(
        "Permission: judge (submit memes, search precedents), review (read records, review verdicts), admin "
        "(change the library) or view (read trials in the console). Repeatable."
    ),
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Namespace that the caller may submit to and read. Repeatable. [default: all namespaces]",
)
@click.option("--expires", type=click.DateTime(), help="Expiry time (UTC). [default: never]")
@click.option("--widen", is_flag=True, help="Allow more namespaces than the caller's other tokens have.")
@_file
def add(
    name: str, scopes: tuple[str, ...], namespaces: tuple[str, ...], expires: datetime | None, widen: bool, path: Path
) -> None:
    """Makes a token for the caller NAME and prints it once.

    A caller may have several tokens, so that one can be replaced without interruption. Records show NAME as the
    reviewer of a verdict.
    """
    end = None if expires is None else expires.replace(tzinfo=UTC)
    known = [Scope(scope) for scope in dict.fromkeys(scopes)]
    token = file.add(path, name, known, namespaces or None, expires=end, widen=widen)
    click.echo(token)
    # On standard error: standard output is the token alone, fit for a pipe.
    click.echo("This is the only time that it is shown: hand it over now.", err=True)


@tokens.command("list")
@_file
def list_tokens(path: Path) -> None:
    """Lists tokens: caller, first digits of the token's hash, scopes, namespaces and expiry."""
    for entry in file.read(path):
        click.echo(_line(entry))


@tokens.command()
@click.argument("name")
@click.option("--number", help="First digits of the token's hash, as `list` shows them. [default: all tokens of NAME]")
@_file
def remove(name: str, number: str | None, path: Path) -> None:
    """Removes the tokens of the caller NAME from the file; comments in the file are lost."""
    for entry in file.remove(path, name, number):
        click.echo(f"removed {_line(entry)}")


def _line(entry: Entry) -> str:
    limits = "of everybody" if entry.namespaces is None else "of " + ", ".join(map(repr, entry.namespaces))
    end = ""
    if entry.expires is not None:
        end = f"  {'until' if entry.in_force else 'expired'} {entry.expires:%Y-%m-%d %H:%M}Z"
    return f"{printable(entry.name)}  {entry.sha256[:12]}  {','.join(entry.scopes)}  {printable(limits)}{end}"
