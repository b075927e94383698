"""``memecourt-eval datasets``: what data sets are known, and whether what lies in a directory is one of them, whole."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest, CourtError
from eval.commands.options import (
    Shown,
    TableWords,
    dataset_in,
    dataset_of,
    json_option,
    refuse_table_words,
    run_watched,
    say,
    shows_sections,
    table_of,
)
from eval.datasets.card import DatasetCard
from eval.datasets.card_draft import draft_card
from eval.datasets.check import DatasetCheck
from eval.datasets.check import check as check_dataset
from eval.datasets.known import card_file, known_cards, recognised
from eval.datasets.record_files import keep_tables
from eval.reports import description
from eval.reports.sections import plain
from eval.scores.metrics import require_metrics
from eval.session.engine import watching
from eval.session.spec import spec_options
from retrieval.library.readers import counted
from serving.cli.common import NEW_FILE, PATH

_SHOWN = 5  # cases of a finding that are listed one by one; --json lists all


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def datasets(context: click.Context, as_json: bool) -> None:
    """Lists the data sets that are known: which files are expected, and where their authors hand them out.

    `card show ID` shows the tasks, sources and published figures of one.
    """
    if context.invoked_subcommand:
        return

    if as_json:
        click.echo(json.dumps({card.id: card.to_json() for card in known_cards()}))
        return
    for dataset in known_cards():
        click.echo(f"{dataset.id:<18} {dataset.title}")
        harm = dataset.court_task.id if dataset.court_task else ""
        for split in dataset.all_splits():
            rows = "" if split.memes is None else f"{split.memes:>7,} memes"
            classes = ", ".join(f"{count:,} {label}" for label, count in split.labels_of(harm).items())
            labels = f", labels in {' or '.join(split.labels.files)}" if split.labels else ""
            files = " or ".join(split.files) + labels
            click.echo(f"  {split.name:<16} {files}{rows and ':'}{rows}{f' ({classes})' if classes else ''}")
            if split.remark:
                click.echo(f"  {'':<16} {split.remark}")
        for caveat in dataset.caveats:
            click.echo(f"  mind             {caveat}")
        click.echo(f"  from             {dataset.source_url} ({dataset.licence})\n")


@datasets.command()
@click.argument("data", type=PATH, metavar="DIR|FILE")
@click.option("--dataset", "id_", help="Data set. [default: recognised by folders, layout and number of rows]")
@spec_options(TableWords, "columns", "harmful", "pictures")
@click.option(
    "--decode",
    is_flag=True,
    help="Decode every picture in a guarded process; without this option only check that the files exist.",
)
@json_option
def check(data: Path, id_: str | None, decode: bool, as_json: bool, **words: Any) -> None:
    """Checks the data sets in DIR, or a table, for missing, damaged, duplicate or mislabelled memes, and their counts.

    Exit code: 0 if nothing was found, 1 if something was, 2 if the check could not be done.
    """
    try:
        with keep_tables():
            if id_ is None and data.is_file():
                table = table_of({"data": data, **words})
                chosen, data = [table.card], table.data
            else:
                refuse_table_words(words)
                chosen = [dataset_of(id_)] if id_ else list(recognised(data))
            reports = asyncio.run(_checked(data, chosen, decode))
    except CourtError as error:
        click.echo(f"Error: {error.message}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps({"datasets": reports}, default=asdict))
    else:
        for card, report in zip(chosen, reports, strict=True):
            _print_check(card, report)
    # As linters have it: 1 for findings, and 2 above where there was nothing to check.
    sys.exit(1 if any(report.findings for report in reports) else 0)


@datasets.command()
@click.argument("data", type=PATH, metavar="DIR|FILE")
@click.option("--dataset", "id_", help="Data set. [default: recognised by folders, layout and number of rows]")
@spec_options(TableWords, "columns", "pictures")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="TASK|COLUMN|NAME=COLUMN,…",
    help="Labels to describe: a task, a column, or columns with yes or no. Repeatable. [default: all tasks]",
)
@click.option(
    "--by",
    multiple=True,
    metavar="PROPERTY",
    help=(
        "Split labels by a task, a column, month, or a property as in `subgroups`. Repeatable. [default: split, and "
        "group, month and language where they are known]"
    ),
)
@click.option("--date", default="", metavar="COLUMN", help="Column of dates. [default: by its name]")
@shows_sections()
def describe(data: Path, id_: str | None, columns: tuple[str, ...], pictures: Path | None, **words: Any) -> Shown:
    """Describes the data set in DIR, or a table: its labels, by properties of the memes, its texts and its doubles.

    Labels are counted one by one and in pairs, by split, group, month and language or by what --by names, and tested:
    two values by Fisher's exact test, more by chi-square, lengths of texts by Mann and Whitney's, with Holm's
    correction in each table. In a table, a cell may hold several labels, with ; between them. No text and no picture
    of a meme is shown.
    """
    plain = id_ is None and data.is_file()
    # Ends with the command, as the context does.
    click.get_current_context().with_resource(keep_tables())
    if plain:
        # The first task is the column of labels, unless that is named.
        tasks = words["tasks"]
        named = any(one.startswith("label=") for one in columns) or not tasks
        label = () if named else (f"label={tasks[0].rpartition('=')[2].partition(',')[0]}",)
        table = table_of(
            {"data": data, "columns": (*columns, *label), "harmful": "", "pictures": pictures}, two_sided=False
        )
        chosen, data = table.card, table.data
    else:
        refuse_table_words({"columns": columns, "pictures": pictures})
        chosen = dataset_in(data, id_)
    found = run_watched(lambda _: description.describe(chosen, data, **words, in_parts=plain))
    return Shown(
        title=f"Description of {chosen.title}",
        lead=chosen.caveats,
        sections=description.description_sections(found),
        figures={"dataset": chosen.id, "tables": found},
    )


@datasets.group()
def card() -> None:
    """Shows cards, and drafts them: how a data set is laid out, and what its labels mean."""


@card.command()
@click.argument("id_", metavar="ID|FILE.toml")
def show(id_: str) -> None:
    """Shows the card of a data set as it is written."""
    try:
        click.echo(card_file(id_).read_text("utf-8"), nl=False)
    except BadRequest as error:
        raise click.UsageError(error.message) from None


@card.command()
@click.argument("data", type=PATH, metavar="DIR|FILE")
@click.option("--id", "id_", default="", help="Id of the data set. [default: the directory's name]")
@click.option("--out", type=NEW_FILE, help="File to write. [default: standard output]")
def new(data: Path, id_: str, out: Path | None) -> None:
    """Drafts a card for the files in DIR, guessing columns, labels and splits.

    Every guess is marked # CHECK and has to be checked. Try the card with

    memecourt-eval datasets check DIR --dataset FILE.toml
    """
    if out is not None and out.exists():
        raise click.UsageError(f"{out} is there already.")
    drafted = draft_card(data, id_)
    if out is None:
        click.echo(drafted, nl=False)
    else:
        out.write_text(drafted, "utf-8")
        click.echo(f"{out}: {drafted.count('# CHECK')} guesses to check.", err=True)


async def _checked(data: Path, chosen: Sequence[DatasetCard], pictures: bool) -> list[DatasetCheck]:
    for task in (task for dataset in chosen for task in dataset.tasks):
        require_metrics(task.id, task.labels, task.official, *task.metrics)
    reader = GuardedPictureReader(workers=2) if pictures else None
    try:
        with watching(say) as progress:
            return [
                await check_dataset(dataset, data, reader=reader, progress=partial(progress.step, dataset.id))
                for dataset in chosen
            ]
    finally:
        if reader:
            await reader.aclose()


def _print_check(card: DatasetCard, report: DatasetCheck) -> None:
    click.echo(f"{report.dataset}: {card.title}")
    first = card.court_task or card.all_tasks()[0]
    sums = Counter[str]()
    for split in report.splits:
        if not split.file:
            click.echo(f"  {split.split:<12} not there")
            continue
        # The task that trials are scored on stands with the rows, the others below.
        words = {
            task: ", ".join(f"{n:,} {label}" for label, n in counts.items()) for task, counts in split.tasks.items()
        }
        sums.update(split.tasks[first.id])
        labels = words.pop(first.id) or "none with a label"
        click.echo(f"  {split.split:<12} {split.file}: {split.rows:,} rows, {labels}; {split.pictures:,} pictures")
        for task, others in words.items():
            if others:
                click.echo(f"  {'':<12} {task}: {others}")
        if split.refused or split.excluded or split.elsewhere:
            rest = f"; and {split.elsewhere:,} of other splits" if split.elsewhere else ""
            click.echo(
                f"  {'':<12} {split.memes:,} read + {split.excluded:,} excluded + {split.refused:,} refused = "
                f"{split.rows:,} rows{rest}"
            )
    if card.court_task and first.court:
        sides = (("harmful", first.court.harmful), ("benign", first.court.benign))
        click.echo("  " + ", ".join(f"{side} = {counted({one: sums[one] for one in ours})}" for side, ours in sides))
    for finding in report.findings:
        times = f" x {finding.count:,}" if finding.count > 1 else ""
        # Ids and names of files are strangers': none of them may steer the terminal.
        click.echo(f"  ! {finding.split}: {finding.kind}{times}: {plain(finding.what)}")
        for case in finding.where[:_SHOWN]:
            click.echo(f"      {plain(case)}")
        if len(finding.where) > _SHOWN:
            click.echo(f"      and {len(finding.where) - _SHOWN:,} more; --json lists all")
    if not report.decoded and any(split.pictures for split in report.splits):
        click.echo("  pictures were not decoded; --decode does that")
    for caveat in card.caveats:
        click.echo(f"  mind         {caveat}")
    click.echo(f"  {len(report.findings)} findings" if report.findings else "  nothing found")
