"""``memecourt-eval report``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serving.access.private_files import hand_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eval.reports.gather import Report
    from eval.runs.results import Results


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page to this file.")
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write a Markdown report to this file."
)
@click.option("--no-pictures", is_flag=True, help="Leave pictures out of the page, to make it smaller.")
@click.option("--open", "show", is_flag=True, help="Open the page in a browser; needs --html.")
@click.option(
    "--by",
    metavar="TASK|PROPERTY",
    help=(
        "Also split the figures by the gold labels of another task of the card, or by a property as `subgroups` does."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object instead of tables.")
def report(
    runs: tuple[Path, ...],
    html: Path | None,
    markdown: Path | None,
    no_pictures: bool,
    show: bool,
    by: str | None,
    as_json: bool,
) -> None:
    """Reports on each RUN, a run's folder or a folder of runs (an ablation's), finished or not.

    The terminal shows the figures with 95 % intervals beside the majority and the precedent-vote baselines, what was
    published, and which differences are within noise. The page adds figures and every wrong verdict with its record;
    pictures and words of memes are hidden there until asked for. It needs no network and no other file.

    Runs of classify are shown by their task: the authors' metrics, label by label, beside always saying the same.
    """
    from court.errors import BadRequest
    from eval.reports.gather import gather, runs_below
    from eval.reports.terminal import as_terminal
    from eval.runs.results import read_results

    if show and html is None:
        raise click.UsageError("--open needs --html FILE.")
    results = [read_results(root) for path in runs for root in runs_below(path)]
    questioned = [one for one in results if one.question is not None]
    trials = [one for one in results if one.question is None]
    if questioned and trials and (html or markdown):
        raise BadRequest("Runs of trials and of classify are written to pages of their own: name either alone.")
    tables: dict[str, object] = {}
    texts: list[str] = []
    # Written after the tables are told: a page needs libraries that a terminal does without.
    pages: list[Callable[[], None]] = []
    if trials:
        # Only the page and Markdown show records, and only the page pictures.
        records, pictures = bool(html or markdown), bool(html) and not no_pictures
        gathered = asyncio.run(gather(trials, records=records, pictures=pictures))
        tables = _plain(gathered)
        texts.append(as_terminal(gathered))
        pages.append(partial(_write_trials, gathered, html=html, markdown=markdown))
    if questioned:
        tables["tasks"] = _show_question_runs(questioned, texts, pages, html=html, markdown=markdown)
    if by:
        tables["by"] = _show_parts(results, by, texts)
    click.echo(json.dumps(tables) if as_json else "\n\n".join(texts))
    for write in pages:
        write()
    if show and html is not None:
        click.launch(html.resolve().as_uri())


def _write_trials(report: Report, *, html: Path | None, markdown: Path | None) -> None:
    if markdown is not None:
        from eval.reports.markdown import as_markdown

        _write(markdown, as_markdown(report))
    if html is not None:
        from eval.reports.html import as_html

        _write(html, as_html(report))


def _show_question_runs(
    questioned: Sequence[Results],
    texts: list[str],
    pages: list[Callable[[], None]],
    *,
    html: Path | None,
    markdown: Path | None,
) -> list[dict[str, object]]:
    """Adds the figures of runs that asked questions to the texts, and their pages to those to be written."""
    from eval.reports import tasks
    from eval.reports.sections import as_page, as_text

    groups = tasks.gather_tasks(questioned)
    lead, sections = tasks.lead_of(groups), tasks.sections_of(groups)
    texts.append(as_text(lead, sections))

    def write() -> None:
        if markdown is not None:
            _write(markdown, tasks.as_markdown_sections(lead, sections))
        if html is not None:
            _write(html, as_page("Answers to questions", lead, sections))

    pages.append(write)
    return tasks.as_json(groups)


def _show_parts(results: Sequence[Results], by: str, texts: list[str]) -> list[dict[str, object]]:
    """Adds the figures by group to the texts. Returns them."""
    from eval.reports.by_task import by_task_sections, split_by_task
    from eval.reports.sections import as_text

    parts = [split_by_task(one, by) for one in results]
    texts.append(as_text((), by_task_sections(parts, by)))
    return [asdict(part) for each in parts for part in each]


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
