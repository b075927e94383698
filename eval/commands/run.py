"""``memecourt-eval run``: judges a split of a data set."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from court.errors import CourtError, Unavailable
from eval.commands.options import CourtOptions, TableWords, patience_option, plan_of, run_watched, with_table
from eval.runs.plan import Plan
from eval.runs.results import Results, RunFolder, read_results
from eval.runs.run import run as run_plan
from eval.runs.spec import Circumstances, JudgingSpec
from eval.scores.measure import Figure, figure
from eval.scores.metrics import TaskCard, task_card
from eval.session.engine import UNFINISHED, Progress
from eval.session.spec import spec_options
from serving.models.vllm import VllmFailed


@click.command()
@spec_options(JudgingSpec)
@spec_options(Circumstances, data={"required": True}, out={"required": True})
@spec_options(CourtOptions)
@spec_options(TableWords)
@patience_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def run(**options: Any) -> None:
    """Judges every meme of a split and stores predictions and records in a folder of plain files.

    Precedents come from the train split, without near-duplicates of judged memes. A run can be stopped at any moment,
    by Ctrl-C or otherwise: called again, the same command goes on where it was and repeats no model call.

    Exit code: 0 if every meme has been judged (undecided and failed ones are counted), 3 if some have no answer yet for
    want of a server that may come back, 1 if the run could not go on, 130 if it was interrupted.
    """
    # Before anything is started: a usage error must not cost a server's start.
    plan = _planned(options)

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

    run_watched(run_to_end, unfinished=unfinished)
    _show(plan, options)


def _planned(options: dict[str, Any]) -> Plan:
    if options["dataset"] is None and options["data"].is_dir():
        raise click.UsageError("Missing option --dataset: a data set or card; or name a table with --data FILE.")
    plan = plan_of(options, **with_table(options))
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
