"""``memecourt precedents push``: a library on disk, put into a database that several replicas share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serving.cli.common import PATH, awaited, tell

if TYPE_CHECKING:
    from retrieval.library.postgres.push import Pushed

_STEP = 20  # of how many times it is told how far a push is


@click.command()
@click.argument("path", type=PATH, metavar="LIBRARY")
@click.argument("database", metavar="postgresql://…")
@click.option("--replace", is_flag=True, help="Replace an existing library and lose the changes made to it.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
@awaited
async def push(path: Path, database: str, replace: bool, as_json: bool) -> None:
    """Copies a LIBRARY into a PostgreSQL database with pgvector, in one transaction.

    Courts with `--library postgresql://…` then search it without a restart. Keep the password out of the command line:
    PGPASSWORD and password files are read.
    """
    import asyncio

    from court.errors import BadLibrary
    from retrieval.library.library import Library
    from retrieval.library.postgres.address import Address
    from retrieval.library.postgres.push import push_library

    address = Address(database)
    announced = 0

    def progress(step: str, done: int, total: int) -> None:
        nonlocal announced
        if _STEP * done // total > announced:
            announced = _STEP * done // total
            tell(f"{step}: {done:,} of {total:,}")

    def work() -> Pushed:
        try:
            return push_library(Library.open(path, None), address, replace=replace, progress=progress)
        except OSError as error:
            raise BadLibrary("The precedent library can't be read.") from error

    pushed = await asyncio.to_thread(work)
    if as_json:
        replaced = pushed.replaced
        click.echo(
            json.dumps(
                {
                    "library": pushed.identity.model_dump(mode="json"),
                    "was_there": pushed.was_there,
                    "replaced": None if replaced is None else replaced.model_dump(mode="json"),
                    "changes_lost": pushed.changes_lost,
                }
            )
        )
        return
    if pushed.was_there:
        tell("The database has this very library already.")
    if pushed.changes_lost:
        tell(f"{pushed.changes_lost:,} changes that were made in the database were lost, as was asked for.")
    click.echo(f"{pushed.identity.size:,} memes, digest {pushed.identity.digest}")
