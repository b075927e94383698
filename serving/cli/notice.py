"""``memecourt notice``: what to tell those whose content was decided on."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.library.postgres.address import Address
from serving.cli.common import awaited, docket_in, docket_option, printable, settings_of, tell, trial_argument, whole_id
from serving.export.notice import language_of, write_notice
from serving.export.notice_links import notice_links


@click.command()
@trial_argument
@click.option("--language", default="", help="Language of the notice: en or de. [default: that of the content, or en]")
@docket_option
@awaited
async def notice(trial_id: str, language: str, docket: Path | Address | None) -> None:
    """Prints a notice in plain words for those whose content was decided on: what, by which clause, how to object.

    It is made from the record by templates. With MEMECOURT_NOTICE_LINK_DAYS it has a link that takes one objection.
    """
    settings = settings_of(docket=docket)
    async with docket_in(settings) as store:
        record = await store.trials.record(await whole_id(store, trial_id))
        chosen, links = language_of(record, language), notice_links(store, settings)
        link = await links.link_to(record, chosen) if links and record.verdict else None
    if link and not settings.http_origin:
        tell("The link is a path: MEMECOURT_HTTP_ORIGIN names what stands before it.")
    for line in write_notice(record, chosen, link).splitlines():
        click.echo(printable(line))
