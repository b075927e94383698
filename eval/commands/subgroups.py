"""``memecourt-eval subgroups``: whom a system treats worse than others."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--by",
    metavar="TASK|PROPERTY",
    help=(
        "Property to group by: a task of the card, or group (of the card), label (the data set's own words), "
        "language (of the card, else detected), script, split or target."
    ),
)
@click.option(
    "--groups",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of groups instead of --by: CSV or JSON lines with id and group, one line per group of a meme.",
)
@click.option(
    "--protocol", help="Protocols that map labels to two classes, separated by commas. [default: all of the run]"
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def subgroups(
    runs: tuple[Path, ...], by: str | None, groups: Path | None, protocol: str | None, html: Path | None, as_json: bool
) -> None:
    """Shows figures of each RUN by groups of memes, each beside those of all other memes.

    Accuracy, false alarms (not harmful, called harmful) and misses (harmful, not called so) have Wilson's 95 %
    intervals; of runs of classify there is a table of whole answers, and one of each label in place of harm. Each is
    tested against the other memes by Fisher's exact test, and all p-values of a table, or of all tables of a question,
    are corrected by Holm's procedure: so many looks find something by chance alone otherwise. A meme without a class or
    an answer counts as wrong.
    """
    from eval.commands.options import command_line, protocols_of, score_by_protocol, show_sections, unfinished_in_words
    from eval.reports.gather import runs_below
    from eval.reports.label_sections import subgroup_sections
    from eval.runs.results import read_results
    from eval.scores.meme_rows import read_meme_rows
    from eval.scores.subgroups import groups_of, subgroup_table, task_subgroup_tables

    if (by is None) == (groups is None):
        raise click.UsageError("Give either --by PROPERTY or --groups FILE.")
    read, sections, figures = [], [], []
    for root in (root for path in runs for root in runs_below(path)):
        results = read_results(root)
        read.append(results)
        of_meme: dict[str, tuple[str, ...]] = {}
        if groups is not None:
            for id_, group in read_meme_rows(groups, ("id", "group"), "groups of memes"):
                of_meme[id_] = (*of_meme.get(id_, ()), group)
            # A file about other memes would put all of these into one group without a word.
            if not of_meme.keys() & {one.meme.id for one in results.judged}:
                raise click.UsageError(f"{groups.name} names no meme of {results.name}.")
        elif by is not None:
            of_meme, _ = groups_of(results, by)
        # A protocol makes two classes of labels; answers are scored by the labels themselves.
        if results.question is not None:
            if protocol is not None:
                raise click.UsageError(f"{results.name} asked a question: it has no protocols, leave --protocol out.")
            tables = task_subgroup_tables(results, of_meme)
        else:
            scored = protocols_of(protocol, results.protocols)
            table_of = partial(subgroup_table, results, groups=of_meme)
            tables = tuple(score_by_protocol(scored, table_of, named=protocol is not None).values())
        sections += subgroup_sections(results.name, tables)
        figures += [{"run": results.name, "finished": results.finished, **asdict(table)} for table in tables]
    show_sections(
        "Subgroups",
        unfinished_in_words(read),
        sections,
        page=html,
        figures={"by": by or "groups", "tables": figures} if as_json else None,
        command=command_line(),
    )
