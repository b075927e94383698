"""Options that several commands offer, and what these make of them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.spec import spec_options
from serving.access.private_files import hand_on
from serving.cli.common import FiniteRange, with_options

if TYPE_CHECKING:
    from eval.arena.folder import ArenaManifest
    from eval.datasets.card import DatasetCard
    from eval.datasets.protocol import Protocol
    from eval.models.open import ModelSpec
    from eval.models.samples import Samples
    from eval.probe.folder import ProbeManifest
    from eval.reports.sections import Section
    from eval.runs.results import Results
    from eval.session.progress import Progress


def command_line() -> str:
    """The command as it was called."""
    return shlex.join(["memecourt-eval", *sys.argv[1:]])


def write_page(path: Path, html: str) -> None:
    """Writes a page that others may read. Raises click.ClickException where the disk will not have it."""
    try:
        path.write_text(html, encoding="utf-8")
        # The process writes files for their owner alone; a page is for others too, as the umask allows.
        hand_on(path)
    except OSError as error:
        raise click.ClickException(f"The page can't be written to {path}: {error.strerror}.") from None


def unfinished_in_words(results: Iterable[Results]) -> list[str]:
    """A sentence on the runs that are not finished; none where all are."""
    unfinished = [one.name for one in results if not one.finished]
    return [f"Not finished, so that these figures will change: {', '.join(unfinished)}."] if unfinished else []


def show_sections(
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    *,
    page: Path | None,
    figures: Mapping[str, Any] | None,
    command: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes sections as a page, and shows them in the terminal, or figures as JSON in their place.

    Raises NotLoaded: jinja2 or matplotlib is not installed, which a page needs.
    """
    from eval.reports.sections import as_page, as_text

    if page is not None:
        write_page(page, as_page(title, lead, sections, command=command, links=links))
    click.echo(as_text(lead, sections) if figures is None else json.dumps(figures))


def show_report(
    title: str, sections: Sequence[Section], figures: Mapping[str, Any], *, page: Path, as_json: bool
) -> None:
    """Writes sections as a page that names the command, and shows them with its path, or the report's figures as JSON.

    Raises NotLoaded: jinja2 or matplotlib is not installed, which a page needs.
    """
    show_sections(title, [], sections, page=page, figures=figures if as_json else None, command=command_line())
    if not as_json:
        click.echo(f"{page} shows it.")


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Neither 1 nor 2, which click uses for errors: a script can tell that --resume is what is left to do.
EXIT_UNFINISHED = 3


def dataset_of(id_: str) -> DatasetCard:
    """The data set of this id or card. Raises click.UsageError, which names those that there are."""
    from court.errors import BadRequest
    from eval.datasets.known import find_card

    try:
        return find_card(id_)
    except BadRequest as error:
        raise click.UsageError(error.message) from None


def recognised_in(data: Path) -> DatasetCard:
    """The only data set in a directory. Raises click.UsageError if there are several."""
    from eval.datasets.recognise import recognised

    found = recognised(data)
    if len(found) > 1:
        raise click.UsageError(f"There are {', '.join(one.id for one in found)} there: name one with --dataset.")
    return found[0]


