"""``memecourt-eval report``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serving.access.private_files import hand_on

if TYPE_CHECKING:
    from eval.reports.gather import Report


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the page to this file.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write Markdown to this file.")
@click.option("--no-pictures", is_flag=True, help="Leave pictures out of the page, which makes it smaller.")
@click.option("--open", "show", is_flag=True, help="Open the page in a browser; needs --html.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object, instead of the tables.")
def report(
    runs: tuple[Path, ...], html: Path | None, markdown: Path | None, no_pictures: bool, show: bool, as_json: bool
) -> None:
    """Reports on each RUN, a run's folder or a folder of runs (an ablation's), finished or not.

    The terminal shows the figures with 95 % intervals beside the majority and the precedent-vote baselines, what was
    published, and which differences are within noise. The page adds figures and every wrong verdict with its record;
    pictures and words of memes are hidden there until asked for. It needs no network and no other file.
    """
    from court.errors import CourtError
    from eval.reports.gather import gather, runs_below
    from eval.reports.terminal import as_terminal
    from eval.runs.results import read_results

    if show and html is None:
        raise click.UsageError("--open needs --html FILE.")
    try:
        results = [read_results(root) for path in runs for root in runs_below(path)]
        # Only the page and Markdown show records, and only the page pictures.
        gathered = asyncio.run(gather(results, records=bool(html or markdown), pictures=bool(html) and not no_pictures))
        click.echo(json.dumps(_plain(gathered)) if as_json else as_terminal(gathered))
        if markdown is not None:
            from eval.reports.markdown import as_markdown

            _write(markdown, as_markdown(gathered))
        if html is not None:
            from eval.reports.html import as_html

            _write(html, as_html(gathered))
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if show and html is not None:
        click.launch(html.resolve().as_uri())


def _plain(report: Report) -> dict[str, object]:
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


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
        hand_on(path)
    except OSError as error:
        raise click.ClickException(f"The report can't be written to {path}: {error.strerror}.") from None
    click.echo(f"Written: {path} ({len(content.encode()) / 1e6:.1f} MB)", err=True)
