"""``memecourt-eval report``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.errors import BadRequest
from eval.commands.options import html_option, json_option, runs_argument, write_page
from eval.runs.results import read_results
from serving.cli.common import NEW_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval.reports.gather import Report
    from eval.reports.sections import Section


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

    Runs of classify are shown by their task: the authors' metrics, label by label, beside always saying the same.
    """
    from eval.reports.gather import gather, runs_below
    from eval.reports.sections import as_markdown, as_page, as_text
    from eval.reports.tasks import as_json as tasks_as_json
    from eval.reports.tasks import gather_tasks, lead_of, sections_of
    from eval.reports.verdicts import verdicts_lead, verdicts_sections, verdicts_title

    if show and html is None:
        raise click.UsageError("--open needs --html FILE.")
    results = [read_results(root) for path in runs for root in runs_below(path)]
    questioned = [one for one in results if one.question is not None]
    trials = [one for one in results if one.question is None]
    if questioned and trials and (html or markdown):
        raise BadRequest("Runs of trials and of classify are written to pages of their own: name either alone.")
    figures: dict[str, object] = {}
    title = "Answers to questions"
    lead: Sequence[str] = ()
    sections: list[Section] = []
    texts: list[str] = []
    gathered = None
    if trials:
        # Only the page and Markdown show records, and only the page pictures.
        records, pictures = bool(html or markdown), bool(html) and not no_pictures
        gathered = asyncio.run(gather(trials, records=records, pictures=pictures))
        figures = _figures(gathered)
        title, lead = verdicts_title(gathered), verdicts_lead(gathered)
        sections = verdicts_sections(gathered, details=bool(markdown))
        texts.append(as_text(lead, sections))
    if questioned:
        groups = gather_tasks(questioned)
        figures["tasks"] = tasks_as_json(groups)
        lead, sections = lead_of(groups), sections_of(groups)
        texts.append(as_text(lead, sections))
    click.echo(json.dumps(figures) if as_json else "\n\n".join(texts))
    # After the tables are shown: a page needs libraries that a terminal does without.
    if markdown is not None:
        write_page(markdown, as_markdown(title, lead, sections))
        click.echo(f"Written: {markdown}", err=True)
    if html is not None:
        shown = verdicts_sections(gathered, page=True) if gathered else sections
        write_page(html, as_page(title, lead, shown))
        click.echo(f"Written: {html} ({html.stat().st_size / 1e6:.1f} MB)", err=True)
        if show:
            click.launch(html.resolve().as_uri())


def _figures(report: Report) -> dict[str, object]:
    return {
        "resamples": report.resamples,
        "unfinished": [run.label for run in report.unfinished],
        "tables": [
            {
                "dataset": table.dataset,
                "split": table.split,
                "protocol": str(table.protocol),
                "rows": [{"run": row.run.label, "card": asdict(row.card)} for row in table.rows],
                "remarks": list(table.remarks),
            }
            for group in report.groups
            for table in group.tables
        ],
    }
