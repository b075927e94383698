"""``memecourt-eval arena rate`` and ``probe rate``: blind sheets for people, and what their ratings come to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import command_line, show_sections
from eval.commands.sampled import arena_samples, threshold_option
from serving.cli.common import with_options

if TYPE_CHECKING:
    from eval.arena.folder import ArenaManifest
    from eval.arena.rating import Pictures
    from eval.reports.ratings import Criterion, CriterionRatings, RatedItem, Rating, SheetKey
    from eval.reports.sections import Section


_sheet_options = with_options(
    click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to draw from."),
    click.option("--sheet", type=click.Path(path_type=Path), help="Draw a rating sheet and write it under this name."),
    click.option("--count", default=50, show_default=True, type=click.IntRange(1), help="Number of items on a sheet."),
    click.option(
        "--seed",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Seed of the draw and of the order.",
    ),
    click.option(
        "--ratings",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Ratings: JSON lines (item, who, criterion, score), or a filled CSV sheet. Repeatable.",
    ),
    click.option("--key", type=click.Path(path_type=Path), help="Key file of the rated sheet."),
    click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page to this file."),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, without texts."),
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
    help="Fusion rounds to take guidelines from.",
)
@click.option(
    "--per-round", default=10, show_default=True, type=click.IntRange(1), help="Number of guidelines per round."
)
@click.option("--data", type=click.Path(path_type=Path), help="Data set of the arena, to show raters the memes.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    help="Models file with an [arena] that names several data sets, instead of --data.",
)
@_sheet_options
def rate_arena(**options: Any) -> None:
    """Prepares blind human ratings of guidelines, of contexts (people, questions) or of battles, and reports on them.

    With --sheet NAME it writes NAME.jsonl and NAME.csv for the raters, NAME.label-studio.xml for a project of Label
    Studio, and NAME.key.json, which raters must not see.
    With --ratings FILE --key NAME.key.json it shows means, agreement and, for guidelines of several rounds, the round
    after which nothing is gained; of battles, how far judges and people agree, and writes NAME.humans.jsonl for arena
    --humans. With neither it shows what needs no raters: length, and how much stays between rounds.
    """
    from eval.arena import rating
    from eval.arena.agreement import human_agreement, plain_agreement
    from eval.arena.board_sections import human_sections
    from eval.arena.folder import ArenaFolder
    from eval.arena.rating import measure_section, round_section
    from eval.datasets.known import published_file, published_ratings
    from eval.reports.ratings import rating_section, summarise

    folder = ArenaFolder(options["out"])
    manifest, events = folder.manifest(), folder.events()
    texts = rating.guideline_texts(events)
    if options["sheet"]:
        pictures = _pictures_of(options, manifest)
        if options["what"] == rating.CONTEXTS:
            items = rating.context_items(events, most=options["count"], seed=options["seed"], pictures=pictures)
        elif options["what"] == rating.BATTLES:
            items = rating.battle_items(events, most=options["count"], seed=options["seed"], pictures=pictures)
        else:
            rounds = _rounds(options["rounds"])
            # Of one round, the last, the whole sheet is drawn.
            each = options["count"] if rounds is None else options["per_round"]
            items = rating.guideline_items(
                texts, rounds=rounds, per_round=each, seed=options["seed"], pictures=pictures
            )
        _write(options, items, rating.CRITERIA[options["what"]])
        return
    if options["ratings"]:
        ratings, key = _read(options, tuple(rating.CRITERIA))
        found = summarise(ratings, key.repeat_of)
        paper = published_file(f"papers/{rating.PAPER}")
        sections = [
            rating_section(
                found,
                published_ratings(rating.PAPER, key.what),
                source=f"{paper['source']}, tables 3 to 5",
                published_self=paper["self_agreement"][key.what],
            )
        ]
        more: dict[str, Any] = {}
        if key.what == rating.GUIDELINES:
            by_round = rating.ratings_by_round(ratings, key)
            end = rating.plateau(by_round)
            more = {"by_round": [asdict(one) for one in by_round], "plateau": end}
            sections.append(round_section(by_round, end))
        if key.what == rating.BATTLES:
            agreement = human_agreement(events, verdicts := rating.human_verdicts(ratings, key))
            more = {"people": plain_agreement(agreement)}
            sections += human_sections(agreement)
            path = options["key"].with_name(options["key"].name.removesuffix(".key.json") + ".humans.jsonl")
            path.write_text("".join(f"{one.model_dump_json()}\n" for one in verdicts), "utf-8")
            click.echo(f"{path}: people's verdicts, for memecourt-eval arena --humans.", err=True)
        _show(options, f"Ratings: {key.what} of {manifest.name}", sections, found=found, more=more)
        return
    measures = rating.measures_by_round(texts)
    _show(
        options,
        f"Guidelines of {manifest.name}",
        [measure_section(measures)],
        found=(),
        more={"measures": [asdict(one) for one in measures]},
    )


@click.command("rate")
@click.option(
    "--what", type=click.Choice(["mine", "references", "scores", "rewritten"]), default="references", show_default=True
)
@threshold_option
@_sheet_options
def rate_probe(**options: Any) -> None:
    """Prepares blind human ratings of a probe's agents, and reports on them.

    With --sheet NAME it writes NAME.jsonl and NAME.csv for the raters, NAME.label-studio.xml for a project of Label
    Studio, and NAME.key.json, which raters must not see.
    With --ratings FILE --key NAME.key.json it shows means and agreement, and people's judgement beside the Miners' and
    the Scorer's. A sheet of rewritten texts is marked like the probe's own files.
    """
    from eval.datasets.known import published_file, published_ratings
    from eval.probe import rating
    from eval.reports.ratings import rating_section, summarise

    if not options["sheet"] and not options["ratings"]:
        raise click.UsageError("Draw a sheet with --sheet, or report on --ratings.")
    if options["sheet"]:
        items = rating.items_of(options["out"], options["what"], most=options["count"], seed=options["seed"])
        _write(options, items, rating.CRITERIA[options["what"]], mark=rating.MARKED.get(options["what"], ""))
        return
    ratings, key = _read(options, tuple(rating.CRITERIA))
    found = summarise(ratings, key.repeat_of)
    source = published_file(f"papers/{rating.PAPER}")["source"]
    sections = [rating_section(found, published_ratings(rating.PAPER, key.what), source=source)]
    agents = rating.agent_section(ratings, key, threshold=options["threshold"])
    _show(options, f"Ratings: {key.what}", [*sections, *filter(None, [agents])], found=found, more={})


def _rounds(text: str) -> range | None:
    if text == "last":
        return None
    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise click.UsageError(f"--rounds takes a range such as 0-14, or last, and not {text!r}.")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def _pictures_of(options: Mapping[str, Any], manifest: ArenaManifest) -> Pictures:
    """The memes' pictures, where the data set is at hand."""
    import asyncio

    from eval.models.samples import read_memes
    from eval.reports.records import shrunk

    samples = arena_samples(manifest, options["data"], options["models"])
    if samples is None:
        click.echo("Raters are not shown the memes: name their data set with --data.", err=True)
        return lambda _: ()
    # By the seed of the arena's own sample, not that of the sheet: the same memes have to be read.
    shown, _ = asyncio.run(read_memes(samples, seed=manifest.drawn_by))
    frames = {meme.id: tuple(frame.png for frame in meme.frames) for meme in shown.memes}

    def pictures(meme: str) -> tuple[bytes, ...]:
        small = (shrunk(png, 400) for png in frames.get(meme, ()))
        return tuple(jpeg for jpeg in small if jpeg is not None)

    return pictures


