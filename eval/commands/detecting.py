"""``memecourt-eval arena detect`` and ``arena difficulty``: bare labels of the targets, and how hard the tasks are."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from eval.commands.follow_ups import follow_up, follow_up_options
from eval.commands.options import show_report

if TYPE_CHECKING:
    from eval.commands.follow_ups import FollowUp

PAGE = "detection.html"


@click.command()
@follow_up_options
def detect(**options: Any) -> None:
    """Asks every target for a bare label of the arena's memes, to compare detection with explanation.

    The report shows accuracy beside the battles that each target won, and their rank correlation. Replies are stored in
    the arena's record and reused when the command runs again.
    """
    from eval.arena.detection import detection_report, detection_sections
    from eval.arena.folder import ArenaFolder

    folder = ArenaFolder(options["out"])
    manifest = folder.manifest()
    if not options["only_report"]:
        follow_up(
            options,
            manifest.settings.targets,
            partial(_detect, concurrency=options["concurrency"]),
            memes={meme.id for meme in manifest.memes},
            what="labels",
        )
    report = detection_report(manifest, folder.events(), seed=manifest.seed)
    title, page = f"Detection beside understanding: {manifest.name}", options["out"] / PAGE
    show_report(title, detection_sections(report), asdict(report), page=page, as_json=options["as_json"])


async def _detect(one: FollowUp, concurrency: int) -> None:
    from eval.arena.detection import detect

    await detect(one.folder, one.memes, one.models, concurrency=concurrency, progress=one.progress)


@click.command()
@follow_up_options
@click.option("--annotator", metavar="NAME", help="Annotator: a model of the models file, preferably not a target.")
def difficulty(**options: Any) -> None:
    """Has an annotator rate the arena's questions from 0 to 10 by difficulty of words, picture and reasoning.

    `--by difficulty` uses the ratings; from 6 on a question counts as hard. The annotator sees the meme, the question
    and the guideline, and no answer of a target.
    """
    from eval.arena.events import DifficultyRated, TaskFormulated
    from eval.arena.folder import ArenaFolder
    from eval.arena.groups import HARD

    folder = ArenaFolder(options["out"])
    # First: without an arena there is nothing that an annotator could rate.
    folder.manifest()
    if not options["only_report"]:
        if not options["annotator"]:
            raise click.UsageError("Missing option --annotator.")
        follow_up(
            options,
            [options["annotator"]],
            partial(_rate, annotator=options["annotator"], concurrency=options["concurrency"]),
            memes={event.meme for event in folder.events() if isinstance(event, TaskFormulated)},
            what="questions",
        )
    rated = [event for event in folder.events() if isinstance(event, DifficultyRated)]
    if not rated:
        raise click.ClickException("No question has been rated yet.")
    hard = sum(event.difficulty >= HARD for event in rated)
    if options["as_json"]:
        import json

        ratings = [event.model_dump(mode="json", include=_SHOWN) for event in rated]
        click.echo(json.dumps({"rated": len(rated), "hard": hard, "ratings": ratings}))
        return
    click.echo(
        f"{len(rated):,} questions are rated, {hard:,} of them hard. memecourt-eval arena --by difficulty uses it."
    )


# Without the annotator's reasons, which may repeat a meme's words.
_SHOWN = {"meme", "task", "annotator", "text", "image", "reasoning"}


async def _rate(one: FollowUp, annotator: str, concurrency: int) -> None:
    from eval.arena.detection import rate_difficulty

    memes = {meme.id: meme for meme in one.memes}
    await rate_difficulty(one.folder, memes, one.models[annotator], concurrency=concurrency, progress=one.progress)
