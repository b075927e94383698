"""``memecourt-eval run``: judges a split of a data set, and takes a run up again that was cut off."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import (
    LANGUAGE,
    TEMPLATES_APART,
    patience_option,
    run_watched,
    split_of,
    tag_of,
    vllm_choice,
    vllm_options,
)
from eval.commands.pages import command_line

if TYPE_CHECKING:
    from court.events import Procedure
    from eval.models.vllm_session import VllmChoice
    from eval.runs.folder import RunManifest
    from eval.runs.plan import Plan
    from eval.runs.results import Results
    from eval.session.progress import Progress
    from serving.settings import Settings

_BEGUN = (
    "dataset",
    "data",
    "split",
    "out",
    "name",
    "procedure",
    "protocol",
    "limit",
    "seed",
    "settings",
    "server_name",
    "drop_precedents",
    "templates_apart",
    "text_only",
    "language",
)
"""Options that say what a run is: taken up again, it brings them along."""


@click.command()
@click.option("--dataset", metavar="ID", help="Data set; `memecourt-eval datasets` lists them.")
@click.option("--data", type=click.Path(path_type=Path), help="Directory of the unpacked data set.")
@click.option("--split", help="Split. [default: the first test split]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to create for the run.")
@click.option("--name", help="Name of the run. [default: the folder's name]")
@click.option(
    "--procedure", type=click.Choice(["summary", "full", "cascade"]), help="Procedure of the trials. [default: summary]"
)
@click.option("--protocol", help="Protocols to score under, separated by commas. [default: all of the data set]")
@click.option("--limit", type=click.IntRange(min=1), help="Judge a sample of this size, stratified by label.")
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of the sample, and of replies if a temperature is set. [default: 0]"
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Setting of trials, such as rounds_max=6.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), help="Maximum concurrent trials. [default: 4 for summary, else 16]"
)
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Settings file (TOML).")
@click.option("--llm-url", metavar="URL", help="Chat-completions server for full trials (…/v1).")
@click.option("--model", help="Model to use on that server. The settings file can name one per role.")
@vllm_options
@click.option("--policy", type=click.Path(path_type=Path), help="Policy file (TOML).")
@click.option(
    "--encoder",
    metavar="NAME",
    help=(
        "Encoder of the precedents, as for `memecourt precedents build`; near-duplicates are always found "
        "with the built-in one. [default: MEMECOURT_ENCODER, else that of --library, else builtin]"
    ),
)
@click.option("--calls", type=click.Path(path_type=Path), help="Store of model calls, shared by runs.")
@click.option(
    "--library", type=click.Path(path_type=Path), help="Library of precedents that another run prepared (its library/)."
)
@click.option(
    "--server-name",
    metavar="NAME",
    help=(
        "Name of the model servers in the call store, so that a server keeps its stored calls when its address changes."
    ),
)
@click.option("--ray", metavar="HOST:PORT", help="Address of a Ray cluster's head, to judge on its workers.")
@click.option("--ray-workers", type=click.IntRange(min=1), help="Number of workers. [default: one per node]")
@click.option(
    "--drop-precedents",
    is_flag=True,
    help=(
        "With --protocol extreme: use memes that it drops neither as precedents nor for judging, as in the "
        "court's paper."
    ),
)
@click.option("--templates-apart", is_flag=True, help=TEMPLATES_APART)
@click.option("--allow-missing", is_flag=True, help="Count memes without a picture as failed and go on.")
@click.option("--text-only", is_flag=True, help="Judge texts only, without pictures.")
@click.option("--language", metavar="TAG|detect|card", help=LANGUAGE)
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Resume this run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: retry memes that failed for a transient reason.")
@patience_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def run(**options: Any) -> None:
    """Judges every meme of a split and stores predictions and records in a folder of plain files.

    Precedents come from the train split, without near-duplicates of judged memes. A run can be stopped at any moment,
    by Ctrl-C or otherwise: --resume continues it and repeats no model call.

    Exit code: 0 if every meme has been judged (undecided and failed ones are counted), 3 if some have no answer yet for
    want of a server that may come back, 1 if the run could not go on, 130 if it was interrupted.
    """
    from court.errors import Unavailable
    from eval.runs.folder import RunFolder
    from eval.runs.run import run as run_plan
    from eval.session.engine import UNFINISHED
    from serving.models.vllm import VllmFailed

    if options["config"]:
        os.environ["MEMECOURT_CONFIG"] = options["config"]  # where Settings looks for it
    # Both before anything is started: a usage error must not cost a server's start.
    plan = _resumed(options) if options["resume"] else _planned(options)

    async def run_to_end(progress: Progress) -> None:
        try:
            await run_plan(plan, progress)
        except VllmFailed as error:
            # One that has died after it had answered may do better at its next start.
            if error.reason == "VLLM_ENDED" and RunFolder(plan.out).begun:
                raise Unavailable(error.message, reason=UNFINISHED) from error
            raise

    def unfinished(why: str) -> None:
        # The words are on standard error, since with --json standard output holds one object and nothing else.
        if options["as_json"]:
            click.echo(json.dumps({"run": str(plan.out), "name": plan.name, "finished": False, "why": why}))

    run_watched(run_to_end, lambda: f"this goes on:\n  {resume_command(plan, options)}", unfinished)
    _show(plan, options)


def resume_command(plan: Plan, options: dict[str, Any]) -> str:
    """The command that takes a run up again; the same one as before, where it had not begun to judge."""
    from eval.runs.folder import RunFolder

    if not RunFolder(plan.out).begun:
        return plan.command
    words = ["memecourt-eval", "run", "--resume", str(plan.out)]
    # The manifest has the directory of the data; only a resumed run may have been given another one.
    moved = ("data",) if options["resume"] else ()
    for name in (
        *moved,
        "config",
        "llm_url",
        "model",
        "vllm",
        "policy",
        "encoder",
        "concurrency",
        "ray",
        "ray_workers",
    ):
        # Options that were left out stay out: what the settings say then may have changed on purpose.
        if options[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    # With an equals sign, as a flag begins with dashes of its own.
    words += [f"--vllm-flag={flag}" for flag in options["vllm_flags"]]
    return shlex.join(words + ["--allow-missing"] * options["allow_missing"])


def _planned(options: dict[str, Any]) -> Plan:
    from court.events import Procedure
    from eval.datasets.known import find_card
    from eval.models.vllm_session import SERVER
    from eval.runs.plan import Plan

    # Not `required=True`, as --resume needs none of them.
    for name in ("dataset", "data", "out"):
        if options[name] is None:
            raise click.UsageError(f"Missing option --{name}; or --resume, to take a run up again.")
    if options["retry_failed"]:
        raise click.UsageError("--retry-failed goes with --resume.")
    if options["ray_workers"] and not options["ray"]:
        raise click.UsageError("--ray-workers goes with --ray.")
    dataset = find_card(options["dataset"])
    # Before the plan, so that a second `run` over a folder never overwrites what the first has judged.
    if (options["out"] / "manifest.json").exists():
        raise click.UsageError(f"{options['out']} holds a run already. --resume takes it up again.")
    procedure = Procedure((options["procedure"] or "summary").upper())
    # A split's name may say that templates are to be apart.
    split, apart = split_of(dataset, options["split"] or dataset.first_test())
    return Plan(
        out=options["out"],
        # Resolved, as a folder may be named by a point alone.
        name=options["name"] or options["out"].resolve().name,
        dataset=dataset,
        data=options["data"],
        split=split,
        procedure=procedure,
        protocols=protocols_of(options["protocol"]) if options["protocol"] else dataset.protocols,
        settings=settings_for(options, trial_settings_of(options["settings"])),
        limit=options["limit"],
        seed=options["seed"] or 0,
        concurrency=options["concurrency"] or concurrency_for(procedure),
        calls=options["calls"],
        library=options["library"],
        command=command_line(),
        # A vLLM that is started here has one name in the store of calls, whatever its address is.
        server=options["server_name"] or (SERVER if options["vllm"] else ""),
        allow_missing=options["allow_missing"],
        patience_s=60 * options["patience"],
        drop_precedents=options["drop_precedents"],
        templates_apart=options["templates_apart"] or apart,
        text_only=options["text_only"],
        language=tag_of(options["language"]),
        ray=options["ray"] or "",
        ray_workers=options["ray_workers"] or 0,
        vllm=_vllm(options, procedure),
    )


def _resumed(options: dict[str, Any]) -> Plan:
    from court.errors import BadRequest
    from court.settings import TrialSettings
    from eval.runs.folder import RunFolder, dataset_of
    from eval.runs.plan import Plan

    # What a run is can't be altered half-way: half of it would be one thing and half another.
    fixed = [name for name in _BEGUN if options[name]]
    if fixed:
        names = ", ".join("--set" if name == "settings" else f"--{name.replace('_', '-')}" for name in fixed)
        raise click.UsageError(f"{names} can't be given with --resume: what a run is was said when it was begun.")
    try:
        begun: RunManifest = RunFolder(options["resume"]).manifest()
    except BadRequest as error:
        if error.reason != "RUN_MISSING":
            raise
        # Killed while it prepared the precedents: nothing was judged yet, and nothing says what was to be.
        raise BadRequest(
            f"{error.message} If it was stopped before it wrote one, it is started again by the command that began it.",
            reason=error.reason,
        ) from None
    dataset = dataset_of(begun)
    if begun.question is not None:
        raise BadRequest(f"{options['resume']} asked a question of a card. This goes on with it: {begun.command}")
    if begun.comparator:
        raise BadRequest(
            f"{options['resume']} is the arm {begun.name} of a study, and holds no trials: the command that began the "
            f"study goes on with it: {begun.command}"
        )
    # Only those of trials: servers, keys and paths are of this machine and this day.
    trial = {name: value for name, value in begun.settings.items() if name in TrialSettings.model_fields}
    return Plan(
        out=options["resume"],
        name=begun.name,
        dataset=dataset,
        data=options["data"] or Path(begun.data_dir),
        split=begun.split,
        procedure=begun.procedure,
        protocols=begun.protocols,
        settings=settings_for(options, trial),
        limit=begun.limit,
        seed=begun.seed,
        concurrency=options["concurrency"] or concurrency_for(begun.procedure),
        # The store and the library of before, unless others are named: else what was paid for would be
        # asked anew.
        calls=options["calls"] or (Path(begun.calls_file) if begun.calls_file else None),
        library=options["library"] or (Path(begun.library_dir) if begun.library_dir else None),
        control=begun.control,
        command=begun.command,
        server=begun.server,
        allow_missing=options["allow_missing"],
        patience_s=60 * options["patience"],
        # The manifest has the labels that were dropped and not the option.
        drop_precedents=bool(begun.dropped_labels),
        templates_apart="template" in begun.checked,
        text_only=begun.text_only,
        language=begun.language,
        retry_failed=options["retry_failed"],
        ray=options["ray"] or "",
        ray_workers=options["ray_workers"] or 0,
        vllm=_vllm(options, begun.procedure),
    )


def _vllm(options: dict[str, Any], procedure: Procedure) -> VllmChoice | None:
    if options["vllm"] and options["ray"]:
        raise click.UsageError("--vllm starts a server that other machines can't reach; leave --ray out with it.")
    chosen = {name: options[name] for name in ("vllm", "vllm_flags", "llm_url", "model")}
    return vllm_choice(**chosen, procedure=procedure)


def concurrency_for(procedure: str) -> int:
    """Memes on trial at once, where nobody says: what asks no model is bound by this machine's processors."""
    return 4 if procedure == "SUMMARY" else 16


