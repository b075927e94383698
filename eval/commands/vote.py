"""``memecourt-eval vote``: how good the vote of a library's precedents is on labelled memes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from eval.commands.options import Shown, seed_option, shows_sections
from eval.reports.sections import Section
from eval.scores.compare import signed_interval
from eval.scores.measure import figure
from eval.studies.vote import measure_folds, measure_vote
from retrieval.library.sources import Source
from serving.cli.common import FOLDER, PATH


@click.command()
@click.argument("library", type=PATH)
@click.argument("file", type=PATH, required=False)
@click.option("--pictures", type=FOLDER, help="Folder that the file's picture names are relative to.")
@click.option(
    "--folds", is_flag=True, help="Use the library's own texts in five folds, and show verdicts beside the votes."
)
@seed_option
@shows_sections(page=False)
def vote(library: Path, file: Path | None, pictures: Path | None, folds: bool, seed: int) -> Shown:
    """Measures the vote of a LIBRARY of precedents on the labelled memes in FILE.

    Every meme is judged by the vote alone, however distant its precedents; the report also counts the memes that the
    court would leave undecided for that reason. Intervals are 95 %, by bootstrap over memes (10,000 resamples).

    `memecourt-eval run` reports the vote under each protocol of a data set, beside the court.
    """
    # Exactly one of the two: with both it would not be clear whose memes are measured.
    if (file is None) is not folds:
        raise click.UsageError("Give FILE or --folds.")
    if file is None:
        return _of_folds(library, seed)
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
    return _shown(library, rows, asdict(report))


def _of_folds(library: Path, seed: int) -> Shown:
    report = measure_folds(library, seed=seed)
    verdicts, votes = report.accuracy
    rows = {
        "memes": f"{report.n:,} in {report.groups:,} groups of nearly the same text",
        "labelled": f"{report.decided:,}; {report.automatic:,} need nobody to look",
        "accuracy": f"{verdicts:.3f} of the labelled, their votes {votes:.3f}: {signed_interval(report.difference)}",
    }
    if report.guessed is not None:
        rows["undecided"] = f"distant precedents favour the right label of {report.guessed:.3f}"
    for zone in report.zones:
        rows[zone.name] = (
            f"{zone.n:,} from {zone.similarity:.2f} on: accuracy {zone.accuracy:.3f}, score shown {zone.shown:.3f}, "
            f"harmful {zone.harmful:.3f}"
        )
    return _shown(library, rows, asdict(report))


def _shown(library: Path, rows: Mapping[str, str], figures: dict[str, Any]) -> Shown:
    section = Section("vote", f"Vote of {library}", (("figure", "value"), *rows.items()), words=True)
    return Shown(title="Vote", sections=[section], figures=figures)
