"""``memecourt precedents add-one|remove|relabel|history|revoke|compact|push``: changing a library while it is in use.

All but ``compact`` do so with a library on disk and with one in a database; ``push`` puts the one into the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from court.backends.pictures.reader import GuardedPictureReader
from court.display import word
from court.errors import BadLibrary, BadPicture
from court.precedents import PrecedentLabel
from court.verdict import Label
from retrieval.library.changes import Change, Recorded
from retrieval.library.edit import add_meme, changed
from retrieval.library.library import Library
from retrieval.library.ports import Writer
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import Pushed, push_library
from retrieval.library.sources import Provenance
from retrieval.library.writer import LibraryWriter
from retrieval.open import load_encoder_for, open_writer
from serving.cli.common import (
    FILE,
    PATH,
    awaited,
    changed_place,
    excerpt,
    place_on_disk,
    printable,
    run,
    settings_of,
    tell,
)

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_LABELS = click.Choice(["harmful", "not_harmful"])
_address = click.argument("address", callback=changed_place, metavar="LIBRARY")
_on_disk = click.argument(
    "address",
    callback=place_on_disk(
        "There is nothing to compact: what was removed leaves the tables of the search at once, and only the history "
        "keeps it, to bring it back."
    ),
    metavar="LIBRARY",
)
_id = click.argument("id_", metavar="ID")
_json = click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")


# A change of what verdicts rest on is never anonymous: name and reason stand in the history for good.
def _signed(command: F) -> F:
    why = click.option("--why", required=True, help="Reason for the change; recorded in the history.")
    who = click.option("--who", required=True, help="Person who makes the change; recorded in the history.")
    return who(why(command))


@click.command("add-one")
@_address
@_id
@click.argument("label", type=_LABELS)
@click.option("--text", default="", help="Text of the meme.")
@click.option("--picture", type=FILE, help="Picture of the meme.")
@click.option("--category", "categories", multiple=True, help="Category of harm. Repeatable.")
@click.option("--source", default="", help="Source of the meme. [default: the person who adds it]")
@click.option("--split", default="", help="Split of its data set.")
@click.option("--namespace", default="", help="Namespace that the content belongs to.")
@click.option("--language", default="", help="Language of its text (BCP 47 tag).")
@click.option("--policy", default="", help="Policy that it was labelled under.")
@click.option("--encoder", metavar="NAME", help="Encoder, as for `build`. [default: the library's own]")
@_signed
@_json
@awaited
async def add_one(
    address: Path | Address,
    id_: str,
    label: str,
    text: str,
    picture: Path | None,
    encoder: str | None,
    as_json: bool,
    **known: Any,
) -> None:
    """Adds one meme as a verified precedent, with LABEL and an ID that the LIBRARY has never used.

    A server finds it within a second in a library on disk, and at once in a database.
    """
    if not text and picture is None:
        raise click.UsageError("Give --text, --picture or both.")
    settings = settings_of(encoder=encoder)
    tell("Loading the encoder …")
    # The encoder that made the library: vectors of another could not be compared with its own.
    loaded = await asyncio.to_thread(load_encoder_for, address, settings.encoder)
    try:
        image = None if picture is None else await asyncio.to_thread(picture.read_bytes)
    except OSError as error:
        raise BadPicture(f"The picture {picture} can't be read: {error.strerror}.") from None
    # Taken out of the options, since the rest goes to add_precedent by name.
    provenance = Provenance(**{name: known.pop(name) for name in ("split", "namespace", "language", "policy")})
    reader = GuardedPictureReader(workers=settings.picture_workers)
    try:
        change, cut = await add_meme(
            lambda: open_writer(address),
            loaded,
            reader,
            id_=id_,
            label=_label(label),
            text=text,
            image=image,
            provenance=provenance,
            **known,
        )
    finally:
        await reader.aclose()
    if cut:
        tell("The text is longer than the encoder reads; its end is not compared.")
    _print_change(change, as_json)


@click.command()
@_address
@_id
@_signed
@_json
def remove(address: Path | Address, id_: str, who: str, why: str, as_json: bool) -> None:
    """Removes the precedent ID from a LIBRARY. The removal can be revoked until `compact --forget`."""
    _print_change(_done(address, lambda writer: writer.remove(id_, who=who, why=why)), as_json)


@click.command()
@_address
@_id
@click.argument("label", type=_LABELS)
@_signed
@_json
def relabel(address: Path | Address, id_: str, label: str, who: str, why: str, as_json: bool) -> None:
    """Gives the precedent ID of a LIBRARY another LABEL, which counts as verified."""
    _print_change(_done(address, lambda writer: writer.relabel(id_, _label(label), who=who, why=why)), as_json)


@click.command()
@_address
@click.argument("number", type=click.IntRange(min=1), metavar="CHANGE")
@_signed
@_json
def revoke(address: Path | Address, number: int, who: str, why: str, as_json: bool) -> None:
    """Reverts a CHANGE of a LIBRARY, given by its number in the history, with a further change."""
    _print_change(_done(address, lambda writer: writer.revoke(number, who=who, why=why)), as_json)


@click.command()
@_address
@click.argument("id_", metavar="[ID]", required=False)
@_json
def history(address: Path | Address, id_: str | None, as_json: bool) -> None:
    """Lists every change of a LIBRARY, or of its precedent ID: who made it, why, when, and whether it is in force."""
    changes = _done(address, lambda writer: writer.history(id_))
    if as_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in changes]))
        return
    for one in changes:
        click.echo(_line(one))
        click.echo(f"      “{excerpt(one.change.why, 90)}”")
    if not changes:
        tell("Nothing was changed one by one.")


@click.command()
@_on_disk
@click.option(
    "--forget",
    is_flag=True,
    help="Delete removed precedents for good; only their ids and who removed them, when and why remain.",
)
@_json
@awaited
async def compact(address: Path, forget: bool, as_json: bool) -> None:
    """Rewrites a LIBRARY without removed precedents. The history stays, with what it needs to restore them."""
    library = await asyncio.to_thread(lambda: LibraryWriter.open(address).compact(forget=forget))
    if as_json:
        click.echo(json.dumps({"digest": library.digest, "memes": library.counts.memes}))
    else:
        click.echo(f"{library.counts.memes:,} memes, digest {library.digest}")


def _label(word: str) -> PrecedentLabel:
    return Label.HARMFUL if word == "harmful" else Label.NOT_HARMFUL


def _done(address: Path | Address, work: Callable[[Writer], T]) -> T:
    return run(changed(lambda: open_writer(address), work))


def _print_change(change: Change, as_json: bool) -> None:
    if as_json:
        click.echo(change.model_dump_json())
    else:
        click.echo(f"change {change.number}: {_what(change)}")


def _line(one: Recorded) -> str:
    change = one.change
    holds = "" if one.revoked_by is None else f"  (revoked by {one.revoked_by})"
    return f"{change.number:>4}  {change.at:%Y-%m-%d %H:%M}  {excerpt(change.who, 20):<20} {_what(change)}{holds}"


def _what(change: Change) -> str:
    of = printable(change.meme)
    if change.revokes is not None:
        return f"revoked {change.revokes}, {of}"
    if str(change.kind) == "relabel" and change.before is not None and change.after is not None:
        return f"relabelled {of}: {word(change.before.label)} to {word(change.after.label)}"
    return (
        f"{'added' if str(change.kind) == 'add' else 'removed' if str(change.kind) == 'remove' else 'relabelled'} {of}"
    )


_STEP = 20  # of how many times it is told how far a push is


@click.command()
@click.argument("path", type=PATH, metavar="LIBRARY")
@click.argument("database", metavar="postgresql://…")
@click.option("--replace", is_flag=True, help="Replace an existing library and lose the changes made to it.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
@awaited
async def push(path: Path, database: str, replace: bool, as_json: bool) -> None:
    """Copies a LIBRARY into a PostgreSQL database with pgvector, in one transaction.

    Courts with `--library postgresql://…` then search it without a restart. Keep the password out of the command line:
    PGPASSWORD and password files are read.
    """
    address = Address(database)
    announced = 0

    def progress(step: str, done: int, total: int) -> None:
        nonlocal announced
        if _STEP * done // total > announced:
            announced = _STEP * done // total
            tell(f"{step}: {done:,} of {total:,}")

    def work() -> Pushed:
        try:
            return push_library(Library.open(path, None), address, replace=replace, progress=progress)
        except OSError as error:
            raise BadLibrary("The precedent library can't be read.") from error

    pushed = await asyncio.to_thread(work)
    if as_json:
        replaced = pushed.replaced
        click.echo(
            json.dumps(
                {
                    "library": pushed.identity.model_dump(mode="json"),
                    "was_there": pushed.was_there,
                    "replaced": None if replaced is None else replaced.model_dump(mode="json"),
                    "changes_lost": pushed.changes_lost,
                }
            )
        )
        return
    if pushed.was_there:
        tell("The database has this very library already.")
    if pushed.changes_lost:
        tell(f"{pushed.changes_lost:,} changes that were made in the database were lost, as was asked for.")
    click.echo(f"{pushed.identity.size:,} memes, digest {pushed.identity.digest}")


COMMANDS = (add_one, remove, relabel, revoke, history, compact, push)
