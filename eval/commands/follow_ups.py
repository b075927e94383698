"""``memecourt-eval arena explain``, ``detect`` and ``difficulty``: questions about what an arena left behind.

``export-judge`` and ``distil-check`` make a judge of one's own of it, learned from a panel.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from court.errors import BadRequest
from eval.arena.detection import detection_sections, difficulty_questions, label_questions
from eval.arena.distilled import distil_sections, judged_by
from eval.arena.events import DifficultyRated
from eval.arena.folder import ArenaFolder
from eval.arena.groups import HARD
from eval.arena.judge_examples import read_examples, write_examples
from eval.arena.losses import loss_questions, loss_sections, losses_of
from eval.arena.procedure import Questions, ask_remaining
from eval.commands.options import Shown, run_watched, shows_sections, words_in
from eval.commands.sampled import arena_memes, chosen_models
from eval.models.open import opened_models
from eval.session.directory import CALLS
from eval.session.engine import Progress
from serving.cli.common import PATH, with_options
from serving.cli.common import run as asyncio_run

DETECTION_PAGE, LOSSES_PAGE, DISTILLED_PAGE = "detection.html", "losses.html", "distilled.html"


_model_options = with_options(
    click.option("--models", type=PATH, default=Path("arena.toml"), show_default=True, help="Models file."),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 1000),
        default=4,
        show_default=True,
        help="Maximum concurrent questions.",
    ),
    click.option("--calls", type=PATH, help="Store of model calls, shared by arenas."),
)
asking_options = with_options(
    click.option("--data", type=PATH, help="Data set of the arena, if [arena] does not name it."), _model_options
)
"""Options by which models and memes of an arena are named again."""
follow_up_options = with_options(
    click.option("--out", type=PATH, required=True, help="Folder of the arena."),
    asking_options,
    click.option("--report", "only_report", is_flag=True, help="Call no model; report on the stored replies."),
)
"""Options by which an arena, its memes and its models are named again."""


def follow_up(options: Mapping[str, Any], questions: Questions, what: str) -> None:
    """Opens the memes and models that questions after an arena are about, and asks them."""
    specs = chosen_models(options, [question.model for question in questions])

    async def opened(progress: Progress) -> None:
        folder = ArenaFolder(options["out"])
        manifest = folder.manifest()
        wanted = {question.meme for question in questions}
        memes = await arena_memes(manifest, options["data"], options["models"], wanted)
        # The arena's own lock, as answers are appended to its record.
        with folder.locked():
            calls = options["calls"] or options["out"] / CALLS
            async with opened_models(specs, calls, progress.tell, run_seed=manifest.seed) as models:
                how = {"concurrency": options["concurrency"], "progress": partial(progress.step, what)}
                await ask_remaining(folder, questions, memes, models, **how)

    run_watched(opened)


@click.command("detect")
@follow_up_options
@shows_sections(page=False)
def detect_memes(**options: Any) -> Shown:
    """Asks every target for a bare label of the arena's memes, to compare detection with explanation.

    The report shows accuracy beside the battles that each target won, and their rank correlation. Replies are stored in
    the arena's record and reused when the command runs again.
    """
    folder = ArenaFolder(options["out"])
    manifest = folder.manifest()
    if not options["only_report"]:
        follow_up(options, label_questions(manifest), "labels")
    sections, figures = detection_sections(manifest, folder.events(), seed=manifest.seed)
    title = f"Detection beside understanding: {manifest.name}"
    return Shown(title=title, sections=sections, figures=figures, page=options["out"] / DETECTION_PAGE)


@click.command()
@follow_up_options
@click.option("--annotator", metavar="NAME", help="Annotator: a model of the models file, preferably not a target.")
@shows_sections(page=False)
def difficulty(**options: Any) -> Shown:
    """Has an annotator rate the arena's questions from 0 to 10 by difficulty of words, picture and reasoning.

    `--by difficulty` uses the ratings; from 6 on a question counts as hard. The annotator sees the meme, the question
    and the guideline, and no answer of a target.
    """
    folder = ArenaFolder(options["out"])
    # First: without an arena there is nothing that an annotator could rate.
    folder.manifest()
    if not options["only_report"]:
        if not options["annotator"]:
            raise click.UsageError("Missing option --annotator.")
        follow_up(options, difficulty_questions(folder.events(), options["annotator"]), "questions")
    rated = [event for event in folder.events() if isinstance(event, DifficultyRated)]
    if not rated:
        raise click.ClickException("No question has been rated yet.")
    hard = sum(event.difficulty >= HARD for event in rated)
    # Without the annotator's reasons, which may repeat a meme's words.
    shown = {"meme", "task", "annotator", "text", "image", "reasoning"}
    ratings = [event.model_dump(mode="json", include=shown) for event in rated]
    figures = {"rated": len(rated), "hard": hard, "ratings": ratings}
    lead = [f"{len(rated):,} questions are rated, {hard:,} of them hard. memecourt-eval arena --by difficulty uses it."]
    return Shown(title="Difficulty", lead=lead, sections=[], figures=figures)


@click.command()
@follow_up_options
@click.option("--explainer", metavar="NAME", help="Explainer: a model of the models file; a cheap one suffices.")
@click.option(
    "--second", metavar="NAME", help="Second explainer for a tenth of the losses, and for the losses of the first."
)
@click.option("--most", default=50, show_default=True, type=click.IntRange(1), help="Maximum losses per model.")
@shows_sections(page=False)
def explain(**options: Any) -> Shown:
    """Finds out why battles were lost: by which aspect and which error.

    It covers battles that the judges' vote decided; where every target meets the anchor, battles against it. Where the
    verdicts already tell the aspect of the loss, no model is asked for it. No model explains its own battles. Replies
    are stored in the arena's record and reused when the command runs again.
    """
    folder = ArenaFolder(options["out"])
    manifest = folder.manifest()
    if not options["only_report"]:
        if not options["explainer"]:
            raise click.UsageError("Missing option --explainer.")
        events, seed = folder.events(), manifest.seed
        losses = losses_of(manifest, events, most=options["most"], seed=seed)
        named = {"explainer": options["explainer"], "second": options["second"]}
        follow_up(options, loss_questions(events, losses, **named, seed=seed), "losses")
    sections, figures = loss_sections(manifest, folder.events(), seed=manifest.seed)
    title = f"Lost battles: {manifest.name}"
    return Shown(title=title, sections=sections, figures=figures, page=options["out"] / LOSSES_PAGE)


@click.command("export-judge")
@click.option("--arena", "out", type=PATH, required=True, help="Folder of the arena.")
@click.option("--models", type=PATH, help="Models file with an [arena] that names several data sets.")
@click.option("--data", type=PATH, help="Data set of the arena.")
@click.option("--to", "folder", type=PATH, required=True, help="Folder to create for the examples.")
@click.option("--hold-out", required=True, metavar="FAMILY,…", help="Model families reserved for the test part.")
def export_judge(out: Path, models: Path | None, data: Path | None, folder: Path, hold_out: str) -> None:
    """Writes an arena's judgements as chat examples, to train a judge of your own.

    Each comparison is written in both orders with mirrored verdicts. Held-out model families and a tenth of the memes
    appear only in the test part. The folder holds texts and pictures of memes: protect it, and what is trained on it,
    as you protect the data set. Train with python -m eval.arena.train_judge.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadRequest(f"{folder} is not empty. Name a folder that is not there yet.", reason="OUT_NOT_EMPTY")
        arena = ArenaFolder(out)
        manifest = arena.manifest()
        memes = asyncio_run(arena_memes(manifest, data, models))
        made = write_examples(folder, manifest, arena.events(), memes, hold_out=words_in(hold_out))
    except OSError as error:
        raise click.ClickException(f"{folder} can't be written: {error.strerror}.") from None
    counts = made.examples
    click.echo(f"{folder} has {counts['train']:,} examples to learn from and {counts['test']:,} for testing.")
    for why, count in made.skipped.items():
        click.echo(f"{count:,} judgements gave none in one order: {why}.")


