"""``memecourt-eval reproduce``: a published paper's tables, figures and claims beside our own."""

import asyncio
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import click

from court.errors import CourtError, Unavailable
from court.events import Procedure
from eval.commands.options import (
    EXIT_UNFINISHED,
    CourtOptions,
    confirm,
    json_option,
    patience_option,
    plan_of,
    run_watched,
    say,
    words_in,
    write_page,
)
from eval.datasets.known import find_card
from eval.models.open import read_models
from eval.reports.sections import Section, as_markdown, as_page, table
from eval.reproduce.demonstrations import DEMONSTRATIONS, draw_benchmarks, drawn_model, drawn_paper, stand_ins
from eval.reproduce.paper import Claim, Paper, read_paper
from eval.reproduce.report import (
    as_json,
    reproduction_lead,
    reproduction_sections,
    reproduction_title,
    staged_cells,
    staged_json,
    staged_lead,
    staged_sections,
)
from eval.reproduce.staged import STAGES, StagedOutcome, StagePlan, plan_stages, read_staged
from eval.reproduce.study import Benchmark, PlannedRun, Reproduction, outcome_of, present, run_reproduction, stages_of
from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.engine import SERVER_GONE, UNFINISHED, Progress
from eval.session.spec import spec_options
from eval.studies.arms import urls_of
from serving.cli.common import PATH, settings_of, with_options
from serving.presets import Preset, load_preset


@click.group()
def reproduce() -> None:
    """Reproduces a paper: its tables and figures beside the published ones, and its claims as tests.

    Each paper is a command. It shows its plan before any call, goes on where it was with --resume, and writes
    reproduction.json, .md and .html. --demo runs it on drawn data with stand-ins of known ability.
    """


_paper_options = with_options(
    click.option(
        "--demo", is_flag=True, help="Use drawn data, which are put below --out, and stand-ins of known ability."
    ),
    click.option("--resume", is_flag=True, help="Continue the reproduction in this folder, or add to it."),
    click.option("--dry-run", is_flag=True, help="Show the plan and exit."),
    click.option("--yes", is_flag=True, help="Start without asking for confirmation."),
    json_option,
)


@reproduce.command()
@spec_options(
    Circumstances,
    *("data", "out", "concurrency", "allow_missing"),
    concurrency={"default": 16},
    data={"help": "Folder of the unpacked data sets."},
    out={"required": True, "metavar": "STUDY"},
)
@click.option("--size", "sizes", multiple=True, help="Size of the model, or all. [default: the sizes of --llm-url]")
@click.option(
    "--llm-url",
    "urls",
    multiple=True,
    metavar="[SIZE=]URL",
    help="Server of one size or of all sizes; separate several servers of one model with commas. Repeatable.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[SIZE=]NAME",
    help="Model on that server. [default: the paper's model of that size]",
)
@click.option("--vllm", is_flag=True, help="Start vLLM here for each size in turn, instead of --llm-url.")
@spec_options(CourtOptions, "vllm_flags", "encoder")
@click.option("--tables", help="Tables of the paper to reproduce, separated by commas. [default: all]")
@click.option("--figures", help="Figures of the paper to reproduce, separated by commas. [default: all]")
@spec_options(JudgingSpec, "limit", "seed", seed={"default": 0})
@click.option(
    "--as-published/--as-served",
    default=True,
    help="Use the paper's settings as far as it states them, or the court's defaults. [default: as published]",
)
@click.option("--balanced", is_flag=True, help="Also score balanced draws of each split; needs no further calls.")
@click.option(
    "--with-leaks", is_flag=True, help="Add an arm that keeps precedents too near to judged memes, to see their worth."
)
@patience_option
@_paper_options
def memecourt(**options: Any) -> None:
    """Reproduces MemeCourt: its tables beside the published figures, its claims as tests, and its figures.

    Model sizes run one after another, the largest first. The plan is shown before any call; --resume continues from
    what exists. The folder gets reproduction.json, .md and .html.

    Exit code: 0 if every run of the plan is finished, 3 if some memes have no answer yet for want of a server, 1 if it
    could not go on, 130 if it was interrupted.
    """
    if options["data"] is None and not options["demo"]:
        raise click.UsageError("Missing option --data.")
    with ExitStack() as stack:
        if options["data"] is None:
            data: Path = options["out"] / "data"
            draw_benchmarks(data, test=56)
            options |= {"data": data, "encoder": options["encoder"] or "builtin"}
            # With --dry-run, too: the plan says which sizes there are servers for.
            options["urls"] = [f"{size}={url}" for size, url in stack.enter_context(stand_ins()).items()]
        _reproduce_court(options)


