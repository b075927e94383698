"""``memecourt-eval reproduce``: a published paper's tables, figures and claims beside our own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import EXIT_UNFINISHED, patience_option, run_watched, say
from eval.commands.pages import command_line
from serving.cli.common import FiniteRange

if TYPE_CHECKING:
    from eval.reproduce.outcome import Reproduced
    from eval.reproduce.stages import PlannedRun, Reproduction, Servers
    from eval.reproduce.targets import SizeName, Targets
    from serving.presets import Preset

# Repeats SIZES of eval.reproduce.stages, which is imported only when the command runs, so that --help needs none of it.
_SIZES = ("3b", "7b", "32b")


@click.command()
@click.argument("paper", type=click.Choice(["memecourt"]))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of the unpacked data sets.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="STUDY", help="Folder to write to.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.Choice([*_SIZES, "all"]),
    help="Size of the model. [default: the sizes of --llm-url]",
)
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
    help="Model on that server. [default: Qwen2.5-VL of that size]",
)
@click.option("--vllm", is_flag=True, help="Start vLLM here for each size in turn, instead of --llm-url.")
@click.option(
    "--vllm-flag",
    "vllm_flags",
    multiple=True,
    metavar="FLAG",
    help="Pass a flag to vLLM: --vllm-flag=--gpu-memory-utilization=0.8.",
)
@click.option("--tables", default="1,2,3", show_default=True, help="Tables of the paper to reproduce.")
@click.option("--figures", default="3,4,5", show_default=True, help="Figures of the paper to reproduce.")
@click.option("--limit", type=click.IntRange(1), help="Judge a sample of this size of each split, stratified by label.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of samples, controls and bootstraps."
)
@click.option(
    "--as-published/--as-served",
    default=True,
    help="Use the paper's settings as far as it states them, or the court's defaults. [default: as published]",
)
@click.option("--balanced", is_flag=True, help="Also score balanced draws of each split; needs no further calls.")
@click.option(
    "--controls/--no-controls", default=True, help="Include the control arms that the paper lacks. [default: included]"
)
@click.option(
    "--with-leaks", is_flag=True, help="Add an arm that keeps precedents too near to judged memes, to see their worth."
)
@click.option("--harm-p", type=click.Choice(["v1", "v0"]), default="v1", show_default=True, help="Version of Harm-P.")
@click.option(
    "--dataset",
    type=click.Choice(["public", "synthetic-harmeme"]),
    default="public",
    show_default=True,
    help=(
        "Data sets of the paper, or drawn ones (folders harm-c, harm-p, fhm) with the oracle's figures as the"
        " published ones."
    ),
)
@click.option("--encoder", metavar="NAME", help="Encoder of the precedents, instead of the preset's.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), default=16, show_default=True, help="Maximum concurrent trials."
)
@click.option("--allow-missing", is_flag=True, help="Count memes without a picture as failed and go on.")
@patience_option
@click.option("--resume", is_flag=True, help="Continue the reproduction in this folder, or add to it.")
@click.option("--retry-failed", is_flag=True, help="With --resume: retry memes that failed for a transient reason.")
@click.option("--dry-run", is_flag=True, help="Show the plan and exit.")
@click.option(
    "--calls-per-minute",
    type=FiniteRange(0, min_open=True),
    help="Throughput of your server in calls per minute, to estimate the duration in the plan.",
)
@click.option("--yes", is_flag=True, help="Start without asking for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures or the plan as one JSON object.")
def reproduce(paper: str, **options: Any) -> None:
    """Reproduces a PAPER: its tables beside the published figures, its claims as tests, and its figures.

    Model sizes run one after another, the largest first. The plan is shown before any call; --resume continues from
    what exists. The folder gets reproduction.json, .md and .html.

    Exit code: 0 if every run of the plan is finished, 3 if some memes have no answer yet for want of a server, 1 if it
    could not go on, 130 if it was interrupted.
    """
    # Options and data are checked, and the plan is complete, before the first call.
    plan, servers, targets, preset = _planned(paper, options)
    runs = plan.planned()
    _print_plan(plan, runs, options)
    # Before the check of the folder: a plan can be looked at while a study is there.
    if options["dry_run"]:
        return
    if (plan.out / "study.json").exists() and not options["resume"]:
        raise click.UsageError(f"{plan.out} holds a study already. --resume goes on with it.")
    # Only a person at a terminal is asked; in a job nobody could answer.
    if not options["yes"] and sys.stdin.isatty() and not all(run.finished for run in runs):
        click.confirm("Begin?", abort=True, err=True)
    unfinished = _hold(plan, servers)
    # Also where it is not finished: what was judged so far is scored and written.
    outcome = _written(plan, targets, preset, options["balanced"])
    _print_outcome(outcome, options["as_json"])
    if unfinished:
        say(f"Not finished. {unfinished} What was judged is kept: the same command with --resume goes on.")
        sys.exit(EXIT_UNFINISHED)


def _planned(paper: str, options: dict[str, Any]) -> tuple[Reproduction, Servers, Targets, Preset | None]:
    from eval.reproduce.benches import drawn_benches, present, public_benches
    from eval.reproduce.drawn import drawn_model, drawn_targets
    from eval.reproduce.stages import Reproduction, named_servers, stages_of, started_servers, urls_of
    from eval.reproduce.targets import published
    from serving.cli.common import settings_of
    from serving.models.connect import pictures_per_prompt
    from serving.presets import load_preset

    if options["vllm"] and options["urls"]:
        raise click.UsageError("--vllm starts the servers; leave --llm-url out.")
    if options["vllm_flags"] and not options["vllm"]:
        raise click.UsageError("--vllm-flag goes with --vllm.")
    if options["retry_failed"] and not options["resume"]:
        raise click.UsageError("--retry-failed goes with --resume.")
    drawn = options["dataset"] != "public"
    preset = load_preset("as-published") if options["as_published"] else None
    encoder = {"encoder": options["encoder"]} if options["encoder"] else {}
    settings = settings_of(**(preset.settings(**encoder) if preset else encoder))
    urls, named = _by_size(options["urls"], "llm-url"), _by_size(options["models"], "model")
    # Addresses are checked now, not hours later when the turn of that size comes.
    for url in urls.values():
        urls_of(url)
    sizes = _sizes(options, urls)
    models = {size: named.get(size) or (drawn_model(size) if drawn else None) for size in sizes}
    benches = (
        drawn_benches(options["data"])
        if drawn
        # With the paper's settings the labels that it drops are dropped here too.
        else public_benches(options["data"], harm_p=options["harm_p"], drops=preset is not None)
    )
    there, missing = present(benches)
    for name, why in missing.items():
        say(f"{name} is left out, its rows stay empty: {why}")
    stages = stages_of(
        sizes,
        there,
        tables=_numbers(options["tables"], (1, 2, 3), "tables"),
        figures=_numbers(options["figures"], (3, 4, 5), "figures"),
        models={size: model for size, model in models.items() if model},
        controls=options["controls"],
        leaks=options["with_leaks"],
    )
    if not stages:
        raise click.UsageError("--tables and --figures leave nothing to run with the data that are there.")
    plan = Reproduction(
        out=options["out"],
        paper=paper,
        mode="as-published" if preset else "as-served",
        settings=settings,
        preset_digest=preset.digest if preset else "",
        benches=benches,
        stages=stages,
        limit=options["limit"],
        seed=options["seed"],
        concurrency=options["concurrency"],
        command=command_line(),
        patience_s=60 * options["patience"],
        allow_missing=options["allow_missing"],
        retry_failed=options["retry_failed"],
    )
    try:
        targets = drawn_targets(there, limit=plan.limit, seed=plan.seed) if drawn else published()
    except OSError:
        raise click.ClickException(
            f"{options['data']} holds no drawn benchmarks: folders harm-c, harm-p and fhm, each made by memecourt-eval "
            "synthetic."
        ) from None
    servers = (
        started_servers(say, flags=options["vllm_flags"], pictures=pictures_per_prompt(settings.trial))
        if options["vllm"]
        else named_servers(urls)
    )
    return plan, servers, targets, preset


def _sizes(options: dict[str, Any], urls: Mapping[SizeName, str]) -> tuple[SizeName, ...]:
    """Sizes to run: those that are asked for, else those that a server is named for."""
    from eval.reproduce.stages import SIZES

    if options["sizes"]:
        return SIZES if "all" in options["sizes"] else tuple(dict.fromkeys(options["sizes"]))
    # Sizes that an address was named for; an address without a size is in the mapping of every size and
    # tells nothing.
    named = {part.partition("=")[0] for part in options["urls"]}
    if found := tuple(size for size in SIZES if size in named):
        return found
    if options["dry_run"] or options["vllm"]:
        return SIZES
    raise click.UsageError(
        "Say which size of the model is where: --llm-url 7b=http://HOST:8000/v1, once for each; or --size with one "
        "--llm-url."
        if urls
        else "No server is named. Give --llm-url SIZE=URL for each size, --vllm to have them started, or --dry-run to "
        "see the plan."
    )


def _by_size(pairs: Sequence[str], option: str) -> dict[SizeName, str]:
    """Values by size; one without a size holds for all that have none of their own."""
    from eval.reproduce.stages import SIZES

    own: dict[str, str] = {}
    for pair in pairs:
        # An address may have an equals sign in it, too: only the name of a size counts as a prefix.
        size, equals, value = pair.partition("=")
        key, own_value = (size, value) if equals and size in _SIZES else ("", pair)
        # Given twice, one of the two would silently win.
        if key in own or not own_value:
            raise click.UsageError(f"--{option} {pair}: give one for each size, as SIZE=… with {', '.join(_SIZES)}.")
        own[key] = own_value
    return {size: own.get(size, own.get("", "")) for size in SIZES if size in own or "" in own}


def _numbers(text: str, known: tuple[int, ...], option: str) -> frozenset[int]:
    try:
        numbers = frozenset(int(part) for part in text.split(",") if part.strip())
    # Handled below with the others: one message for all that is wrong.
    except ValueError:
        numbers = frozenset({-1})
    if not numbers <= set(known):
        raise click.UsageError(f"--{option} {text}: numbers with commas between them, of {', '.join(map(str, known))}.")
    return numbers


def _hold(plan: Reproduction, servers: Servers) -> str:
    """Makes the runs; says why they are not finished, or nothing where they are."""
    from court.errors import Unavailable
    from eval.reproduce.hold import hold
    from eval.session.engine import SERVER_GONE, UNFINISHED
    from eval.session.progress import Progress

    async def work(progress: Progress) -> str:
        try:
            await hold(plan, servers, progress)
        except Unavailable as error:
            # A vLLM that has died after it had answered may do better at its next start.
            # Before any verdict the fault lies in the model or its flags, and another start would end alike.
            died = error.reason == "VLLM_ENDED" and any(run.judged for run in plan.planned())
            if error.reason not in (SERVER_GONE, UNFINISHED) and not died:
                raise
            return error.message
        return ""

    return run_watched(work, lambda: "the same command with --resume goes on.")


def _written(plan: Reproduction, targets: Targets, preset: Preset | None, balanced: bool) -> Reproduced:
    """Scores what was judged and writes the three files."""
    import asyncio

    from eval.reproduce.document import as_html, as_markdown
    from eval.reproduce.outcome import outcome_of
    from eval.reproduce.report import as_json, document_of
    from serving.access.private_files import hand_on

    outcome = outcome_of(plan, targets, balanced=balanced)
    document = asyncio.run(document_of(outcome, preset))
    contents = {
        "json": json.dumps(as_json(outcome), indent=2) + "\n",
        "md": as_markdown(document),
        "html": as_html(document),
    }
    for ending, content in contents.items():
        path = plan.out / f"reproduction.{ending}"
        path.write_text(content, encoding="utf-8")
        # The process writes files for their owner alone; reports get the mode that the caller's umask says.
        hand_on(path)
    return outcome


def _print_plan(plan: Reproduction, runs: Sequence[PlannedRun], options: dict[str, Any]) -> None:
    """Shows the runs in order, with the calls that they take; on standard error but for a dry run."""
    from eval.scores.tables import table

    stored = _stored(plan)
    left = [run for run in runs if not run.finished]
    fewest, most = sum(run.fewest for run in left), sum(run.most for run in left)
    minutes = options["calls_per_minute"]
    if options["dry_run"] and options["as_json"]:
        planned = [
            {
                "size": run.stage.size,
                "model": run.stage.model,
                "dataset": run.bench.dataset.id,
                "split": run.bench.split,
                "arm": run.arm,
                "memes": run.memes,
                "calls": [run.fewest, run.most],
                "judged": run.judged,
                "finished": run.finished,
            }
            for run in runs
        ]
        hours = [fewest / minutes / 60, most / minutes / 60] if minutes else None
        click.echo(json.dumps({"runs": planned, "calls": [fewest, most], "stored": stored, "hours": hours}))
        return
    rows = [["size", "model", "data", "arm", "memes", "calls", "judged"]]
    for run in runs:
        calls = f"{run.fewest:,}" if run.fewest == run.most else f"{run.fewest:,} to {run.most:,}"
        done = "all" if run.finished else f"{run.judged:,}"
        data = f"{run.bench.name}, {run.bench.split}"
        rows.append([run.stage.size, run.stage.model, data, run.arm, f"{run.memes:,}", calls, done])
    lines = [
        table(rows),
        "",
        f"Still to run: {fewest:,} to {most:,} calls, by the number of rounds, one size after the other: "
        f"{', then '.join(f'{stage.size} ({stage.model})' for stage in plan.stages)}.",
        "Calls that an arm shares with full are counted with full.",
    ]
    if stored:
        lines.append(f"The stores of calls hold {stored:,} replies already.")
    if minutes:
        low, high = fewest / minutes / 60, most / minutes / 60
        lines.append(f"At {minutes:g} calls a minute that is {low:,.1f} to {high:,.1f} hours.")
    click.echo("\n".join(lines), err=not options["dry_run"])


def _stored(plan: Reproduction) -> int:
    """Number of replies in the stores of calls that are there."""
    import asyncio

    from eval.models.call_cache import SqliteCallCache

    async def count() -> int:
        total = 0
        for place in plan.stores():
            store = SqliteCallCache.open(place)
            try:
                total += await store.count()
            finally:
                await store.close()
        return total

    return asyncio.run(count())


def _print_outcome(outcome: Reproduced, as_json: bool) -> None:
    from eval.reproduce import report
    from eval.scores.tables import table

    if as_json:
        click.echo(json.dumps(report.as_json(outcome)))
        return
    rows = [["row", "data", "published", "accuracy", "macro-F1", "beside the published"]]
    for row in outcome.rows:
        ours = row.card.strict if row.card else None
        published = f"{row.target.accuracy:.2f} / {row.target.macro_f1:.2f}" if row.target else "–"
        figures = [
            f"{100 * figure.value:.2f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]" if figure else "–"
            for figure in ((ours.accuracy, ours.macro_f1) if ours else (None, None))
        ]
        rows.append([row.id or f"{row.arm}, {row.size}", row.bench, published, *figures, str(row.reached)])
    click.echo(table(rows, numbers=False) + "\n")
    click.echo("\n".join(f"{claim.id} {claim.verdict}: {claim.claim}" for claim in outcome.claims))
    click.echo(f"\n{outcome.plan.out} holds reproduction.json, .md and .html.")
