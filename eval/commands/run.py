"""``memecourt-eval run``: judges a split of a data set, and takes a run up again that was cut off."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest, CourtError, Unavailable
from court.settings import TrialSettings
from eval.commands.options import CourtOptions, TableWords, patience_option, plan_of, run_watched, with_table
from eval.runs.plan import Plan
from eval.runs.results import Results, RunFolder, RunSpec, dataset_of, read_results
from eval.runs.run import run as run_plan
from eval.runs.spec import Circumstances, JudgingSpec
from eval.scores.measure import Figure, figure
from eval.scores.metrics import TaskCard, task_card
from eval.session.directory import MANIFEST
from eval.session.engine import UNFINISHED, Progress
from eval.session.spec import flags_of, spec_options, words_of_options
from serving.cli.common import PATH
from serving.models.vllm import VllmFailed

_OF_A_START = ("data", "out", "name")
"""Circumstances that a resumed run has from its manifest."""


@click.command()
@spec_options(JudgingSpec)
@spec_options(Circumstances)
@spec_options(CourtOptions)
@spec_options(TableWords)
@click.option("--resume", type=PATH, metavar="RUN", help="Resume this run.")
@patience_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def run(**options: Any) -> None:
    """Judges every meme of a split and stores predictions and records in a folder of plain files.

    Precedents come from the train split, without near-duplicates of judged memes. A run can be stopped at any moment,
    by Ctrl-C or otherwise: --resume continues it and repeats no model call.

    Exit code: 0 if every meme has been judged (undecided and failed ones are counted), 3 if some have no answer yet for
    want of a server that may come back, 1 if the run could not go on, 130 if it was interrupted.
    """
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
    if not RunFolder(plan.out).begun:
        return plan.command
    words = ["memecourt-eval", "run", "--resume", str(plan.out)]
    # The manifest has all else. Options that were left out stay out: the settings may have changed on purpose.
    words += words_of_options(CourtOptions, options, without=("settings",))
    words += words_of_options(Circumstances, options, without=(*_OF_A_START, "calls", "library"))
    return shlex.join(words)


def _planned(options: dict[str, Any]) -> Plan:
    # Not `required=True`, as --resume needs none of them.
    for name in ("data", "out"):
        if options[name] is None:
            raise click.UsageError(f"Missing option --{name}; or --resume, to take a run up again.")
    if options["dataset"] is None and options["data"].is_dir():
        raise click.UsageError("Missing option --dataset: a data set or card; or name a table with --data FILE.")
    # Before the plan, so that a second `run` over a folder never overwrites what the first has judged.
    if (options["out"] / MANIFEST).exists():
        raise click.UsageError(f"{options['out']} holds a run already. --resume takes it up again.")
    return _with_options_that_fit(plan_of(options, **with_table(options)))


def _resumed(options: dict[str, Any]) -> Plan:
    # What a run is can't be altered half-way: half of it would be one thing and half another.
    flags = {
        **flags_of(JudgingSpec),
        **flags_of(TableWords),
        **{name: f"--{name}" for name in _OF_A_START},
        "settings": "--set",
    }
    fixed = [flag for name, flag in flags.items() if options[name]]
    if fixed:
        raise click.UsageError(
            f"{', '.join(fixed)} can't be given with --resume: what a run is was said when it was begun."
        )
    try:
        begun = RunFolder(options["resume"]).manifest()
    except BadRequest as error:
        if error.reason != "RUN_MISSING":
            raise
        # Killed while it prepared the precedents: nothing was judged yet, and nothing says what was to be.
        raise BadRequest(
            f"{error.message} If it was stopped before it wrote one, it is started again by the command that began it.",
            reason=error.reason,
        ) from None
    if begun.question is not None:
        raise BadRequest(f"{options['resume']} asked a question of a card. This goes on with it: {begun.command}")
    if begun.comparator:
        raise BadRequest(
            f"{options['resume']} is the arm {begun.name} of a study, and holds no trials: the command that began the "
            f"study goes on with it: {begun.command}"
        )
    # The store and the library of before, unless others are named: else what was paid for would be asked anew.
    stored = {"calls": begun.calls_file, "library": begun.library_dir}
    before = {name: Path(path) for name, path in stored.items() if path and options[name] is None}
    spec = {name: getattr(begun, name) for name in RunSpec.model_fields}
    plan = plan_of(
        options,
        # Only those of trials: servers, keys and paths are of this machine and this day.
        trial={name: value for name, value in begun.settings.items() if name in TrialSettings.model_fields},
        **{**spec, **before, "dataset": dataset_of(begun)},
        out=options["resume"],
        name=begun.name,
        data=Path(begun.data_dir),
        command=begun.command,
    )
    return _with_options_that_fit(plan)


def _with_options_that_fit(plan: Plan) -> Plan:
    """Returns the plan. Raises click.UsageError if its options for Ray don't go together with others."""
    if plan.ray_workers and not plan.ray:
        raise click.UsageError("--ray-workers goes with --ray.")
    if plan.vllm and plan.ray:
        raise click.UsageError("--vllm starts a server that other machines can't reach; leave --ray out with it.")
    return plan


def _show(plan: Plan, options: dict[str, Any]) -> None:
    results = read_results(plan.out)
    cards: dict[str, TaskCard | str] = {}
    # One protocol may leave nothing to score while the others have figures.
    for protocol in results.protocols:
        try:
            cards[protocol] = task_card(results, protocol)
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
        coverage = value.known("coverage").value
        click.echo(f"{name}: {value.n:,} memes, {value.gold['harmful']:,} harmful; coverage {coverage:.3f}")
        rows: Mapping[str, Mapping[str, Figure | float | None]]
        rows = {"decided": value.decided, "strict": value.figures, "vote": value.vote, "majority": value.baseline}
        for what, figures in rows.items():
            if figures:
                text = f"accuracy {figure(figures['accuracy'])}  macro-F1 {figure(figures['macro-f1'])}"
                click.echo(f"  {what:<9}{text}")
    if reasons:
        text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        click.echo(f"no class: {text}")
    click.echo(f"{plan.out} holds the run. memecourt-eval report {shlex.quote(str(plan.out))} makes a report of it.")


def _reasons(results: Results) -> dict[str, int]:
    """Counts memes without a class by reason; the most frequent first."""
    found = Counter(one.prediction.reason for one in results.judged if one.prediction.outcome.harmful is None)
    return dict(found.most_common())
