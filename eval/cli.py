"""The command ``memecourt-eval``: measuring the court."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measures MemeCourt: benchmarks of the code, and how good its verdicts are."""


@cli.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
def perf(name: str | None, as_json: bool) -> None:
    """Runs the benchmark NAME; without a name, lists what there is.

    Exit code: 0 if every figure is within its bound, 1 if not, 2 if there is no such benchmark.
    """
    from eval.perf.bench import BENCHMARKS, measure

    if name is None:
        for known, (_, what) in BENCHMARKS.items():
            click.echo(f"{known:<16} {what}")
        return
    if name not in BENCHMARKS:
        raise click.UsageError(f"There is no benchmark {name!r}. There are: {', '.join(BENCHMARKS)}.")
    result = measure(name)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        for figure, value in result.figures.items():
            verdict = ""
            if figure in result.goals:
                verdict = f"  to be {result.goals[figure]}: {'holds' if result.held(figure) else 'DOES NOT HOLD'}"
            click.echo(f"{figure:<24} {value:>12g}{verdict}")
    sys.exit(0 if result.holds else 1)


@cli.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--pictures", type=click.Path(path_type=Path), help="The folder that the file's picture names are in.")
@click.option("--seed", default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
def vote(library: Path, file: Path, pictures: Path | None, seed: int, as_json: bool) -> None:
    """What the vote of a LIBRARY of precedents is worth on the labelled memes in FILE.

    Every meme is judged by the vote alone, however far its precedents are; how many the court would leave undecided for
    that is said beside it. Intervals are 95 %, by bootstrap over memes (10,000 resamples).
    """
    from court.errors import CourtError
    from eval.vote import measure_vote
    from retrieval.readers import Source

    try:
        report = asyncio.run(measure_vote(library, Source(path=file, pictures=pictures), seed=seed))
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    scores = report.scores
    click.echo(f"library      {report.library}")
    click.echo(f"memes        {scores.n:,}: {scores.harmful:,} harmful, {scores.n - scores.harmful:,} not")
    click.echo(f"majority     {scores.majority:.3f}")
    for name, figure in (("accuracy", scores.accuracy), ("macro-F1", scores.macro_f1)):
        click.echo(f"{name:<12} {figure.value:.3f}  [{figure.low:.3f}, {figure.high:.3f}]")
    if scores.brier is not None:
        click.echo(f"Brier        {scores.brier:.3f}")
    click.echo(f"undecided    {report.undecided:,} would be left to a person: every precedent is too far")
    click.echo(f"same text    {report.same_text:,} stand in the library word for word")
    click.echo(f"text alone   {report.without_picture:,} were judged without their picture")
    if report.problems:
        click.echo(f"left out     {len(report.problems):,} rows can't be used; --json lists them")


def main() -> None:
    """Entry point."""
    cli()
