"""``memecourt records export``: trials for people and programs elsewhere."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import click

from court.prompts.sets import open_set
from retrieval.library.postgres.address import Address
from serving.access.private_files import hand_on
from serving.cli.common import (
    FOLDER,
    awaited,
    caught_up,
    docket_in,
    docket_option,
    printable,
    require_text,
    settings_of,
    tell,
    whole_id,
)
from serving.docket.open import Docket
from serving.docket.review.search import parse_search
from serving.docket.store.listing import TrialFilter
from serving.export.source import ExportSource, Pictures, gather
from serving.export.tables import Form, Selection
from serving.settings import Settings
from serving.views.blur import LibraryPictures

_OF_ONE = ("html", "json", "dsa")
_OF_MANY = ("csv", "jsonl", "parquet")
_WHO = "command line"
"""Who looked, where the docket notes that a picture was shown: it does not know who sits there."""
_MOST_NAMED = 20
"""Of trials that are erased."""


search_argument = click.argument("search", nargs=-1)


@click.command("export")
@click.argument("words", nargs=-1, metavar="[ID|SEARCH…]", callback=require_text(1000))
@click.option(
    "--as",
    "form",
    type=click.Choice([*_OF_ONE, *_OF_MANY]),
    required=True,
    help="Format: html, json and dsa hold one trial; csv, jsonl and parquet a selection.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File to write; - for standard output. [default: ID.html, ID.json …]",
)
@click.option(
    "--with-picture",
    "pictures",
    type=click.Choice(["none", "veiled", "sharp"]),
    help=(
        "Pictures in html and json: veiled (small, grey, without detail) or as judged. [default: veiled; none in json]"
    ),
)
@click.option(
    "--messages/--without-messages", default=None, help="Include the messages sent to models. [default: in html only]"
)
@click.option(
    "--library", type=FOLDER, help="Library on disk to take pictures of precedents from. [default: no such pictures]"
)
@docket_option
@click.pass_context
@awaited
async def export(
    context: click.Context,
    /,
    words: tuple[str, ...],
    form: str,
    out: Path | None,
    docket: Path | Address | None,
    **options: Any,
) -> None:
    """Writes one trial, or a selection of them, to a file.

    \b
      html     one page that needs nothing else, to be read or printed
      json     the record as it is kept, to be read back
      dsa      draft of a statement of reasons for the EU's transparency database
      csv      a selection, one row per trial, without events
      jsonl    a selection, one record per line
      parquet  a selection, one record per row, with columns to count by

    SEARCH selects as in `records list`; without it, all trials are selected. A file is written beside its place and put
    there when it is whole.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from serving.export.trial_file import TrialForm, file_name

    _check(context, words, form)
    settings = settings_of(docket=docket)
    if form in _OF_MANY:
        to = out or Path(f"trials.{form}")
        exported, erased = await _many(settings, form, words, to)
        more = f", {len(erased):,} more {'is' if len(erased) == 1 else 'are'} erased: {_some(erased)}" if erased else ""
        tell(f"{exported:,} trial{'s' * (exported != 1)}{more}")
    else:
        whole, made = await _one(settings, words[0], form, options)
        to = out or Path(file_name(whole, TrialForm(form)))
        with output_file(to) as file:
            file.write(made)
    if str(to) != "-":
        click.echo(to)


def _check(context: click.Context, words: tuple[str, ...], form: str) -> None:
    """Refuses options that mean nothing for the form: what was asked for would silently not be done."""
    if form in _OF_ONE and len(words) != 1:
        raise click.UsageError(f"{form} is of one trial: name its ID (`memecourt records list`).")
    meant = {"pictures": ("html", "json"), "messages": ("html", "json"), "library": ("html",)}
    for parameter in context.command.params:
        name = parameter.name or ""
        # By where the value comes from: a default of its own is no wish of the caller.
        is_set = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if is_set and form not in meant.get(name, (form,)):
            raise click.UsageError(f"{parameter.opts[0]} means nothing for {form}.")


async def selected(store: Docket, settings: Settings, search: Sequence[str]) -> TrialFilter:
    """Returns the filter of what the console's search bar takes; that of all trials without any."""
    which = parse_search(" ".join(search)).which
    if search:
        await caught_up(store, settings)
    return which


def utc(at: datetime | None) -> datetime | None:
    """Returns a date of click's, which have no zone: the options promise UTC."""
    return None if at is None else at.replace(tzinfo=UTC)


async def _one(settings: Settings, trial_id: str, form: str, options: dict[str, Any]) -> tuple[str, bytes]:
    from serving.export.trial_file import TrialForm, write_trial

    if options["messages"] is not False and form in ("html", "json"):
        open_set(settings.trial.prompts)  # messages of trials in its words are made again with it
    wanted = Pictures(options["pictures"] or ("veiled" if form == "html" else "none"))
    library = LibraryPictures((options["library"],)) if options["library"] else None
    async with docket_in(settings) as store:
        trial_id = await whole_id(store, trial_id)
        if form == "dsa":  # which needs no receipt, and so no key
            source = ExportSource(await store.trials.record(trial_id))
        else:
            source = await gather(trial_id, trials=store.trials, log=store.log, pictures=wanted, library=library)
        if wanted is Pictures.SHARP:
            # While the docket is open and before the file is written: what can't be noted must not go out.
            await store.reviews.record_access(trial_id, who=_WHO, what=f"export as {form}", at=datetime.now(UTC))
    return trial_id, await asyncio.to_thread(
        lambda: write_trial(source, TrialForm(form), pictures=wanted, messages=options["messages"])
    )


async def _many(settings: Settings, form: str, search: Sequence[str], out: Path) -> tuple[int, list[str]]:
    async with docket_in(settings) as store:
        selection = Selection(store.index, store.trials, await selected(store, settings, search))
        with output_file(out) as file:
            async for chunk in selection.chunks(Form(form)):
                file.write(chunk)
    return selection.given, selection.erased


@contextmanager
def output_file(out: Path) -> Iterator[BinaryIO]:
    """A file that has its name once it is whole, standard output, or what is no file, such as a pipe or a device."""
    if not out.name:
        raise click.ClickException("The file to write has no name.")
    to_stdout = str(out) == "-"
    # Renaming a file to /dev/null would, for root, leave all programs without it.
    in_place = not to_stdout and out.exists() and not out.is_file()
    if not to_stdout and not in_place:
        # Behind a link it is the file that is replaced, and not the link.
        out = out.resolve()
    # In the same folder, so that the renaming is one step; named by process, so that two exports don't share one.
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if to_stdout:
            yield sys.stdout.buffer
            # Here, where an error of the pipe still becomes a message.
            sys.stdout.buffer.flush()
            return
        if in_place:
            with out.open("wb") as file:
                yield file
            return
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            # On the disk before it has its name: after a crash no partial file has it.
            os.fsync(file.fileno())
        # An export is the caller's file, unlike the docket's own, which are for their owner alone (BO-5).
        hand_on(unfinished)
        unfinished.replace(out)
    except OSError as error:
        raise click.ClickException(f"{out} can't be written: {error.strerror}.") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _some(trial_ids: list[str]) -> str:
    more = len(trial_ids) - _MOST_NAMED
    return ", ".join(map(printable, trial_ids[:_MOST_NAMED])) + (f" and {more:,} more" if more > 0 else "")
