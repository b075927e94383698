"""``memecourt-eval compare``: two runs meme by meme."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.display import word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eval.reports.sections import Section
    from eval.scores.compare import Comparison, TaskComparison

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
    from eval.scores.compare import compare_tasks, in_words, task_comparison_in_words

    a, b = read_results(run_a), read_results(run_b)
    for one in (a, b):
        if not one.finished:
            raise BadRequest(
                f"{one.name} is not finished: some of its memes have no answer yet. Finish it with `memecourt-eval "
                "run --resume`, and compare then."
            )
    if a.question is not None or b.question is not None:
        answers = compare_tasks(a, b, seed=seed)
        rows = [(one.meme, *map(_labels, (one.gold, one.a, one.b))) for one in answers.changed]
        _show(asdict(answers), (), [_section(answers, task_comparison_in_words(answers), rows)], as_json=as_json)
        return
    common = tuple(one for one in a.protocols if one in b.protocols)
    if not common:
        raise click.ClickException(f"{a.name} and {b.name} were not run under the same protocol.")
    by_protocol = score_by_protocol(
        protocols_of(protocol, common), lambda one: compared(a, b, one, seed=seed), named=protocol is not None
    )
    where_a, where_b = f"{a.dataset}, split {a.split}", f"{b.dataset}, split {b.split}"
    lead = [f"A is {where_a}; B is {where_b}. Memes are matched by id alone."] if where_a != where_b else []
    sections = []
    for found in by_protocol.values():
        rows = [
            (each.meme, "harmful" if each.harmful else "not harmful", word(each.a), word(each.b))
            for each in found.flipped
        ]
        sections.append(_section(found, in_words(found), rows))
    figures = {"a": where_a, "b": where_b, "comparisons": [asdict(one) for one in by_protocol.values()]}
    _show(figures, lead, sections, as_json=as_json)


def _show(figures: Mapping[str, object], lead: Sequence[str], sections: Sequence[Section], *, as_json: bool) -> None:
    from eval.reports.sections import as_text

    click.echo(json.dumps(figures) if as_json else as_text(lead, sections))


def _section(found: Comparison | TaskComparison, sentences: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Section:
    """A comparison in words, and the first memes on which the two differ."""
    from eval.reports.sections import Section

    more = len(rows) - _SHOWN
    head = ("different", "gold", found.name_a, found.name_b)
    return Section(
        "compared",
        f"{found.name_a} against {found.name_b}",
        (head, *rows[:_SHOWN]) if rows else (),
        (f"and {more:,} more; --json lists all",) if more > 0 else (),
        lead=tuple(sentences),
        words=True,
    )


def _labels(labels: tuple[str, ...] | None) -> str:
    return "no answer" if labels is None else ", ".join(labels) or "none"
