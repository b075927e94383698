"""``memecourt-eval compare``: two runs meme by meme, or the ranks of two arenas."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from eval.reports.sections import Section
    from eval.scores.compare import Comparison

_SHOWN = 20  # flipped memes that are listed; --json lists all


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--protocol",
    help="Protocols that map labels to two classes, separated by commas. [default: all that both runs have]",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object that lists every flipped meme.")
def compare(run_a: Path, run_b: Path, protocol: str | None, seed: int, as_json: bool) -> None:
    """Shows whether RUN_A or RUN_B is better, and whether there are enough memes to tell.

    Only memes of both runs are compared; a meme without a class counts as wrong. Differences are A minus B with 95 %
    intervals by paired bootstrap over memes (10,000 resamples); the p-value is from the exact McNemar test.

    Of two arenas it shows how far they rank the models of both alike: Spearman's and Kendall's rank correlation.
    """
    from court.errors import BadRequest
    from eval.arena.folder import EVENTS
    from eval.commands.options import protocols_of, score_by_protocol
    from eval.reports.sections import as_text
    from eval.runs.results import read_results
    from eval.scores.compare import compare as compared

    arenas = [(one / EVENTS).exists() for one in (run_a, run_b)]
    if all(arenas):
        if protocol is not None:
            raise click.UsageError("--protocol is for runs: the verdicts of an arena have no classes.")
        from eval.arena.compare import compare_arenas, comparison_section

        ranked = compare_arenas(run_a, run_b, seed=seed)
        click.echo(json.dumps(asdict(ranked)) if as_json else as_text([], [comparison_section(ranked)]))
        return
    if any(arenas):
        raise click.UsageError(f"{(run_a, run_b)[arenas.index(True)]} is an arena: name two arenas, or two runs.")
    a, b = read_results(run_a), read_results(run_b)
    for one in (a, b):
        if not one.finished:
            raise BadRequest(
                f"{one.name} is not finished: some of its memes have no answer yet. Finish it with `memecourt-eval "
                "run --resume`, and compare then."
            )
    if a.question is not None or b.question is not None:
        found = [compared(a, b, seed=seed)]
    else:
        common = tuple(one for one in a.protocols if one in b.protocols)
        if not common:
            raise click.ClickException(f"{a.name} and {b.name} were not run under the same protocol.")
        by_protocol = score_by_protocol(
            protocols_of(protocol, common), lambda one: compared(a, b, one, seed=seed), named=protocol is not None
        )
        found = [*by_protocol.values()]
    where_a, where_b = f"{a.dataset}, split {a.split}", f"{b.dataset}, split {b.split}"
    if as_json:
        click.echo(json.dumps({"a": where_a, "b": where_b, "comparisons": [asdict(one) for one in found]}))
        return
    lead = [f"A is {where_a}; B is {where_b}. Memes are matched by id alone."] if where_a != where_b else []
    click.echo(as_text(lead, [_section(one) for one in found]))


def _section(found: Comparison) -> Section:
    """A comparison in words, and the first memes on which the two differ."""
    from eval.reports.sections import Section
    from eval.scores.compare import in_words

    rows = [(one.meme, *map(_labels, (one.gold, one.a, one.b))) for one in found.changed]
    more = len(rows) - _SHOWN
    head = ("different", "gold", found.name_a, found.name_b)
    return Section(
        "compared",
        f"{found.name_a} against {found.name_b}",
        (head, *rows[:_SHOWN]) if rows else (),
        (f"and {more:,} more; --json lists all",) if more > 0 else (),
        lead=tuple(in_words(found)),
        words=True,
    )


def _labels(labels: tuple[str, ...] | None) -> str:
    return "no answer" if labels is None else ", ".join(labels) or "none"
