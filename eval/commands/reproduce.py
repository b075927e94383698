"""``memecourt-eval reproduce``: a published paper's tables, figures and claims beside our own."""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest, CourtError
from eval.commands.options import EXIT_UNFINISHED, CourtOptions, confirm, json_option, say, write_page
from eval.models.open import read_models
from eval.reports.sections import as_markdown, as_page, table
from eval.reproduce.court import balanced_sections, court_figures, left_out, preset_rows
from eval.reproduce.demonstrations import DEMONSTRATIONS
from eval.reproduce.outcome import Reproduced
from eval.reproduce.paper import read_paper
from eval.reproduce.report import cell_in_words, reproduced_json, reproduced_lead, reproduced_sections
from eval.reproduce.stages import STAGES, StagePlan, plan_stages
from eval.runs.results import Results, read_results
from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.directory import refuse_others
from eval.session.spec import spec_options
from serving.cli.common import PATH, with_options
from serving.presets import load_preset

_HELP = """Reproduces {title}: its tables and figures beside the published ones, its claims as tests.

Its stages are our own commands, one after the other; the page names each. A stage without its data or models is left
out, and the plan says what to fetch.

Exit code: 0 if no stage is left that could run, 3 if one is not finished, 130 if it was interrupted.
"""
# Names here and not from the files: --help is to be quick.
PAPERS = {
    "adammeme": "AdamMeme",
    "climatememes": "ClimateMemes",
    "emulate": "EMULATE",
    "memearena": "MemeArena",
    "memecourt": "MemeCourt",
    "probench": "ProBench",
}


@click.group()
def reproduce() -> None:
    """Reproduces a paper: its tables and figures beside the published ones, and its claims as tests.

    Each paper is a command. It shows its plan before any call, goes on where it was with --resume, and writes
    reproduction.json, .md and .html. --demo runs it on drawn data with stand-ins of known ability.
    """


def _command(name: str, title: str, *own: Callable[..., Any]) -> None:
    @reproduce.command(name, short_help=f"Reproduces {title}.", help=_HELP.format(title=title))
    @spec_options(
        Circumstances,
        *("data", "out"),
        data={"help": "Folder of the data that the stages need; the plan names what is missing."},
        out={"required": True, "metavar": "STUDY"},
    )
    @click.option("--models", type=PATH, help="File of models (TOML), by the paper's names.")
    @click.option("--as-published/--as-served", default=True, help="Use the paper's settings. [default: as published]")
    @spec_options(JudgingSpec, "limit", "seed", seed={"default": 0})
    @with_options(*own)
    @click.option(
        "--demo", is_flag=True, help="Use drawn data, which are put below --out, and stand-ins of known ability."
    )
    @click.option("--resume", is_flag=True, help="Continue the reproduction in this folder, or add to it.")
    @click.option("--dry-run", is_flag=True, help="Show the plan and exit.")
    @click.option("--yes", is_flag=True, help="Start without asking for confirmation.")
    @json_option
    def command(**options: Any) -> None:
        _reproduce(name, options)


_OF_A_COURT = (
    spec_options(CourtOptions, "encoder"),
    click.option("--balanced", is_flag=True, help="Also score balanced draws of each split; needs no further calls."),
)
for _name, _title in PAPERS.items():
    _command(_name, _title, *(_OF_A_COURT if _name == "memecourt" else ()))


