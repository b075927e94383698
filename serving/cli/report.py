"""``memecourt report``: figures that a platform has to publish."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import click

from retrieval.library.postgres.address import Address
from serving.cli.common import (
    MOST_WHO,
    NEW_FOLDER,
    awaited,
    caught_up,
    docket_in,
    docket_option,
    require_text,
    settings_of,
)
from serving.cli.exports import output_file
from serving.export.transparency import as_csv, measure, parts

_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.group()
def report() -> None:
    """Writes figures of the docket that a platform has to publish."""


@report.command("transparency")
@click.option("--from", "since", type=_DAY, required=True, help="First day of the period (UTC).")
@click.option("--to", "last", type=_DAY, required=True, help="Last day of the period (UTC).")
@click.option("--namespace", help="Only content of this namespace.")
@click.option(
    "--service",
    default="",
    callback=require_text(MOST_WHO, needed=False),
    help="Name of the service, for the templates' column.",
)
@click.option("-o", "--out", type=NEW_FOLDER, required=True, help="Folder to write to.")
@docket_option
@awaited
async def transparency(
    since: datetime, last: datetime, namespace: str | None, service: str, out: Path, docket: Path | Address | None
) -> None:
    """Writes the figures of a period by the EU's templates: a CSV file for each part, and a page of all of them.

    What the docket can't know is blank and listed in blank.csv; figures without a row in the templates stand in
    appendix.csv.
    """
    from serving.views.text import environment

    if last < since:
        raise click.UsageError("--to is before --from.")
    settings = settings_of(docket=docket)
    begin, end = (each.replace(tzinfo=UTC) for each in (since, last + timedelta(days=1)))
    async with docket_in(settings) as store:
        queue = await caught_up(store, settings)
        tables = parts(await measure(store, queue, since=begin, until=end, namespace=namespace), service)
    style = files("serving.export").joinpath("templates/page.css").read_text("utf-8")
    page = environment("serving.export").get_template("transparency.html")
    written = {name: as_csv(table) for name, table in tables.items()}
    period = f"{since:%Y-%m-%d} to {last:%Y-%m-%d}"
    written["index.html"] = page.render(style=style, period=period, tables=tables).encode()
    _write(out, written)
    click.echo(f"{len(tables['blank.csv']) - 1} parts are left to the platform: {out / 'blank.csv'}")


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with output_file(out / name) as file:
            file.write(content)
        click.echo(out / name)
