"""Options that several commands offer, what these make of them, and the plan of those that judge a split."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
from pydantic import Field

from court.errors import BadRequest, Unavailable
from court.events import Procedure
from court.meme import checked_language
from eval.datasets.card import DatasetCard
from eval.datasets.items import Protocol
from eval.datasets.known import find_card, recognised
from eval.datasets.plain_table import PlainTable, read_plain_table
from eval.datasets.read import CARD, DETECT
from eval.models.vllm_session import SERVER, VllmChoice
from eval.reports.sections import Section, as_page, as_text
from eval.runs.held_out import with_test_share
from eval.runs.plan import Plan, parse_setting
from eval.runs.results import Results
from eval.runs.spec import Circumstances, JudgingSpec
from eval.session.engine import SERVER_GONE, UNFINISHED, Progress, watching
from eval.session.spec import Option, flags_of, spec_options
from serving.access.private_files import hand_on
from serving.cli.common import NEW_FILE, PATH, FiniteRange, Interrupted, run, settings_of, with_options
from serving.models.presets import AUTO, vllm_settings
from serving.presets import load_preset
from serving.settings import Settings


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


json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
html_option = click.option("--html", type=NEW_FILE, help="Write an HTML page to this file.")
seed_option = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of draws and of the bootstrap."
)
protocol_option = click.option(
    "--protocol", help="Protocols that map labels to two classes, separated by commas. [default: all that there are]"
)
runs_argument = click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Answer of a command: sections for people, and the same figures for programs."""

    title: str
    lead: Sequence[str] = ()
    sections: Sequence[Section]
    figures: Mapping[str, Any]
    page: Path | None = None
    """Page that is written in any case."""
    command: str = ""
    """Command that the page names; the present one if empty."""
    links: Sequence[tuple[str, str]] = ()
    end: Sequence[str] = ()
    """Lines below the sections, in a terminal alone."""
    exit_code: int = 0


def write_answer(answer: Shown, page: Path) -> None:
    """Writes sections as a page."""
    command = answer.command or command_line()
    write_page(page, as_page(answer.title, answer.lead, answer.sections, command=command, links=answer.links))


def shows_sections(*, page: bool = True) -> Callable[[Callable[..., Shown | None]], Callable[..., None]]:
    """Adds ``--json``, and ``--html`` for a page, to a command that returns what is to be shown, if anything."""

    def decorate(command: Callable[..., Shown | None]) -> Callable[..., None]:
        @wraps(command)
        def shown(*arguments: Any, as_json: bool, html: Path | None = None, **options: Any) -> None:
            if (answer := command(*arguments, **options)) is None:
                return
            if page := html or answer.page:
                write_answer(answer, page)
            end = answer.end or ([f"{answer.page} shows it."] if answer.page else [])
            text = "\n".join([as_text(answer.lead, answer.sections), *end])
            click.echo(json.dumps(answer.figures, default=asdict) if as_json else text)
            click.get_current_context().exit(answer.exit_code)

        return with_options(*([html_option] if page else []), json_option)(shown)

    return decorate


def words_in(text: str | None) -> tuple[str, ...]:
    """Words that are given as one option, separated by commas."""
    return tuple(filter(None, (word.strip() for word in (text or "").split(","))))


def confirm(*, yes: bool) -> None:
    """Asks a person at a terminal whether to begin; in a job nobody could answer."""
    if not yes and sys.stdin.isatty():
        click.confirm("Begin?", abort=True, err=True)


