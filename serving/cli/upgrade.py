"""``memecourt upgrade``: what a newer version finds of what an older one left, and what has to be done about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from court.errors import CourtError
from serving.cli.common import docket_in, docket_option, library_option, printable, run, settings_of

if TYPE_CHECKING:
    from retrieval.library.postgres.address import Address
    from serving.settings import Settings

EXIT_TO_DO, EXIT_UNREADABLE = 1, 2


@dataclass(frozen=True, slots=True)
class _Inspection:
    """State of one thing that an earlier version may have left.

    Attributes:
        what: Name of the thing: docket, library or tokens.
        remedy: Steps to take, as a sentence; empty where there are none.
        readable: False if this version can't read it.
    """

    what: str
    found: str
    remedy: str = ""
    readable: bool = True


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; print what was found and what has to be done.")
@docket_option
@library_option
def upgrade(check: bool, docket: Path | Address | None, library: Path | Address | None) -> None:
    """Checks that this version reads the data of an earlier one, and upgrades the docket to its format.

    It checks settings, docket, library and tokens. The docket is upgraded in one transaction; first make a backup
    (`memecourt docket backup`) and stop its servers.

    Exit code: 0 if nothing is left to do, 1 if something is, 2 if something can't be read.
    """
    settings = settings_of(docket=docket, library=library)
    findings = [_finding(what, inspect, settings) for what, inspect in _INSPECTIONS.items()]
    if not check:
        findings = [
            # A docket of a later version is never touched: `readable` is false for it.
            run(_upgraded(settings)) if one.what == "docket" and one.remedy and one.readable else one
            for one in findings
        ]
    for finding in findings:
        click.echo(f"{finding.what:<12} {finding.found}")
        if finding.remedy:
            click.echo(f"{'':<12} {click.style('to do:', bold=True)} {finding.remedy}")
    # The worse of the two decides, and all of them are printed before.
    if not all(finding.readable for finding in findings):
        sys.exit(EXIT_UNREADABLE)
    sys.exit(EXIT_TO_DO if any(finding.remedy for finding in findings) else 0)


def _finding(what: str, inspect: Callable[[Settings], Iterator[str]], settings: Settings) -> _Inspection:
    try:
        # Read whole within the try: a look is a generator, and raises only when it is run.
        found, *remedies = inspect(settings)
    except CourtError as error:
        return _Inspection(what, error.message, remedy="mend or replace it before a server is started", readable=False)
    return _Inspection(what, found, remedy=" ".join(remedies))


def _of_docket(settings: Settings) -> Iterator[str]:
    from serving.docket.open import stored_format
    from serving.docket.store.database import later_format
    from serving.docket.store.tables import FORMAT

    found = stored_format(settings.docket_place)
    if found is None:
        yield "none yet; the first trial makes one"
    elif found > FORMAT:
        raise later_format(found, FORMAT)
    else:
        yield f"format {found} of {FORMAT}"
        if found < FORMAT:
            yield (
                "back it up with the earlier version (`memecourt docket backup FOLDER`), stop its servers, then "
                "`memecourt upgrade`."
            )


async def _upgraded(settings: Settings) -> _Inspection:
    """Opens the docket for writing, which upgrades it."""
    from serving.docket.store.tables import FORMAT

    async with docket_in(settings):
        return _Inspection("docket", f"upgraded to format {FORMAT}; `memecourt docket verify` checks all of it")


def _of_library(settings: Settings) -> Iterator[str]:
    from retrieval.library.library import Library
    from retrieval.library.postgres.address import Address
    from retrieval.open import encoder_of

    if settings.library is None:
        yield "the starter library, made by this version"
        return
    if isinstance(settings.library, Address):
        yield f"in a database, made with the encoder {encoder_of(settings.library)}"
        return
    # Without an encoder, which need not be loaded to see that the files are whole.
    library = Library.open(settings.library, None)
    yield f"{printable(library.manifest.name)}, {library.counts.memes:,} memes, encoder {library.manifest.encoder}"
    if library.manifest.tuning.risk is None:
        yield (
            "build it again (`memecourt precedents build`): the version that made it measured no risk, so every "
            "verdict by it asks for a person."
        )
    elif library.manifest.tuning.text_alone is None and library.counts.with_picture and library.counts.with_text:
        yield (
            "build it again (`memecourt precedents build`), or add to it: the version that made it measured nothing of "
            "texts without a picture, so every verdict on one asks for a person."
        )


def _of_tokens(settings: Settings) -> Iterator[str]:
    from serving.access.tokens import read

    if settings.tokens is None:
        yield "none; whoever can connect may do everything"
        return
    entries = read(settings.tokens)
    endless = sum(entry.expires is None for entry in entries)
    yield f"{len(entries):,} tokens, of which {endless:,} never expire"


_INSPECTIONS: dict[str, Callable[[Settings], Iterator[str]]] = {
    "docket": _of_docket,
    "library": _of_library,
    "tokens": _of_tokens,
}
