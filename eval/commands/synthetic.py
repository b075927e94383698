"""``memecourt-eval synthetic``: a benchmark of tame drawn memes, to try everything without data of anyone's."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from eval.commands.options import say
from eval.session.engine import watching
from eval.synthetic.functional import write_functional
from eval.synthetic.make import Layout, Plant, make
from eval.synthetic.starter import write_starter_data
from serving.cli.common import PATH


@click.command()
@click.argument("out", type=PATH)
@click.option(
    "--layout",
    type=click.Choice(["harmeme", "fhm", "starter", "functional"]),
    default="harmeme",
    show_default=True,
    help="Layout to imitate, with three labels or with two; the starter library's own memes and 200 like them; or "
    "functional tests in the manner of HateCheck.",
)
@click.option("--train", default=200, show_default=True, help="Memes in the train split.")
@click.option("--val", default=40, show_default=True, help="Memes in the validation split.")
@click.option("--test", default=80, show_default=True, help="Memes in the test split.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the memes.")
@click.option("--plant", default="", help="Faults to plant: leakage, defects, or both with a comma.")
def synthetic(out: Path, layout: str, seed: int, plant: str, **sizes: Any) -> None:
    """Draws and writes a benchmark into OUT, a new directory.

    A meme is harmful where its text says something bad of an invented group and its picture shows the badge of that
    group; others differ from a harmful one in nothing but the picture, or nothing but the text. Beside the files of the
    layout, synthetic.json says what was planted and key.jsonl what each meme shows.

    With --layout starter the words alone decide, and the other options change nothing. Functional tests, which take
    --seed, have the starter library's memes as precedents; `memecourt-eval functional` scores a run of them.

    \b
    memecourt-eval run --dataset synthetic-harmeme --data OUT …
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if layout == "starter":
        with watching(say) as progress:
            count = write_starter_data(out, partial(progress.step, "pictures"))
        click.echo(f"{count:,} memes: train.jsonl is for a library, test.jsonl for judging")
        return
    if layout == "functional":
        with watching(say) as progress:
            cases = write_functional(out, seed=seed, progress=partial(progress.step, "pictures"))
        kinds, harmful = len({case.functionality for case in cases}), sum(case.harmful for case in cases)
        click.echo(f"{len(cases):,} cases of {kinds} functionalities, {harmful:,} of them harmful")
        return
    try:
        planted = [Plant(word.strip()) for word in plant.split(",") if word.strip()]
    except ValueError:
        raise click.UsageError(f"--plant knows {' and '.join(Plant)}, not {plant!r}.") from None
    with watching(say) as progress:
        made = make(out, Layout(layout), **sizes, seed=seed, plant=planted, progress=partial(progress.step, "pictures"))
    harmful = sum(meme.harmful for meme in made.memes)
    click.echo(f"{len(made.memes):,} memes, {harmful:,} of them harmful, as data set {made.dataset}")
    for meme in made.memes:
        if meme.planted:
            click.echo(f"planted in {meme.split}: {meme.planted}, id {meme.id}" + (f", of {meme.of}" * bool(meme.of)))
