"""``memecourt-eval score``: anyone's predictions by the rules that the court is scored by."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest
from eval.commands.options import (
    Shown,
    TableWords,
    command_line,
    dataset_of,
    protocol_option,
    protocols_of,
    refuse_table_words,
    say,
    seed_option,
    shows_sections,
    table_of,
)
from eval.datasets.items import Protocol
from eval.datasets.read import read_split
from eval.reports import tasks
from eval.runs.results import write_scored
from eval.scores.prediction_file import ScoredFile, read_answers, read_predictions
from eval.session.spec import spec_options
from eval.solvers.question import ELSEWHERE, question_about
from serving.cli.common import PATH


@click.command()
@click.argument("file", type=PATH)
@click.option("--dataset", "id_", help="Data set of the predictions, unless --data is a table.")
@click.option("--data", type=PATH, required=True, help="Directory of the data set, or a table.")
@spec_options(TableWords, "columns", "harmful", "pictures")
@click.option("--split", required=True, help="Split of the predictions.")
@click.option("--task", help="Task of the card, such as stance, whose answers are scored in place of verdicts.")
@protocol_option
@click.option(
    "--scorer",
    default="",
    metavar="NAME",
    help="Scorer of an Inspect AI log to take answers from. [default: the first]",
)
@click.option("--name", help="Name of the system. [default: the file's name]")
@seed_option
@click.option("--out", type=PATH, metavar="FOLDER", help="Store them as a run without records.")
@shows_sections(page=False)
def score(file: Path, **options: Any) -> Shown:
    """Scores the predictions in FILE against the gold labels of a split.

    FILE is CSV with a header, JSON a line or Parquet, with an id and a label each: harmful, not_harmful, 1, 0, true,
    false, or the data set's own words; undecided, or empty for no answer. A score (probability of harm, from 0 to 1)
    may stand beside them. Or it is a log of Inspect AI (….eval, ….json),
    whose samples have the memes' ids and whose scorer's answers are labels. Faults are told by line, row or sample, and
    nothing is scored until they are gone. A meme that FILE says nothing of has failed: it is wrong in the strict
    figures.

    With --task, labels are those of that task of the data set's card. Where a meme may have several, they stand in a
    list, or in a text with ; between them; a probability of each may stand in score:LABEL.

    Intervals are 95 %, by bootstrap over memes (10,000 resamples). With --out, the predictions are stored as a run
    without records, which report, compare, subgroups and labels noise take beside runs of the court, meme by meme.
    """
    data, split = options["data"], options["split"]
    if options["id_"] is not None:
        refuse_table_words(options)
        dataset = dataset_of(options["id_"])
    elif data.is_file():
        table = table_of(options)
        dataset, data = table.card, table.data
    else:
        raise click.UsageError("Missing option --dataset: a data set or card; or name a table with --data FILE.")
    name, question = options["name"] or file.stem, None
    protocols: tuple[Protocol, ...] = ()
    if options["task"] is None:
        protocols = protocols_of(options["protocol"], dataset.protocols)
        read = read_split(dataset, data, split)
        scored = read_predictions(file, read.memes, scorer=options["scorer"])
    elif options["protocol"] is not None:
        raise click.UsageError("--protocol is for verdicts: leave it out with --task.")
    else:
        # Before anything is read: a task that there is none of is told with those that there are.
        task = dataset.task(options["task"])
        read = read_split(dataset, data, split, task=task.id)
        scored = read_answers(file, read.memes, task, scorer=options["scorer"])
        question = question_about(task, inputs=(ELSEWHERE,))
    results = scored.results(read.memes, name=name, dataset=dataset.id, split=split, protocols=protocols)
    results = replace(results, answered_question=question, card=dataset)
    notes = (*read.notes, *scored.notes)
    if (out := options["out"]) is not None:
        write_scored(out, results, file=file, scorer=options["scorer"], notes=notes, command=command_line())
        say(f"{out} holds the predictions; report, compare, subgroups and labels noise take it like a run.")
    report = tasks.gather([results], seed=options["seed"])
    (group,) = report.groups
    # A named protocol must have figures, and at least one protocol must have some.
    if group.unscored and (options["protocol"] is not None or not group.tables):
        raise BadRequest(group.unscored[0], reason="NOTHING_TO_SCORE")
    figures, sections = tasks.as_json(report), tasks.sections_of(report)
    about = {"dataset": dataset.id, "split": split, "gold_problems": len(read.problems), "notes": notes}
    document = {"name": name, **about, "missing": scored.missing, "unused": scored.unused, **figures}
    # Rows without gold of the task are told before the figures, which are not over them.
    lead = [f"{name} on {dataset.title}, split {split}", "", *notes]
    return Shown(title=name, lead=lead, sections=sections, figures=document, end=list(_gaps(scored)))


def _gaps(scored: ScoredFile) -> Iterator[str]:
    if count := len(scored.missing):
        which = "1 meme of the split the file says nothing; it counts" if count == 1 else ""
        yield f"\nOf {which or f'{count:,} memes of the split the file says nothing; they count'} as failed."
    if scored.unused:
        yield f"\nColumns that nothing was read from: {', '.join(scored.unused)}."
