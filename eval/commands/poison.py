"""``memecourt-eval poison``: what a few poisoned precedents can do to the vote of a library."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

_BOUNDS = {0.01: 0.01, 0.05: 0.04}
"""By the share of labels that is flipped, what macro-F1 may fall by on the mean (DP-1)."""


@click.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1), help="How often labels are flipped.")
@click.option("--trials", default=1000, show_default=True, type=click.IntRange(1), help="Poisoned precedents to plant.")
@click.option("--seed", default=0, show_default=True, help="Of the planted precedents.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
def poison(library: Path, seeds: int, trials: int, seed: int, as_json: bool) -> None:
    """Flips labels of a LIBRARY in memory, and plants precedents made to acquit; the library is not changed.

    Labels: 1 and 5 % of them, and what the vote's macro-F1 on the library's own memes falls by, each meme left out with
    its twins and judged against its true label.

    Planted: a precedent "not harmful" beside a harmful meme that the vote does not acquit, and then twenty clones of
    it; how many are acquitted where sole acquittals are let through (`precedents build --sole-acquittal`), and where
    they are left out. Then twenty that are no clones but nearly the same, where each is heard (`--per-cluster 0`), and
    where one of them is. And what these safeguards cost where nothing is poisoned.

    Exit code: 0 if macro-F1 falls by at most 1 and 4 points, clones count once, and without sole acquittals none is
    acquitted; else 1.
    """
    from court.errors import CourtError
    from eval.studies.poison import CLONES, measure_flipped, measure_planted, measure_price, open_poisoned

    try:
        opened = open_poisoned(library)
        flipped = [measure_flipped(opened, share, seeds=seeds) for share in _BOUNDS]
        planted = measure_planted(opened, trials=trials, seed=seed)
        price = measure_price(opened, seed=seed)
    except CourtError as error:
        raise click.ClickException(error.message) from None
    held = all(one.mean_drop <= _BOUNDS[one.share] for one in flipped) and not (
        planted.counted_twice or planted.sole_by_one or planted.sole_by_clones
    )
    if as_json:
        figures = {
            "held": held,
            "flipped": [asdict(o) for o in flipped],
            "planted": asdict(planted),
            "price": asdict(price),
        }
        click.echo(json.dumps(figures))
    else:
        for one in flipped:
            click.echo(
                f"{one.share:.0%} of labels flipped, {one.seeds} seeds: macro-F1 {one.untouched:.3f} falls by "
                f"{100 * one.mean_drop:.2f} points [{100 * one.low:.2f}, {100 * one.high:.2f}], "
                f"at worst {100 * one.worst_drop:.2f}"
            )
        click.echo(f"{planted.trials:,} harmful memes that the vote does not acquit, each with a precedent made to:")
        click.echo(f"  one precedent        {planted.by_one:>6,} acquitted")
        click.echo(
            f"  {CLONES} clones            {planted.by_clones:>6,} acquitted; counted twice {planted.counted_twice:,}"
        )
        click.echo("  with sole acquittals left out, and each heard that is no clone")
        click.echo(f"  one precedent        {planted.sole_by_one:>6,} acquitted")
        click.echo(f"  {CLONES} clones            {planted.sole_by_clones:>6,} acquitted")
        click.echo(f"  {CLONES} nearly the same    {planted.sole_by_variants:>6,} acquitted")
        click.echo("  and of what is nearly the same one heard")
        click.echo(f"  {CLONES} nearly the same    {planted.crowd_by_variants:>6,} acquitted")
        click.echo(f"{price.memes:,} memes, nothing poisoned: sole acquittals let through; left out; and one heard:")
        click.echo(
            f"  accuracy             {price.accuracy:.3f}  {price.accuracy_guarded:.3f}  {price.accuracy_crowds:.3f}"
        )
        click.echo(
            f"  macro-F1             {price.macro_f1:.3f}  {price.macro_f1_guarded:.3f}  {price.macro_f1_crowds:.3f}"
        )
        click.echo(
            f"  no more acquitted    {price.benign_lost + price.harmful_caught:>6,}, of which harmful "
            f"{price.harmful_caught:,}"
        )
    sys.exit(0 if held else 1)
