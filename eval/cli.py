"""The command ``memecourt-eval``: measuring the court."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eval.commands.ablate import ablate
from eval.commands.arena import arena
from eval.commands.compare import compare
from eval.commands.datasets import datasets
from eval.commands.duplicates import duplicates
from eval.commands.export import export
from eval.commands.poison import poison
from eval.commands.probe import probe
from eval.commands.report import report
from eval.commands.run import run
from eval.commands.score import score
from eval.commands.steering import steering
from eval.commands.sweep import sweep
from eval.commands.synthetic import synthetic

if TYPE_CHECKING:
    from eval.scores.metrics import Scores
    from retrieval.library.sources import Source


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
    from court.errors import CourtError
    from eval.perf.bench import BENCHMARKS, measure

    if name is None:
        for known, (_, what) in BENCHMARKS.items():
            click.echo(f"{known:<16} {what}")
        return
    if name not in BENCHMARKS:
        raise click.UsageError(f"There is no benchmark {name!r}. There are: {', '.join(BENCHMARKS)}.")
    try:
        result = measure(name)
    except CourtError as error:
        raise click.ClickException(error.message) from error
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
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--pictures", type=click.Path(path_type=Path), help="The folder that the file's picture names are in.")
@click.option("--leave-one-out", is_flag=True, help="Ask about the library's own memes instead, each left out in turn.")
@click.option("--keep-twins", is_flag=True, help="When leaving one out, leave in what shares its picture or words.")
@click.option(
    "--protocol",
    type=click.Choice(["merged", "extreme"]),
    default="merged",
    show_default=True,
    help="How HarMeme's three labels become two: somewhat harmful is harmful, or is not judged.",
)
@click.option(
    "--drop-precedents", is_flag=True, help="With extreme: precedents that are somewhat harmful give no vote either."
)
@click.option("--k", "ks", metavar="K,K,…", help="Instead: by the majority of the K nearest, for each (odd) K.")
@click.option(
    "--without-near-duplicates", is_flag=True, help="With --k: what is nearly the meme gives no vote; see the help."
)
@click.option("--seed", default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
def vote(
    library: Path,
    file: Path | None,
    pictures: Path | None,
    leave_one_out: bool,
    keep_twins: bool,
    protocol: str,
    drop_precedents: bool,
    ks: str | None,
    without_near_duplicates: bool,
    seed: int,
    as_json: bool,
) -> None:
    """What the vote of a LIBRARY of precedents is worth on the labelled memes in FILE.

    Every meme is judged by the vote alone, however far its precedents are; how many the court would leave undecided for
    that is said beside it. Intervals are 95 %, by bootstrap over memes (10,000 resamples).

    Under the protocol extreme, precedents that are somewhat harmful still vote, as harmful: that is what a court would
    know. The court's paper drops the label altogether; --drop-precedents does, and calibrates the rest anew.

    With --k precedents count the same, near or far, and nothing is calibrated but alpha: a plain vote, to see what
    more voters bring. Near-duplicates share the picture or the words, or are near in both halves; where no pictures are
    compared, a text at a cosine of .95 is near.
    """
    from court.errors import CourtError
    from eval.datasets.protocol import Protocol
    from eval.studies.vote import measure_left_out, measure_vote
    from retrieval.library.sources import Source

    if (file is None) != leave_one_out:
        raise click.UsageError("Give either FILE or --leave-one-out.")
    if drop_precedents and protocol != "extreme":
        raise click.UsageError("--drop-precedents is for --protocol extreme: merged drops no label.")
    if ks is None and without_near_duplicates:
        raise click.UsageError("--without-near-duplicates is for --k.")
    if ks is not None:
        if file is None or protocol != "merged":
            raise click.UsageError("--k is for a FILE, under the protocol merged.")
        _plain_votes(library, Source(path=file, pictures=pictures), ks, without_near_duplicates, seed, as_json)
        return
    how = Protocol(protocol)
    try:
        if file is None:
            scores = measure_left_out(
                library, twins_too=not keep_twins, protocol=how, drop_precedents=drop_precedents, seed=seed
            )
            _told(scores, {}, as_json)
            return
        source = Source(path=file, pictures=pictures)
        report = asyncio.run(measure_vote(library, source, protocol=how, drop_precedents=drop_precedents, seed=seed))
    except CourtError as error:
        raise click.ClickException(error.message) from None
    remarks = {
        "protocol": f"{protocol}: {report.dropped:,} memes and {report.precedents_dropped:,} precedents dropped",
        "undecided": f"{report.undecided:,} would be left to a person: every precedent is too far",
        "same text": f"{report.same_text:,} stand in the library word for word",
        "text alone": f"{report.without_picture:,} were judged without their picture",
        "left out": f"{len(report.problems):,} rows can't be used; --json lists them",
    }
    _told(report.scores, remarks, as_json, asdict(report))


def _plain_votes(library: Path, source: Source, ks: str, without_near: bool, seed: int, as_json: bool) -> None:
    from court.errors import CourtError
    from eval.studies.vote import measure_plain_votes

    try:
        numbers = [int(k) for k in ks.split(",")]
    except ValueError:
        raise click.UsageError(f"--k takes numbers with commas between them, not {ks!r}.") from None
    try:
        report = asyncio.run(measure_plain_votes(library, source, numbers, without_near=without_near, seed=seed))
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    first = report.votes[0].scores
    click.echo(f"memes        {first.n:,}: {first.harmful:,} harmful, {first.n - first.harmful:,} not")
    click.echo(f"majority     {first.majority:.3f}")
    if report.with_near is not None:
        click.echo(f"near         {report.with_near:,} had a near-duplicate in the library, which gave no vote")
    click.echo("  k  accuracy              macro-F1")
    for one in report.votes:
        told = (f"{f.value:.3f} [{f.low:.3f}, {f.high:.3f}]" for f in (one.scores.accuracy, one.scores.macro_f1))
        click.echo(f"{one.k:>3}  {'  '.join(told)}")
    if report.problems:
        click.echo(f"left out     {len(report.problems):,} rows can't be used; --json lists them")


def _told(scores: Scores, remarks: dict[str, str], as_json: bool, report: dict[str, object] | None = None) -> None:
    if as_json:
        click.echo(json.dumps(report or {"scores": asdict(scores)}))
        return
    click.echo(f"memes        {scores.n:,}: {scores.harmful:,} harmful, {scores.n - scores.harmful:,} not")
    click.echo(f"majority     {scores.majority:.3f}")
    for name, figure in (("accuracy", scores.accuracy), ("macro-F1", scores.macro_f1)):
        click.echo(f"{name:<12} {figure.value:.3f}  [{figure.low:.3f}, {figure.high:.3f}]")
    if scores.brier is not None:
        click.echo(f"Brier        {scores.brier:.3f}")
    for name, remark in remarks.items():
        click.echo(f"{name:<12} {remark}")


cli.add_command(ablate)
cli.add_command(arena)
cli.add_command(compare)
cli.add_command(datasets)
cli.add_command(duplicates)
cli.add_command(export)
cli.add_command(poison)
cli.add_command(probe)
cli.add_command(report)
cli.add_command(run)
cli.add_command(score)
cli.add_command(steering)
cli.add_command(sweep)
cli.add_command(synthetic)


def main() -> None:
    """Entry point."""
    cli()
