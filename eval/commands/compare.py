"""``memecourt-eval compare``: two runs meme by meme."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.display import word

if TYPE_CHECKING:
    from eval.scores.task_compare import TaskComparison

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
    """
    from court.errors import BadRequest
    from eval.commands.options import protocols_of, score_by_protocol
    from eval.runs.results import read_results
    from eval.scores.compare import compare as compared
    from eval.scores.compare import in_words
    from eval.scores.tables import table
    from eval.scores.task_compare import compare_tasks

    a, b = read_results(run_a), read_results(run_b)
    for one in (a, b):
        if not one.finished:
            raise BadRequest(
                f"{one.name} is not finished: some of its memes have no answer yet. Finish it with `memecourt-eval "
                "run --resume`, and compare then."
            )
    if a.question is not None or b.question is not None:
        _show_answers(compare_tasks(a, b, seed=seed), as_json)
        return
    common = tuple(one for one in a.protocols if one in b.protocols)
    if not common:
        raise click.ClickException(f"{a.name} and {b.name} were not run under the same protocol.")
    by_protocol = score_by_protocol(
        protocols_of(protocol, common), lambda one: compared(a, b, one, seed=seed), named=protocol is not None
    )
    comparisons = list(by_protocol.values())
    where_a, where_b = f"{a.dataset}, split {a.split}", f"{b.dataset}, split {b.split}"
    if as_json:
        click.echo(json.dumps({"a": where_a, "b": where_b, "comparisons": [asdict(one) for one in comparisons]}))
        return
    if where_a != where_b:
        click.echo(f"A is {where_a}; B is {where_b}. Memes are matched by id alone.\n")
    for comparison in comparisons:
        click.echo("\n".join(in_words(comparison)))
        flipped = comparison.flipped
        if flipped:
            rows = [["flipped", "gold", comparison.name_a, comparison.name_b]]
            rows += [
                [one.meme, "harmful" if one.harmful else "not harmful", word(one.a), word(one.b)]
                for one in flipped[:_SHOWN]
            ]
            click.echo("\n" + table(rows, numbers=False))
        if len(flipped) > _SHOWN:
            click.echo(f"and {len(flipped) - _SHOWN:,} more; --json lists all")
        click.echo()


def _show_answers(comparison: TaskComparison, as_json: bool) -> None:
    """Shows a comparison of answers to a question."""
    from eval.scores.tables import table
    from eval.scores.task_compare import task_comparison_in_words

    if as_json:
        click.echo(json.dumps(asdict(comparison)))
        return
    click.echo("\n".join(task_comparison_in_words(comparison)))
    changed = comparison.changed
    if changed:
        rows = [["changed", "gold", comparison.name_a, comparison.name_b]]
        rows += [[one.meme, _labels(one.gold), _labels(one.a), _labels(one.b)] for one in changed[:_SHOWN]]
        click.echo("\n" + table(rows, numbers=False))
    if len(changed) > _SHOWN:
        click.echo(f"and {len(changed) - _SHOWN:,} more; --json lists all")


def _labels(labels: tuple[str, ...] | None) -> str:
    return "no answer" if labels is None else ", ".join(labels) or "none"
