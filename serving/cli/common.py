"""Shared parts of the commands: options, exit codes, errors, and text that is safe to print."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import math
import os
import shutil
import signal
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from court.display import split_hidden
from court.errors import BadRequest, CourtError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from retrieval.library.postgres.address import Address
    from serving.docket.open import Docket
    from serving.docket.review.queue import ReviewQueue
    from serving.settings import Settings


P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE, NEW_FILE = (click.Path(path_type=Path, dir_okay=False, exists=there) for there in (True, False))
FOLDER, NEW_FOLDER = (click.Path(path_type=Path, file_okay=False, exists=there) for there in (True, False))

# Exit codes of decisions avoid 1 and 2, which mean errors and wrong usage for every command.
EXIT_ALLOW = 0
EXIT_ERROR = 1
EXIT_BLOCK = 10
EXIT_UNDECIDED = 11
EXIT_REVIEW = 12


class Unchecked(click.ClickException):
    """An error that ends with 2, where 1 says that something was found."""

    exit_code = 2


class CheckingGroup(click.Group):
    """Commands of which 1 says that something was found."""

    def invoke(self, ctx: click.Context) -> Any:
        """See the base class. An error of the court or of the command ends with 2."""
        try:
            return super().invoke(ctx)
        except (CourtError, click.ClickException) as error:
            if getattr(error, "exit_code", 1) != 1:
                raise
            raise Unchecked(error.message) from None


class FiniteRange(click.FloatRange):
    """A number within bounds that also rejects NaN and infinity, unlike click's own range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parses the number; fails if it is not finite."""
        # Before the range check, which NaN would pass since all comparisons with it are false.
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return float(super().convert(number, param, ctx))


