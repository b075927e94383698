"""``memecourt-eval vote``: how good the vote of a library's precedents is on labelled memes."""

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from eval.commands.options import Shown, seed_option, shows_sections
from eval.reports.sections import Section
from eval.scores.measure import figure
from eval.studies.vote import measure_vote
from retrieval.library.sources import Source
from serving.cli.common import FOLDER, PATH


@click.command()
@click.argument("library", type=PATH)
@click.argument("file", type=PATH)
@click.option("--pictures", type=FOLDER, help="Folder that the file's picture names are relative to.")
@seed_option
@shows_sections(page=False)
def vote(library: Path, file: Path, pictures: Path | None, seed: int) -> Shown:
    """Measures the vote of a LIBRARY of precedents on the labelled memes in FILE.

    Every meme is judged by the vote alone, however distant its precedents; the report also counts the memes that the
    court would leave undecided for that reason. Intervals are 95 %, by bootstrap over memes (10,000 resamples).

    `memecourt-eval run` reports the vote under each protocol of a data set, beside the court.
    """
    report = asyncio.run(measure_vote(library, Source(path=file, pictures=pictures), seed=seed))
    benign = report.n - report.harmful
    rows = {
        "memes": f"{report.n:,}: {report.harmful:,} harmful, {benign:,} not",
        "majority": f"{max(report.harmful, benign) / report.n:.3f}",
        "accuracy": figure(report.accuracy),
        "macro-F1": figure(report.macro_f1),
        "Brier": f"{report.brier:.3f}",
        # Only what changes how the figures are read.
        "undecided": f"{report.undecided:,} would be left to a person: every precedent is too far",
        "same text": f"{report.same_text:,} stand in the library word for word",
        "text alone": f"{report.without_picture:,} were judged without their picture",
        "left out": f"{len(report.problems):,} rows can't be used; --json lists them",
    }
    section = Section("vote", f"Vote of {library}", (("figure", "value"), *rows.items()), words=True)
    return Shown(title="Vote", sections=[section], figures=asdict(report))