def _reproduce_court(options: dict[str, Any]) -> None:
    # Options and data are checked, and the plan is complete, before the first call.
    plan, preset = _planned(options)
    runs = plan.planned()
    if not _begins(options, *_plan_in_words(plan, runs), begun=bool(plan.begun())):
        return
    confirm(yes=options["yes"] or all(run.finished for run in runs))
    unfinished = _run(plan)
    # Also where it is not finished: what was judged so far is scored and written.
    _write_outcome(plan, preset, options)
    if unfinished:
        say(f"Not finished. {unfinished} What was judged is kept: the same command with --resume goes on.")
        sys.exit(EXIT_UNFINISHED)


def _begins(
    options: Mapping[str, Any], rows: Sequence[Sequence[str]], lines: Sequence[str] = (), *, begun: bool
) -> bool:
    """Shows a plan, on standard error but for a dry run; True if more than that is wanted.

    Raises click.UsageError: The folder holds a reproduction that is not to be resumed.
    """
    dry = options["dry_run"]
    if dry and options["as_json"]:
        click.echo(json.dumps({"plan": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]}))
    else:
        click.echo("\n".join([table(rows, numbers=False), *lines]), err=not dry)
    # After the plan, which can be looked at while a reproduction is there.
    if begun and not (dry or options["resume"]):
        raise click.UsageError(f"{options['out']} holds a reproduction already. --resume goes on with it.")
    return not dry


def _planned(options: dict[str, Any]) -> tuple[Reproduction, Preset | None]:
    if options["vllm"] and options["urls"]:
        raise click.UsageError("--vllm starts the servers; leave --llm-url out.")
    if options["vllm_flags"] and not options["vllm"]:
        raise click.UsageError("--vllm-flag goes with --vllm.")
    paper, drawn = read_paper(), options["demo"]
    preset = load_preset(paper.preset) if options["as_published"] else None
    # Addresses are checked now, not hours later when the turn of that size comes.
    urls = {size: urls_of(text, "llm-url") for size, text in _by_size(options["urls"], paper.sizes, "llm-url").items()}
    models = _by_size(options["models"], paper.sizes, "model")
    sizes = _sizes(options, urls, paper.sizes)
    if drawn:
        models = {size: drawn_model(size) for size in sizes} | models
    there, missing = present(_benchmarks(paper, options, preset, drawn=drawn))
    for benchmark, why in missing.items():
        say(f"{benchmark} is left out, its rows stay empty: {why}")
    stages = stages_of(
        paper,
        sizes,
        {each.name: each.data for each in there},
        tables=_numbers(options, paper, "tables"),
        figures=_numbers(options, paper, "figures"),
        models=models,
        leaks=options["with_leaks"],
    )
    if not stages:
        raise click.UsageError("--tables and --figures leave nothing to run with the data that are there.")
    try:
        compared = drawn_paper(paper, there) if drawn else paper
    except OSError:
        raise click.ClickException(
            f"{options['data']} holds no drawn benchmarks: folders harm-c, harm-p and fhm, each made by memecourt-eval "
            "synthetic."
        ) from None
    plan = Reproduction(
        out=options["out"],
        paper=compared,
        mode="as-published" if preset else "as-served",
        preset_digest=preset.digest if preset else "",
        benchmarks=there,
        stages=stages,
        urls=urls,
        vllm_flags=tuple(options["vllm_flags"]) if options["vllm"] else None,
    )
    return plan, preset


