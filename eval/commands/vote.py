"""``memecourt-eval vote``: how good the vote of a library's precedents is on labelled memes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder that the file's picture names are relative to.",
)
@click.option(
    "--folds", is_flag=True, help="Use the library's own texts in five folds, and show verdicts beside the votes."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def vote(library: Path, file: Path | None, **options: Any) -> None:
    """Measures the vote of a LIBRARY of precedents on the labelled memes in FILE.

    Every meme is judged by the vote alone, however distant its precedents; the report also counts the memes that the
    court would leave undecided for that reason. Intervals are 95 %, by bootstrap over memes (10,000 resamples).

    `memecourt-eval run` reports the vote under each protocol of a data set, beside the court.
    """
    # Imports stay inside the command: they pull in scikit-learn and the encoders, which `--help` should
    # not wait for.
    from eval.studies.vote import measure_vote
    from retrieval.library.sources import Source

    as_json = options["as_json"]
    # Exactly one of the two: with both it would not be clear whose memes are measured.
    if (file is None) is not options["folds"]:
        raise click.UsageError("Give FILE or --folds.")
    if file is None:
        _print_folds(library, options["seed"], as_json)
        return
    source = Source(path=file, pictures=options["pictures"])
    report = asyncio.run(measure_vote(library, source, seed=options["seed"]))
    remarks = {
        "undecided": f"{report.undecided:,} would be left to a person: every precedent is too far",
        "same text": f"{report.same_text:,} stand in the library word for word",
        "text alone": f"{report.without_picture:,} were judged without their picture",
        "left out": f"{len(report.problems):,} rows can't be used; --json lists them",
    }
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    scores = report.scores
    click.echo(f"memes        {scores.n:,}: {scores.harmful:,} harmful, {scores.n - scores.harmful:,} not")
    click.echo(f"majority     {scores.majority:.3f}")
    for name, figure in (("accuracy", scores.accuracy), ("macro-F1", scores.macro_f1)):
        click.echo(f"{name:<12} {figure.value:.3f}  [{figure.low:.3f}, {figure.high:.3f}]")
    if scores.brier is not None:
        click.echo(f"Brier        {scores.brier:.3f}")
    # Only what changes how the figures are read.
    for name, remark in remarks.items():
        click.echo(f"{name:<12} {remark}")


def _print_folds(library: Path, seed: int, as_json: bool) -> None:
    from eval.scores.compare import signed_interval
    from eval.studies.vote import measure_folds

    report = measure_folds(library, seed=seed)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    verdicts, votes = report.accuracy
    click.echo(f"memes        {report.n:,} in {report.groups:,} groups of nearly the same text")
    click.echo(f"labelled     {report.decided:,}; {report.automatic:,} need nobody to look")
    click.echo(
        f"accuracy     {verdicts:.3f} of the labelled, their votes {votes:.3f}: {signed_interval(report.difference)}"
    )
    if report.guessed is not None:
        click.echo(f"undecided    distant precedents favour the right label of {report.guessed:.3f}")
    for zone in report.zones:
        click.echo(
            f"{zone.name:<12} {zone.n:,} from {zone.similarity:.2f} on: accuracy {zone.accuracy:.3f}, "
            f"score shown {zone.shown:.3f}, harmful {zone.harmful:.3f}"
        )
