"""``memecourt-eval arena export-judge`` and ``arena distil-check``: a judge of one's own, learned from a panel."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval.commands.options import arena_samples, chosen_models, run_watched, show_report

if TYPE_CHECKING:
    from eval.session.progress import Progress

PAGE = "distilled.html"
_PATH = click.Path(path_type=Path)


@click.command("export-judge")
@click.option("--arena", "out", type=_PATH, required=True, help="Folder of the arena.")
@click.option("--models", type=_PATH, help="Models file with an [arena] that names several data sets.")
@click.option("--data", type=_PATH, help="Data set of the arena.")
@click.option("--to", "folder", type=_PATH, required=True, help="Folder to create for the examples.")
@click.option("--hold-out", required=True, metavar="FAMILY,…", help="Model families reserved for the test part.")
@click.option("--teacher", metavar="NAME,…", default="", help="Judges to learn from. [default: all]")
def export_judge(out: Path, models: Path | None, data: Path | None, folder: Path, hold_out: str, teacher: str) -> None:
    """Writes an arena's judgements as chat examples, to train a judge of your own.

    Each comparison is written in both orders with mirrored verdicts. Held-out model families and a tenth of the memes
    appear only in the test part. The folder holds texts and pictures of memes: protect it, and what is trained on it,
    as you protect the data set. Train with python -m eval.arena.train_judge.
    """
    from court.errors import BadRequest
    from eval.arena.folder import ArenaFolder
    from eval.arena.judge_examples import judge_examples
    from eval.models.samples import read_memes
    from serving.cli.common import run as asyncio_run

    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadRequest(f"{folder} is not empty. Name a folder that is not there yet.", reason="OUT_NOT_EMPTY")
        arena = ArenaFolder(out)
        manifest = arena.manifest()
        samples = arena_samples(manifest, data, models)
        if samples is None:
            raise click.UsageError("Missing option --data: the memes are part of the examples.")
        # The draw is among these alone, so that a limit leaves none of them out.
        wanted = {meme.id for meme in manifest.memes}
        shown, _ = asyncio_run(read_memes(samples, seed=manifest.drawn_by, keep=lambda meme: meme in wanted))
        made = judge_examples(
            manifest,
            arena.events(),
            {meme.id: meme for meme in shown.memes},
            hold_out=_names(hold_out),
            teachers=_names(teacher),
            seed=manifest.seed,
        )
        made.write(folder)
    except OSError as error:
        raise click.ClickException(f"{folder} can't be written: {error.strerror}.") from None
    counts = made.manifest.examples
    click.echo(f"{folder} has {counts['train']:,} examples to learn from and {counts['test']:,} for testing.")
    for why, count in made.manifest.skipped.items():
        click.echo(f"{count:,} judgements gave none in one order: {why}.")


@click.command("distil-check")
@click.argument("folder", metavar="EXAMPLES", type=_PATH)
@click.option("--models", type=_PATH, default=Path("arena.toml"), show_default=True, help="Models file.")
@click.option("--student", required=True, metavar="NAME", help="Trained judge: a model of the models file.")
@click.option("--base", metavar="NAME", help="Untrained base model, as a baseline.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1000), default=4, show_default=True, help="Maximum concurrent comparisons."
)
@click.option("--calls", type=_PATH, help="Store of model calls, shared by arenas.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def distil_check(folder: Path, student: str, base: str | None, as_json: bool, **options: Any) -> None:
    """Compares a trained judge with its teacher and with baselines on the test part of EXAMPLES.

    The baselines are "the longer answer wins" and the untrained model (--base).
    """
    from eval.arena.distilled import distil_report, distil_sections, judged_by
    from eval.arena.judge_examples import read_examples
    from eval.models.open import opened_models
    from eval.session.directory import CALLS

    manifest, examples = read_examples(folder, "test")
    specs = chosen_models(options, filter(None, (student, base)))
    verdicts, costs = {}, {}

    async def ask_models(progress: Progress) -> None:
        async with opened_models(specs, options["calls"] or folder / CALLS, progress.tell) as models:
            step = partial(progress.step, "comparisons")
            for name, model in models.items():
                found = await judged_by(folder, examples, model, concurrency=options["concurrency"], progress=step)
                # All calls that it takes, also those out of the store: what comparisons cost from nothing.
                verdicts[name], costs[name] = found, 1000 * model.usage.all.usd(model.price) / max(1, len(found))

    run_watched(ask_models)
    families = {name: spec.family for name, spec in specs.items()}
    report = distil_report(manifest, examples, verdicts, families=families, usd_per_1000=costs)
    title = f"Distilled from {', '.join(manifest.teachers)}"
    show_report(title, distil_sections(report), asdict(report), page=folder / PAGE, as_json=as_json)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))
