"""``memecourt-eval sweep``: choosing settings, on memes that nothing is measured on afterwards."""

from dataclasses import asdict
from typing import Any

import click

from eval.commands.options import Shown, plan_of, run_watched, score_by_protocol, shows_sections, study_options
from eval.reports.tasks import choice_section
from eval.runs.judge import material_of
from eval.runs.results import read_results
from eval.scores.choose import rank
from eval.session.engine import Progress
from eval.studies.arms import Study, run_study
from eval.studies.sweeping import grid, parse_axis, parse_thresholds, require_both_classes, require_not_test


@click.command()
@study_options(procedure="summary", split="val")
@click.option(
    "--grid",
    "axes",
    multiple=True,
    metavar="NAME=V1,V2,…",
    help="Setting of trials and its values; every combination is judged. Repeatable.",
)
@click.option(
    "--thresholds",
    default="",
    metavar="T1,T2,…",
    help="Score thresholds for harmful, applied to every combination without judging again.",
)
@shows_sections(page=False)
def sweep(axes: tuple[str, ...], thresholds: str, **options: Any) -> Shown:
    """Judges a validation split with each combination of settings, and shows the best and how uncertain that is.

    Combinations are ordered by strict macro-F1 with 95 % intervals by bootstrap over memes (10,000 resamples). A test
    split is refused. Running the command again with the same --out continues, and can add combinations.
    """
    # Before anything is tried: on a test split not even one setting may be chosen.
    plan = plan_of(options)
    require_not_test(plan.dataset, options["split"])
    scores = parse_thresholds(thresholds)
    parsed = [parse_axis(axis) for axis in axes]
    if not parsed and not scores:
        raise click.UsageError("Give a --grid or --thresholds: there is nothing to choose from.")
    if len(dict(parsed)) < len(parsed):
        raise click.UsageError("Each setting has one --grid, with all its values.")
    study = Study("sweep", plan, grid(dict(parsed)))
    # Before hours of runs: nothing could be chosen by them.
    memes = material_of(study.plan, Progress()).memes
    protocols = score_by_protocol(
        study.plan.protocols,
        lambda protocol: require_both_classes(memes, protocol),
        named=options["protocols"] is not None,
    )
    runs = run_watched(lambda progress: run_study(study, progress))
    results = [read_results(folder.root) for folder in runs]
    choices = {one: rank(results, one, scores, seed=options["seed"]) for one in protocols}
    where = f"{options['dataset']}, split {options['split']}"
    sections = [
        choice_section("sweep", f"{where}, protocol {one}: {each.n:,} memes", each) for one, each in choices.items()
    ]
    return Shown(title="Sweep", sections=sections, figures={str(one): asdict(each) for one, each in choices.items()})
