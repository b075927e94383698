"""``memecourt-eval export``: a run in another tool's form."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--inspect", "target", type=click.Path(path_type=Path), required=True, help="The log to write, ….eval.")
def export(run: Path, target: Path) -> None:
    """Writes RUN as a log that Inspect AI's viewer opens: a sample a meme, each trial's events in its transcript.

    The log holds the texts of the memes and everything that was said of them; their pictures stay in the run. Open it
    with ``inspect view --log-dir FOLDER``.
    """
    from court.errors import CourtError

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
    from eval.runs.results import read_results
    from serving.docket.open import Docket

    async def write() -> int:
        results = read_results(run)
        docket = Docket.open(run / DOCKET, create=False)
        try:
            return await export_inspect(results, docket.trials, target)
        finally:
            await docket.close()

    try:
        samples = asyncio.run(write())
    except CourtError as error:
        raise click.ClickException(error.message) from None
    except OSError as error:
        raise click.ClickException(f"{target} can't be written: {error.strerror}.") from None
    click.echo(f"{samples:,} samples in {target}. Look at them with: inspect view --log-dir {target.parent}")
