"""``memecourt-eval functional``: tests of what a classifier of memes must be able to tell."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from eval.commands.options import Shown, runs_argument, say, shows_sections, unfinished_in_words
from eval.reports.label_sections import functional_sections
from eval.runs.results import read_runs, require_verdicts
from eval.scores.functional import functional_scores
from eval.session.engine import watching
from eval.synthetic.functional import read_key, suite, write_functional
from serving.cli.common import FOLDER, PATH


@click.group()
def functional() -> None:
    """Functional tests in the manner of HateCheck, for memes: drawn pictures, tame texts, invented groups.

    \b
    memecourt-eval functional make DIR
    memecourt-eval run --dataset synthetic-functional --data DIR --out RUN
    memecourt-eval functional score DIR RUN
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@functional.command()
@click.argument("out", type=PATH)
@click.option("--cases", default=12, show_default=True, help="Number of cases per functionality.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the cases.")
def make(out: Path, cases: int, seed: int) -> None:
    """Draws and writes the tests into OUT, a new directory, as the data set synthetic-functional.

    Its train split is the starter library's memes: precedents for whoever has no other. Any system can be tested that
    judges test.jsonl: the court by `run`, others by their predictions, which `score --out` stores as a run.
    """
    with watching(say) as progress:
        made = write_functional(out, count=cases, seed=seed, progress=partial(progress.step, "pictures"))
    harmful = sum(case.harmful for case in made)
    kinds = len({case.functionality for case in made})
    click.echo(f"{len(made):,} cases of {kinds} functionalities, {harmful:,} of them harmful")


@functional.command()
@click.argument("data", type=FOLDER, metavar="DIR")
@runs_argument
@shows_sections()
def score(data: Path, runs: tuple[Path, ...]) -> Shown:
    """Shows each RUN's pass rate in DIR per functionality, and which contrast sets it gets right.

    RUN may hold another system's predictions, as `memecourt-eval score --out` stores them. A case passes if it gets its
    label; one without a class fails. Rates have 95 % Wilson intervals.
    """
    cases = read_key(data)
    results = read_runs(runs)
    for one in results:
        require_verdicts(one)
    rows = [(one.name, functional_scores(cases, one)) for one in results]
    figures = {"systems": [{"name": name, **asdict(scores)} for name, scores in rows]}
    sections, lead = functional_sections(rows, suite().titles), unfinished_in_words(results)
    return Shown(title="Functional tests", lead=lead, sections=sections, figures=figures)
