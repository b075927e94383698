"""``memecourt-eval shadow``: what a candidate said of live content, beside what the court said."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.display import word
from eval.commands.options import command_line
from serving.cli.common import changed_place, docket_option, printable, run, settings_of
from serving.cli.exports import utc

if TYPE_CHECKING:
    from court.record import TrialRecord
    from eval.runs.tried_again import TrialPair
    from retrieval.library.postgres.address import Address
    from serving.docket.store.listing import TrialFilter

_SHOWN = 20  # pairs of different labels that are listed; --json lists all


@click.command()
@click.argument("shadow_docket", metavar="SHADOW", callback=changed_place)
@click.option("--since", type=click.DateTime(), help="Only trials of the candidate at this time or later (UTC).")
@click.option("--until", type=click.DateTime(), help="Only trials of the candidate before this time (UTC).")
@click.option("--namespace", help="Only trials of this namespace.")
@click.option(
    "--sampled",
    is_flag=True,
    help="Only trials drawn at random for review; other reviews are of doubtful cases.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write reviewed trials as two runs, OUT/court and OUT/shadow, for `memecourt-eval compare`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object that lists every difference.")
@docket_option
def shadow(
    shadow_docket: Path | Address,
    since: datetime | None,
    until: datetime | None,
    namespace: str | None,
    sampled: bool,
    out: Path | None,
    as_json: bool,
    docket: Path | Address | None,
) -> None:
    """Compares a candidate's verdicts in the docket SHADOW with the court's on the same memes.

    SHADOW may be the court's own docket, to compare memes that `memecourt rejudge` judged again.
    """
    from eval.runs.tried_again import write_runs
    from serving.docket.store.listing import TrialFilter

    which = TrialFilter(opened_from=utc(since), opened_until=utc(until), namespace=namespace)
    pairs = run(_pairs(shadow_docket, docket, which, sampled=sampled))
    cells = Counter((_label_of(pair.first), _label_of(pair.second)) for pair in pairs)
    different = [pair for pair in pairs if _label_of(pair.first) != _label_of(pair.second)]
    reviewed = [pair for pair in pairs if pair.gold is not None]
    if as_json:
        rows = [[first, second, count] for (first, second), count in sorted(cells.items())]
        differ = [
            [each.first.trial_id, each.second.trial_id, _label_of(each.first), _label_of(each.second)]
            for each in different
        ]
        click.echo(json.dumps({"pairs": len(pairs), "reviewed": len(reviewed), "labels": rows, "different": differ}))
    else:
        _print_pairs(pairs, cells, different, len(reviewed))
    if out is not None:
        if not reviewed:
            raise click.ClickException("No trial of these was reviewed: there is nothing to compare with.")
        made = write_runs(reviewed, out, command=command_line(), names=("court", "shadow"))
        # With --json standard output has one object and nothing else.
        click.echo(f"memecourt-eval compare {made[0]} {made[1]}", err=as_json)


def _print_pairs(
    pairs: list[TrialPair], cells: Counter[tuple[str, str]], different: list[TrialPair], reviewed: int
) -> None:
    from eval.reports.sections import table

    share = f"{1 - len(different) / len(pairs):.3f}" if pairs else "–"
    click.echo(f"memes {len(pairs):,}, of which reviewed {reviewed:,}; same outcome {share}\n")
    if not pairs:
        return
    rows = [["court", "shadow", "memes"]]
    rows += [[word(first), word(second), f"{count:,}"] for (first, second), count in sorted(cells.items())]
    click.echo(table(rows))
    if different:
        rows = [["trial", "court", "shadow", "person"]]
        rows += [
            [
                printable(each.first.trial_id),
                word(_label_of(each.first)),
                word(_label_of(each.second)),
                word(each.gold or "–"),
            ]
            for each in different[:_SHOWN]
        ]
        click.echo("\n" + table(rows, numbers=False))
    if len(different) > _SHOWN:
        click.echo(f"and {len(different) - _SHOWN:,} more; --json lists all")


async def _pairs(
    second: Path | Address, first: Path | Address | None, which: TrialFilter, *, sampled: bool
) -> list[TrialPair]:
    from eval.runs.tried_again import read_pairs
    from serving.cli.common import docket_in
    from serving.docket.review.projection import is_sampled
    from serving.export.tables import Selection
    from serving.wiring import rules_of

    settings = settings_of(docket=first)
    rules = rules_of(settings)
    async with docket_in(settings) as court, docket_in(settings.model_copy(update={"docket": second})) as candidate:
        found = read_pairs(Selection(candidate.index, candidate.trials, which), court.trials)
        return [
            pair
            async for pair in found
            if not sampled or is_sampled(pair.first.trial_id, rules.share_of(pair.first.opened.meme.namespace))
        ]


def _label_of(record: TrialRecord) -> str:
    return str(record.verdict.label) if record.verdict else "FAILED"
