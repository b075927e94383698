"""``memecourt-eval replay``: what today's code makes of the answers that recorded trials were given."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from court.errors import BadRequest, CourtError
from court.prompts.sets import open_set
from court.record import TrialRecord
from eval.replay.replay import ReplayedTrial
from eval.replay.replay import replay as rerun
from retrieval.library.postgres.address import Address
from serving.cli.common import MOST_ID, docket_in, docket_option, excerpt, paragraph, require_text, run, settings_of
from serving.docket.store.listing import TrialFilter
from serving.export.source import read_document
from serving.export.tables import Selection
from serving.settings import Settings

EXIT_DIFFERENT = 1
EXIT_NOT_REPLAYED = 2
"""A trial can't be replayed, or there is none; usage errors end so too."""
_INDENT = " " * 5


class _NotReplayed(click.ClickException):
    exit_code = EXIT_NOT_REPLAYED


@click.command("replay")
@click.argument("trial_ids", metavar="[ID]...", nargs=-1, callback=require_text(MOST_ID))
@click.option("--all", "everything", is_flag=True, help="All trials of the docket.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read trials from files (*.json, *.jsonl, as `memecourt records export` writes them) instead of the docket.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and trial.")
@docket_option
def replay(
    trial_ids: tuple[str, ...], everything: bool, folder: Path | None, as_json: bool, docket: Path | Address | None
) -> None:
    """Replays recorded trials with the recorded replies of models, and lists what comes out differently.

    No model, reader or library is called and nothing is stored: evidence and replies come from the record, everything
    else is today's code. A trial whose models would get other messages than recorded is not replayable.

    Exit code 0: no difference. 1: differences. 2: no difference, and a trial is not replayable. With --all and
    --folder, trials without an outcome (interrupted, or failed for want of a model) and erased trials are skipped.
    """
    if sum((bool(trial_ids), everything, folder is not None)) != 1:
        raise click.UsageError("Name trials (`memecourt records list`), or use either --all or --folder.")
    try:
        results = run(_replayed(settings_of(docket=docket), trial_ids, folder))
    except (CourtError, click.ClickException) as error:
        # Both end with 1, which means differences here.
        raise _NotReplayed(error.message) from None
    # A trial that was named is reported in any case.
    shown = [one for one in results if trial_ids or not one.without_outcome]
    passed_over = len(results) - len(shown)
    if not shown:
        raise _NotReplayed("There is no trial with an outcome to replay.")
    for one in shown:
        click.echo("\n".join([json.dumps(asdict(one))] if as_json else _lines(one)))
    stuck, different = [one for one in shown if one.obstacle], [one for one in shown if one.differences]
    if not as_json:
        click.echo(
            f"{len(shown) - len(stuck)} replayed, {len(different)} with differences; {len(stuck)} not replayable"
            + (f"; {passed_over} without an outcome passed over" if passed_over else "")
            + "."
        )
    # Differences first: they were found for certain, whatever could not be replayed beside them.
    click.get_current_context().exit(EXIT_DIFFERENT if different else EXIT_NOT_REPLAYED if stuck else 0)


async def _replayed(settings: Settings, trial_ids: tuple[str, ...], folder: Path | None) -> list[ReplayedTrial]:
    open_set(settings.trial.prompts)  # trials that were held in its words are replayed with it
    if folder is not None:
        return [await rerun(record) for record in _in_files(folder)]
    async with docket_in(settings) as store:
        if trial_ids:
            return [await rerun(await store.trials.record(trial_id)) for trial_id in trial_ids]
        # The first opened first.
        records = Selection(store.index, store.trials, TrialFilter(erased=False)).records()
        return [await rerun(record) async for record in records]


def _in_files(folder: Path) -> Iterator[TrialRecord]:
    # Sorted, for folders list in any order, and two runs are to say the same.
    for path in sorted((*folder.rglob("*.json"), *folder.rglob("*.jsonl"))):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise click.ClickException(f"{path} can't be read: {error.strerror}.") from None
        # Bytes, whose splitlines() knows line breaks alone and none of Unicode's separators within texts.
        for content in text.splitlines() if path.suffix == ".jsonl" else [text]:
            try:
                yield read_document(content)
            except BadRequest as error:
                raise click.ClickException(f"{path}: {error.message}") from None


def _lines(replayed: ReplayedTrial) -> Iterator[str]:
    count = len(replayed.differences)
    found = f"{count} difference{'' if count == 1 else 's'}" if count else "no difference"
    yield f"{replayed.trial_id}  {'not replayable' if replayed.obstacle else found}"
    if replayed.obstacle:
        yield paragraph(replayed.obstacle, _INDENT)
    for one in replayed.differences:
        yield f"{_INDENT}{one.what} (event {one.seq})"
        yield f"{_INDENT}  was    {excerpt(one.recorded, 160) or '-'}"
        yield f"{_INDENT}  today  {excerpt(one.found, 160) or '-'}"
