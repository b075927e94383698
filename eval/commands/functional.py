"""``memecourt-eval functional``: tests of what a classifier of memes must be able to tell."""

from dataclasses import asdict
from pathlib import Path

import click

from eval.commands.options import Shown, runs_argument, shows_sections, unfinished_in_words
from eval.reports.label_sections import functional_sections
from eval.runs.results import read_runs, require_verdicts
from eval.scores.functional import functional_scores
from eval.synthetic.functional import TITLES, read_key
from serving.cli.common import FOLDER


@click.command()
@click.argument("data", type=FOLDER, metavar="DIR")
@runs_argument
@shows_sections()
def functional(data: Path, runs: tuple[Path, ...]) -> Shown:
    """Shows each RUN's pass rate in DIR per functionality, and which contrast sets it gets right.

    \b
    memecourt-eval synthetic DIR --layout functional
    memecourt-eval run --dataset synthetic-functional --data DIR --out RUN
    memecourt-eval functional DIR RUN

    RUN may hold another system's predictions, as `memecourt-eval score --out` stores them. A case passes if it gets its
    label; one without a class fails. Rates have 95 % Wilson intervals.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    cases = read_key(data)
    results = read_runs(runs)
    for one in results:
        require_verdicts(one)
    rows = [(one.name, functional_scores(cases, one)) for one in results]
    figures = {"systems": [{"name": name, **asdict(scores)} for name, scores in rows]}
    sections, lead = functional_sections(rows, TITLES), unfinished_in_words(results)
    return Shown(title="Functional tests", lead=lead, sections=sections, figures=figures)
