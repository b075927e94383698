"""``memecourt precedents check``: what is wrong with a library."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest, CourtError
from retrieval.audit.leakage import LeakThresholds, find_leaks
from retrieval.audit.library_check import LibraryCheck, check_library
from retrieval.library.library import Library
from retrieval.library.readers import read_source
from retrieval.library.sources import Source
from retrieval.open import load_encoder_for
from serving.cli.common import NEW_FOLDER, PATH, FiniteRange, Unchecked, place_on_disk, printable, settings_of, tell

EXIT_FINDINGS = 1
_SHOWN = 10  # ids that are listed of each kind; --json lists all


@click.command()
@click.argument(
    "path",
    callback=place_on_disk("Check the folder that it was pushed from, and push it again if you mend it."),
    metavar="LIBRARY",
)
@click.option("--against", type=PATH, metavar="FILE", help="Labelled memes that the library will be used to judge.")
@click.option("--pictures", type=NEW_FOLDER, help="Folder of the pictures of --against.")
@click.option(
    "--sure",
    default=0.1,
    show_default=True,
    type=FiniteRange(0, 0.5, min_open=True, max_open=True),
    help="Report a label as suspicious if its neighbours give it at most this probability.",
)
@click.option("--encoder", metavar="NAME", help="Encoder for --against, as for `build`. [default: the library's own]")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as one JSON object.")
def check(
    path: Path, against: Path | None, pictures: Path | None, sure: float, encoder: str | None, as_json: bool
) -> None:
    """Searches a LIBRARY for faults, and lists them by ids; no text of a meme is printed.

    \b
    leaks              precedents too near to a meme of --against: the same id, file,
                       pixels or text, or a picture and a text that are both near
    duplicates         precedents with the same words and picture: they count once
    conflicts          the same, or nearly, under both labels
    suspicious labels  the vote of the others clearly says otherwise
    near-empty         nothing else is near enough to say something about it (this
                       alone is no finding)

    Takes time by the square of the library's size: seconds for thousands of memes, minutes for a hundred thousand.

    Exit code: 0 if nothing was found, 1 if something was, 2 if the library can't be checked.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if pictures is not None and against is None:
        raise click.UsageError("--pictures are those of --against: give that too.")
    try:
        # Not by `run`, whose exit code for errors means findings here.
        found = asyncio.run(_check(path, against=against, pictures=pictures, sure=sure, requested=encoder))
    except (CourtError, OSError) as error:
        message = error.message if isinstance(error, CourtError) else f"It can't be checked: {error.strerror}."
        raise Unchecked(message) from None
    if as_json:
        click.echo(json.dumps({"clean": found.clean, **asdict(found)}))
    else:
        _print_findings(found)
    sys.exit(0 if found.clean else EXIT_FINDINGS)


async def _check(
    path: Path, *, against: Path | None, pictures: Path | None, sure: float, requested: str | None
) -> LibraryCheck:
    leaks = None
    if against is None:
        # No encoder, for nothing is embedded.
        library = await asyncio.to_thread(Library.open, path, None)
    else:
        rows = await asyncio.to_thread(read_source, Source(path=against, pictures=pictures))
        if not rows.good:
            raise BadRequest("No row of the file to check against can be used.")
        if rows.problems:
            tell(f"{len(rows.problems):,} rows of the file can't be used and were not compared.")
        settings = settings_of(encoder=requested)
        tell("Loading the encoder …")
        encoder = await asyncio.to_thread(load_encoder_for, path, settings.encoder)
        library = await asyncio.to_thread(Library.open, path, encoder.identity)
        reader = GuardedPictureReader(workers=settings.picture_workers)
        try:
            with TemporaryDirectory(prefix="memecourt-") as folder:
                leaks = await find_leaks(
                    library,
                    rows.good,
                    pictures=pictures,
                    encoder=encoder,
                    reader=reader,
                    scratch=Path(folder),
                    nearness=LeakThresholds(),
                    tell=lambda *_: None,
                )
        finally:
            await reader.aclose()
    return await asyncio.to_thread(check_library, library, leaks=leaks, sure=sure)


def _print_findings(found: LibraryCheck) -> None:
    click.echo(f"memes              {found.memes:,}")
    if found.leaks is not None:
        whys: dict[str, list[str]] = {}
        for leak in found.leaks.leaks:
            whys.setdefault(leak.why, []).append(f"{leak.precedent} (of {leak.meme})")
        _line("leaks", [], len(found.leaks.leaks))
        for why, ids in whys.items():
            _line(f"  {why}", ids)
        if found.leaks.unseen:
            click.echo(f"  {found.leaks.unseen:,} memes were compared without their picture.")
    _line("duplicates", [" = ".join(group) for group in found.duplicates])
    _line("conflicts", [f"{one.harmful} / {one.not_harmful}{' (same)' if one.same else ''}" for one in found.conflicts])
    _line("suspicious labels", [f"{one.id} ({one.probability:.2f})" for one in found.suspicious])
    _line("near-empty", list(found.near_empty))


def _line(name: str, items: list[str], count: int | None = None) -> None:
    click.echo(f"{name:<18} {len(items) if count is None else count:,}")
    for item in items[:_SHOWN]:
        # An id is the source's, and so a stranger's.
        click.echo(f"    {' '.join(printable(item).split())}")
    if len(items) > _SHOWN:
        click.echo(f"    … and {len(items) - _SHOWN:,} more; --json lists all")
