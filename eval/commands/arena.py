"""``memecourt-eval arena``: ranks models by how well they explain harm, by each other's judgement."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest
from eval.arena.agreement import HumanVerdict
from eval.arena.compare import arena_repeats, combine_repeats
from eval.arena.folder import ArenaFolder, read_lines
from eval.arena.groups import boards_by, group_section
from eval.arena.leaderboard import Leaderboard, board_lead, board_sections, board_title, leaderboard
from eval.arena.run import Ask, run
from eval.arena.settings import arena_settings
from eval.arena.words import Row
from eval.commands.follow_ups import detect_memes, difficulty, distil_check, explain, export_judge
from eval.commands.options import Shown, command_line, confirm, run_watched, shows_sections, words_in, write_answer
from eval.commands.rating import rate_arena
from eval.commands.sampled import chosen_models, sampled_options, samples_of
from eval.commands.task_sets import tasks
from eval.models.open import read_models
from eval.models.samples import TABLE_KEYS
from eval.session.sampled import repeats_in
from serving.cli.common import PATH, tell

PAGE = "leaderboard.html"


@click.group(invoke_without_command=True)
@sampled_options(
    "arena.toml",
    "arena",
    about="File of models (TOML), with the table [arena]: judges, controller and all other settings.",
    own=("name",),
    out={"default": Path("arena")},
    concurrency={"default": 4},
)
@click.option(
    "--tasks",
    type=PATH,
    help="Questions that come with a set (JSON lines: meme, rounds, language, reference), instead of written ones.",
)
@click.option(
    "--references",
    type=PATH,
    help="Answers that people wrote (JSON lines: meme, background, reasoning), for the bias study.",
)
@click.option(
    "--humans",
    type=PATH,
    help="Battles judged by people (JSON lines: meme, task, one, other, who, better), to compare the panel with.",
)
@click.option(
    "--by",
    metavar="KEY,KEY,…",
    help="Boards by group too: dataset, label, gold, language, rounds, relevance, or a tag of the questions.",
)
@click.option("--yes", is_flag=True, help="Begin without asking in a terminal to confirm the number of calls.")
@shows_sections(page=False)
@click.pass_context
def arena(context: click.Context, /, **options: Any) -> Shown | None:
    """Has models explain the harm in memes and judge each other's answers in pairs, and ranks them.

    For each meme a controller invents three people, each of whom asks a question; every target answers all questions.
    The panel's views are fused into a guideline, by which judges then compare answers without knowing their authors.
    The folder holds every step, and a page (leaderboard.html) the ratings with their intervals.

    The same command continues an interrupted arena, and repeats no stored call.

    Exit code: 0 if the arena is complete, 1 if it could not continue, 130 if it was interrupted.
    """
    if context.invoked_subcommand is not None:
        return None

    out: Path = options["out"]
    # Before any model is asked: the error further down would come after all calls are paid for.
    if options["by"] and options["repeats"] > 1 and not options["only_report"]:
        raise click.UsageError("--by is for one arena: leave it out here, and report on the folder of a repeat.")
    # Before any model is asked, so that a fault in the file costs no calls.
    humans = read_lines(options["humans"], HumanVerdict) if options["humans"] else ()
    if not options["only_report"]:
        ask = _options_of(options)
        if options["repeats"] == 1:
            _run(ask, yes=options["yes"])
        else:
            for number, repeat in enumerate(arena_repeats(ask, options["repeats"])):
                # Confirmed once: the repeats are one decision.
                _run(repeat, yes=options["yes"] or number > 0)
    if folders := repeats_in(out):
        if options["by"]:
            raise click.UsageError(f"--by is for one arena: name the folder of a repeat, such as {folders[0]}.")
        boards = [leaderboard(folder, humans) for folder in folders]
        for one, folder in zip(boards, folders, strict=True):
            write_answer(_shown(one, folder), folder / PAGE)
        repeats, ahead, section = combine_repeats(boards)
        figures = {**asdict(repeats), "ahead": ahead, "repeats": [board.figures for board in boards]}
        return Shown(
            title="Leaderboard over repeats",
            lead=repeats.lead,
            sections=[section],
            figures=figures,
            page=out / PAGE,
            links=_links(out),
            end=[f"{out / PAGE} shows it, and {PAGE} in each repeat's folder the repeat."],
        )
    board, keys = leaderboard(out, humans), words_in(options["by"])
    # Most reports have no groups, and reading all events of a large arena takes a while.
    return _shown(board, out, boards_by(board.manifest, ArenaFolder(out).events(), keys) if keys else [])


for follow_up in (tasks, rate_arena, explain, detect_memes, export_judge, distil_check, difficulty):
    arena.add_command(follow_up)


def _run(ask: Ask, *, yes: bool) -> None:
    def begin(calls: int, dollars: float) -> None:
        price = f", about US$ {dollars:,.2f} at 1,500 tokens in and 300 out a call" if dollars else ""
        tell(f"This takes about {calls:,} calls{price}; stored calls are not made again.")
        confirm(yes=yes)

    if ArenaFolder(ask.out).begun:
        tell(f"{ask.out} holds an arena, which is continued.")
    run_watched(lambda progress: run(ask, progress.tell, partial(progress.step, "memes"), begin=begin))


def _options_of(options: dict[str, Any]) -> Ask:
    file = read_models(options["models"])
    unknown = [name for name in file.rest if name != "arena"]
    if unknown:
        raise BadRequest(f"{options['models'].name} has tables that nobody reads: {', '.join(unknown)}.")
    table = file.rest.get("arena", {})
    samples = samples_of(options, table, "[arena] in the file of models")
    own = {name: table[name] for name in table if name not in TABLE_KEYS}
    settings = arena_settings(own, file.models, folder=options["models"].parent)
    # A file may name models without a role; their servers need not run.
    specs = chosen_models(options, (*settings.targets, *settings.judges, settings.controller))
    same = ("out", "seed", "concurrency", "tasks", "references", "calls", "vllm", "vllm_flags")
    return Ask(
        **{name: options[name] for name in same},
        name=options["name"] or options["out"].resolve().name,
        settings=settings,
        specs=specs,
        samples=samples,
        command=command_line(),
    )


def _links(out: Path) -> list[tuple[str, str]]:
    """Words and addresses of the pages of an arena's repeats, or of the page that combines them."""
    repeats = sorted(folder.name for folder in out.glob("repeat-*") if (folder / PAGE).exists())
    above = [("All repeats", f"../{PAGE}")] if out.name.startswith("repeat-") else []
    return [*above, *((name, f"{name}/{PAGE}") for name in repeats)]


def _shown(board: Leaderboard, out: Path, groups: Sequence[Row] = ()) -> Shown:
    models = [row.model for row in board.overall.rows]
    return Shown(
        title=board_title(board),
        lead=board_lead(board),
        sections=[*board_sections(board), *(group_section(by, models) for by in groups)],
        figures=board.figures | ({"by": groups} if groups else {}),
        page=out / PAGE,
        command=board.manifest.command,
        links=_links(out),
    )
