"""Options of an arena or a probe: its models, its memes, and questions about what it left behind."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from eval.arena.folder import ArenaManifest
from eval.commands.options import CourtOptions, dataset_in, dataset_of
from eval.datasets.card import card_of
from eval.models.metered import ModelSpec
from eval.models.open import read_models, require_servers
from eval.models.samples import Samples, ShownMeme, one_set, read_memes, read_samples
from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.directory import MANIFEST
from eval.session.spec import spec_options
from serving.cli.common import PATH, with_options

F = TypeVar("F", bound=Callable[..., Any])

threshold_option = click.option(
    "--threshold",
    type=click.IntRange(0, 10),
    default=4,
    show_default=True,
    help="Highest score at which an explanation counts as failed.",
)


def samples_of(options: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Samples:
    """The memes of an arena or a probe: of ``--data``, or of the data sets that the file of models names.

    Raises BadRequest or click.UsageError: No data set is recognised, or options and table name memes both, or neither.
    """
    # Paths in the file of models are relative to it.
    read = read_samples(table, where, options["models"].parent)
    if isinstance(read, Samples):
        named = [f"--{name}" for name in ("data", "dataset", "split", "limit") if options[name] is not None]
        if named:
            raise click.UsageError(f"{where} names the memes with sample: leave {', '.join(named)} out.")
        return read
    if not options["data"]:
        raise click.UsageError("Missing option --data.")
    dataset = dataset_in(options["data"], options["dataset"])
    split = options["split"] or dataset.first_test()
    return one_set(dataset, options["data"], split, limit=options["limit"], only=read)


async def arena_memes(
    manifest: ArenaManifest, data: Path | None, models: Path | None, wanted: Collection[str] = ()
) -> dict[str, ShownMeme]:
    """The memes of an arena that is there, by id: some, or all of them.

    Raises BadRequest or click.UsageError: Neither the table nor ``--data`` names data that can be used.
    """
    if data is not None:
        # No id leads to a card of the user's own, and its file may have changed or be gone.
        card = manifest.cards.get(manifest.dataset)
        named = card_of(card, MANIFEST) if card else dataset_of(manifest.dataset)
        samples = one_set(named, data, manifest.split, limit=None)
    else:
        table = read_models(models).rest.get("arena", {}) if models else {}
        read = read_samples(table, "[arena] in the file of models", models.parent if models else Path())
        if not isinstance(read, Samples):
            raise click.UsageError("Missing option --data: it holds the memes, which are shown.")
        samples = read
    # Of these alone: of the whole split, a limit could draw others.
    ids = wanted or {meme.id for meme in manifest.memes}
    seed = manifest.seed if manifest.sample_seed is None else manifest.sample_seed
    shown = await read_memes(samples, seed=seed, keep=ids.__contains__)
    return {meme.id: meme for meme in shown.memes}


def chosen_models(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, ModelSpec]:
    """The models of the file of models that have these names, each once.

    Raises BadRequest or click.UsageError: The file can't be read or has no such model, or a model has no server.
    """
    known, wanted = read_models(options["models"]).models, dict.fromkeys(names)
    if unknown := [name for name in wanted if name not in known]:
        raise click.UsageError(
            f"{options['models'].name} has no model {', '.join(unknown)}. It has: {', '.join(known)}."
        )
    specs = {name: known[name] for name in wanted}
    require_servers(specs, options.get("vllm", ()))  # reports what is wrong before anything is read
    return specs


vllm_turns_options = with_options(
    click.option(
        "--vllm",
        multiple=True,
        metavar="MODEL|PRESET",
        help="Start vLLM here for the model of the models file that has this name as `model` and no `url`. Repeatable; "
        "the servers run one at a time.",
    ),
    spec_options(CourtOptions, "vllm_flags"),
)
"""Options that have model servers started for models of the file of models."""


def sampled_options(
    models: str, what: str, *, about: str, own: Sequence[str] = (), **changed: Mapping[str, Any]
) -> Callable[[F], F]:
    """Options of an arena or a probe: models, memes, folder, repeats, report."""
    return with_options(
        click.option("--models", type=PATH, default=Path(models), show_default=True, help=about),
        vllm_turns_options,
        spec_options(
            JudgingSpec,
            *("dataset", "split", "limit", "seed"),
            dataset={"metavar": "ID", "help": "Data set. [default: the one that is recognised there]"},
            split={"help": "Split. [default: the first test split]"},
            seed={"default": 0},
        ),
        spec_options(Circumstances, *("data", "out", *own, "concurrency", "calls"), with_defaults=False, **changed),
        click.option(
            "--repeats",
            default=1,
            show_default=True,
            type=click.IntRange(1, 100),
            help=f"Number of {what}s of the same memes, each with the next seed, in folders side by side in --out.",
        ),
        click.option("--report", "only_report", is_flag=True, help=f"Call no model: report on the {what} in --out."),
    )
