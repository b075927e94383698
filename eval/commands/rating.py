"""``memecourt-eval arena rate`` and ``probe rate``: blind sheets for people, and what their ratings come to."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from eval.arena import rating as arena_rating
from eval.arena.agreement import human_agreement, human_sections
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.commands.options import Shown, say, shows_sections
from eval.commands.sampled import arena_memes, threshold_option
from eval.datasets.known import published_file
from eval.probe import rating as probe_rating
from eval.probe.folder import ProbeFolder
from eval.reports.ratings import (
    Pictures,
    RatedItem,
    SheetKind,
    SheetRatings,
    draw_items,
    rating_section,
    read_sheet,
    summarise,
    write_sheet,
)
from eval.reports.records import shrunk
from eval.reports.sections import Section
from serving.cli.common import PATH, with_options

_sheet_options = with_options(
    click.option("--out", type=PATH, required=True, help="Folder to draw from."),
    click.option("--sheet", type=PATH, help="Draw a rating sheet and write it under this name."),
    click.option("--count", default=50, show_default=True, type=click.IntRange(1), help="Number of items on a sheet."),
    click.option(
        "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the draw and of the order."
    ),
    click.option(
        "--ratings",
        type=PATH,
        multiple=True,
        help="Ratings: JSON lines (item, who, criterion, score), or a filled CSV sheet. Repeatable.",
    ),
    click.option("--key", type=PATH, help="Key file of the rated sheet."),
)
"""Options of both commands: what is drawn, and which ratings are reported on."""


@click.command("rate")
@click.option(
    "--what", type=click.Choice(["guidelines", "contexts", "battles"]), default="guidelines", show_default=True
)
@click.option(
    "--rounds",
    metavar="N-M|last",
    default="last",
    show_default=True,
    help="Fusion rounds to take guidelines from, each equally often.",
)
@click.option("--data", type=PATH, help="Data set of the arena, to show raters the memes.")
@click.option(
    "--models", type=PATH, help="Models file with an [arena] that names several data sets, instead of --data."
)
@_sheet_options
@shows_sections()
def rate_arena(**options: Any) -> Shown | None:
    """Prepares blind human ratings of guidelines, of contexts (people, questions) or of battles, and reports on them.

    With --sheet NAME it writes NAME.jsonl and NAME.csv for the raters, NAME.label-studio.xml for a project of Label
    Studio, and NAME.key.json, which raters must not see.
    With --ratings FILE --key NAME.key.json it shows means, agreement and, for guidelines of several rounds, the round
    after which nothing is gained; of battles, how far judges and people agree, and writes NAME.humans.jsonl for arena
    --humans. With neither it shows what needs no raters: length, and how much stays between rounds.
    """
    out, folder = options["out"], ArenaFolder(options["out"])
    manifest = folder.manifest()
    rounds = _rounds(options["rounds"])
    if options["sheet"]:
        kind = arena_rating.KINDS[options["what"]]
        items = kind.items(out)
        if options["what"] == "guidelines":
            items = [one for one in items if (one.origin["last"] if rounds is None else one.origin["round"] in rounds)]
        if rounds is not None:
            kind = replace(kind, evenly="round")
        _draw(options, kind, items, _pictures_of(options, manifest))
        return None
    if not options["ratings"]:
        measures = arena_rating.measures_by_round(arena_rating.guidelines(out))
        title = f"Guidelines of {manifest.name}"
        sections = [arena_rating.measure_section(measures)]
        return Shown(title=title, lead=[title], sections=sections, figures={"ratings": [], "measures": measures})
    rated = _read(options, arena_rating.KINDS)
    figures: dict[str, Any] = {}
    extra: Sequence[Section] = ()
    if rated.key.what == "guidelines":
        by_round = arena_rating.ratings_by_round(rated)
        end = arena_rating.plateau(by_round)
        figures, extra = {"by_round": by_round, "plateau": end}, [arena_rating.round_section(by_round, end)]
    elif rated.key.what == "battles":
        verdicts = arena_rating.human_verdicts(rated)
        agreement = human_agreement(folder.events(), verdicts)
        path = options["key"].with_name(options["key"].name.removesuffix(".key.json") + ".humans.jsonl")
        path.write_text("".join(f"{one.model_dump_json()}\n" for one in verdicts), "utf-8")
        say(f"{path}: people's verdicts, for memecourt-eval arena --humans.")
        figures, extra = {"people": agreement}, list(human_sections(agreement))
    return _report(out, rated, published_file(arena_rating.PAPER), extra, **figures)


@click.command("rate")
@click.option(
    "--what", type=click.Choice(["mine", "references", "scores", "rewritten"]), default="references", show_default=True
)
@threshold_option
@_sheet_options
@shows_sections()
def rate_probe(**options: Any) -> Shown | None:
    """Prepares blind human ratings of a probe's agents, and reports on them.

    With --sheet NAME it writes NAME.jsonl and NAME.csv for the raters, NAME.label-studio.xml for a project of Label
    Studio, and NAME.key.json, which raters must not see.
    With --ratings FILE --key NAME.key.json it shows means and agreement, and people's judgement beside the Miners' and
    the Scorer's. A sheet of rewritten texts is marked like the probe's own files.
    """
    out, paper = options["out"], published_file(probe_rating.PAPER)
    ProbeFolder(out).manifest()
    if options["sheet"]:
        kind = probe_rating.KINDS[options["what"]]
        _draw(options, kind, kind.items(out), probe_rating.pictures_of(out))
        return None
    if not options["ratings"]:
        raise click.UsageError("Draw a sheet with --sheet, or report on --ratings.")
    rated = _read(options, probe_rating.KINDS)
    return _report(out, rated, paper, probe_rating.agent_sections(rated, paper, threshold=options["threshold"]))


def _draw(options: Mapping[str, Any], kind: SheetKind, items: Sequence[RatedItem], pictures: Pictures) -> None:
    stem, seed = options["sheet"], options["seed"]
    # A sheet is four files of one name; an ending that was typed belongs to one of them.
    stem = stem.with_suffix("") if stem.suffix in (".jsonl", ".csv") else stem
    drawn = draw_items(items, options["count"], seed=seed, evenly=kind.evenly)
    (*files, hidden), key = write_sheet(stem, options["what"], kind, drawn, seed=seed, pictures=pictures)
    names = "{}, {} and {}".format(*files)
    repeats = sum(bool(one.repeat_of) for one in key.items.values())
    counts = f"{len(key.items)} items, {repeats} of them a second time"
    click.echo(f"{names}: {counts}. {hidden} is not for the raters.")


def _read(options: Mapping[str, Any], kinds: Mapping[str, SheetKind]) -> SheetRatings:
    if not options["key"]:
        raise click.UsageError("--ratings needs --key: the key of the sheet that was rated.")
    return read_sheet(options["key"], options["ratings"], kinds)


def _report(out: Path, rated: SheetRatings, paper: Mapping[str, Any], extra: Sequence[Section], **own: Any) -> Shown:
    found = summarise(rated)
    title = f"Ratings: {rated.key.what} of {out.resolve().name}"
    sections = [rating_section(found, rated.key.what, paper), *extra]
    return Shown(title=title, lead=[title], sections=sections, figures={"ratings": found, **own})


def _rounds(text: str) -> range | None:
    if text == "last":
        return None
    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise click.UsageError(f"--rounds takes a range such as 0-14, or last, and not {text!r}.")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def _pictures_of(options: Mapping[str, Any], manifest: ArenaManifest) -> Pictures:
    """The memes' pictures, where the data set is at hand."""
    if not (options["data"] or options["models"]):
        say("Raters are not shown the memes: name their data set with --data.")
        return lambda _: ()
    memes = asyncio.run(arena_memes(manifest, options["data"], options["models"]))
    frames = {id_: meme.frames for id_, meme in memes.items()}
    return lambda meme: tuple(filter(None, (shrunk(frame.png, 400) for frame in frames.get(meme, ()))))