def _library_place(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Parses a path, but keeps a database address as is: as a path, its double slash would become one."""
    from retrieval.library.postgres.address import Address

    return value if value is None or Address.named_by(value) else changed_place(context, parameter, value)


def changed_place(_: click.Context, __: click.Parameter, value: str) -> Path | Address:
    """Parses the path or database address of a library to change, or of a docket."""
    from retrieval.library.postgres.address import place_of

    return place_of(value)


def docket_place_in(context: click.Context, parameter: click.Parameter, value: str | None) -> Path | Address | None:
    """Parses a docket's place to an Address object, which hides the password when displayed."""
    if value is None:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        # Bytes that the shell could not decode arrive as surrogates, which SQLite accepts in no path.
        raise click.BadParameter("The name of a docket must be text in UTF-8.", context, parameter) from None
    return changed_place(context, parameter, value)


def place_on_disk(instead: str) -> Callable[[click.Context, click.Parameter, str], Path]:
    """Builds a parser for libraries that must be on disk.

    For one in a database the error says what to do ``instead``.
    """

    def callback(context: click.Context, _: click.Parameter, value: str) -> Path:
        from retrieval.library.postgres.address import Address

        if Address.named_by(value):
            raise click.ClickException(
                f"`{context.info_name}` is for libraries on disk, and this is the address of a database. {instead}"
            )
        return Path(value)

    return callback


library_option = click.option(
    "--library",
    metavar="PATH",
    callback=_library_place,
    help=(
        "Library of precedents: a folder or postgresql://USER@HOST/DATABASE. [default: MEMECOURT_LIBRARY, "
        "else the starter library]"
    ),
)
reader_option = click.option(
    "--reader",
    metavar="NAME",
    help=(
        "Text reader: rapidocr[:LANGUAGE], the http://HOST:PORT/ocr of a server, or none. [default: "
        "MEMECOURT_READER, else rapidocr]"
    ),
)
insecure_option = click.option(
    "--insecure",
    multiple=True,
    type=click.Choice(["tls", "auth"]),
    callback=lambda context, parameter, value: value or None,
    help="Listen beyond loopback without TLS or tokens, for use behind a proxy that provides them.",
)
docket_option = click.option(
    "--docket",
    metavar="PATH",
    callback=docket_place_in,
    help=(
        "Docket of the records: a file or postgresql://USER@HOST/DATABASE. [default: MEMECOURT_DOCKET, else "
        "in MEMECOURT_HOME]"
    ),
)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Decorates a command with options that several commands have; ``--help`` lists them in this order."""

    def decorated(command: F) -> F:
        # Click lists options from the last decorator to the first.
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say how a server is reached by TLS.

    The command gets all of them as one argument ``tls``: a :class:`memecourt.client.Tls`, or None without TLS.
    """

    @functools.wraps(command)
    def with_tls(
        *args: Any,
        tls: bool,
        server_ca: Path | None,
        server_name: str,
        certificate: Path | None,
        key: Path | None,
        **others: Any,
    ) -> Any:
        from memecourt.client import Tls

        wanted = tls or server_ca or server_name or certificate or key
        try:
            own_tls = Tls(server_ca, certificate, key, server_name=server_name) if wanted else None
        except ValueError as error:
            raise click.UsageError(f"{error}".capitalize() + ".") from None
        return command(*args, tls=own_tls, **others)

    options = (
        click.option("--tls", is_flag=True, help="Connect with TLS; implied by the options below."),
        click.option("--server-ca", type=FILE, help="Trust this certificate (PEM) as the server's, and no other."),
        click.option(
            "--server-name", default="", help="Name in the server's certificate, if it differs from the address."
        ),
        click.option(
            "--certificate", type=FILE, help="Client certificate (PEM), if the server requires one; needs --key."
        ),
        click.option("--key", type=FILE, help="Private key of the client certificate (PEM)."),
    )
    return with_options(*options)(with_tls)


def require_text(most: int, *, needed: bool = True) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Builds a check of what goes into a record: text of at most ``most`` characters, not empty if ``needed``."""

    def callback(_: click.Context, __: click.Parameter, value: Any) -> Any:
        for text in value if isinstance(value, tuple) else () if value is None else (value,):
            # Bytes that the shell could not decode arrive as surrogates, which no database accepts.
            if (needed and not text.strip()) or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise click.BadParameter("it is empty, or no text.")
            if len(text) > most:
                raise click.BadParameter(f"it has {len(text):,} characters; at most {most:,} are taken.")
        return value

    return callback


# The same limits as over gRPC (serving/rpc/convert.py).
MOST_ID, MOST_WHO, MOST_WHY = 200, 200, 2000
trial_argument = click.argument("trial_id", metavar="ID", callback=require_text(MOST_ID))


def trial_options(command: F) -> F:
    """Options that say how a trial is held, and by which models."""
    how = click.option("--procedure", type=click.Choice(["summary", "full", "cascade"]), help="Procedure of the trial.")
    return how(settled_trial_options(command))


def settled_trial_options(command: F) -> F:
    """The options of :func:`trial_options` for trials whose procedure is settled."""
    options = (
        click.option(
            "--llm-url",
            metavar="URL[,URL…]",
            help="Chat-completions server for full trials (…/v1). Several servers of one model share the trials.",
        ),
        click.option("--model", help="Model to use on that server. The settings file can name one per role."),
        click.option(
            "--max-tokens", type=int, help="Maximum tokens of a model's reply. [default: from trial.reply_chars]"
        ),
        click.option(
            "--thinking",
            metavar="off|on|TOKENS",
            help='Let models think before they reply, for at most this many tokens; "on" means 4,096. [default: off]',
        ),
        click.option(
            "--risk",
            "review_risk",
            type=FiniteRange(0, 1, min_open=True, max_open=True),
            help="Share of unreviewed labels of summary trials that may be wrong. [default: 0.1]",
        ),
        click.option(
            "--review-rate",
            type=FiniteRange(0, 1),
            help="Share of memes to send to review, riskiest first, instead of --risk; 0 sends none for risk.",
        ),
        click.option(
            "--harm-cost",
            type=FiniteRange(0.01, 100),
            help="Cost of a missed harmful meme in false alarms, in a summary trial. [default: 1]",
        ),
        click.option("--prompts", metavar="SET", help="Prompt set: a packaged version or a folder."),
        click.option("--policy", type=PATH, help="Policy file (TOML)."),
        click.option(
            "--audition", type=FILE, help="Calibration of full verdicts (`memecourt-eval audition --calibrate`)."
        ),
        click.option(
            "--without",
            multiple=True,
            type=click.Choice(["precedents", "advocates", "captioner"]),
            help="Leave out a part of the full trial, to measure its contribution.",
        ),
        click.option("--dull-judge", is_flag=True, default=None, help="Make one call of the Judge with only the meme."),
        click.option(
            "--stance-at", type=click.Choice(["start", "summary"]), help="Point at which an advocate learns its side."
        ),
    )
    return with_options(*options)(command)


_OF_TRIAL = ("review_risk", "review_rate", "harm_cost", "prompts", "dull_judge", "stance_at")
"""Options that are settings of a trial, of the same name."""


def trial_settings(
    *,
    procedure: str | None = None,
    llm_url: str | None = None,
    model: str | None = None,
    max_tokens: int | None = None,
    thinking: str | None = None,
    policy: Path | None = None,
    audition: Path | None = None,
    without: tuple[str, ...] = (),
    **named: Any,
) -> dict[str, Any]:
    """Turns the values of :func:`trial_options` into settings, leaving out absent ones; others are settings as is."""
    # Absent ones are left out rather than set to a default, which would override the file and the environment.
    trial: dict[str, Any] = dict.fromkeys(without, False)
    trial |= {name: value for name in _OF_TRIAL if (value := named.pop(name, None)) is not None}
    llm_options = {"url": llm_url, "model": model, "max_tokens": max_tokens, "thinking": thinking}
    llm = {name: value for name, value in llm_options.items() if value is not None}
    values = {
        "procedure": procedure.upper() if procedure else None,
        "policy": policy,
        "audition": audition,
        "trial": trial,
        "llm": llm,
        **named,
    }
    return {name: value for name, value in values.items() if value is not None and value != {}}


def settings_of(**values: Any) -> Settings:
    """Returns the settings from the file and the environment, overridden by options."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from serving.settings import Settings

    _warn_of_misspelled()
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except SettingsError as error:
        # The library names only the setting, neither the variable nor the problem.
        name = str(error).partition('"')[2].partition('"')[0]
        raise click.ClickException(
            f"Settings can't be used: {name}: the environment variable MEMECOURT_{name.upper()}, or one whose name "
            "goes on after that with __, is no JSON"
        ) from None
    except ValidationError as error:
        # Names and reasons only, since a value from the environment may be a secret.
        faults = "; ".join(
            ": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, "))))
            for e in error.errors(include_input=False)
        )
        raise click.ClickException(f"Settings can't be used: {faults}") from None