def _write(
    options: Mapping[str, Any], items: Sequence[RatedItem], criteria: Sequence[Criterion], *, mark: str = ""
) -> None:
    from eval.reports.ratings import lay_out, write_sheet

    stem: Path = options["sheet"]
    # A sheet is four files of one name; an ending that was typed belongs to one of them.
    if stem.suffix in (".jsonl", ".csv"):
        stem = stem.with_suffix("")
    lines = lay_out(items, seed=options["seed"])
    rows, table, project, key = write_sheet(stem, options["what"], lines, criteria, seed=options["seed"], mark=mark)
    twice = sum(bool(line.repeat_of) for line in lines)
    files = f"{rows}, {table} and {project}"
    click.echo(f"{files}: {len(lines)} items, {twice} of them a second time. {key} is not for the raters.")


def _read(options: Mapping[str, Any], kinds: Sequence[str]) -> tuple[tuple[Rating, ...], SheetKey]:
    from court.errors import BadRequest
    from eval.reports.ratings import read_key, read_ratings

    if not options["key"]:
        raise click.UsageError("--ratings needs --key: the key of the sheet that was rated.")
    key = read_key(options["key"])
    if key.what not in kinds:
        raise BadRequest(
            f"{options['key'].name} is of a sheet of {key.what}: another command's.", reason="FILE_UNREADABLE"
        )
    return read_ratings(options["ratings"], key), key


def _show(
    options: Mapping[str, Any],
    title: str,
    sections: Sequence[Section],
    *,
    found: Sequence[CriterionRatings],
    more: Mapping[str, Any],
) -> None:
    figures = {"ratings": [asdict(one) for one in found], **more} if options["as_json"] else None
    show_sections(title, [title], sections, page=options["html"], figures=figures, command=command_line())
