"""``memecourt-eval audition``: what models are fit for in a court, and how far their verdicts can be trusted."""

import asyncio
from pathlib import Path
from typing import Any

import click

from eval.commands.options import Shown, TableWords, court_options, plan_of, run_watched, shows_sections, with_table
from eval.reports.audition import audition_sections, gather_audition
from eval.runs.judge import material_of
from eval.runs.spec import Circumstances, JudgingSpec
from eval.scores.weighing import require_enough
from eval.session.engine import Progress
from eval.session.spec import flags_of, spec_options
from eval.studies.arms import run_study
from eval.studies.audition import audition_study, draw_memes
from serving.cli.common import NEW_FILE

_JUDGING = ("dataset", "split", "limit", "text_only", "language")


@click.command()
@spec_options(Circumstances, "data", "out", "concurrency", out={"required": True})
@spec_options(JudgingSpec, *_JUDGING)
@court_options()
@spec_options(TableWords)
@click.option(
    "--memes",
    type=click.IntRange(4, 60),
    default=60,
    show_default=True,
    help="Drawn memes to try, where --data names none.",
)
@click.option(
    "--calibrate",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the calibration of full verdicts, for `memecourt serve --audition`; needs --data, with 200 memes.",
)
@shows_sections()
def audition(memes: int, calibrate: Path | None, **options: Any) -> Shown:
    """Tries memes whose truth is known in full, and says what the models are fit for and which procedure to run.

    Without --data it tries drawn memes, by the full procedure twice, by one call, and by as many calls as the debate
    costs. With --data it tries labelled memes of yours in full alone, and --calibrate fits what serving weighs them by.
    Precedents are the train split's, in OUT/study/library. The same command continues what was interrupted, and
    repeats no call.
    """
    labelled = options["data"] is not None
    if calibrate is not None and not labelled:
        raise click.UsageError(
            "--calibrate needs labelled memes of yours: drawn ones decide fitness alone. Give --data."
        )
    of_data = {**flags_of(JudgingSpec), **flags_of(TableWords)}
    if not labelled and (named := [of_data[name] for name in of_data if name != "text_only" and options.get(name)]):
        raise click.UsageError(f"{named[0]} goes with --data.")
    if labelled:
        own = with_table(options)
    else:
        options["dataset"], own = "synthetic-harmeme", {"data": draw_memes(options["out"], memes)}
    study = audition_study(plan_of({**options, "procedure": "full"}, **own), labelled=labelled)
    if calibrate is not None:
        tried = material_of(study.plan, Progress()).memes
        require_enough([meme.harmful for meme in tried if meme.harmful is not None])  # before hours of trials
    runs = run_watched(lambda progress: run_study(study, progress))
    found = asyncio.run(gather_audition(runs))
    lead, sections = audition_sections(found)
    if calibrate is not None:
        calibrate.write_text(found.calibration().model_dump_json(indent=1) + "\n", encoding="utf-8")
        library = study.plan.out / "library"
        click.echo(f"Written: {calibrate}. Serve with --audition {calibrate} --library {library}.", err=True)
    return Shown(title="Audition", lead=lead, sections=sections, figures=found.as_json())