def _benchmarks(paper: Paper, options: dict[str, Any], preset: Preset | None, *, drawn: bool) -> list[Benchmark]:
    """The paper's benchmarks, or drawn ones in folders that are named as the paper's data sets."""
    encoder = {"encoder": options["encoder"]} if options["encoder"] else {}
    settings = settings_of(**(preset.settings(**encoder) if preset else encoder))
    found = []
    for each in paper.benchmarks:
        if drawn and not each.drawn:
            continue
        plan = plan_of(
            {"patience": options["patience"]},
            dataset=find_card(each.drawn if drawn else each.dataset),
            data=options["data"] / each.data if drawn else options["data"],
            out=options["out"],
            split=each.split,
            procedure=Procedure.FULL,
            protocols=(each.protocol,),
            settings=settings,
            # With the paper's settings the labels that it drops are dropped here too.
            drop_precedents=each.drops and preset is not None,
            limit=options["limit"],
            seed=options["seed"],
            concurrency=options["concurrency"],
            allow_missing=options["allow_missing"],
        )
        found.append(Benchmark(each.data if drawn else each.name, each.data, plan))
    return found


def _sizes(options: dict[str, Any], urls: Mapping[str, object], known: Sequence[str]) -> tuple[str, ...]:
    """Sizes to run: those that are asked for, else those that a server is named for."""
    if options["sizes"]:
        if unknown := [size for size in options["sizes"] if size not in (*known, "all")]:
            raise click.UsageError(f"--size {unknown[0]!r}: there are {', '.join(known)} and all.")
        return tuple(known) if "all" in options["sizes"] else tuple(dict.fromkeys(options["sizes"]))
    # Sizes that an address was named for; an address without a size is in the mapping of every size and
    # tells nothing.
    named = {part.partition("=")[0] for part in options["urls"]}
    if found := tuple(size for size in known if size in named):
        return found
    if options["dry_run"] or options["vllm"]:
        return tuple(known)
    raise click.UsageError(
        "Say which size of the model is where: --llm-url 7b=http://HOST:8000/v1, once for each; or --size with one "
        "--llm-url."
        if urls
        else "No server is named. Give --llm-url SIZE=URL for each size, --vllm to have them started, or --dry-run to "
        "see the plan."
    )


def _by_size(pairs: Sequence[str], sizes: Sequence[str], option: str) -> dict[str, str]:
    """Values by size; one without a size holds for all that have none of their own."""
    own: dict[str, str] = {}
    for pair in pairs:
        # An address may have an equals sign in it, too: only the name of a size counts as a prefix.
        size, equals, value = pair.partition("=")
        key, own_value = (size, value) if equals and size in sizes else ("", pair)
        # Given twice, one of the two would silently win.
        if key in own or not own_value:
            raise click.UsageError(f"--{option} {pair}: give one for each size, as SIZE=… with {', '.join(sizes)}.")
        own[key] = own_value
    return {size: own.get(size, own.get("", "")) for size in sizes if size in own or "" in own}


def _numbers(options: Mapping[str, Any], paper: Paper, what: Literal["tables", "figures"]) -> frozenset[int]:
    known, words = paper.numbers(what), words_in(options[what])
    if options[what] is None:
        return known
    if unknown := set(words) - set(map(str, known)):
        raise click.UsageError(
            f"--{what} {', '.join(sorted(unknown))}: numbers with commas between them, of "
            f"{', '.join(map(str, sorted(known)))}."
        )
    return frozenset(map(int, words))


def _run(plan: Reproduction) -> str:
    """Makes the runs; says why they are not finished, or nothing where they are."""

    async def work(progress: Progress) -> str:
        try:
            await run_reproduction(plan, progress)
        except Unavailable as error:
            # A vLLM that has died after it had answered may do better at its next start.
            # Before any verdict the fault lies in the model or its flags, and another start would end alike.
            died = error.reason == "VLLM_ENDED" and any(run.judged for run in plan.planned())
            if error.reason not in (SERVER_GONE, UNFINISHED) and not died:
                raise
            return error.message
        return ""

    return run_watched(work, lambda: "the same command with --resume goes on.")