@click.command("distil-check")
@click.argument("folder", metavar="EXAMPLES", type=PATH)
@click.option("--student", required=True, metavar="NAME", help="Trained judge: a model of the models file.")
@click.option("--base", metavar="NAME", help="Untrained base model, as a baseline.")
@_model_options
@shows_sections(page=False)
def distil_check(folder: Path, student: str, base: str | None, **options: Any) -> Shown:
    """Compares a trained judge with its teacher and with baselines on the test part of EXAMPLES.

    The baselines are "the longer answer wins" and the untrained model (--base).
    """
    manifest, examples = read_examples(folder, "test")
    specs = chosen_models(options, filter(None, (student, base)))
    verdicts, costs = {}, {}

    async def ask_models(progress: Progress) -> None:
        async with opened_models(specs, options["calls"] or folder / CALLS, progress.tell) as models:
            step = partial(progress.step, "comparisons")
            for name, model in models.items():
                found = await judged_by(folder, examples, model, concurrency=options["concurrency"], progress=step)
                # All calls that it takes, also those out of the store: what comparisons cost from nothing.
                verdicts[name], costs[name] = found, 1000 * model.spec.usd(model.usage.all) / max(1, len(found))

    run_watched(ask_models)
    families = {name: spec.family for name, spec in specs.items()}
    sections, figures = distil_sections(manifest, examples, verdicts, families=families, usd_per_1000=costs)
    title = f"Distilled from {', '.join(manifest.teachers)}"
    return Shown(title=title, sections=sections, figures=figures, page=folder / DISTILLED_PAGE)
