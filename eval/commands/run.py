"""``memecourt-eval run``: judges a split of a data set."""

import shlex
from collections import Counter
from typing import Any

import click

from court.errors import CourtError, Unavailable
from eval.commands.options import Shown, TableWords, court_options, plan_of, run_watched, shows_sections, with_table
from eval.reports.sections import Section
from eval.runs.plan import Plan
from eval.runs.results import RunFolder, read_results
from eval.runs.run import run as run_plan
from eval.runs.spec import Circumstances, JudgingSpec
from eval.scores.measure import figure
from eval.scores.metrics import TaskCard, task_card
from eval.session.engine import UNFINISHED, Progress
from eval.session.spec import spec_options
from serving.models.vllm import VllmFailed


@click.command()
@spec_options(JudgingSpec)
@spec_options(Circumstances, data={"required": True}, out={"required": True})
@court_options()
@spec_options(TableWords)
@shows_sections(page=False)
def run(**options: Any) -> Shown:
    """Judges every meme of a split and stores predictions and records in a folder of plain files.

    Precedents come from the train split, without near-duplicates of judged memes. A run can be stopped at any moment,
    by Ctrl-C or otherwise: called again, the same command goes on where it was and repeats no model call.

    Exit code: 0 if every meme has been judged (undecided and failed ones are counted), 3 if some have no answer yet for
    want of a server that may come back, 1 if the run could not go on, 130 if it was interrupted.
    """
    # Before anything is started: a usage error must not cost a server's start.
    plan = plan_of(options, **with_table(options))
    if plan.ray_workers and not plan.ray:
        raise click.UsageError("--ray-workers goes with --ray.")
    if plan.vllm and plan.ray:
        raise click.UsageError("--vllm starts a server that other machines can't reach; leave --ray out with it.")

    async def run_to_end(progress: Progress) -> None:
        try:
            await run_plan(plan, progress)
        except VllmFailed as error:
            # One that has died after it had answered may do better at its next start.
            if error.reason == "VLLM_ENDED" and RunFolder(plan.out).begun:
                raise Unavailable(error.message, reason=UNFINISHED) from error
            raise

    run_watched(run_to_end)
    return _shown(plan)


def _shown(plan: Plan) -> Shown:
    results = read_results(plan.out)
    cards: dict[str, TaskCard | str] = {}
    lead: list[str] = []
    rows = [("protocol", "figures", "accuracy", "macro-F1")]
    # One protocol may leave nothing to score of a small sample while the others have figures.
    for protocol in plan.protocols:
        try:
            cards[protocol] = card = task_card(results, protocol)
        except CourtError as error:
            cards[protocol] = error.message
            lead.append(f"{protocol}: {error.message}")
            continue
        coverage = card.known("coverage").value
        lead.append(f"{protocol}: {card.n:,} memes, {card.gold['harmful']:,} harmful; coverage {coverage:.3f}")
        kinds = {"decided": card.decided, "strict": card.figures, "vote": card.vote, "majority": card.baseline}
        for kind, figures in kinds.items():
            if figures:
                rows.append((protocol, kind, figure(figures["accuracy"]), figure(figures["macro-f1"])))
    without = Counter(one.prediction.reason for one in results.judged if one.prediction.outcome.harmful is None)
    if without:
        lead.append(f"no class: {', '.join(f'{count:,} {reason}' for reason, count in without.most_common())}")
    return Shown(
        title=results.name,
        lead=lead,
        sections=[Section("figures", "Figures", tuple(rows))] if len(rows) > 1 else [],
        figures={"run": str(plan.out), "name": results.name, "cards": cards, "without_class": dict(without)},
        end=["", f"{plan.out} holds the run. memecourt-eval report {shlex.quote(str(plan.out))} makes a report of it."],
    )
