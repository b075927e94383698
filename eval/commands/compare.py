"""``memecourt-eval compare``: two runs meme by meme, or the ranks of two arenas."""

from dataclasses import asdict
from pathlib import Path

import click

from court.errors import BadRequest
from eval.arena.compare import compare_arenas, comparison_section
from eval.arena.folder import EVENTS
from eval.commands.options import Shown, protocol_option, protocols_of, score_by_protocol, seed_option, shows_sections
from eval.reports.sections import Section
from eval.runs.results import read_results
from eval.scores.compare import Comparison, in_words
from eval.scores.compare import compare as compared
from serving.cli.common import PATH

_SHOWN = 20  # flipped memes that are listed; --json lists all


@click.command()
@click.argument("run_a", type=PATH)
@click.argument("run_b", type=PATH)
@protocol_option
@seed_option
@shows_sections(page=False)
def compare(run_a: Path, run_b: Path, protocol: str | None, seed: int) -> Shown:
    """Shows whether RUN_A or RUN_B is better, and whether there are enough memes to tell.

    Only memes of both runs are compared; a meme without a class counts as wrong. Differences are A minus B with 95 %
    intervals by paired bootstrap over memes (10,000 resamples); the p-value is from the exact McNemar test.

    Of two arenas it shows how far they rank the models of both alike: Spearman's and Kendall's rank correlation.
    """
    arenas = [(one / EVENTS).exists() for one in (run_a, run_b)]
    if all(arenas):
        if protocol is not None:
            raise click.UsageError("--protocol is for runs: the verdicts of an arena have no classes.")
        ranked = compare_arenas(run_a, run_b, seed=seed)
        return Shown(title="Arenas", sections=[comparison_section(ranked)], figures=ranked)
    if any(arenas):
        raise click.UsageError(f"{(run_a, run_b)[arenas.index(True)]} is an arena: name two arenas, or two runs.")
    a, b = read_results(run_a), read_results(run_b)
    for one in (a, b):
        if not one.finished:
            raise BadRequest(
                f"{one.name} is not finished: some of its memes have no answer yet. Finish it with the command "
                "that began it, and compare then."
            )
    if a.question is not None or b.question is not None:
        if protocol is not None:
            raise click.UsageError("--protocol is for verdicts: leave it out for runs that asked a question.")
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
    lead = [f"A is {where_a}; B is {where_b}. Memes are matched by id alone."] if where_a != where_b else []
    figures = {"a": where_a, "b": where_b, "comparisons": [asdict(one) for one in found]}
    return Shown(title="Runs", lead=lead, sections=[_section(one) for one in found], figures=figures)


def _section(found: Comparison) -> Section:
    """A comparison in words, and the first memes on which the two differ."""
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
