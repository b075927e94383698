"""``memecourt docket expire``: erases what is older than the settings let it be."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serving.cli.common import docket_in, docket_option, library_option, printable, run, settings_of, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrieval.library.postgres.address import Address
    from serving.docket.retention import RetentionPass
    from serving.settings import Settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Erase nothing; print the number of trials by namespace.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@docket_option
@library_option
def expire(dry_run: bool, yes: bool, docket: Path | Address | None, library: Path | Address | None) -> None:
    """Erases trials past their retention period, as the server does every hour.

    The periods are `retention_days` and that of a table `[namespaces.NAME]`. Each trial is erased as by `memecourt
    docket erase`.
    """
    settings = settings_of(docket=docket, library=library)
    # A mistyped setting must not look like a docket in which nothing has expired.
    if not any((settings.retention_days, *(each.retention_days for each in settings.namespaces.values()))):
        raise click.UsageError("No period is set: give retention_days in the file of settings, or for a namespace.")
    # Looked for once more when it is erased: what expires while the question stands goes as well.
    if dry_run or not yes:
        found = run(_found(settings))
        for namespace, count in sorted(found.items()):
            click.echo(f"{count:>9,}  {printable(namespace) or '(no namespace)'}")
        if dry_run or not found:
            tell("Nothing was erased." if found else "No trial is older than it may be.")
            return
        click.confirm(f"Erase these {sum(found.values()):,} trials for ever?", abort=True)
    done = run(_expired(settings))
    click.echo(f"{sum(done.erased.values()):,} trials are erased.")
    if done.overdue:
        raise click.ClickException(f"{done.overdue:,} trials could not be erased; the log above says why. Try again.")


async def _found(settings: Settings) -> Mapping[str, int]:
    from serving.docket.retention import find_expired, retention_periods

    found: Counter[str] = Counter()
    now = datetime.now(UTC)
    async with docket_in(settings) as store:
        for period in retention_periods(settings):
            async for lines in find_expired(store.index, period, now):
                found.update(line.namespace for line in lines)
    return found


async def _expired(settings: Settings) -> RetentionPass:
    from serving.docket.retention import WHO, erase_expired, retention_periods
    from serving.wiring import forget_in_library

    async def forget(name: str) -> bool:
        # An overruled verdict may have become a precedent, which holds the text and the picture as well (PR-1).
        return await forget_in_library(settings, name, who=WHO, why="The trial was erased.")

    async with docket_in(settings) as store:
        return await erase_expired(
            store,
            retention_periods(settings),
            now=datetime.now(UTC),
            forget=forget,
            finding_days=settings.findings.days,
        )
