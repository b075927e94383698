"""``memecourt-eval arena explain``, ``detect`` and ``difficulty``: questions about what an arena left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import arena_samples, run_watched, show_report
from serving.cli.common import with_options

if TYPE_CHECKING:
    from eval.arena.folder import ArenaFolder, ArenaManifest
    from eval.arena.losses import Loss
    from eval.models.memes import ShownMeme
    from eval.models.metered import MeteredModel


DETECTION_PAGE = "detection.html"


@dataclass(frozen=True, slots=True)
class FollowUp:
    """An arena that is there, opened for further questions."""

    folder: ArenaFolder
    manifest: ArenaManifest
    memes: Sequence[ShownMeme]
    models: Mapping[str, MeteredModel]
    progress: Callable[[int, int], None]


_PATH = click.Path(path_type=Path)
follow_up_options = with_options(
    click.option("--out", type=_PATH, required=True, help="Folder of the arena."),
    click.option("--models", type=_PATH, default=Path("arena.toml"), show_default=True, help="Models file."),
    click.option("--data", type=_PATH, help="Data set of the arena, if [arena] does not name it."),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 1000),
        default=4,
        show_default=True,
        help="Maximum concurrent questions.",
    ),
    click.option("--calls", type=_PATH, help="Store of model calls, shared by arenas."),
    click.option("--report", "only_report", is_flag=True, help="Call no model; report on the stored replies."),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, without texts."),
)
"""Options by which an arena, its memes and its models are named again."""


def follow_up(
    options: Mapping[str, Any],
    names: Sequence[str],
    ask: Callable[[FollowUp], Awaitable[None]],
    *,
    memes: Collection[str],
    what: str,
) -> None:
    """Opens an arena's memes and some models, and asks them.

    Args:
        what: Plural of what progress counts.

    Raises:
        click.UsageError: The file has no such model, or nothing names the memes.
        CourtError: The arena, the memes or a model can't be used.
    """
    from eval.models.open import read_models

    known = read_models(options["models"]).models
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(
            f"{options['models'].name} has no model {', '.join(unknown)}. It has: {', '.join(known)}."
        )
    run_watched(
        lambda progress: _opened(
            options, names, ask, memes=memes, tell=progress.tell, progress=partial(progress.step, what)
        )
    )


async def _opened(
    options: Mapping[str, Any],
    names: Sequence[str],
    ask: Callable[[FollowUp], Awaitable[None]],
    *,
    memes: Collection[str],
    tell: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> None:
    from contextlib import AsyncExitStack

    from court.meme import LIMITS
    from eval.arena.folder import ArenaFolder
    from eval.models.call_cache import SqliteCallCache
    from eval.models.open import open_models, read_models
    from eval.models.samples import read_memes
    from eval.session.directory import CALLS

    folder = ArenaFolder(options["out"])
    manifest = folder.manifest()
    samples = arena_samples(manifest, options["data"], options["models"])
    if samples is None:
        raise click.UsageError("Missing option --data: the memes are shown to whoever is asked.")
    shown, _ = await read_memes(samples, seed=manifest.drawn_by, keep=lambda meme: meme in memes)
    async with AsyncExitStack() as stack:
        # The arena's own lock, as answers are appended to its record.
        stack.enter_context(folder.locked())
        store = SqliteCallCache.open(options["calls"] or options["out"] / CALLS)
        stack.push_async_callback(store.close)
        file = read_models(options["models"])
        # A model that is named twice is opened once.
        chosen = {name: file.models[name] for name in dict.fromkeys(names)}
        most = LIMITS.representative_frames
        models = await open_models(chosen, store, stack, tell, pictures=most, run_seed=manifest.seed)
        await ask(FollowUp(folder, manifest, shown.memes, models=models, progress=progress))


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
    title, page = f"Detection beside understanding: {manifest.name}", options["out"] / DETECTION_PAGE
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


LOSSES_PAGE = "losses.html"


@click.command()
@follow_up_options
@click.option("--explainer", metavar="NAME", help="Explainer: a model of the models file; a cheap one suffices.")
@click.option(
    "--second", metavar="NAME", help="Second explainer for a tenth of the losses, and for the losses of the first."
)
@click.option("--most", default=50, show_default=True, type=click.IntRange(1), help="Maximum losses per model.")
def explain(**options: Any) -> None:
    """Finds out why battles were lost: by which aspect and which error.

    It covers battles that the judges' vote decided; where every target meets the anchor, battles against it. Where the
    verdicts already tell the aspect of the loss, no model is asked for it. No model explains its own battles. Replies
    are stored in the arena's record and reused when the command runs again.
    """
    from eval.arena.folder import ArenaFolder
    from eval.arena.losses import loss_report, loss_sections, losses_of

    folder = ArenaFolder(options["out"])
    manifest = folder.manifest()
    if not options["only_report"]:
        if not options["explainer"]:
            raise click.UsageError("Missing option --explainer.")
        losses = losses_of(manifest, folder.events(), most=options["most"], seed=manifest.seed)
        follow_up(
            options,
            [name for name in (options["explainer"], options["second"]) if name],
            partial(_explain, options=options, losses=losses),
            # Those of the losses alone: of the whole split, a limit would draw other memes than it did of those
            # with questions.
            memes={loss.meme for loss in losses},
            what="losses",
        )
    report = loss_report(manifest, folder.events(), seed=manifest.seed)
    if report is None:
        raise click.ClickException("No loss has been explained yet.")
    title = f"Lost battles: {manifest.name}"
    show_report(
        title, loss_sections(report), asdict(report), page=options["out"] / LOSSES_PAGE, as_json=options["as_json"]
    )


async def _explain(one: FollowUp, options: dict[str, Any], losses: Sequence[Loss]) -> None:
    from eval.arena.losses import explain_losses

    await explain_losses(
        one.folder,
        losses,
        {meme.id: meme for meme in one.memes},
        explainer=one.models[options["explainer"]],
        second=one.models[options["second"]] if options["second"] else None,
        seed=one.manifest.seed,
        concurrency=options["concurrency"],
        progress=one.progress,
    )
