"""``memecourt precedents``: libraries of labelled memes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import click

from court.backends.pictures.reader import GuardedPictureReader
from court.display import word
from court.errors import BadPicture, BadRequest
from court.meme import check_text
from court.ports import PictureReader
from court.precedents import STARTER
from retrieval.build import BuildReport, add_to_library, build_library
from retrieval.embed.encoder import Encoder
from retrieval.library.filters import Filter
from retrieval.library.library import Library, refuse_place
from retrieval.library.manifest import Safeguards, TextTuning, Tuning
from retrieval.library.postgres.address import Address
from retrieval.library.readers import is_plain_table
from retrieval.library.sources import Provenance, Source
from retrieval.open import BUILTIN, choose_encoder, load_encoder, name_of
from serving.cli.check import check
from serving.cli.common import (
    FILE,
    FOLDER,
    PATH,
    FiniteRange,
    awaited,
    excerpt,
    library_option,
    place_on_disk,
    printable,
    settings_of,
    tell,
    with_options,
)
from serving.cli.edit_precedents import COMMANDS

_SHOWN = 10  # rows with a fault that are listed one by one; --json lists all

_sources = with_options(
    click.argument("sources", nargs=-1, type=PATH, metavar="[FILE…]"),
    click.option(
        "--dataset", metavar="ID", help="Data set to use instead of FILEs; `memecourt-eval datasets` lists them."
    ),
    click.option("--data", type=FOLDER, help="Folder of the data set in its authors' layout, pictures included."),
)
_path = click.argument(
    "path",
    callback=place_on_disk("Build the library in a folder, and put it there with `memecourt precedents push`."),
    metavar="LIBRARY",
)
_encoder = click.option(
    "--encoder",
    metavar="NAME",
    help=(
        "Encoder: builtin, onnx:FOLDER, open_clip:MODEL/TAG, open_clip:MODEL/ followed by the path of a "
        "checkpoint, hf-hub:ORG/NAME or local-dir:DIRECTORY. [default: MEMECOURT_ENCODER, else the library's "
        "own, else builtin]"
    ),
)
_described = with_options(
    click.option(
        "--pictures",
        type=FOLDER,
        help="Folder that picture names in the files are relative to. Without it, only texts are used.",
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="FIELD=NAME",
        help="Column of a field (id, picture, text, label, split) in a plain table. Repeatable.",
    ),
    click.option("--harmful", default="", metavar="LABEL,LABEL", help="Labels of a plain table that are harmful."),
    click.option("--source", default="", help="Name of the memes' source. [default: the file's name]"),
    click.option("--split", default="", help="Split of their data set that the memes belong to."),
    click.option("--namespace", default="", help="Namespace that they belong to."),
    click.option("--language", default="", help="Language of their texts (BCP 47 tag)."),
    click.option("--policy", default="", help="Policy that they were labelled under."),
    click.option("--verified", is_flag=True, help="Mark the labels as confirmed by people for this court."),
    click.option("--binding", is_flag=True, help="Let each label settle exact copies of its meme; needs --who."),
    click.option("--who", default="", help="Person who answers for each of these labels, with --binding."),
)
_filters = with_options(
    click.option("--source", "sources", multiple=True, help="Only precedents of this source. Repeatable."),
    click.option("--split", "splits", multiple=True, help="Only precedents of this split. Repeatable."),
    click.option("--namespace", "namespaces", multiple=True, help="Only precedents of this namespace. Repeatable."),
    click.option("--language", "languages", multiple=True, help="Only precedents in this language. Repeatable."),
    click.option("--policy", "policies", multiple=True, help="Only precedents labelled under this policy. Repeatable."),
    click.option("--since", type=click.DateTime(), help="Only precedents added at this time or later (UTC)."),
    click.option("--until", type=click.DateTime(), help="Only precedents added before this time (UTC)."),
    click.option("--verified", is_flag=True, help="Only precedents with a label that a person confirmed."),
)
_max_lost = click.option(
    "--max-lost",
    default=0.1,
    show_default=True,
    type=FiniteRange(0, 1),
    help="Maximum share of unusable rows; above it nothing is written.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")


@click.group()
def precedents() -> None:
    """Makes, extends, searches and describes libraries of precedents: labelled memes that verdicts rest on."""


for _command in (*COMMANDS, check):
    precedents.add_command(_command)


@precedents.command()
@_path
@_sources
@click.option("--name", help="Name of the library. [default: its folder's name]")
@click.option("--replace", is_flag=True, help="Replace an existing library, atomically.")
@click.option(
    "--settle-error",
    default=0.05,
    show_default=True,
    type=FiniteRange(0, 0.5, min_open=True, max_open=True),
    help="Maximum error rate, on held-out memes of the library, at which a cascade may settle a label by the vote.",
)
@click.option(
    "--per-source", type=click.IntRange(1), help="Maximum precedents of one source in a vote. [default: no maximum]"
)
@click.option(
    "--per-cluster",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Maximum near-duplicate precedents of one label in a vote; 0 for no maximum.",
)
@click.option(
    "--verified-only", is_flag=True, help="Leave out unconfirmed precedents as soon as the library has a confirmed one."
)
@click.option(
    "--sole-acquittal/--no-sole-acquittal",
    default=True,
    help=(
        "Let the vote acquit on a single precedent, which the verdict names and counts as a risk; otherwise "
        "leave that precedent out."
    ),
)
@_encoder
@click.option(
    "--text-encoder",
    type=click.Choice(["builtin", "clip"]),
    help=(
        "Text encoder beside a CLIP model: the sentence encoder or CLIP itself. [default: the sentence "
        "encoder if CLIP reads fewer than 256 tokens]"
    ),
)
@_described
@_max_lost
@_json
@awaited
async def build(
    path: Path,
    sources: tuple[Path, ...],
    name: str | None,
    replace: bool,
    settle_error: float,
    per_source: int | None,
    per_cluster: int,
    verified_only: bool,
    sole_acquittal: bool,
    encoder: str | None,
    text_encoder: Literal["builtin", "clip"] | None,
    max_lost: float,
    as_json: bool,
    **described: Any,
) -> None:
    """Makes a LIBRARY (a folder) of the labelled memes in FILEs, or of a data set's train split (or --split).

    \b
    harmeme    JSON a line: id, image, labels (the first is the label), text
    csv        a header with id, label and any of text, image, categories
    memecourt  JSON a line: id, label, text, categories, image (img in Hateful Memes)

    A csv file may be in UTF-8 or UTF-16, with commas, semicolons or tabs; labels are 1, 0, true, false, harmful,
    not_harmful, hateful, not_hateful and the like. Rows that can't be used are counted and listed, and the others go
    in, unless more than --max-lost of all can't. How neighbours vote is then chosen by leaving each meme out in turn;
    what that vote is worth stands in the library and is printed.
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    read = _sources_of(sources, **described)
    chosen = settings_of(encoder=encoder).encoder or BUILTIN
    _require_files(read)
    # Before the encoder is loaded and every meme embedded, which can take hours.
    refuse_place(path, replace)
    name_of(chosen)
    async with _tools(lambda: partial(load_encoder, chosen, texts=text_encoder or "auto")) as (loaded, pictures):
        library, report = await build_library(
            path,
            read,
            name=name or path.resolve().name,  # noqa: ASYNC240 - nothing else runs here
            encoder=loaded,
            picture_reader=pictures,
            progress=_progress(),
            replace=replace,
            settle_error=settle_error,
            safeguards=Safeguards(
                per_source=per_source,
                per_cluster=per_cluster or None,
                verified_only=verified_only,
                no_sole_acquittal=not sole_acquittal,
            ),
            max_lost=max_lost,
        )
    _print_report(library, report, as_json)