def samples_of(options: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Samples:
    """The memes of an arena or a probe: of ``--data``, or of the data sets that the file of models names.

    Raises:
        BadRequest: The table can't be used, or no data set is recognised.
        click.UsageError: Options and table name memes both, or neither does.
    """
    from eval.models.samples import Samples, one_set, read_samples

    # Paths in the file of models are relative to it.
    read = read_samples(table, where, options["models"].parent)
    if isinstance(read, Samples):
        named = [f"--{name}" for name in ("data", "dataset", "split", "limit") if options[name] is not None]
        if named:
            raise click.UsageError(f"{where} names the memes with sample: leave {', '.join(named)} out.")
        return read
    if not options["data"]:
        raise click.UsageError("Missing option --data.")
    dataset = dataset_of(options["dataset"]) if options["dataset"] else recognised_in(options["data"])
    split = options["split"] or dataset.first_test()
    return one_set(dataset, options["data"], split, limit=options["limit"], only=read)


def arena_samples(
    manifest: ArenaManifest | ProbeManifest,
    data: Path | None,
    models: Path | None,
    *,
    dataset: str = "",
    table_name: str = "arena",
) -> Samples | None:
    """The memes of an arena or a probe that is there; None where neither names their data.

    Raises BadRequest: The table can't be used.
    """
    from eval.datasets.card import card_of
    from eval.models.open import read_models
    from eval.models.samples import Samples, one_set, read_samples
    from eval.session.directory import MANIFEST

    if data is not None:
        only = manifest.samples[0].only if manifest.samples else "all"
        # No id leads to a card of the user's own, and its file may have changed or be gone.
        card = None if dataset else manifest.cards.get(manifest.dataset)
        named = card_of(card, MANIFEST) if card else dataset_of(dataset or manifest.dataset)
        return one_set(named, data, manifest.split, limit=manifest.limit, only=only)
    if models is None:
        return None
    table = read_models(models).rest.get(table_name, {})
    read = read_samples(table, f"[{table_name}] in the file of models", models.parent)
    return read if isinstance(read, Samples) else None


def chosen_models(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, ModelSpec]:
    """The models of the file of models that have these names, each once.

    Raises:
        BadRequest: The file can't be read, or a model has no server.
        click.UsageError: The file has no such model.
    """
    from eval.models.open import read_models, require_servers

    known, wanted = read_models(options["models"]).models, dict.fromkeys(names)
    if unknown := [name for name in wanted if name not in known]:
        raise click.UsageError(
            f"{options['models'].name} has no model {', '.join(unknown)}. It has: {', '.join(known)}."
        )
    specs = {name: known[name] for name in wanted}
    require_servers(specs, options.get("vllm", ()))  # reports what is wrong before anything is read
    return specs


def protocols_of(text: str | None, offered: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Protocols as they are given on the command line, parted by commas; all that are offered where none is.

    Raises click.UsageError: One is unknown, or not offered.
    """
    from eval.datasets.protocol import Protocol

    if text is None:
        return offered
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in list(Protocol) or Protocol(name) not in offered]
    if wrong or not names:
        raise click.UsageError(
            f"There is no protocol {', '.join(wrong) or text!r} here. There are: {', '.join(offered)}."
        )
    return tuple(dict.fromkeys(Protocol(name) for name in names))


_NO_FIGURES = frozenset({"NOTHING_TO_SCORE", "NOTHING_SHARED", "TOO_FEW_TO_CHOOSE"})
"""Reasons for which one protocol has no figures, while others may have some."""


def score_by_protocol(
    protocols: Sequence[Protocol], scored: Callable[[Protocol], T], *, named: bool
) -> dict[Protocol, T]:
    """Scores under each protocol, and says on standard error of which ones there is nothing to score.

    Raises BadRequest: A named protocol has no figures, or none of them has.
    """
    from court.errors import BadRequest

    found: dict[Protocol, T] = {}
    without: list[BadRequest] = []
    for protocol in protocols:
        try:
            found[protocol] = scored(protocol)
        except BadRequest as error:
            # Memes that one protocol drops must not cost the figures under the others.
            if named or error.reason not in _NO_FIGURES:
                raise
            without.append(error)
    if without and not found:
        raise without[0]
    for refused in without:
        click.echo(refused.message, err=True)
    return found


threshold_option = click.option(
    "--threshold",
    type=click.IntRange(0, 10),
    default=4,
    show_default=True,
    help="Highest score at which an explanation counts as failed.",
)

patience_option = click.option(
    "--patience",
    default=10.0,
    show_default=True,
    type=FiniteRange(0),
    metavar="MINUTES",
    help="Minutes that a meme waits for a busy or absent model server; Ray workers try once.",
)


def vllm_turns_options(command: F) -> F:
    """Adds the options that have model servers started for models of the file of models."""
    models = click.option(
        "--vllm",
        multiple=True,
        metavar="MODEL|PRESET",
        help=(
            "Start vLLM here for the model of the models file that has this name as `model` and no `url`. "
            "Repeatable; the servers run one at a time."
        ),
    )
    flag = click.option(
        "--vllm-flag",
        "vllm_flags",
        multiple=True,
        metavar="FLAG",
        help="Pass a flag to vLLM: --vllm-flag=--quantization=fp8.",
    )
    return models(flag(command))


def sampled_options(
    models: str, what: str, *, about: str, own: Sequence[str] = (), **changed: Mapping[str, Any]
) -> Callable[[F], F]:
    """Options of an arena or a probe: models, memes, folder, repeats, report."""
    path = click.Path(path_type=Path)
    return with_options(
        click.option(
            "--models", type=path, default=Path(models), show_default=True, help=f"File of models (TOML){about}"
        ),
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


def run_watched(
    work: Callable[[Progress], Coroutine[Any, Any, T]],
    goes_on: Callable[[], str] = lambda: "the same command goes on.",
    unfinished: Callable[[str], object] = lambda _: None,
) -> T:
    """Works on a session and shows how far it is; ends the command if the session is interrupted or unfinished."""
    import sys

    from court.errors import Unavailable
    from eval.session.engine import SERVER_GONE, UNFINISHED
    from eval.session.progress import watching
    from serving.cli.common import Interrupted, run

    try:
        # The bar is closed before messages are written.
        with watching(say) as progress:
            return run(work(progress))
    except Interrupted as error:
        say(f"Interrupted. All answers so far are stored: {goes_on()}")
        sys.exit(error.exit_code)
    except Unavailable as error:
        # Anything else that is unavailable will not come back by itself, and is an error.
        if error.reason not in (SERVER_GONE, UNFINISHED):
            raise
        say(f"Not finished. {error.message} All answers so far are stored: {goes_on()}")
        unfinished(error.message)
        sys.exit(EXIT_UNFINISHED)


def say(line: str) -> None:
    """On standard error: figures are what stands on standard output."""
    click.echo(line, err=True)
