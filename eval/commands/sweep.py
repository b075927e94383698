"""``memecourt-eval sweep``: choosing settings, on memes that nothing is measured on afterwards."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import (
    Shown,
    dataset_of,
    plan_of,
    run_watched,
    score_by_protocol,
    shows_sections,
    study_options,
)
from eval.runs.results import read_results

if TYPE_CHECKING:
    from eval.reports.sections import Section
    from eval.scores.choose import Choice, RankedSystem

_SHOWN = 10  # settings that are listed; --json lists all


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
    from eval.studies.arms import Study, run_study
    from eval.studies.sweeping import grid, parse_axis, parse_thresholds, rank, require_not_test

    # Before anything is tried: on a test split not even one setting may be chosen.
    require_not_test(dataset_of(options["dataset"]), options["split"])
    scores = parse_thresholds(thresholds)
    parsed = [parse_axis(axis) for axis in axes]
    if not parsed and not scores:
        raise click.UsageError("Give a --grid or --thresholds: there is nothing to choose from.")
    if len(dict(parsed)) < len(parsed):
        raise click.UsageError("Each setting has one --grid, with all its values.")
    study = Study("sweep", plan_of(options), grid(dict(parsed)))
    runs = run_watched(lambda progress: run_study(study, progress))
    results = [read_results(folder.root) for folder in runs]
    by_protocol = score_by_protocol(
        study.plan.protocols,
        lambda protocol: rank(results, protocol, scores, seed=options["seed"]),
        named=options["protocols"] is not None,
    )
    sections = [_section(one, f"{options['dataset']}, split {options['split']}") for one in by_protocol.values()]
    figures = {str(one): asdict(choice) for one, choice in by_protocol.items()}
    return Shown(title="Sweep", sections=sections, figures=figures)


def _section(sweep: Choice, where: str) -> Section:
    from eval.reports.sections import Section
    from eval.scores.measure import figure

    rows = [("settings", "macro-F1, strict", "accuracy", "coverage", "behind the best")]
    for one in sweep.ways[:_SHOWN]:
        behind = "" if one is sweep.best else figure(one.behind)
        rows.append((_name(one), figure(one.value), f"{one.accuracy:.3f}", f"{one.coverage:.3f}", behind))
    more = len(sweep.ways) - _SHOWN
    notes = [f"and {more:,} more; --json lists all"] if more > 0 else []
    title = f"{where}, protocol {sweep.protocol}: {sweep.n:,} memes"
    return Section("sweep", title, tuple(rows), (*notes, *in_words(sweep)))


def _name(one: RankedSystem) -> str:
    return one.run if one.threshold is None else f"{one.run}, harmful from {one.threshold:g}"


def in_words(sweep: Choice) -> list[str]:
    """Describes the sweep's result and its open questions, in sentences."""
    from eval.scores.compare import TOO_FEW_DIFFER

    best, many = sweep.best, len(sweep.ways)
    if many == 1:
        return [f"There was nothing to choose: {_name(best)} is all that was tried."]
    equals = sum(one.within_noise for one in sweep.ways) - 1
    lines = [f"Best of {many:,}: {_name(best)}, with a macro-F1 of {best.value.value:.3f}."]
    if equals:
        lines.append(
            f"{equals:,} of the other {many - 1:,} lie within noise of it: this split can't tell them from the best, "
            "and the simplest of them is as good a choice."
        )
    if any(one.within_noise and one.behind.low > 0 for one in sweep.ways):
        lines.append(TOO_FEW_DIFFER)
    lines.append(
        f"The best of many is flattered by its luck on these very memes, here by about {sweep.flattered_by:.3f}: "
        f"expect about {sweep.expected:.3f} on others, and measure that on the test split, "
        "once."
    )
    return lines