@precedents.command()
@_path
@_sources
@_encoder
@_described
@_max_lost
@_json
@awaited
async def add(
    path: Path, sources: tuple[Path, ...], encoder: str | None, max_lost: float, as_json: bool, **described: Any
) -> None:
    """Adds the labelled memes in FILEs to a LIBRARY and recalibrates it; ids that it already has are refused."""
    # First what is quick to check: loading the encoder takes seconds.
    read = _sources_of(sources, **described)
    _require_files(read)
    async with _tools(lambda: choose_encoder(path, settings_of(encoder=encoder).encoder)) as (loaded, pictures):
        # Refused where another encoder made it: vectors of two can't be compared.
        library, report = await add_to_library(
            Library.open(path, loaded.identity),
            read,
            encoder=loaded,
            picture_reader=pictures,
            progress=_progress(),
            max_lost=max_lost,
        )
    _print_report(library, report, as_json)


@precedents.command()
@click.option("--text", help="Text to search for.")
@click.option("--picture", type=FILE, help="Picture to search for.")
@click.option(
    "-k", "most", default=5, show_default=True, type=click.IntRange(1, 100), help="Number of precedents to show."
)
@_filters
@click.option(
    "--leave-out-duplicates", "no_twins", is_flag=True, help="Leave out the meme itself and its near-duplicates."
)
@library_option
@_encoder
@_json
@awaited
async def search(
    text: str | None,
    picture: Path | None,
    most: int,
    library: Path | None,
    encoder: str | None,
    no_twins: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Finds the precedents most similar to a text, a picture, or both."""
    from serving.wiring import open_finder

    if not text and picture is None:
        raise click.UsageError("Give --text, --picture or both.")
    # The bounds of a request hold for a text from the command line as well.
    check_text(text or "")
    settings = settings_of(library=library, encoder=encoder)
    async with _tools(lambda: choose_encoder(settings.library, settings.encoder)) as (loaded, pictures):
        finder = await open_finder(settings, loaded, pictures, tell)
        shown = None
        if picture is not None:
            try:
                shown = await pictures.read(await asyncio.to_thread(picture.read_bytes))
            except OSError as error:
                raise BadPicture(f"The picture {picture} can't be read: {error.strerror}.") from None
        try:
            found = await finder.find(
                text=text or "",
                frames=shown.frames if shown else (),
                pixels_sha256=shown.pixels_sha256 if shown else "",
                exhibits=most,
                tally=most,
                alpha=None,
                where=_filter_of(**where),
                leave_out_duplicates=no_twins,
            )
        finally:
            finder.close()
    if as_json:
        click.echo(found.model_dump_json())
        return
    for note in found.notes:
        tell(note)
    for number, exhibit in enumerate(found.exhibits, 1):
        halves = "  ".join(
            f"{name} {'    –' if value is None else format(value, '5.2f')}"
            for name, value in (("text", exhibit.text_similarity), ("picture", exhibit.picture_similarity))
        )
        label = word(exhibit.label)
        click.echo(f"{number:>3}  {excerpt(exhibit.id, 30):<16} {label:<12} {halves}  {exhibit.source}")
        click.echo(f"     “{excerpt(exhibit.text, 90)}”")


@precedents.command()
@library_option
@_json
@awaited
async def info(library: Path | None, as_json: bool) -> None:
    """Describes a library after checking every byte: its contents, its vote, and the measured quality of that vote."""
    from serving.wiring import open_library

    settings = settings_of(library=library)
    if isinstance(settings.library, Address):
        raise BadRequest("A library in a database has no files to check. Describe the one that was pushed there.")
    if settings.library:
        # No encoder: the description needs none, and its weights may not be at hand.
        opened = Library.open(settings.library, None)
    else:
        async with _tools(lambda: choose_encoder(None, settings.encoder)) as (encoder, pictures):
            opened = await open_library(settings, encoder, pictures, tell)
    # Not part of opening, for there may be many; here every byte is promised.
    opened.check_pictures()
    if as_json:
        content = opened.manifest.model_dump(mode="json") | {"counts": opened.counts.model_dump(mode="json")}
        since = len(opened.overlay.changes)
        click.echo(json.dumps({"digest": opened.digest, **content, "changes_since_written": since}))
    else:
        _describe(opened)


def _sources_of(
    files: tuple[Path, ...],
    *,
    dataset: str | None,
    data: Path | None,
    source: str,
    pictures: Path | None,
    columns: tuple[str, ...],
    harmful: str,
    **provenance: Any,
) -> list[Source]:
    binding, provenance["binding_by"] = provenance.pop("binding"), provenance.pop("who").strip()
    if binding is not bool(provenance["binding_by"]):
        raise click.UsageError("--binding and --who belong together: who answers for each of these labels?")
    # Both conditions are checked here, because click knows no options that depend on each other.
    if (dataset is None) is not (data is None):
        raise click.UsageError("--dataset and --data belong together: which data set, and the folder that it lies in.")
    if bool(files) is (dataset is not None):
        raise click.UsageError("Name FILEs, or a data set with --dataset and --data; not both.")
    if dataset is not None and data is not None:
        if pictures:
            raise click.UsageError("--pictures is known of a data set: leave it out.")
        provenance = {**provenance, "split": provenance["split"] or "train"}
        found = _of_dataset(dataset, data, provenance["split"])
        return [replace(found, name=source or found.name, provenance=Provenance(**provenance))]
    known = Provenance(**provenance)
    if columns or harmful or any(map(is_plain_table, files)):
        found_tables = [
            _of_dataset("", path, provenance["split"], columns=columns, harmful=harmful, pictures=pictures)
            for path in files
        ]
        return [replace(one, name=source or one.name, provenance=known) for one in found_tables]
    return [Source(path=path, name=source, pictures=pictures, provenance=known) for path in files]


def _of_dataset(dataset: str, data: Path, split: str, **table: Any) -> Source:
    """A split of a data set or a plain table, as whoever reads it (an entry point ``memecourt.datasets``) finds it."""
    # By entry point: data sets are known to the package for evaluation, which need not be installed.
    for point in entry_points(group="memecourt.datasets"):
        found: Source | None = point.load()(dataset, data, split, **table)
        if found is not None:
            for note in found.notes:
                tell(note)
            return found
    raise click.UsageError(f"There is no data set {dataset!r}. `memecourt-eval datasets` lists those that are known.")


def _filter_of(since: datetime | None, until: datetime | None, verified: bool, **names: tuple[str, ...]) -> Filter:
    # click reads times without a zone; all times of a library are in UTC.
    bounds = [bound and bound.replace(tzinfo=UTC) for bound in (since, until)]
    return Filter(**names, since=bounds[0], until=bounds[1], verified=verified)


@asynccontextmanager
async def _tools(choose: Callable[[], Callable[[], Encoder]]) -> AsyncIterator[tuple[Encoder, PictureReader]]:
    """The encoder, chosen and loaded in a thread, and a picture reader."""
    load = await asyncio.to_thread(choose)
    tell("Loading the encoder …")
    pictures = GuardedPictureReader(workers=settings_of().picture_workers)
    try:
        yield await asyncio.to_thread(load), pictures
    finally:
        # The reader has processes of its own, which would outlive a failed command.
        await pictures.aclose()


def _require_files(sources: list[Source]) -> None:
    """Before anything is loaded: raises BadRequest where a file of labelled memes can't be read."""
    for source in sources:
        try:
            with source.path.open("rb"):
                pass
        except OSError as error:
            raise BadRequest(f"The file of labelled memes {source.path} can't be read: {error.strerror}.") from None


def _progress() -> Callable[[str, int, int], None]:
    """Says how far each step is; redraws one line where there is a terminal to redraw it on."""
    # In a file or a pipe, carriage returns would make one endless line.
    drawn = sys.stderr.isatty()

    def progress(step: str, done: int, total: int) -> None:
        if drawn:
            click.echo(f"\r{step}: {done:,} of {total:,}" + ("\n" if done == total else ""), err=True, nl=False)
        elif done == total:
            click.echo(f"{step}: {total:,}", err=True)

    return progress


def _print_report(library: Library, report: BuildReport, as_json: bool) -> None:
    if as_json:
        made = {"library": {"digest": library.digest, **library.manifest.model_dump(mode="json")}}
        click.echo(json.dumps(asdict(report) | made))
        return
    for problem in report.problems[:_SHOWN]:
        where = f"{excerpt(problem.source)} line {problem.line}, {excerpt(problem.id, 40) or 'no id'}"
        tell(f"{where}: {problem.reason}, {'kept by its text alone' if problem.kept else 'left out'}")
    if len(report.problems) > _SHOWN:
        click.echo(f"… and {len(report.problems) - _SHOWN:,} more; --json lists all.", err=True)
    for note in report.notes:
        tell(note)
    if report.text_cut:
        tell(f"{len(report.text_cut):,} texts are longer than the encoder reads; their ends are not compared.")
    click.echo(f"{report.added:,} of {report.rows:,} rows went in, {report.without_picture:,} by their text alone.")
    _summarise(library)


def _summarise(library: Library) -> None:
    """Prints in five lines what a library that was just written holds and what its labels are worth."""
    counts, tuning = library.counts, library.manifest.tuning
    calibration, risk = tuning.calibration, tuning.risk
    # Told beside the accuracy: memes held out alone would find their own copies, and look easy.
    repeated = "not measured" if calibration.repeated is None else f"{calibration.repeated:.0%} of the memes"
    click.echo(f"memes        {counts.memes:,}: {counts.with_text:,} with text, {counts.with_picture:,} with picture")
    click.echo(
        f"classes      {counts.harmful:,} harmful ({counts.harmful / counts.memes:.0%}), {counts.not_harmful:,} not"
    )
    click.echo(f"leakage      {repeated} repeat another's picture or words, or nearly; they are held out together")
    if calibration.accuracy is None:
        click.echo(f"accuracy     not measured: {calibration.note}")
        click.echo("review       every verdict asks for a person")
        return
    low, high = calibration.accuracy_interval
    click.echo(
        f"accuracy     {calibration.accuracy:.3f} [{low:.3f}, {high:.3f}] expected of memes like these; always saying "
        f"the more frequent label {calibration.majority:.3f}"
    )
    share = "every verdict asks for a person" if risk is None else f"{risk.at_risk(0.1).rate:.0%} go to a person"
    click.echo(f"review       {share} where at most 10 % of all may be wrong and unseen; `precedents info` shows more")


def _describe_worth(tuning: Tuning) -> None:
    """Prints how often the library's labels are right, and what sending memes to a person buys."""
    calibration, risk = tuning.calibration, tuning.risk
    if calibration.accuracy is None or calibration.macro_f1 is None or calibration.brier is None:
        click.echo(f"worth        not measured: {calibration.note}; every verdict asks for a person")
        return
    low, high = calibration.accuracy_interval
    click.echo(
        f"worth        on held-out memes: accuracy {calibration.accuracy:.3f} [{low:.3f}, {high:.3f}], macro-F1 "
        f"{calibration.macro_f1:.3f}, Brier {calibration.brier:.3f} over {calibration.n:,} memes; "
        f"always saying the more frequent label {calibration.majority:.3f}"
    )
    if risk is None:
        click.echo("review       not measured by the version that wrote this; every verdict asks for a person")
        return
    click.echo("review       sent to a person   wrong and unseen, of all   wrong among the rest")
    # Every second point is enough to choose by.
    for point in risk.points[::2]:
        click.echo(f"             {point.rate:>16.0%}   {point.risk:>24.3f}   {point.error:>20.3f}")
    default = risk.at_risk(0.1)
    click.echo(
        f"             For at most 10 % wrong and unseen, {default.rate:.0%} go to a person. These are means over "
        "memes like the library's, not a promise for one day."
    )


def _describe_texts_alone(tuning: TextTuning | None) -> None:
    """Prints the worth of a library for texts that come without a picture; None where it was never measured."""
    calibration, risk = (tuning.calibration, tuning.risk) if tuning else (None, None)
    if calibration is None or calibration.accuracy is None or risk is None:
        click.echo("text alone   not measured: without a picture, every verdict asks for a person")
        return
    low, high = calibration.accuracy_interval
    click.echo(
        f"text alone   without a picture: accuracy {calibration.accuracy:.3f} [{low:.3f}, {high:.3f}], Brier "
        f"{calibration.brier:.3f}; for at most 10 % wrong and unseen, {risk.at_risk(0.1).rate:.0%} go to a person"
    )


def _describe(library: Library) -> None:
    manifest = library.manifest
    counts, tuning = library.counts, manifest.tuning
    calibration, vote = tuning.calibration, tuning.vote
    click.echo(f"library      {printable(manifest.name)}, written {manifest.created:%Y-%m-%d %H:%M} UTC")
    # Only of the starter library itself, and not of one that has grown from it.
    if manifest.name == STARTER and set(manifest.sources) == {STARTER}:
        click.echo(
            "             Drawn memes about invented groups, to try the court with. Its texts were chosen so that they"
        )
        click.echo(
            "             tell each other apart: the worth below says nothing of other memes. Build a library of yours."
        )
    click.echo(f"digest       {library.digest}")
    click.echo(f"encoder      {manifest.encoder}")
    click.echo(
        f"memes        {counts.memes:,}: {counts.harmful:,} harmful, {counts.not_harmful:,} not; "
        f"{counts.with_text:,} with text, {counts.with_picture:,} with picture"
    )
    if library.overlay.changes:
        click.echo(f"changed      {len(library.overlay.changes):,} times since it was written and calibrated")
    click.echo(f"pictures     {counts.kept_pictures:,} kept to be shown, {counts.kept_bytes:,} bytes")
    for source, number in sorted(manifest.sources.items()):
        click.echo(f"  {number:>8,}  {printable(source)}")
    for note in manifest.notes:
        click.echo(f"  note       {printable(note)}")
    click.echo(
        f"vote         k {vote.k}, tau {vote.tau:g}, prior {vote.prior:.3f}, intercept {vote.intercept:.3f}, "
        f"slope {vote.slope:.3f}, threshold {vote.threshold:.3f}, weight of the text {tuning.alpha:.2f}"
    )
    scripts = "".join(f", {script.lower()} text {floor:.2f}" for script, floor in tuning.text_floors.items())
    click.echo(f"floors       text {tuning.floors.text:.2f}, picture {tuning.floors.picture:.2f}{scripts}")
    if tuning.regression is not None:
        click.echo(f"regression   over all vectors, C {tuning.regression.strength:g}; averaged with the vote")
    _describe_worth(tuning)
    if tuning.alpha < 1 and counts.with_text:
        _describe_texts_alone(tuning.text_alone)
    if tuning.settles is None:
        click.echo(
            f"settles      nothing at an error of {tuning.settle_error:.1%}: a cascade always goes on to the full trial"
        )
    else:
        settles = tuning.settles
        below = "" if settles.below < 0 else f"up to {settles.below:.2f} "
        above = "" if settles.above > 1 else f"from {settles.above:.2f} on "
        held_out = "" if calibration.settled_error is None else f", {calibration.settled_error:.1%} wrong when held out"
        click.echo(
            f"settles      probabilities {below}{'and ' if below and above else ''}{above}"
            f"(at most {settles.error:.1%} wrong): {settles.share:.1%} of {settles.n:,} memes{held_out}"
        )
