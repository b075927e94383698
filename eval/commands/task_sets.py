"""``memecourt-eval arena tasks``: sets of questions for arenas, from trials or from many candidates."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from court.events import Side
from eval.arena.folder import FixedTask, read_lines
from eval.arena.task_set import FIELDS, build_set, tasks_of_run
from eval.commands.follow_ups import asking_options
from eval.commands.options import Shown, run_watched, shows_sections, words_in
from eval.commands.sampled import chosen_models, samples_of
from eval.models.open import opened_models, read_models
from eval.models.samples import read_memes
from eval.reports.sections import Section
from eval.session.directory import json_line
from eval.session.engine import Progress
from serving.cli.common import PATH, tell
from serving.cli.common import run as asyncio_run


@click.group()
def tasks() -> None:
    """Makes a set of questions for an arena (--tasks)."""


@tasks.command("from-run")
@click.argument("run", metavar="RUN", type=PATH)
@click.option(
    "--side",
    type=click.Choice(["both", "accuser", "defender"]),
    default="both",
    show_default=True,
    help="Side that asked the questions.",
)
@click.option("--mixed", is_flag=True, help="Prefix meme ids with the data set's id, for an arena over several.")
@click.option("--out", type=PATH, required=True, help="Task file to write, for --tasks.")
def tasks_from_run(run: Path, side: str, mixed: bool, out: Path) -> None:
    """Makes arena tasks from the questions of Accuser and Defender in the trials of a RUN.

    An arena with these tasks (--tasks) finds the better witness. The Proposer's answers are left out.
    """
    sides = list(Side) if side == "both" else [Side(side.upper())]
    made, silent, unread = asyncio_run(tasks_of_run(run, sides, prefixed=mixed))
    _write(out, made)
    if silent or unread:
        tell(f"{silent:,} trials had no question; {len(unread):,} records can't be read.")
    click.echo(f"{out} has {len(made):,} tasks about {len({task.meme for task in made}):,} memes.")


@tasks.command("build")
@click.argument("candidates", type=PATH)
@click.option("--annotator", metavar="NAME", required=True, help="Annotator: a model of the models file, no target.")
@asking_options
@click.option("--dataset", metavar="ID", help="Data set. [default: the one that is recognised there]")
@click.option("--split", help="Split. [default: the first test split]")
@click.option("--stop-words", type=PATH, help="Words or phrases, a line each: questions that contain one go.")
@click.option(
    "--near",
    type=click.FloatRange(0, 1),
    help="Share of common letter groups from which on a question is a near-copy of an earlier one. [default: 0.8]",
)
@click.option("--fields", metavar="NAME,NAME,…", help="Fields to choose from. [default: ProBench's ten]")
@click.option("--per-field", type=click.IntRange(1), help="Maximum questions per field, drawn by the seed.")
@click.option("--hardest", type=click.IntRange(1), help="Number of questions that stay in each language.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the draw.")
@click.option("--out", type=PATH, required=True, help="Task file to write, for --tasks.")
@shows_sections(page=False)
def build(candidates: Path, **options: Any) -> Shown:
    """Chooses questions for a benchmark from many CANDIDATES (JSON lines, as for --tasks), as ProBench's were chosen.

    Questions with stop words, near-copies, and questions that need no picture are dropped. The annotator names field,
    sub-field and difficulty of the others, which become tags; then fields are balanced and the hardest stay.
    """
    read = read_lines(candidates, FixedTask)
    specs = chosen_models(options, [options["annotator"]])
    table = read_models(options["models"]).rest.get("arena", {})
    samples = samples_of({**options, "limit": None}, table, "[arena] in the file of models")
    fields = words_in(options["fields"]) or FIELDS
    try:
        words = options["stop_words"].read_text("utf-8-sig").splitlines() if options["stop_words"] else ()
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{options['stop_words']} can't be read: {error}.") from None
    bounds = {name: options[name] for name in ("near", "per_field", "hardest", "seed") if options[name] is not None}
    rules = {"stop_words": tuple(filter(None, map(str.strip, words))), "fields": fields, **bounds}
    out: Path = options["out"]
    if out.exists():
        raise click.UsageError(f"{out} is there already: name another file.")

    async def work(progress: Progress) -> tuple[list[FixedTask], dict[str, int]]:
        wanted = {task.meme for task in read}
        shown = await read_memes(samples, seed=0, keep=wanted.__contains__)
        calls = options["calls"] or out.with_suffix(".calls.sqlite")
        async with opened_models(specs, calls, progress.tell) as models:
            memes = {meme.id: meme for meme in shown.memes}
            annotator = models[options["annotator"]]
            how = {"concurrency": options["concurrency"], "progress": partial(progress.step, "questions")}
            return await build_set(read, memes, annotator, **rules, **how)

    found, left = run_watched(work)
    _write(out, found)
    by_field = dict(Counter(task.tags["field"] for task in found).most_common())
    rows = [("questions", "left"), *((step, f"{count:,}") for step, count in left.items())]
    fields_found = ", ".join(f"{name} {count:,}" for name, count in by_field.items()) or "none"
    return Shown(
        title="Questions",
        sections=[Section("left", "Questions left after each step", tuple(rows))],
        figures={"left": left, "fields": by_field},
        end=[f"{out} has them: {fields_found}."],
    )


def _write(out: Path, made: Sequence[FixedTask]) -> None:
    try:
        # Never over a file: its questions may be those of an arena that is under way.
        with out.open("x", encoding="utf-8") as file:
            file.writelines(map(json_line, made))
    except OSError as error:
        raise click.UsageError(f"{out} can't be written: {error.strerror}.") from None
