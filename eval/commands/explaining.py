"""``memecourt-eval arena explain``: why battles were lost."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import arena_samples
from eval.commands.pages import command_line, show_sections

if TYPE_CHECKING:
    from collections.abc import Callable

    from eval.models.open import ModelsFile

PAGE = "losses.html"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The arena's folder.")
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("arena.toml"),
    show_default=True,
    help="The file of models.",
)
@click.option("--data", type=click.Path(path_type=Path), help="The arena's data set, where [arena] does not name it.")
@click.option("--explainer", metavar="NAME", help="Who says why: a model of the file; a cheap one will do.")
@click.option("--second", metavar="NAME", help="Who is heard too on a tenth of the losses, and on the first one's own.")
@click.option("--most", default=50, show_default=True, type=click.IntRange(1), help="Losses of a model, at most.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=4, show_default=True, help="Losses at once.")
@click.option("--calls", type=click.Path(path_type=Path), help="A store of model calls that arenas share.")
@click.option("--report", "only_report", is_flag=True, help="Ask nobody: report on what was said before.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object, without any text.")
def explain(**given: Any) -> None:
    """Asks why battles were lost: in what an answer fell behind, and by which error.

    Battles are those that the vote of their judges decided, or against the anchor where everybody meets it. Where the
    verdicts tell in which dimension an answer lost most, nobody is asked that. No model explains a battle of its own.
    What was said stands in the arena's record; called again, nothing is asked again.
    """
    from court.errors import CourtError
    from eval.arena.folder import ArenaFolder
    from eval.arena.loss_words import loss_sections
    from eval.arena.losses import loss_report

    try:
        folder = ArenaFolder(given["out"])
        manifest = folder.manifest()
        if not given["only_report"]:
            if not given["explainer"]:
                raise click.UsageError("Missing option --explainer.")
            _ask(given)
        report = loss_report(manifest, folder.events(), seed=manifest.seed)
        if report is None:
            raise click.ClickException("No loss has been explained yet.")
        page = given["out"] / PAGE
        show_sections(
            f"Lost battles: {manifest.name}",
            [],
            loss_sections(report),
            page=page,
            figures=asdict(report) if given["as_json"] else None,
            command=command_line(),
        )
    except CourtError as error:
        raise click.ClickException(error.message) from None
    if not given["as_json"]:
        click.echo(f"{page} shows it.")


def _ask(given: dict[str, Any]) -> None:
    from eval.models.open import read_models
    from eval.runs.progress import watching
    from serving.cli.common import Interrupted, tell
    from serving.cli.common import run as asyncio_run

    file = read_models(given["models"])
    names = [name for name in (given["explainer"], given["second"]) if name]
    if unknown := [name for name in names if name not in file.models]:
        raise click.UsageError(
            f"{given['models'].name} has no model {', '.join(unknown)}. It has: {', '.join(file.models)}."
        )
    try:
        with watching(tell) as progress:
            asyncio_run(_explain(given, file, progress.tell, partial(progress.step, "losses")))
    except Interrupted as error:
        tell("Interrupted. What was said is kept; the same command goes on.")
        sys.exit(error.exit_code)


async def _explain(
    given: dict[str, Any], file: ModelsFile, tell: Callable[[str], None], progress: Callable[[int, int], None]
) -> None:
    from contextlib import AsyncExitStack

    from court.meme import LIMITS
    from eval.arena.folder import CALLS, ArenaFolder
    from eval.arena.losses import explain_losses, losses_of
    from eval.arena.run import alone
    from eval.models.call_cache import SqliteCallCache
    from eval.models.open import open_chairs
    from eval.models.samples import read_memes

    folder = ArenaFolder(given["out"])
    manifest = folder.manifest()
    samples = arena_samples(manifest, given["data"], given["models"])
    if samples is None:
        raise click.UsageError("Missing option --data: the memes are shown to whoever explains.")
    losses = losses_of(manifest, folder.events(), most=given["most"], seed=manifest.seed)
    wanted = {loss.meme for loss in losses}
    # Those of the losses alone: of the whole split, a limit would draw other memes than it did of those with questions.
    shown, _ = await read_memes(samples, seed=manifest.drawn_by, keep=lambda meme: meme in wanted)
    async with AsyncExitStack() as stack:
        stack.enter_context(alone(given["out"]))
        store = SqliteCallCache.open(given["calls"] or given["out"] / CALLS)
        stack.push_async_callback(store.close)
        chosen = {name: file.models[name] for name in dict.fromkeys((given["explainer"], given["second"])) if name}
        most = LIMITS.representative_frames
        chairs = await open_chairs(chosen, store, stack, tell, pictures=most, run_seed=manifest.seed)
        await explain_losses(
            folder,
            losses,
            {meme.id: meme for meme in shown.memes},
            explainer=chairs[given["explainer"]],
            second=chairs[given["second"]] if given["second"] else None,
            seed=manifest.seed,
            concurrency=given["concurrency"],
            progress=progress,
        )
