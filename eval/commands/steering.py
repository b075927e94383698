"""``memecourt-eval steering``: what the detector of steering flags."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.display import word

if TYPE_CHECKING:
    from eval.studies.steering import Share


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def steering(files: tuple[Path, ...], as_json: bool) -> None:
    """Counts the texts in each FILE, all together, that read like an attempt to steer the court.

    FILE holds memes (as for `memecourt precedents build`), texts line by line (.txt), or a JSON array of texts (.json).
    No text is shown. Intervals are 95 %, exact (Clopper-Pearson); "in words" leaves out texts that only their form
    betrays: control tokens, hidden text, floods.
    """
    from eval.studies.steering import measure_steering

    report = measure_steering(files)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    click.echo(f"{'texts':<24} {report.flagged.n:>7,}")
    _print_share("flagged", report.flagged)
    _print_share("in words", report.in_words)
    for kind, share in report.kinds.items():
        _print_share(word(kind), share)
    if report.left_out:
        click.echo(f"{'left out':<24} {report.left_out:>7,} rows can't be used")


def _print_share(name: str, share: Share) -> None:
    click.echo(f"{name:<24} {share.flagged:>7,}  {share.value:7.2%}  [{share.low:.2%}, {share.high:.2%}]")