def protocols_of(text: str) -> tuple[Any, ...]:
    """Protocols, parted by commas. Raises click.UsageError for one that there is none of."""
    from eval.datasets.protocol import Protocol

    try:
        # Without doubles, in the order given: progress and lists show the first.
        return tuple(dict.fromkeys(Protocol(word.strip()) for word in text.split(",")))
    except ValueError:
        raise click.UsageError(f"--protocol {text}: there are {', '.join(Protocol)}.") from None


def trial_settings_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Settings of trials from NAME=VALUE; what a value has to be is checked with the other settings.

    Raises:
        click.UsageError: A pair has no name that there is.
    """
    from court.settings import TrialSettings

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in TrialSettings.model_fields:
            raise click.UsageError(
                f"--set {pair}: give NAME=VALUE, of these names: {', '.join(TrialSettings.model_fields)}."
            )
        # An empty value unsets: settings such as limits have None for none.
        settings[name] = None if value in ("", "none") else value
    return settings


def settings_for(options: dict[str, Any], trial: dict[str, Any]) -> Settings:
    """The settings that ``llm_url``, ``model``, ``policy`` and ``encoder`` ask for, with those of trials."""
    from serving.cli.common import settings_of

    llm = {name: options[key] for name, key in (("url", "llm_url"), ("model", "model")) if options[key] is not None}
    # None in place of empty tables, so that what the file and the environment say is not overlaid.
    return settings_of(trial=trial or None, llm=llm or None, policy=options["policy"], encoder=options["encoder"])


def _show(plan: Plan, options: dict[str, Any]) -> None:
    from dataclasses import asdict

    from court.errors import CourtError
    from eval.runs.results import read_results
    from eval.scores.metrics import Card, card
    from eval.scores.tables import figure

    results = read_results(plan.out)
    cards: dict[str, Card | str] = {}
    # One protocol may leave nothing to score while the others have figures.
    for protocol in results.protocols:
        try:
            cards[protocol] = card(results, protocol)
        except CourtError as error:  # a protocol that leaves no meme of a small sample
            cards[protocol] = error.message
    reasons = _reasons(results)
    if options["as_json"]:
        by_protocol = {name: value if isinstance(value, str) else asdict(value) for name, value in cards.items()}
        click.echo(
            json.dumps({"run": str(plan.out), "name": results.name, "cards": by_protocol, "without_class": reasons})
        )
        return
    for name, value in cards.items():
        if isinstance(value, str):
            click.echo(f"{name}: {value}")
            continue
        decided = value.decided
        click.echo(f"{name}: {value.n:,} memes, {value.harmful:,} harmful; coverage {value.coverage.value:.3f}")
        rows = (("decided", decided), ("strict", value.strict), ("vote", value.vote))
        for what, rates in rows:
            if rates is not None:
                figures = (("accuracy", rates.accuracy), ("macro-F1", rates.macro_f1))
                text = "  ".join(f"{n} {figure(f)}" for n, f in figures)
                click.echo(f"  {what:<9}{text}")
        click.echo(f"  {'majority':<9}accuracy {value.majority:.3f}{'':<16}macro-F1 {value.majority_macro_f1:.3f}")
    if reasons:
        text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        click.echo(f"no class: {text}")
    # Only a hint: which reasons may pass is known where it is tried again.
    if any(one.prediction.outcome == "FAILED" for one in results.judged):
        click.echo(
            f"Failures whose reason may have passed are tried again by: {resume_command(plan, options)} --retry-failed"
        )
    click.echo(f"{plan.out} holds the run. memecourt-eval report {shlex.quote(str(plan.out))} makes a report of it.")


def _reasons(results: Results) -> dict[str, int]:
    """Counts memes without a class by reason; the most frequent first."""
    from collections import Counter

    found = Counter(one.prediction.reason for one in results.judged if one.prediction.outcome.harmful is None)
    return dict(found.most_common())