_PREFIX = "memecourt_"
_OTHERS = ("token", "config", "encoder_weights", "queue", "queue_metrics", "reader_models_url", "traceback")
"""Names of variables that are read elsewhere than in the settings, and have a likeness to one."""
_LIKENESS = 0.85
"""Of two names from 0 to 1, from which on one is taken for the other's misspelling. Below it, a variable is taken for
something that others put there, such as the ``MEMECOURT_SERVICE_HOST`` of Kubernetes."""


def misspelled_variables() -> dict[str, str]:
    """Returns variables without effect whose names are nearly a setting's, each with the variable of that setting.

    What follows a setting with ``__`` is checked with the settings, where an unknown name is an error.
    """
    from serving.settings import Settings

    names = tuple(_names_of(Settings))
    found = {}
    for variable in os.environ:
        name = variable.lower().removeprefix(_PREFIX)
        if name == variable.lower() or name in _OTHERS or name.partition("__")[0] in names:
            continue
        if near := difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS):
            found[variable] = f"{_PREFIX}{near[0]}".upper()
    return found


def _names_of(model: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield before + name
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
            yield from _names_of(field.annotation, f"{before}{name}__")


@functools.cache
def _warn_of_misspelled() -> None:
    """Warns once per process about environment variables that look like misspelled settings.

    Not an error, since the variables may have another purpose.
    """
    for variable, setting in misspelled_variables().items():
        tell(f"{variable} is no setting and has no effect. Did you mean {setting}?")


@asynccontextmanager
async def docket_in(settings: Settings) -> AsyncIterator[Docket]:
    """Opens the docket that the settings name, which must exist."""
    from serving.docket.open import open_docket

    docket = await asyncio.to_thread(lambda: open_docket(settings, create=False))
    try:
        yield docket
    finally:
        await docket.close()


async def caught_up(docket: Docket, settings: Settings) -> ReviewQueue:
    """Returns the review queue once it has read the whole log; for a large docket it takes several calls."""
    from serving.wiring import rules_of

    queue = docket.review_queue(rules_of(settings))
    while not await queue.catch_up():
        pass
    return queue


async def whole_id(docket: Docket, beginning: str) -> str:
    """Returns the id of the one trial that begins so; the text itself if there is none.

    Raises:
        BadRequest: Several trials begin so.
    """
    ids = await docket.index.ids(beginning, 2)
    # An id may be the beginning of another one: the first in order is then meant.
    if len(ids) > 1 and ids[0] != beginning:
        raise BadRequest(f"Several trials begin with {printable(beginning)}. Give more of the id.", field="trial_id")
    return ids[0] if ids else beginning


class Interrupted(KeyboardInterrupt):
    """A signal told the command to end.

    Attributes:
        exit_code: Exit code of a command that a signal ended: 130 for SIGINT, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def awaited(command: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorates a command that is a coroutine, so that it is run by :func:`run`.

    One that asks a question is none: while an event loop waits for signals, Ctrl-C would not end the question.
    """

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(command(*args, **kwargs))

    return call


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's work until it is done, or SIGINT or SIGTERM comes.

    A signal cancels the work, which finishes and records what it has started. Servers install their own signal
    handlers.

    Raises:
        Interrupted: A signal came, and the work has ended.
    """
    received: list[int] = []

    async def interruptible() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            # Not available outside the main thread or without such signals; the caller then has to end it.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, stop, number)
        return await work

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        # Cancelled by something other than a signal.
        if not received:
            raise
        raise Interrupted(received[0]) from None


def tell(sentence: str) -> None:
    """Prints a message about a slow step to standard error."""
    click.echo(sentence, err=True)


def printable(text: str) -> str:
    """Escapes untrusted text for a terminal: control, bidirectional and other invisible characters become visible.

    Each is shown as its code point; line breaks and tabs are kept.
    """
    return "".join(f"<{piece}>" if hidden else piece for piece, hidden in split_hidden(text))


def excerpt(text: str, most: int = 60) -> str:
    """Returns one printable line of at most ``most`` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def paragraph(text: str, indent: str = "  ") -> str:
    """Returns printable text, wrapped to the terminal and indented; its line breaks are kept."""
    # Bounded, so that narrow terminals fit some words, and lines in wide ones stay readable.
    width = max(40, min(100, shutil.get_terminal_size().columns))
    return "\n".join(
        textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent) if line.strip() else ""
        for line in printable(text).splitlines()
    )