def take_published(context: click.Context, options: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets options to a paper's values where ``--as-published`` asks for it; those that were named stay."""
    for name, value in values.items() if options["as_published"] else ():
        # Not by the value: whoever names the default means it.
        if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            options[name] = value


T = TypeVar("T")

# Neither 1 nor 2, which click uses for errors: a script can tell that the same command is to be called again.
EXIT_UNFINISHED = 3


def dataset_of(id_: str) -> DatasetCard:
    """The data set of this id or card. Raises click.UsageError, which names those that there are."""
    try:
        return find_card(id_)
    except BadRequest as error:
        raise click.UsageError(error.message) from None


def dataset_in(data: Path, id_: str | None) -> DatasetCard:
    """The data set that is named, or the only one in a directory. Raises click.UsageError if there are several."""
    if id_:
        return dataset_of(id_)
    found = recognised(data)
    if len(found) > 1:
        raise click.UsageError(f"There are {', '.join(one.id for one in found)} there: name one with --dataset.")
    return found[0]


def protocols_of(text: str | None, offered: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Protocols as they are given on the command line, parted by commas; all that are offered where none is.

    Raises click.UsageError: One is unknown, or not offered.
    """
    if text is None:
        return offered
    names = words_in(text)
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


patience_option = click.option(
    "--patience",
    default=10.0,
    show_default=True,
    type=FiniteRange(0),
    metavar="MINUTES",
    help="Minutes that a meme waits for a busy or absent model server.",
)


def run_watched(work: Callable[[Progress], Coroutine[Any, Any, T]]) -> T:
    """Works on a session and shows how far it is; ends the command if the session is interrupted or unfinished."""
    try:
        # The bar is closed before messages are written.
        with watching(say) as progress:
            return run(work(progress))
    except Interrupted as error:
        say("Interrupted. All answers so far are stored: the same command goes on.")
        sys.exit(error.exit_code)
    except Unavailable as error:
        # Anything else that is unavailable will not come back by itself, and is an error.
        if error.reason not in (SERVER_GONE, UNFINISHED):
            raise
        say(f"Not finished. {error.message} All answers so far are stored: the same command goes on.")
        sys.exit(EXIT_UNFINISHED)


def say(line: str) -> None:
    """On standard error: figures are what stands on standard output."""
    click.echo(line, err=True)


TEMPLATE_SPLIT = "template"
"""Split of every data set: its first test split, with no precedent on the template of a judged meme."""


@dataclass(frozen=True, kw_only=True)
class CourtOptions:
    """Options that set up the court."""

    settings: Annotated[
        tuple[str, ...], Option("Setting of trials, such as rounds_max=6. Repeatable.", "--set", "NAME=VALUE")
    ] = ()
    config: Annotated[Path | None, Option("Settings file (TOML).", exists=True)] = None
    preset: Annotated[
        str | None, Option("Preset of settings, such as as-published; other options override it.", metavar="NAME")
    ] = None
    llm_url: Annotated[str | None, Option("Chat-completions server (…/v1).", metavar="URL")] = None
    model: Annotated[
        str | None, Option("Model to use on that server. The settings file can name one per role.", metavar="NAME")
    ] = None
    vllm: Annotated[
        str | None,
        Option(
            "Start vLLM with this model here and stop it at the end, instead of --llm-url and --model; `memecourt vllm "
            "--preset list` lists presets.",
            metavar="MODEL|PRESET",
        ),
    ] = None
    vllm_flags: Annotated[
        tuple[str, ...], Option("Pass a flag to vLLM: --vllm-flag=--quantization=fp8.", "--vllm-flag", "FLAG")
    ] = ()
    policy: Annotated[Path | None, Option("Policy file (TOML).")] = None
    encoder: Annotated[
        str | None,
        Option(
            "Encoder of the precedents, as for `memecourt precedents build`; near-duplicates are always found with the "
            "built-in one. [default: MEMECOURT_ENCODER, else that of --library, else builtin]",
            metavar="NAME",
        ),
    ] = None

    def settings_with(self, trial: Mapping[str, Any]) -> Settings:
        """The settings of file, environment and options, with these of trials."""
        if self.config:
            os.environ["MEMECOURT_CONFIG"] = str(self.config)  # where Settings looks for it
        llm = {name: value for name, value in (("url", self.llm_url), ("model", self.model)) if value is not None}
        # None in place of empty tables, so that what the file and the environment say is not overlaid.
        own = {"trial": dict(trial) or None, "llm": llm or None, "policy": self.policy, "encoder": self.encoder}
        if self.preset is None:
            return settings_of(**own)
        settings = settings_of(**load_preset(self.preset).settings(**own))
        # A paper's court has one model, whatever else the user's file names: no panel, no guard, no role's own.
        cleared: dict[str, Any] = {"judges": (), "guard": None, "roles": {}}
        return settings.model_copy(update={"llm": settings.llm.model_copy(update=cleared)})

    def started(self, procedure: Procedure) -> VllmChoice | None:
        """The vLLM to start, if any. Raises BadRequest or click.UsageError for settings or options that don't fit."""
        if self.vllm is None:
            if self.vllm_flags:
                raise click.UsageError("--vllm-flag goes with --vllm.")
            return None
        if self.llm_url or self.model:
            raise click.UsageError("--vllm starts a model server; leave --llm-url and --model out with it.")
        if procedure == "SUMMARY":
            raise click.UsageError(
                "--vllm starts a model server, and the procedure summary asks none: give --procedure."
            )
        if self.vllm != AUTO:
            vllm_settings(self.vllm, flags=self.vllm_flags)  # what is wrong is said before anything is prepared
        return VllmChoice(self.vllm, self.vllm_flags)


@dataclass(frozen=True, kw_only=True)
class TableWords:
    """Options that say how a plain table is read."""

    columns: Annotated[
        tuple[str, ...],
        Option(
            "Column of a field (id, picture, text, label, split, language, group), if --data is a table. Repeatable.",
            "--column",
            "FIELD=NAME",
        ),
    ] = ()
    harmful: Annotated[
        str, Option("Labels of the table that are harmful; all others are benign.", metavar="LABEL,LABEL")
    ] = ""
    pictures: Annotated[
        Path | None,
        Option("Folder of the table's pictures. [default: the table's own, and those below it]", metavar="FOLDER"),
    ] = None
    test_share: Annotated[
        float | None,
        Field(gt=0, lt=1),
        Option("Share of the table's memes to draw as its test split; near-duplicates stay together."),
    ] = None


def table_of(options: Mapping[str, Any], *, two_sided: bool = True) -> PlainTable:
    """The plain table that ``--data`` names, which is said. Raises BadRequest if it can't be read."""
    words = (options["columns"], options["harmful"] or "", options["pictures"])
    table = read_plain_table(options["data"], *words, two_sided=two_sided)
    for note in table.notes:
        say(note)
    return table


def refuse_table_words(options: Mapping[str, Any]) -> None:
    """Raises click.UsageError if an option says how a plain table is read: of a data set they would change nothing."""
    if flags := [flag for name, flag in flags_of(TableWords).items() if options.get(name)]:
        raise click.UsageError(f"{', '.join(flags)} go with a plain table, and no --dataset.")


def with_table(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the plan that a plain table in ``--data`` gives: its data set and folder; none with ``--dataset``.

    Raises BadRequest or click.UsageError: The table can't be read, or doesn't say which of its memes are judged.
    """
    data = options["data"]
    if options["dataset"]:
        refuse_table_words(options)
        return {}
    if data.is_dir():
        raise click.UsageError("Missing option --dataset: a data set or card; or name a table with --data FILE.")
    table = table_of(options)
    card, share = table.card, options["test_share"]
    if share is not None:
        card = run_watched(lambda progress: with_test_share(table, share, options.get("seed") or 0, progress))
    # With precedents from elsewhere all memes are judged.
    elif not table.is_divided and options.get("library") is None:
        raise click.UsageError(
            f"{data.name} doesn't say which of its memes are judged, and which become precedents: give --test-share "
            ".2, or name a column with both splits: --column split=NAME. Where --library gives the precedents, all its "
            "memes are judged."
        )
    return {"dataset": card, "data": table.data}


def court_options(**changed: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options that set up the court, with these changes, and tell how long a meme waits for it."""
    return with_options(spec_options(CourtOptions, with_defaults=False, **changed), patience_option)


def study_options(*, procedure: str, split: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of a study: what is judged, and how, with these defaults."""
    required = {"required": True}
    return with_options(
        spec_options(
            JudgingSpec,
            dataset=required,
            split={"default": split},
            procedure={"default": procedure},
            seed={"default": 0},
        ),
        spec_options(
            Circumstances,
            *("data", "out", "concurrency", "calls", "allow_missing"),
            data=required,
            out={"required": True, "metavar": "STUDY"},
        ),
        court_options(),
    )


def plan_of(options: Mapping[str, Any], trial: Mapping[str, Any] | None = None, **own: Any) -> Plan:
    """The plan that options ask for. Raises BadRequest or click.ClickException where one can't be used."""
    court = CourtOptions(**{one.name: options[one.name] for one in fields(CourtOptions) if one.name in options})
    dataset: DatasetCard = own.get("dataset") or dataset_of(options["dataset"])
    procedure = Procedure(own.get("procedure") or (options.get("procedure") or "summary").upper())
    split = own.get("split") or options.get("split") or dataset.first_test()
    if apart := split == TEMPLATE_SPLIT and split not in {one.name for one in dataset.splits}:
        split = dataset.first_test()
    same = {one.name for one in fields(Plan)} - {"dataset", "settings", "vllm"}
    values = {name: value for name, value in options.items() if name in same and value not in (None, "")}
    language, started = options.get("language") or "", court.started(procedure)
    planned: dict[str, Any] = {
        "name": options["out"].resolve().name if options.get("out") else "",  # a folder may be named by a point alone
        "concurrency": 4 if procedure == "SUMMARY" else 16,  # without a model, this machine's processors are the limit
        "command": command_line(),
        # A vLLM that is started here has one name in the store of calls, whatever its address is.
        "server": SERVER if started else "",
        **values,
        "dataset": dataset,
        "split": split,
        "procedure": procedure,
        "language": language if language in (DETECT, CARD) else checked_language(language, "language"),
        "templates_apart": apart,
        "patience_s": 60 * options["patience"],
        "vllm": started,
        **own,
    }
    if "settings" not in own:
        named = dict(parse_setting(one) for one in court.settings) if trial is None else trial
        planned["settings"] = court.settings_with(named)
    if "protocols" not in own:
        planned["protocols"] = protocols_of(options.get("protocols"), dataset.protocols)
    return Plan(**planned)
