"""``memecourt judge``: pictures, or a text alone, in; verdicts out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from google.protobuf.json_format import MessageToDict

from court.deadline import cancel_all
from court.display import CLOSE_CALL, shown_score
from court.errors import CourtError
from memecourt.client import MESSAGE_BYTES, AsyncClient, JudgeError, Tls, judge_request
from memecourt.result import Decision, Label, Result
from memecourt.v1 import court_pb2 as wire
from serving.cli.common import (
    EXIT_ALLOW,
    EXIT_BLOCK,
    EXIT_ERROR,
    EXIT_REVIEW,
    EXIT_UNDECIDED,
    FiniteRange,
    Interrupted,
    docket_option,
    excerpt,
    library_option,
    paragraph,
    reader_option,
    run,
    settings_of,
    tell,
    tls_options,
    trial_options,
    trial_settings,
)

if TYPE_CHECKING:
    from retrieval.library.postgres.address import Address
    from serving.settings import Settings

_TEXT_ALONE = "the text"
"""Name of a meme without a picture in the output."""
_AT_ONCE = 8  # pictures on their way at once: enough to keep every worker busy, few enough to hold in memory


@dataclass(frozen=True, slots=True)
class JudgeFailure:
    """Failure of one meme: a message for people, and a stable reason."""

    message: str
    reason: str

    def as_json(self) -> dict[str, str]:
        """Returns it for JSON."""
        return {"message": self.message, "reason": self.reason}


_GRAVEST_FIRST = (EXIT_ERROR, EXIT_BLOCK, EXIT_REVIEW, EXIT_UNDECIDED, EXIT_ALLOW)
_EXITS = {Decision.ALLOW: EXIT_ALLOW, Decision.BLOCK: EXIT_BLOCK, Decision.REVIEW: EXIT_REVIEW}
Judge = Callable[[wire.JudgeRequest], Awaitable[wire.JudgeResponse | JudgeFailure]]


@click.command()
@click.argument("pictures", nargs=-1, type=click.Path(path_type=Path, allow_dash=True), metavar="[PICTURE…]")
@click.option(
    "--text",
    help=(
        'Text of the meme ("" if it has none). Without this option the text is read off the picture; without '
        "a picture the text is judged alone."
    ),
)
@click.option("--language", default="", help='BCP 47 tag of the text, such as "en".')
@click.option("--namespace", default="", help="Namespace that the content belongs to; stored in the record.")
@click.option(
    "--server", metavar="ADDRESS", help="Send the memes to the server at host:port instead of judging them here."
)
@click.option(
    "--token", envvar="MEMECOURT_TOKEN", show_envvar=True, help="Bearer token for --server. Safer in the environment."
)
@tls_options
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    type=FiniteRange(0, min_open=True),
    help="Seconds allowed for one meme.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line and picture: the file, and its verdict or error.",
)
@click.option("--watch", is_flag=True, help="Show every event of the trial as it happens, on standard error.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 after any decision; an error still exits with 1.")
@trial_options
@reader_option
@library_option
@docket_option
def judge(
    pictures: tuple[Path, ...],
    text: str | None,
    language: str,
    namespace: str,
    server: str | None,
    token: str | None,
    tls: Tls | None,
    timeout: float,
    as_json: bool,
    watch: bool,
    exit_zero: bool,
    reader: str | None,
    library: Path | None,
    docket: Path | Address | None,
    **options: Any,
) -> None:
    """Judges memes: JPEG, PNG, WebP or GIF files, "-" for standard input; or --text alone.

    Exit code: 0 allow, 10 block, 12 review (a person should look), 11 undecided (nothing to go by: a person must
    decide), 1 error, 2 wrong usage. With several pictures the gravest counts: error, block, review, undecided, allow.
    """
    if not pictures and not (text and text.strip()):
        raise click.UsageError("Name a picture, or give a text to be judged alone: --text TEXT.")
    if text is not None and len(pictures) > 1:
        raise click.UsageError("--text is the text of one meme; give one picture with it.")
    procedure = options["procedure"]
    values = {"reader": reader, "library": library, "docket": docket, **trial_settings(**options)}
    if server and (watch or any(value for name, value in values.items() if name != "procedure")):
        raise click.UsageError("With --server, everything but --procedure is the server's to choose; leave it out.")
    if tls and not server:
        raise click.UsageError("--tls and certificates are for asking a server: give --server too.")
    if watch and len(pictures) > 1:
        raise click.UsageError("--watch shows one trial; give one picture with it.")
    if as_json and not sys.stdout.isatty():
        # In a pipe Python takes the locale's encoding, which may have no room for a meme's text; JSON is UTF-8.
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]

    def request_of(image: bytes | None) -> wire.JudgeRequest:
        return judge_request(
            image,
            text=text,
            language=language,
            procedure=wire.Procedure.Value(f"PROCEDURE_{(procedure or 'unspecified').upper()}"),
            namespace=namespace,
        )

    judges = (
        _there(server, timeout, tls, token)
        if server
        else judging_here(settings_of(**values), text=text, timeout=timeout, watch=watch)
    )
    where = f"  (on the server's machine, {server})" if server else ""
    exits = [EXIT_ALLOW]
    try:
        run(_judge_all(pictures, request_of, judges, exits=exits, as_json=as_json, where=where, docket=docket))
    except Interrupted as error:
        memes = f"{len(pictures):,} pictures" if pictures else "1 text"
        tell(
            f"Interrupted. {len(exits) - 1:,} of {memes} were judged; the trials of those on their way are recorded as "
            "cancelled."
        )
        sys.exit(error.exit_code)
    gravest = next(code for code in _GRAVEST_FIRST if code in exits)
    sys.exit(EXIT_ALLOW if exit_zero and gravest != EXIT_ERROR else gravest)


async def _judge_all(
    pictures: tuple[Path, ...],
    request_of: Callable[[bytes | None], wire.JudgeRequest],
    judges: Any,
    *,
    exits: list[int],
    as_json: bool,
    where: str,
    docket: Path | Address | None,
) -> None:
    """Judges several memes at a time, prints outcomes in the given order as they come, and collects the exit codes.

    Without a picture, one text is judged alone.
    """
    gate = asyncio.Semaphore(_AT_ONCE)
    if pictures and not any(str(path) == "-" or (path.is_file() and os.access(path, os.R_OK)) for path in pictures):
        judges = nullcontext()  # loading models takes long, and there is nothing to ask them
    async with judges as ask:

        async def one(path: Path | None) -> wire.JudgeResponse | JudgeFailure:
            async with gate:
                image = await asyncio.to_thread(_read, path) if path else None
                return image if isinstance(image, JudgeFailure) else await ask(request_of(image))

        memes = pictures or (None,)
        # All are begun at once; the gate bounds how many are read into memory.
        running = [asyncio.ensure_future(one(path)) for path in memes]
        for path, outcome in zip(memes, running, strict=True):
            try:
                answer = await outcome
            except asyncio.CancelledError:
                # Each trial ends by itself, and its record says that it was cancelled.
                await cancel_all(*running)
                raise
            # Noted before it is printed: it is also how many were judged, should a signal come.
            exits.append(_exit_of(answer))
            if as_json:
                part = (
                    {"error": answer.as_json()}
                    if isinstance(answer, JudgeFailure)
                    else {"verdict": MessageToDict(answer, preserving_proto_field_name=True)}
                )
                click.echo(json.dumps({"file": str(path) if path else None, **part}, ensure_ascii=False))
            elif isinstance(answer, JudgeFailure):
                click.echo(
                    f"{path or _TEXT_ALONE}: {click.style('error', fg='red', bold=True)}: {answer.message}", err=True
                )
            else:
                show_verdict(str(path or _TEXT_ALONE), answer, where=where, docket=docket)


@asynccontextmanager
async def _there(
    address: str,
    timeout: float,  # noqa: ASYNC109
    tls: Tls | None,
    token: str | None,
) -> AsyncIterator[Judge]:
    try:
        client = AsyncClient(address, tls=tls, token=token)
    except (ValueError, OSError) as error:
        # A token without TLS, or a file that can't be read.
        raise click.ClickException(str(error)) from None
    async with client:

        async def ask(request: wire.JudgeRequest) -> wire.JudgeResponse | JudgeFailure:
            try:
                return await client.ask(request, timeout=timeout)
            except JudgeError as error:
                return JudgeFailure(str(error), error.reason or error.code.name)

        yield ask


@asynccontextmanager
async def judging_here(
    settings: Settings,
    *,
    text: str | None = None,
    timeout: float,  # noqa: ASYNC109
    watch: bool,
) -> AsyncIterator[Judge]:
    """Yields a function that tries a meme in this process."""
    from court.events import Procedure
    from serving.cli.records import show_event
    from serving.models.connect import expected_trial
    from serving.rpc.convert import ask_of, response_of
    from serving.wiring import open_court

    async with open_court(settings, read_text=text is None, tell=tell) as executor:
        models = executor.court.role_models
        if models is not None and settings.procedure is not Procedure.SUMMARY and models.trial_s > timeout:
            tell(f"{expected_trial(models)} --timeout is {timeout:g} s: allow more.")
        if watch:
            executor.feed.subscribe(show_event)

        async def ask(request: wire.JudgeRequest) -> wire.JudgeResponse | JudgeFailure:
            try:
                trial_ask = ask_of(request, default=settings.procedure)
                result = await asyncio.wait_for(executor.run(trial_ask, within_s=timeout), timeout)
                # A person may have decided this content in an earlier trial.
                found = await executor.docket.findings.get(result.record.content)
                return response_of(replace(result, record=replace(result.record, found=found)))
            except TimeoutError:
                return JudgeFailure(f"There was no verdict within {timeout:g} s; --timeout allows more.", "TIMEOUT")
            except CourtError as error:
                return JudgeFailure(error.message, error.reason)

        yield ask


def _read(path: Path) -> bytes | JudgeFailure:
    """Reads a file, but no more of it than shows that it is too large."""
    try:
        if str(path) == "-":
            image = sys.stdin.buffer.read(MESSAGE_BYTES)
        else:
            with path.open("rb") as file:
                image = file.read(MESSAGE_BYTES)
    except OSError as error:
        return JudgeFailure(f"The file can't be read: {error.strerror}.", "FILE_UNREADABLE")
    # Refused here: beside a text, a file without bytes would be judged as that text alone.
    return image or JudgeFailure("The picture has no bytes. Send the file itself.", "PICTURE_EMPTY")


def _exit_of(answer: wire.JudgeResponse | JudgeFailure) -> int:
    if isinstance(answer, JudgeFailure):
        return EXIT_ERROR
    result = Result(answer)
    undecided = result.decision is Decision.REVIEW and result.label is Label.UNDECIDED
    return EXIT_UNDECIDED if undecided else _EXITS[result.decision]


_SOURCES = {wire.AUTHORITY_PERSON: "a person's finding", wire.AUTHORITY_PRECEDENT: "a binding precedent"}
_COLOURS = {Decision.BLOCK: "red", Decision.ALLOW: "green", Decision.REVIEW: "yellow"}
_MEANINGS = {
    wire.SCORE_MEANING_PRECEDENT_VOTE: "the precedents' calibrated vote",
    wire.SCORE_MEANING_LABEL_PROBABILITY: "the Judge's probability",
    wire.SCORE_MEANING_JUDGE_AND_VOTE: "the Judge's probability and the precedents' vote together",
}


def show_verdict(
    name: str, response: wire.JudgeResponse, *, where: str = "", docket: Path | Address | None = None
) -> None:
    """Prints a verdict for a person to read.

    Args:
        docket: Option that opens the record, if the docket is not in its usual place.
    """
    result = Result(response)
    decision = result.decision
    head = click.style(f" {decision.upper()} ", bold=True, reverse=True, fg=_COLOURS[decision])
    click.echo(f"{head}  {excerpt(name, 80)}")
    if response.in_force.by in _SOURCES:
        open_again = "; the case is open again" if response.in_force.contested else ""
        source = f"{_SOURCES[response.in_force.by]}: {label_name(response.in_force.label)}{open_again}"
        click.echo(f"  in force    {source}")
    click.echo(f"  verdict     {label_name(response.label)}")
    if response.HasField("harm_score"):
        meaning = _MEANINGS.get(response.harm_score_meaning, "a score that this client does not know")
        score = shown_score(response.harm_score, result.risk, harmful=result.label is Label.HARMFUL)
        click.echo(f"  harm score  {score:.2f} ({meaning})")
    if response.HasField("risk"):
        click.echo(f"  risk        {response.risk:.2f} (probability that the label is wrong)")
    if result.risk is not None and result.risk > CLOSE_CALL:
        click.echo("  evidence    a close call")
    elif response.HasField("strengths"):
        harmful, benign = (
            wire.Strength.Name(s).removeprefix("STRENGTH_").lower()
            for s in (response.strengths.harmful, response.strengths.benign)
        )
        click.echo(f"  evidence    of harm {harmful}, benign {benign}")
    if response.text.source != wire.TEXT_SOURCE_NONE:
        origin = "read off the picture" if response.text.source == wire.TEXT_SOURCE_OCR else "given"
        click.echo(f"  text        “{excerpt(response.text.text, 70)}” ({origin})")
    else:
        click.echo("  text        none")
    click.echo()
    click.echo(paragraph(response.rationale))
    click.echo()
    if response.precedents:
        click.echo("  precedents")
        for place, precedent in enumerate(response.precedents, 1):
            click.echo(f"  {place:>2}  {_precedent(precedent)}")
            click.echo(f"      “{excerpt(precedent.text, 80)}”")
        click.echo()
    for review in response.review_reasons:
        click.echo(click.style("  a person should look", bold=True))
        click.echo(paragraph(review.detail, "    "))
    for signal in response.signals:
        click.echo(paragraph(f"Less sure: {signal.detail}"))
    option = f" --docket {docket}" if docket else ""
    click.echo(f"  record      {this_command()} records show {response.verdict_id}{option}{where}")
    click.echo()


def label_name(label: wire.Label.ValueType) -> str:
    """Returns HARMFUL, NOT HARMFUL or UNDECIDED; a label that this client does not know counts as undecided."""
    names = {wire.LABEL_HARMFUL: "HARMFUL", wire.LABEL_NOT_HARMFUL: "NOT HARMFUL"}
    return names.get(label, "UNDECIDED")


def this_command() -> str:
    """Returns this command as it can be typed here: its path if it is not on the PATH."""
    if shutil.which("memecourt"):
        return "memecourt"
    called = Path(sys.argv[0])
    if called.name != "memecourt":
        return f"{Path(sys.executable).name} -m serving.cli"
    return str(called.relative_to(Path.cwd())) if called.is_relative_to(Path.cwd()) else str(called)


def _precedent(precedent: wire.Precedent) -> str:
    def similarity(name: str) -> str:
        return f"{getattr(precedent, name):5.2f}" if precedent.HasField(name) else "    –"  # type: ignore[arg-type]

    text, picture = similarity("text_similarity"), similarity("picture_similarity")
    categories = f"  {', '.join(map(excerpt, precedent.categories))}" if precedent.categories else ""
    same = {
        wire.RELATION_SAME_MEME: "  the same meme",
        wire.RELATION_SAME_PICTURE: "  the same picture",
        wire.RELATION_SAME_TEXT: "  the same text",
    }.get(precedent.relation, "")
    label = label_name(precedent.label).lower()
    return f"{excerpt(precedent.id, 40):<14} {label:<12} text {text}  picture {picture}{same}{categories}"