def _reproduce(name: str, options: dict[str, Any]) -> None:
    paper, out, tables = read_paper(name), options["out"], dict[str, Any]()
    planted: Mapping[str, Any] | None = None
    with ExitStack() as stack:
        models: dict[str, dict[str, Any]] = {}
        data: Path | None = options["data"]
        demo = DEMONSTRATIONS[name] if options["demo"] else None
        if demo is None and data is not None and not data.is_dir():
            raise click.UsageError(f"There is no folder {data}. --data names that of the data that the stages need.")
        if demo is not None:
            if options["models"]:
                raise click.UsageError("--demo has models of its own: leave --models out.")
            paper, data = paper.demonstrated(), data or out / "data"
            models = stack.enter_context(demo.models())
        elif options["models"]:
            file = read_models(options["models"])
            models = {key: spec.model_dump(exclude_defaults=True) for key, spec in file.models.items()}
            tables = dict(file.rest)
            known = {name for spec in paper.stages for name in spec.tables}
            if unread := [name for name in tables if name not in known or not isinstance(tables[name], dict)]:
                raise click.UsageError(f"{options['models']} has tables that nobody reads: {', '.join(unread)}.")
        # Drawn data need no weights.
        encoder = options.get("encoder") or ("builtin" if demo else "")
        how = {"published": options["as_published"], "seed": options["seed"], "limit": options["limit"]}
        more = ("--encoder", encoder) if encoder else ()
        plans = plan_stages(paper, out, data, models, tables=tables, more=more, **how)
        stored = {plan.spec.id: plan.stored() for plan in plans}
        if others := sorted({file.stem for file in (out / STAGES).glob("*.json")} - stored.keys()):
            raise click.UsageError(f"{out} holds another reproduction, with {', '.join(others)}: name another --out.")
        if not _begins(options, _in_rows(plans, stored, options["limit"], drawn=demo is not None)):
            return
        if all(plan.missing and stored[plan.spec.id] is None for plan in plans):
            raise click.ClickException(f"No stage can run. {plans[0].spec.id}: {plans[0].missing}.")
        confirm(yes=options["yes"] or all(plan.missing or stored[plan.spec.id] is not None for plan in plans))
        (out / STAGES).mkdir(parents=True, exist_ok=True)
        if demo is not None and data is not None:
            demo.draw(data)
            planted = demo.planted(data)
        left, failed = dict[str, str](), list[str]()
        for number, plan in enumerate(plans, 1):
            if stored[plan.spec.id] is None:
                say(f"Stage {number} of {len(plans)}, {plan.spec.id}: {plan.spec.title}.")
                # A stage before it may have failed, too; its own message would tell of a folder alone.
                before = (one for one in (*plan.spec.after, *plan.spec.among) if one in failed)
                lacks = plan.missing or "; ".join(f"it needs the stage {one}" for one in before)
                stored[plan.spec.id], why = (None, lacks) if lacks else _run_stage(plan)
                if why:
                    left[plan.spec.id] = why
                    failed += [] if plan.missing else [plan.spec.id]
                    say(f"The stage {plan.spec.id} stands: {why}")
    done = {key: found for key, found in stored.items() if found is not None}

    @cache
    def arm(stage: str, name: str) -> Results | None:
        return read_results(out / STAGES / f"{stage}-run" / name) if stage in done else None

    named = {key: str(models[key]["model"]) for plan in plans for key in plan.spec.models if key in models}
    outcome = Reproduced(paper, done, left, planted=planted, arm=arm, models=named, seed=options["seed"])
    _write(outcome, plans, options, encoder)
    if failed:
        say(f"Not finished: {', '.join(sorted(failed))}. The same command with --resume goes on.")
        sys.exit(EXIT_UNFINISHED)


def _begins(options: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> bool:
    """Shows a plan, on standard error but for a dry run; True if more than that is wanted.

    Raises click.UsageError: The folder holds a reproduction that is not to be resumed.
    """
    dry, out = options["dry_run"], options["out"]
    if dry and options["as_json"]:
        click.echo(json.dumps({"plan": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]}))
    else:
        click.echo(table(rows, numbers=False), err=not dry)
    # After the plan, which can be looked at while a reproduction is there.
    if not dry and not (out / STAGES).exists():
        refuse_others(out, "reproduction", (STAGES, "data"))
    elif not (dry or options["resume"]):
        raise click.UsageError(f"{out} holds a reproduction already. --resume goes on with it.")
    return not dry


def _in_rows(
    plans: Sequence[StagePlan], stored: Mapping[str, Any], limit: int | None, *, drawn: bool
) -> list[list[str]]:
    """The stages in order, with the calls that they take."""
    rows = [["stage", "what", "calls", "state"]]
    for plan in plans:
        fault = plan.missing
        try:
            # Drawn data may not be there yet.
            items = plan.memes(limit, read=not (fault or drawn))
        except BadRequest as error:
            items, fault = plan.memes(limit, read=False), error.message
        low, high = (f"{items * each:,.0f}" for each in plan.spec.calls)
        calls = low if low == high else f"{low} to {high}"
        state = "finished" if stored[plan.spec.id] is not None else fault or "to run"
        rows.append([plan.spec.id, plan.spec.title, calls, state])
    return rows


