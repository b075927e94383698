"""``memecourt-eval report``."""

import json
from pathlib import Path

import click

from eval.commands.options import html_option, json_option, runs_argument, write_page
from eval.reports import tasks
from eval.reports.details import details_sections
from eval.reports.sections import as_markdown, as_page, as_text
from eval.runs.results import read_runs
from serving.cli.common import NEW_FILE


@click.command()
@runs_argument
@html_option
@click.option("--markdown", type=NEW_FILE, help="Write Markdown to this file.")
@click.option("--no-pictures", is_flag=True, help="Leave pictures out of the page, to make it smaller.")
@click.option("--open", "show", is_flag=True, help="Open the page in a browser; needs --html.")
@json_option
def report(
    runs: tuple[Path, ...], html: Path | None, markdown: Path | None, no_pictures: bool, show: bool, as_json: bool
) -> None:
    """Reports on each RUN, a run's folder or a folder of runs (an ablation's), finished or not.

    The terminal shows the figures with 95 % intervals beside the majority and the precedent-vote baselines, what was
    published, and which differences are within noise. The page adds figures and every wrong verdict with its record;
    pictures and words of memes are hidden there until asked for. It needs no network and no other file.

    Runs of classify are shown by their task: the authors' metrics, label by label.
    """
    if show and html is None:
        raise click.UsageError("--open needs --html FILE.")
    found = tasks.gather(read_runs(runs))
    lead, sections = tasks.lead_of(found), tasks.sections_of(found)
    text = as_text(lead, [*sections, *(tasks.faults_section(found, group) for group in tasks.tried_groups(found))])
    click.echo(json.dumps(tasks.as_json(found)) if as_json else text)
    # After the tables are shown: a page needs libraries that a terminal does without.
    if markdown is not None:
        write_page(markdown, as_markdown(found.title, lead, [*sections, *details_sections(found)]))
        click.echo(f"Written: {markdown}", err=True)
    if html is not None:
        drawn = tasks.sections_of(found, page=True)
        details = details_sections(found, page=True, pictures=not no_pictures)
        write_page(html, as_page(found.title, lead, [*drawn, *details]))
        click.echo(f"Written: {html} ({html.stat().st_size / 1e6:.1f} MB)", err=True)
        if show:
            click.launch(html.resolve().as_uri())
