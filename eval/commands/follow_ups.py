"""Questions that are put after an arena, about what its record holds: the parts that their commands share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import arena_samples, run_watched
from serving.cli.common import with_options

if TYPE_CHECKING:
    from eval.arena.folder import ArenaFolder, ArenaManifest
    from eval.models.memes import ShownMeme
    from eval.models.metered import MeteredModel


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