def _run_stage(plan: StagePlan) -> tuple[Any, str]:
    """Runs the command of a stage in this process; returns its figures, or the reason why there are none."""
    if plan.content:
        (plan.file.parent / f"{plan.spec.id}.toml").write_text(plan.content, "utf-8")
    name, *arguments = plan.words
    command: click.Command = getattr(import_module(f"eval.commands.{name}"), name)
    printed, argv = StringIO(), sys.argv
    # Manifests and pages name the command that made them, which is the stage's and not this one.
    sys.argv = ["memecourt-eval", *plan.words]
    try:
        with redirect_stdout(printed):
            command.main([*arguments, "--json"], prog_name=f"memecourt-eval {name}", standalone_mode=False)
    except CourtError as error:
        return None, error.message
    except click.ClickException as error:
        return None, error.format_message()
    except SystemExit as error:
        # Only a stage that waits for its server is left for later; after an interruption nothing further is begun.
        if error.code != EXIT_UNFINISHED:
            raise
        return None, "not finished, for want of a server"
    finally:
        sys.argv = argv
    figures = json.loads(printed.getvalue())
    plan.store(figures)
    return figures, ""


def _write(outcome: Reproduced, plans: Sequence[StagePlan], options: Mapping[str, Any], encoder: str) -> None:
    """Writes the three files, and shows tables and claims, or the figures as JSON."""
    paper, out = outcome.paper, options["out"]
    figures, more = reproduced_json(outcome), _of_court(outcome, options, encoder)
    figures |= more.pop("figures_json", {})
    mode = "as published, as far as the paper states them" if options["as_published"] else "as served"
    commands = {plan.spec.id: f"memecourt-eval {shlex.join(plan.words)}" for plan in plans}
    links = [
        (plan.spec.title, f"{STAGES}/{plan.spec.page}") for plan in plans if (out / STAGES / plan.spec.page).is_file()
    ]
    title, lead = f"{paper.paper}, reproduced", reproduced_lead(outcome, mode)
    sections = reproduced_sections(outcome, commands, **more)
    contents = {
        "json": json.dumps(figures, indent=2) + "\n",
        "md": as_markdown(title, lead, sections),
        "html": as_page(title, lead, sections, links=links),
    }
    for ending, content in contents.items():
        write_page(out / f"reproduction.{ending}", content)
    if options["as_json"]:
        click.echo(json.dumps(figures))
        return
    named = "published" if outcome.planted is None else "must be"
    rows = [["table", "row", "figure", "n", named, "ours", "difference", "can occur", "beside it"]]
    rows += [[name, *cell_in_words(cell)] for name, cells in outcome.tables().items() for cell in cells]
    click.echo(table(rows, numbers=False) + "\n")
    click.echo("\n".join(f"{claim.id} {claim.verdict}: {claim.claim}" for claim in outcome.claims()))
    click.echo(f"\n{out} holds reproduction.json, .md and .html.")


def _of_court(outcome: Reproduced, options: Mapping[str, Any], encoder: str) -> dict[str, Any]:
    """Parts of a paper on the court beyond tables and claims; empty for others."""
    debate, preset = outcome.paper.debate, outcome.paper.preset
    if debate is None:
        return {}
    sections, shown = asyncio.run(court_figures(debate, outcome.arm))
    if options["balanced"]:
        sections += balanced_sections(outcome)
    rows, lines = (
        [],
        [
            "The court was run as it is served, not as the paper describes it: precedents with their likeness and the "
            "vote of a wider set before the Judge, the product's own policy, and probabilities asked for. The preset "
            "as-published (memecourt settings --preset as-published) has the paper's values."
        ],
    )
    if options["as_published"]:
        found = load_preset(preset)
        rows = list(preset_rows(found, encoder))
        lines = [f"Made of the preset that the runs were held with ({found.digest}).", *left_out(debate, outcome.arm)]
    return {"figures": sections, "differing": rows, "lines": lines, "figures_json": shown}
