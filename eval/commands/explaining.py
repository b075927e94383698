"""``memecourt-eval arena explain``: why battles were lost."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from eval.commands.follow_ups import follow_up, follow_up_options
from eval.commands.options import show_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval.arena.losses import Loss
    from eval.commands.follow_ups import FollowUp

PAGE = "losses.html"


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
    show_report(title, loss_sections(report), asdict(report), page=options["out"] / PAGE, as_json=options["as_json"])


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
