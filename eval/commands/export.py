"""``memecourt-eval export``: a run in the forms of other tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.pages import write_page
from serving.cli.common import with_options

if TYPE_CHECKING:
    from eval.reports.every_eval_ever import Publisher
    from eval.runs.results import Results

_PATH = click.Path(path_type=Path)


publisher_options = with_options(
    click.option(
        "--every-eval-ever",
        "database",
        type=_PATH,
        metavar="DIR",
        help="Folder to write Every Eval Ever records (schema 0.3.0) below.",
    ),
    click.option(
        "--organization",
        default="",
        metavar="NAME",
        help="Name of the evaluating organization, as readers will see it.",
    ),
    click.option("--organization-url", default="", metavar="URL", help="Address of the organization."),
    click.option(
        "--relationship",
        type=click.Choice(["first_party", "third_party", "collaborative", "other"]),
        default="third_party",
        show_default=True,
        help="Relationship of the evaluator to the makers of the models.",
    ),
)
"""Options that say who publishes results, and where to write them."""


def publisher_of(options: dict[str, Any]) -> Publisher:
    """Reads the publisher off :func:`publisher_options`. Raises click.UsageError where nobody is named."""
    from eval.reports.every_eval_ever import Publisher

    if not options["organization"].strip():
        raise click.UsageError("Missing option --organization: a record of Every Eval Ever names who evaluated.")
    return Publisher(options["organization"].strip(), options["relationship"], options["organization_url"])


@click.command()
@click.argument("run", type=_PATH)
@click.option("--inspect", type=_PATH, metavar="FILE", help="Inspect AI log to write (….eval or ….json).")
@click.option("--parquet", type=_PATH, metavar="FILE", help="Parquet file of predictions to write, one row per meme.")
@click.option(
    "--eval-card",
    type=_PATH,
    metavar="FILE",
    help="Evaluation card to write: ….html for a page, else Markdown with the metadata of a model card.",
)
@publisher_options
@click.option(
    "--developer", default="", metavar="NAME", help="Developer of the model. [default: derived from its name]"
)
@click.option("--with-texts", is_flag=True, help="Include the memes' texts in samples for Every Eval Ever.")
def export(run: Path, inspect: Path | None, parquet: Path | None, eval_card: Path | None, **options: Any) -> None:
    """Exports RUN for other tools, in one or several formats.

    The log for Inspect AI has one sample per meme, with the trial's events as transcript: it holds texts of memes and
    everything said about them. The other formats hold ids, gold labels and predictions, and texts only with
    --with-texts. Pictures stay in the run. The evaluation card is one page on the run: system, data, figures beside
    those of others, and limits. Open the log with ``inspect view --log-dir FOLDER``.
    """
    from court.errors import BadRequest
    from eval.runs.folder import dataset_of
    from eval.runs.results import read_results

    if inspect is None and parquet is None and eval_card is None and options["database"] is None:
        raise click.UsageError(
            "Name a form: --inspect FILE, --parquet FILE, --eval-card FILE or --every-eval-ever DIR."
        )
    publisher = publisher_of(options) if options["database"] else None
    try:
        results = read_results(run)
        if inspect is not None:
            samples = _inspect(run, results, inspect)
            click.echo(f"{samples:,} samples in {inspect}. Look at them with: inspect view --log-dir {inspect.parent}")
        if parquet is not None:
            from eval.reports.parquet import write_parquet

            click.echo(f"{write_parquet(results, parquet):,} rows in {parquet}.")
            if not results.finished:
                click.echo(f"{results.name} is not finished: memes without an answer yet stand as NOT_JUDGED.")
        if eval_card is not None:
            _eval_card(results, eval_card)
        if publisher is not None:
            from eval.reports.every_eval_ever import record_of_run

            try:
                source_url = dataset_of(results.manifest).source_url if results.manifest else ""
            except BadRequest:  # of another version, which knew it
                source_url = ""
            record = record_of_run(
                results,
                publisher,
                source_url=source_url,
                developer=options["developer"],
                with_texts=options["with_texts"],
            )
            click.echo(f"{record.write(options['database'])} has the figures, and beside it stand the samples.")
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'The file'} can't be written: {error.strerror}.") from None


def _eval_card(results: Results, target: Path) -> None:
    from eval.reports.eval_card import eval_card

    made = asyncio.run(eval_card(results))
    # By its ending alone: nobody wants a page that is called Markdown.
    is_page = target.suffix.lower() in (".html", ".htm")
    write_page(target, made.as_html() if is_page else made.as_markdown())
    click.echo(f"{target} is the card of the evaluation.")


def _inspect(run: Path, results: Results, target: Path) -> int:
    try:
        from eval.reports.inspect_log import export_inspect
    except ModuleNotFoundError as error:
        # Another missing module would not be cured by installing Inspect AI.
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise click.ClickException(
            "Inspect AI is not installed. Install it with: pip install 'memecourt[server,inspect]'"
        ) from None
    from eval.runs.folder import DOCKET
    from serving.docket.open import Docket

    async def write() -> int:
        # Never a new docket: an empty one would give a log without its trials.
        docket = Docket.open(run / DOCKET, create=False)
        try:
            return await export_inspect(results, docket.trials, target)
        finally:
            await docket.close()

    return asyncio.run(write())
