"""``memecourt-eval steering``: what the detector of steering flags."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from court.display import word
from eval.commands.options import Shown, shows_sections
from serving.cli.common import PATH


@click.command()
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE…")
@shows_sections(page=False)
def steering(files: tuple[Path, ...]) -> Shown:
    """Counts the texts in each FILE, all together, that read like an attempt to steer the court.

    FILE holds memes (as for `memecourt precedents build`), texts line by line (.txt), or a JSON array of texts (.json).
    No text is shown. Intervals are 95 %, exact (Clopper-Pearson); "in words" leaves out texts that only their form
    betrays: control tokens, hidden text, floods.
    """
    from eval.reports.sections import Section
    from eval.studies.steering import measure_steering

    report = measure_steering(files)
    shares = {"flagged": report.flagged, "in words": report.in_words}
    shares |= {word(kind): share for kind, share in report.kinds.items()}
    rows = [
        (name, f"{one.flagged:,}", f"{one.value:.2%}", f"{one.low:.2%} to {one.high:.2%}")
        for name, one in shares.items()
    ]
    notes = (f"{report.left_out:,} rows can't be used.",) if report.left_out else ()
    title = f"{report.flagged.n:,} texts"
    section = Section("steering", title, (("kind", "texts", "share", "interval"), *rows), notes)
    return Shown(title="Steering", sections=[section], figures=asdict(report))
