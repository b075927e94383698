"""Options that several commands offer, and what these make of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from eval.commands.pages import command_line
from serving.cli.common import FiniteRange, with_options

if TYPE_CHECKING:
    from court.events import Procedure
    from eval.arena.folder import ArenaManifest
    from eval.datasets.card import DatasetCard
    from eval.datasets.protocol import Protocol
    from eval.models.samples import Samples
    from eval.models.vllm_session import VllmChoice
    from eval.probe.folder import ProbeManifest
    from eval.runs.folder import RunFolder
    from eval.session.progress import Progress
    from eval.studies.arms import Arm, Study

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Neither 1 nor 2, which click uses for errors: a script can tell that --resume is what is left to do.
EXIT_UNFINISHED = 3
LANGUAGE = (
    "Language of the memes' texts (BCP 47); detect, to detect it in each text; or card, to take it from the data set's "
    "card. `--set language_shown=true` shows it to advocates and Judge."
)
TEMPLATE_SPLIT = "template"
"""Split of every data set: its first test split, with no precedent on the template of a judged meme."""
TEMPLATES_APART = (
    "No precedent whose picture is nearly that of a judged meme, whatever the text; `--split template` asks for it too."
)


def dataset_of(id_: str) -> DatasetCard:
    """The data set of this id or card. Raises click.UsageError, which names those that there are."""
    from court.errors import BadRequest
    from eval.datasets.known import find_card

    try:
        return find_card(id_)
    except BadRequest as error:
        raise click.UsageError(error.message) from None


def tag_of(language: str | None) -> str:
    """The language that is given: a BCP 47 tag, ``detect``, ``card`` or empty. Raises BadRequest if it is none."""
    from eval.datasets.language import CARD, DETECT, shared_detector
    from serving.rpc.convert import language as checked

    if language == DETECT:
        shared_detector()  # what is not installed is said before anything is prepared
        return DETECT
    return CARD if language == CARD else checked(language or "", "language")


def split_of(dataset: DatasetCard, name: str) -> tuple[str, bool]:
    """The split of this name, and True if templates are to be held apart for it."""
    if name == TEMPLATE_SPLIT and name not in {split.name for split in dataset.splits}:
        return dataset.first_test(), True
    return name, False


def samples_of(options: Mapping[str, Any], table: Mapping[str, Any], where: str) -> Samples:
    """The memes of an arena or a probe: of ``--data``, or of the data sets that the file of models names.

    Args:
        options: Options of the command: models, data, dataset, split and limit.
        table: Table of the file of models that may hold ``sample`` and ``only``.

    Raises:
        BadRequest: The table can't be used, or no data set is recognised.
        click.UsageError: Options and table name memes both, or neither does.
    """
    from eval.datasets.recognise import recognised
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
    if options["dataset"]:
        dataset = dataset_of(options["dataset"])
    else:
        found = recognised(options["data"])
        if len(found) > 1:
            raise click.UsageError(f"There are {', '.join(one.id for one in found)} there: name one with --dataset.")
        (dataset,) = found
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

    Args:
        manifest: Manifest of the arena or the probe.
        data: Directory of its data set, where it has one.
        models: File of models whose table ``[arena]`` or ``[probe]`` names its data sets.
        dataset: Id or card of the data set in ``data``; the manifest's where it is empty, by the card that it has.

    Raises:
        BadRequest: The table can't be used.
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


def protocols_of(text: str | None, offered: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Protocols as they are given on the command line, parted by commas; all that are offered where none is.

    Raises:
        click.UsageError: One is unknown, or not offered.
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

    Args:
        named: True if the user named the protocols: then each has to have figures.

    Raises:
        BadRequest: A named protocol has no figures, or none of them has.
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


_vllm_flag = click.option(
    "--vllm-flag",
    "vllm_flags",
    multiple=True,
    metavar="FLAG",
    help="Pass a flag to vLLM: --vllm-flag=--quantization=fp8.",
)


def vllm_options(command: F) -> F:
    """Adds the options that have a model server started."""
    return click.option(
        "--vllm",
        metavar="MODEL|PRESET",
        help=(
            "Start vLLM with this model here and stop it at the end, instead of --llm-url and --model; `memecourt"
            " vllm --preset list` lists presets."
        ),
    )(_vllm_flag(command))


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
    return models(_vllm_flag(command))


def vllm_choice(
    vllm: str | None, vllm_flags: tuple[str, ...], *, procedure: Procedure, llm_url: str | None, model: str | None
) -> VllmChoice | None:
    """The vLLM that the options ask for; None where they ask for none.

    Raises:
        BadRequest: A setting of the server can't be used.
        click.UsageError: The options don't go together.
    """
    from eval.models.vllm_session import VllmChoice
    from serving.models.presets import AUTO, vllm_settings

    if vllm is None:
        if vllm_flags:
            raise click.UsageError("--vllm-flag goes with --vllm.")
        return None
    if llm_url or model:
        raise click.UsageError("--vllm starts a model server; leave --llm-url and --model out with it.")
    if procedure == "SUMMARY":
        raise click.UsageError("--vllm starts a model server, and the procedure summary asks none: give --procedure.")
    if vllm != AUTO:
        vllm_settings(vllm, flags=vllm_flags)  # what is wrong is said before anything is prepared
    return VllmChoice(vllm, vllm_flags)


def study_options(*, procedure: str, split: str) -> Callable[[F], F]:
    """Options that say what is judged and how, with these defaults."""
    options = (
        click.option("--dataset", "dataset", required=True, help="Data set; `memecourt-eval datasets` lists them."),
        click.option(
            "--data",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            required=True,
            help="Folder of the data set.",
        ),
        click.option(
            "--out", type=click.Path(path_type=Path), required=True, metavar="STUDY", help="Folder to write to."
        ),
        click.option("--split", default=split, show_default=True, help="Split of the data set."),
        click.option(
            "--procedure",
            type=click.Choice(["summary", "full", "cascade"]),
            default=procedure,
            show_default=True,
            help="Procedure of the trials.",
        ),
        click.option(
            "--protocol", help="Protocols that map labels to two classes, separated by commas. [default: all]"
        ),
        click.option("--limit", type=click.IntRange(1), help="Judge a sample of this size, stratified by label."),
        click.option(
            "--seed",
            default=0,
            show_default=True,
            type=click.IntRange(0),
            help="Seed of the sample, the controls and the bootstrap.",
        ),
        click.option(
            "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="Maximum concurrent trials."
        ),
        click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Setting of all trials. Repeatable."),
        click.option("--llm-url", metavar="URL", help="Chat-completions server for full trials (…/v1)."),
        click.option("--model", help="Model to use on that server."),
        vllm_options,
        click.option(
            "--encoder",
            metavar="NAME",
            help=(
                "Encoder of the precedents, as for `memecourt precedents build`. [default: MEMECOURT_ENCODER, else "
                "builtin]"
            ),
        ),
        click.option(
            "--server-name",
            default="",
            metavar="NAME",
            help=(
                "Name of the model servers in the call store, so that a server keeps its stored calls when its "
                "address changes."
            ),
        ),
        click.option(
            "--drop-precedents",
            is_flag=True,
            help="With --protocol extreme: use memes that it drops neither as precedents nor for judging.",
        ),
        click.option("--templates-apart", is_flag=True, help=TEMPLATES_APART),
        click.option("--language", metavar="TAG|detect|card", help=LANGUAGE),
        click.option("--allow-missing", is_flag=True, help="Count memes without a picture as failed and go on."),
        patience_option,
        click.option("--retry-failed", is_flag=True, help="Retry memes that failed for a transient reason."),
    )

    return with_options(*options)


def study_of(
    kind: str,
    arms: tuple[Arm, ...],
    *,
    dataset: str,
    data: Path,
    out: Path,
    split: str,
    procedure: str,
    protocol: str | None,
    limit: int | None,
    seed: int,
    concurrency: int,
    sets: tuple[str, ...],
    llm_url: str | None,
    model: str | None,
    vllm: str | None,
    vllm_flags: tuple[str, ...],
    encoder: str | None,
    server_name: str,
    drop_precedents: bool,
    templates_apart: bool,
    language: str | None,
    allow_missing: bool,
    patience: float,
    retry_failed: bool,
) -> Study:
    """The study that the options ask for.

    Raises:
        BadRequest: A setting is none, or an arm needs two model servers at once where one is started.
        click.ClickException: The settings can't be used, or there is no such data set or protocol.
    """
    from court.events import Procedure
    from eval.models.vllm_session import SERVER
    from eval.studies.arms import Study, parse_setting
    from serving.cli.common import settings_of

    known = dataset_of(dataset)
    judged, apart = split_of(known, split)
    llm = {name: value for name, value in (("url", llm_url), ("model", model)) if value}
    chosen = vllm_choice(vllm, vllm_flags, procedure=Procedure(procedure.upper()), llm_url=llm_url, model=model)
    settings = settings_of(trial=dict(parse_setting(one) for one in sets) or None, llm=llm or None, encoder=encoder)
    return Study(
        out=out,
        kind=kind,
        dataset=known,
        data=data,
        split=judged,
        procedure=Procedure(procedure.upper()),
        protocols=protocols_of(protocol, known.protocols),
        settings=settings,
        arms=arms,
        limit=limit,
        seed=seed,
        concurrency=concurrency,
        command=command_line(),
        server=server_name or (SERVER if chosen else ""),
        drop_precedents=drop_precedents,
        templates_apart=templates_apart or apart,
        language=tag_of(language),
        allow_missing=allow_missing,
        patience_s=60 * patience,
        retry_failed=retry_failed,
        vllm=chosen,
    )


def run_arms(study: Study) -> tuple[RunFolder, ...]:
    """Runs the arms of a study and shows how far it is; Ctrl-C leaves it so that the same call goes on.

    Raises:
        CourtError: The study can't be run; see :func:`eval.studies.arms.run_study`.
    """
    from eval.studies.arms import run_study

    return run_watched(lambda progress: run_study(study, progress))


def run_watched(
    work: Callable[[Progress], Coroutine[Any, Any, T]],
    goes_on: Callable[[], str] = lambda: "the same command goes on.",
    unfinished: Callable[[str], object] = lambda _: None,
) -> T:
    """Works on a session and shows how far it is; ends the command if the session is interrupted or unfinished.

    Args:
        work: Work to do; it reports its progress.
        goes_on: Returns words on how the session is resumed.
        unfinished: Called with the reason why some items have no answer yet, before the command ends.
    """
    import sys

    from court.errors import Unavailable
    from eval.session.engine import SERVER_GONE, UNFINISHED
    from eval.session.progress import watching
    from serving.cli.common import Interrupted, run_until_signal

    try:
        # The bar is closed before messages are written.
        with watching(say) as progress:
            return run_until_signal(work(progress))
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
