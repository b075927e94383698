"""``memecourt records``: what was said in each trial, step by step."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from court.display import word
from court.errors import BadRequest
from court.events import AnyEvent
from court.flips import flips_of
from court.in_force import Authority
from court.precedents import Precedent
from court.question import read_question
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief
from court.trial import require_undecided
from retrieval.library.postgres.address import Address
from serving.cli.common import (
    MOST_ID,
    MOST_WHO,
    MOST_WHY,
    NEW_FILE,
    awaited,
    docket_in,
    docket_option,
    excerpt,
    library_option,
    paragraph,
    printable,
    require_text,
    settings_of,
    settled_trial_options,
    tell,
    trial_argument,
    trial_settings,
    whole_id,
)
from serving.cli.exports import export, search_argument, selected
from serving.docket.store.listing import DocketLine
from serving.views.event_text import Fact, Headline, Piece, Speech, flip_pieces, pieces_of, similarities

_INDENT = " " * 5


@click.group()
def records() -> None:
    """Lists trials, shows them step by step, and writes them to files."""


records.add_command(export)


@records.command("list")
@search_argument
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Number of trials to list.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line and trial.")
@click.option("--as", "form", type=click.Choice(["csv"]), help="Print a table with all columns instead.")
@docket_option
@awaited
async def list_records(
    search: tuple[str, ...], limit: int, as_json: bool, form: str | None, docket: Path | Address | None
) -> None:
    """Lists trials, newest first.

    SEARCH is what the console's search bar takes: words, ids and filters such as label:harmful or since:7d.
    """
    settings = settings_of(docket=docket)
    async with docket_in(settings) as store:
        which = await selected(store, settings, search)
        # No docket holds more, and no database takes a larger number.
        lines = await store.index.list(limit=min(limit, sys.maxsize), which=which)
    if form == "csv":
        rows = [_line_cells(line) for line in lines]
        table = csv.DictWriter(sys.stdout, rows[0] if rows else ["trial_id"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        return
    if lines and not as_json:
        click.echo(f"{'trial':<36}  {'opened':<20}  {'how':<8}{'decision':<9}{'verdict':<12}{'finding':<21}  content")
    for line in lines:
        if as_json:
            click.echo(json.dumps(_line_json(line)))
        else:
            outcome = str(line.label or line.state).replace("_", " ")
            content = "/".join(filter(None, (excerpt(line.namespace, 20), excerpt(line.content_id, 20))))
            # Once somebody has looked, the verdict's own wish is met.
            asks = line.needs_human_review and line.review is None
            note = "  erased" if line.erased else "  a person should look" if asks else ""
            click.echo(
                f"{line.trial_id:<36}  {line.opened_at:%Y-%m-%d %H:%M:%S}Z  {line.procedure.lower():<8}"
                f"{line.decision or '':<9}{outcome:<12}{_finding(line):<21}{'  ' + content if content else ''}{note}"
            )


@records.command("show")
@trial_argument
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON: every event as stored.")
@docket_option
@awaited
async def show_record(trial_id: str, as_json: bool, docket: Path | Address | None) -> None:
    """Shows the whole trial, step by step."""
    record = await _record(docket, trial_id)
    if as_json:
        events = [event.model_dump(mode="json") for event in record.events]
        click.echo(json.dumps({"trial_id": record.trial_id, "state": record.state, "events": events}, indent=2))
    else:
        click.echo(render(record))


@records.command("resume")
@trial_argument
@click.option("--watch", is_flag=True, help="Show every event as it happens.")
@settled_trial_options
@library_option
@docket_option
@awaited
async def resume_record(
    trial_id: str, watch: bool, library: Path | None, docket: Path | Address | None, **options: Any
) -> None:
    """Resumes a trial that was interrupted, or that failed for a transient reason.

    Recorded replies are reused. Settings, models, precedents and policy must be those that the trial began with.
    """
    from serving.wiring import open_court

    settings = settings_of(library=library, docket=docket, **trial_settings(**options))
    # Before encoder and reader are loaded, which takes long.
    record = await _record(settings.docket, trial_id)
    require_undecided(record)
    async with open_court(settings, tell=tell) as executor:
        if watch:
            executor.feed.subscribe(show_event)
        resumed = await executor.resume(record.trial_id)
    click.echo(render(resumed))


@records.command("ask")
@trial_argument
@click.option(
    "--question",
    "file",
    required=True,
    type=NEW_FILE,
    metavar="FILE.toml",
    help="The question, with its options (docs/classify.md).",
)
@settled_trial_options
@library_option
@docket_option
@awaited
async def ask_record(
    trial_id: str, file: Path, library: Path | None, docket: Path | Address | None, **options: Any
) -> None:
    """Puts a further question to the Judge of a full trial that has its verdict, from the evidence of that trial.

    The verdict on harm stays as it is. Settings, models, precedents and policy must be those of the trial.

    Exit code: 0 if there is an answer, 1 if there is none; either is put on record.
    """
    from serving.wiring import open_court

    # The file and the record first: a fault in them must not cost the loading of an encoder.
    question = read_question(file)
    settings = settings_of(library=library, docket=docket, **trial_settings(**options))
    record = await _record(settings.docket, trial_id)
    async with open_court(settings, tell=tell) as executor:
        picture = await executor.picture_of_trial(record)
        ruled = (await executor.rule_on(record, picture, QuestionBrief(question))).ruling_on(question.id)
    assert ruled is not None, "it was just recorded"
    click.echo("\n".join([f"{ruled.seq:>3}  {ruled.kind}", *_event_lines(ruled)]))
    # None of the labels is an answer too; a failure is none.
    if ruled.failure:
        sys.exit(1)


@records.command("flips")
@trial_argument
@click.option("--ask", is_flag=True, help="Ask the Judge again, or search again with half of the meme, and record it.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
@settled_trial_options
@library_option
@docket_option
@awaited
async def flips_of_record(
    trial_id: str, ask: bool, as_json: bool, library: Path | None, docket: Path | Address | None, **options: Any
) -> None:
    """Shows what would have flipped a verdict: the label without each piece, and the smallest set that changes it.

    For a verdict by precedents alone it follows from the record; otherwise it is what was recorded last. With --ask,
    settings, models, precedents and policy must be those of the trial. The verdict stays as it is.
    """
    from serving.wiring import open_court

    settings = settings_of(library=library, docket=docket, **trial_settings(**options))
    record = await _record(settings.docket, trial_id)
    if ask:
        async with open_court(settings, tell=tell) as executor:
            record = await executor.seek_flips(record, await executor.picture_of_trial(record))
    flips = flips_of(record)
    if flips is None:
        raise BadRequest(
            "What would have flipped this verdict was not sought: --ask asks its Judge again.", reason="FLIPS_UNKNOWN"
        )
    if as_json:
        click.echo(json.dumps({"trial_id": record.trial_id, **flips.model_dump(mode="json")}, indent=2))
    else:
        click.echo("\n".join(_lines_of(flip_pieces(flips))))


@records.command("appeal")
@trial_argument
@click.option("--by", required=True, callback=require_text(MOST_WHO), help="Person who files the appeal; recorded.")
@click.option("--statement", required=True, callback=require_text(MOST_WHY), help="Statement of the appellant.")
@click.option(
    "--reference",
    callback=require_text(MOST_ID, needed=False),
    default="",
    help="Your reference for the appeal; opening it again with the same reference has no effect.",
)
@docket_option
@awaited
async def appeal_record(trial_id: str, by: str, statement: str, reference: str, docket: Path | Address | None) -> None:
    """Opens an appeal against the verdict of a trial, as the most urgent case of the review queue.

    A person who has reviewed the verdict can't decide the appeal, and the one who decides sees the verdict only
    afterwards.
    """
    async with docket_in(settings_of(docket=docket)) as store:
        at = datetime.now(UTC)
        whole = await whole_id(store, trial_id)
        event = await store.reviews.open_appeal(whole, by=by, statement=statement, reference=reference, at=at)
    click.echo(f"Event {event.seq} of trial {printable(trial_id)}, opened {event.at:%Y-%m-%d %H:%M:%S}Z.")


async def show_event(event: AnyEvent) -> None:
    """A watcher that prints each event as it happens, on standard error."""
    click.echo("\n".join([f"{event.seq:>3}  {event.at:%H:%M:%S}Z  {event.kind}", *_event_lines(event), ""]), err=True)


def render(record: TrialRecord) -> str:
    """A record for a person to read in a terminal; text of strangers is made safe to print."""
    opened = record.opened
    lines = [f"Trial {record.trial_id}", ""]
    for event in record.events:
        after = (event.at - opened.at).total_seconds()
        lines.append(f"{event.seq:>3}  +{after:7.3f} s  {event.kind}")
        lines += _event_lines(event)
        lines.append("")
    # From the record alone nobody can tell which of the two it is.
    if record.state is TrialState.OPEN:
        lines.append("The record ends here: the trial is still running, or was cut off before there was a verdict.")
    return "\n".join(lines).rstrip()


def _event_lines(event: AnyEvent) -> Iterator[str]:
    """The body of one event, indented."""
    return _lines_of(pieces_of(event))


def _lines_of(pieces: Iterable[Piece]) -> Iterator[str]:
    for piece in pieces:
        match piece:
            case Headline(text=text):
                yield f"{_INDENT}{click.style(text, bold=True)}"
            case Fact(name=name, value=value):
                # What strangers wrote is made safe for a terminal: escape sequences would act on it (excerpt,
                # paragraph, printable).
                yield f"{_INDENT}{name:<11} {excerpt(value, 160) or '-'}"
            case Speech(text=text):
                yield paragraph(text, _INDENT)
            case Precedent():
                named = f"{excerpt(piece.id, 30):<16}{word(piece.label):<13}"
                categories = ", ".join(map(excerpt, piece.categories))
                yield f"{_INDENT}{named}{similarities(piece)}  {categories}".rstrip()
                yield f"{_INDENT}    “{excerpt(piece.text, 90)}”"
            case str():
                yield f"{_INDENT}{printable(piece)}"


def _line_json(line: DocketLine) -> dict[str, object]:
    return {
        "trial_id": line.trial_id,
        "opened_at": line.opened_at.isoformat(),
        "procedure": line.procedure,
        "namespace": line.namespace,
        "content_id": line.content_id,
        "state": line.state,
        "label": line.label,
        "decision": line.decision,
        "in_force": line.in_force and line.in_force.facts(),
        "needs_human_review": line.needs_human_review,
        "request_id": line.request_id,
        "failure_reason": line.failure_reason,
        "review": line.review and line.review.model_dump(mode="json"),
        "erased": line.erased,
    }


def _line_cells(line: DocketLine) -> dict[str, object]:
    """Returns the row of a table: as JSON, without what is nested."""
    finding, review = line.in_force, line.review
    nested: dict[str, object] = {
        "in_force": str(finding.by) if finding else "",
        "finding": str(finding.label) if finding else "",
        "contested": finding.contested if finding else "",
        "review": str(review.outcome) if review else "",
    }
    return _line_json(line) | nested


def _finding(line: DocketLine) -> str:
    """Returns the finding in force in short; empty for the court's own."""
    finding = line.in_force
    if finding is None or finding.by is Authority.COURT:
        return ""
    return f"{word(finding.by)}: {word(finding.label)}"


async def _record(docket: Path | Address | None, trial_id: str) -> TrialRecord:
    async with docket_in(settings_of(docket=docket)) as store:
        return await store.trials.record(await whole_id(store, trial_id))
