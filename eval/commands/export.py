"""``memecourt-eval export``: a run in the forms of other tools."""

import asyncio
from pathlib import Path

import click

from eval.reports.parquet import write_parquet
from eval.runs.results import DOCKET, Results, read_results
from serving.cli.common import PATH
from serving.docket.open import Docket


@click.command()
@click.argument("run", type=PATH)
@click.option("--inspect", type=PATH, metavar="FILE", help="Inspect AI log to write (….eval or ….json).")
@click.option("--parquet", type=PATH, metavar="FILE", help="Parquet file of predictions to write, one row per meme.")
def export(run: Path, inspect: Path | None, parquet: Path | None) -> None:
    """Exports RUN for other tools, in one or several formats.

    The log for Inspect AI has one sample per meme, with the trial's events as transcript: it holds texts of memes and
    everything said about them. Parquet holds ids, gold labels and predictions, without texts. Pictures stay in the run.
    Open the log with ``inspect view --log-dir FOLDER``.
    """
    if inspect is None and parquet is None:
        raise click.UsageError("Name a form: --inspect FILE or --parquet FILE.")
    try:
        results = read_results(run)
        if inspect is not None:
            samples = _inspect(run, results, inspect)
            click.echo(f"{samples:,} samples in {inspect}. Look at them with: inspect view --log-dir {inspect.parent}")
        if parquet is not None:
            click.echo(f"{write_parquet(results, parquet):,} rows in {parquet}.")
            if not results.finished:
                click.echo(f"{results.name} is not finished: memes without an answer yet stand as NOT_JUDGED.")
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'The file'} can't be written: {error.strerror}.") from None


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

    async def write() -> int:
        # Never a new docket: an empty one would give a log without its trials.
        docket = Docket.open(run / DOCKET, create=False)
        try:
            return await export_inspect(results, docket.trials, target)
        finally:
            await docket.close()

    return asyncio.run(write())
