"""``memecourt-eval duplicates``: what the matching of known memes is worth."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from eval.studies.duplicates import DuplicatesReport
    from eval.studies.steering import Share


@click.command()
@click.option("--captions", default=8, show_default=True, help="Known memes made of each held-out picture.")
@click.option("--read", default=0, show_default=True, help="Of so many known memes, read the text off as well (slow).")
@click.option("--jobs", default=1, show_default=True, help="Processes that measure.")
@click.option("--development-only", is_flag=True, help="Leave the held-out pictures alone: to try other thresholds.")
@click.option("--seed", default=0, show_default=True, help="Another seed, other captions.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
def duplicates(captions: int, read: int, jobs: int, development_only: bool, seed: int, as_json: bool) -> None:
    """Draws memes, copies of them and others like them, and counts what is taken for the same meme.

    `near` are those whose hashes lie within the matcher's radius, `text` those of them whose texts agree, `tiles` those
    of them where no tile of the picture differs, `reused` those where both hold: the same meme. Intervals are
    95 %, exact (Clopper-Pearson), as if pairs had nothing to do with each other; those of one picture have.

    With --read the text is read off the pictures by the court's own reader, as it is where the caller gives none.
    """
    from court.errors import CourtError
    from eval.studies.duplicates import Part, measure_duplicates

    if min(captions, jobs) < 1 or read < 0:
        raise click.UsageError("--captions and --jobs must be at least 1, --read at least 0.")
    parts = [Part.DEVELOPMENT] if development_only else list(Part)
    try:
        report = measure_duplicates(seed=seed, parts=parts, captions=captions, jobs=jobs, read=read, progress=_progress)
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _tell(report)


def _tell(report: DuplicatesReport) -> None:
    from eval.studies.duplicates import USUAL_RADIUS

    radius = report.nearness.radius
    title = ""
    for row in report.rows:
        if title != (title := f"{row.part}: {row.kind}"):
            columns = ("pairs", f"<= {USUAL_RADIUS} bits", f"<= {radius} bits", "text", "tiles", "reused")
            click.echo(f"\n{title:<34}" + "".join(f"{column:>12}" for column in columns))
        shares = (row.usual, row.near, row.by_text, row.by_tiles, row.reused)
        click.echo(f"{row.name:<34}{row.reused.n:>12,}" + "".join(f"{_percent(share.value):>12}" for share in shares))
        if row.name == "all":
            for name, share in (("text alone", row.by_text), ("tiles alone", row.by_tiles), ("both", row.reused)):
                click.echo(f"  {name:<32}{_interval(share)}, {row.bases} pictures")
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in row.why_not.items())
            click.echo(f"  {'near, but':<32}{reasons or 'nothing'}")
    click.echo(f"\nmemes of two pictures within {radius} bits: {_interval(report.unrelated)}")
    if report.read:
        click.echo(f"\n{'read off both pictures':<34}{'pairs':>12}{'agree':>12}{'to a letter':>12}{'reused':>12}")
    for read in report.read:
        click.echo(
            f"{read.name:<34}{read.agree.n:>12,}"
            + "".join(f"{_percent(share.value):>12}" for share in (read.agree, read.exactly, read.reused))
        )


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _interval(share: Share) -> str:
    return f"{share.flagged:,} of {share.n:,}: {share.value:.2%}  [{share.low:.2%}, {share.high:.2%}]"


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rpictures {done:,} of {total:,}" + "\n" * (done == total), nl=False, err=True)