def _write_outcome(plan: Reproduction, preset: Preset | None, options: Mapping[str, Any]) -> None:
    """Scores what was judged, writes the three files and shows the figures."""
    outcome = outcome_of(plan, balanced=options["balanced"])
    title, lead = reproduction_title(outcome), reproduction_lead(outcome, preset)
    sections, figures = asyncio.run(reproduction_sections(outcome, preset)), as_json(outcome)
    named = plan.paper.figures
    rows = [["row", "data", named.removeprefix("is "), "accuracy", "macro-F1", f"beside what {named}"]]
    for row in outcome.rows:
        published = f"{row.target.accuracy:.2f} / {row.target.macro_f1:.2f}" if row.target else "–"
        cells = [
            f"{100 * figure.value:.2f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]" if figure else "–"
            for name in ("accuracy", "macro-f1")
            for figure in [row.card.known(name) if row.card else None]
        ]
        rows.append([row.id or f"{row.arm}, {row.size}", row.benchmark, published, *cells, str(row.reached)])
    _write(options, title, lead, sections=sections, figures=figures, rows=rows, claims=outcome.claims)


def _write(
    options: Mapping[str, Any],
    title: str,
    lead: Sequence[str],
    *,
    sections: Sequence[Section],
    figures: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    claims: Sequence[Claim],
    links: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes the three files, and shows rows and claims, or the figures as JSON."""
    contents = {
        "json": json.dumps(figures, indent=2) + "\n",
        "md": as_markdown(title, lead, sections),
        "html": as_page(title, lead, sections, links=links),
    }
    for ending, content in contents.items():
        write_page(options["out"] / f"reproduction.{ending}", content)
    if options["as_json"]:
        click.echo(json.dumps(figures))
        return
    click.echo(table(rows, numbers=False) + "\n")
    click.echo("\n".join(f"{claim.id} {claim.verdict}: {claim.claim}" for claim in claims))
    click.echo(f"\n{options['out']} holds reproduction.json, .md and .html.")


def _plan_in_words(plan: Reproduction, runs: Sequence[PlannedRun]) -> tuple[list[list[str]], list[str]]:
    """The runs in order, with the calls that they take, as a table and in sentences."""
    left = [run for run in runs if not run.finished]
    fewest, most = sum(run.fewest for run in left), sum(run.most for run in left)
    rows = [["size", "model", "data", "split", "arm", "memes", "calls", "judged"]]
    for run in runs:
        calls = f"{run.fewest:,}" if run.fewest == run.most else f"{run.fewest:,} to {run.most:,}"
        done = "all" if run.finished else f"{run.judged:,}"
        data, split = run.benchmark.name, run.benchmark.plan.split
        rows.append([run.stage.size, run.stage.model, data, split, run.arm, f"{run.memes:,}", calls, done])
    lines = [
        "",
        f"Still to run: {fewest:,} to {most:,} calls, by the number of rounds, one size after the other: "
        f"{', then '.join(f'{stage.size} ({stage.model})' for stage in plan.stages)}.",
        "Calls that an arm shares with full are counted with full.",
    ]
    return rows, lines


def _staged(name: str, title: str) -> click.Command:
    """The command of a paper whose figures come from our other commands."""

    @reproduce.command(name, short_help=f"Reproduces {title}.", help=_STAGED_HELP.format(title=title))
    @spec_options(
        Circumstances,
        *("data", "out"),
        data={"help": "Folder of the data that the stages need; the plan names what is missing."},
        out={"required": True, "metavar": "STUDY"},
    )
    @click.option("--models", type=PATH, help="File of models (TOML), by the paper's names.")
    @click.option("--as-published/--as-served", default=True, help="Use the paper's settings. [default: as published]")
    @spec_options(JudgingSpec, "limit", "seed", seed={"default": 0})
    @_paper_options
    def command(**options: Any) -> None:
        _reproduce_stages(name, options)

    return command


_STAGED_HELP = """Reproduces {title}: its tables and figures beside the published ones, its claims as tests.

Its stages are our own commands, one after the other; the page names each. A stage without its data or models is left
out, and the plan says what to fetch.

Exit code: 0 if no stage is left that could run, 3 if one is not finished, 130 if it was interrupted.
"""
# Names here and not from the files: --help is to be quick.
STAGED = {
    "adammeme": "AdamMeme",
    "climatememes": "ClimateMemes",
    "emulate": "EMULATE",
    "memearena": "MemeArena",
    "probench": "ProBench",
}
for _name, _title in STAGED.items():
    _staged(_name, _title)


def _reproduce_stages(name: str, options: dict[str, Any]) -> None:
    paper, out, tables = read_staged(name), options["out"], dict[str, Any]()
    planted: Mapping[str, Any] | None = None
    with ExitStack() as stack:
        models: dict[str, dict[str, Any]] = {}
        data: Path | None = options["data"]
        demo = DEMONSTRATIONS[name] if options["demo"] else None
        if demo is None and data is not None and not data.is_dir():
            raise click.UsageError(f"There is no folder {data}. --data names that of the data that the stages need.")
        if demo is not None:
            paper, data = paper.demonstrated(), data or out / "data"
            models = stack.enter_context(demo.models())
        elif options["models"]:
            file = read_models(options["models"])
            models = {key: spec.model_dump(exclude_defaults=True) for key, spec in file.models.items()}
            tables = dict(file.rest)
        how = {"published": options["as_published"], "seed": options["seed"], "limit": options["limit"]}
        plans = plan_stages(paper, out, data, models, tables=tables, **how)
        stored = {plan.spec.id: plan.stored() for plan in plans}
        rows = _stages_in_rows(plans, stored, options["limit"])
        if not _begins(options, rows, begun=(out / STAGES).exists()):
            return
        if all(plan.missing for plan in plans):
            raise click.ClickException(f"No stage can run. {plans[0].spec.id}: {plans[0].missing}.")
        confirm(yes=options["yes"] or None not in stored.values())
        (out / STAGES).mkdir(parents=True, exist_ok=True)
        if demo is not None and data is not None:
            demo.draw(data)
            planted = demo.planted(data)
        left: dict[str, str] = {}
        for number, plan in enumerate(plans, 1):
            if stored[plan.spec.id] is None:
                say(f"Stage {number} of {len(plans)}, {plan.spec.id}: {plan.spec.title}.")
                # A stage before it may have failed, too; its own message would tell of a folder alone.
                lacks = plan.missing or "; ".join(f"it needs the stage {one}" for one in plan.spec.after if one in left)
                stored[plan.spec.id], why = (None, lacks) if lacks else _run_stage(plan)
                if why:
                    left[plan.spec.id] = why
                    say(f"The stage {plan.spec.id} stands: {why}")
    outcome = StagedOutcome(paper, {key: found for key, found in stored.items() if found is not None}, left, planted)
    mode = "as published, as far as the paper states them" if options["as_published"] else "as served"
    commands = {plan.spec.id: f"memecourt-eval {shlex.join(plan.words)}" for plan in plans}
    links = [
        (plan.spec.title, f"{STAGES}/{plan.spec.page}") for plan in plans if (out / STAGES / plan.spec.page).is_file()
    ]
    figures, sections = staged_json(outcome), staged_sections(outcome, commands)
    title, lead = f"{paper.paper}, reproduced", staged_lead(outcome, mode)
    named = "published" if outcome.planted is None else "must be"
    rows = [["table", "row", "figure", "n", named, "ours", "difference", "can occur", "beside it"]]
    rows += [[name, *staged_cells(cell)] for name, cells in outcome.tables().items() for cell in cells]
    _write(options, title, lead, sections=sections, figures=figures, rows=rows, claims=outcome.claims(), links=links)
    if failed := {plan.spec.id for plan in plans if not plan.missing} & left.keys():
        say(f"Not finished: {', '.join(sorted(failed))}. The same command with --resume goes on.")
        sys.exit(EXIT_UNFINISHED)


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


def _stages_in_rows(plans: Sequence[StagePlan], stored: Mapping[str, Any], limit: int | None) -> list[list[str]]:
    """The stages in order, with the calls that they take."""
    rows = [["stage", "what", "calls", "state"]]
    for plan in plans:
        items = min(plan.spec.items, limit or plan.spec.items)
        low, high = (f"{items * each:,.0f}" for each in plan.spec.calls)
        calls = low if low == high else f"{low} to {high}"
        state = "finished" if stored[plan.spec.id] is not None else plan.missing or "to run"
        rows.append([plan.spec.id, plan.spec.title, calls, state])
    return rows
