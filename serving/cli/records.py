"""``memecourt records``: what was said in each trial, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from court.display import word
from serving.cli.common import (
    docket_in,
    docket_option,
    excerpt,
    library_option,
    paragraph,
    run,
    settings_of,
    tell,
    trial_options,
    trial_settings,
)
from serving.cli.exports import export

if TYPE_CHECKING:
    from court.events import AnyEvent, NearDuplicate, Unused
    from court.record import TrialRecord
    from retrieval.library.postgres.address import Address
    from serving.docket.ports import DocketLine
    from serving.settings import Settings


@click.group()
def records() -> None:
    """Lists trials, shows them step by step, and writes them to files."""


records.add_command(export)


@records.command("list")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="How many, the latest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a trial and line.")
@docket_option
def list_records(limit: int, as_json: bool, docket: Path | Address | None) -> None:
    """Lists trials, the last opened first."""
    for line in run(_lines(docket, limit)):
        if as_json:
            click.echo(json.dumps(_line_json(line)))
        else:
            outcome = str(line.label or line.state).replace("_", " ")
            whose = "/".join(filter(None, (excerpt(line.namespace, 20), excerpt(line.content_id, 20))))
            look = "  erased" if line.erased else "  a person should look" if line.needs_human_review else ""
            click.echo(
                f"{line.trial_id}  {line.opened_at:%Y-%m-%d %H:%M:%S}  {line.procedure.lower():<8}"
                f"{outcome:<12}{'  ' + whose if whose else ''}{look}"
            )


@records.command("show")
@click.argument("trial_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="The record as JSON: every event as it is kept.")
@docket_option
def show_record(trial_id: str, as_json: bool, docket: Path | Address | None) -> None:
    """Shows the whole trial, step by step."""
    record = run(_record(docket, trial_id))
    if as_json:
        events = [event.model_dump(mode="json") for event in record.events]
        click.echo(json.dumps({"trial_id": record.trial_id, "state": record.state, "events": events}, indent=2))
    else:
        click.echo(render(record))


@records.command("resume")
@click.argument("trial_id", metavar="ID")
@click.option("--watch", is_flag=True, help="Show every event as it happens.")
@trial_options
@library_option
@docket_option
def resume_record(
    trial_id: str, watch: bool, library: Path | None, docket: Path | Address | None, **options: Any
) -> None:
    """Takes a trial up where it was cut off, or where it failed for a reason that has passed.

    Nobody is asked again for what was said. Settings, models, precedents and policy must be those it was begun with.
    """
    settings = settings_of(library=library, docket=docket, **trial_settings(**options))
    click.echo(render(run(_resumed(settings, trial_id, watch))))


async def show_event(event: AnyEvent) -> None:
    """A watcher that prints each event as it happens, on standard error."""
    click.echo("\n".join([f"{event.seq:>3}  {event.at:%H:%M:%S}  {event.kind}", *_told(event), ""]), err=True)


def render(record: TrialRecord) -> str:
    """A record for a person to read in a terminal; text of strangers is made safe to print."""
    from court.record import TrialState

    opened = record.opened
    lines = [f"Trial {record.trial_id}", ""]
    for event in record.events:
        after = (event.at - opened.at).total_seconds()
        lines.append(f"{event.seq:>3}  +{after:7.3f} s  {event.kind}")
        lines += _told(event)
        lines.append("")
    if record.state is TrialState.OPEN:
        lines.append("The record ends here: the trial is still running, or was cut off before there was a verdict.")
    return "\n".join(lines).rstrip()


def _told(event: AnyEvent) -> list[str]:
    """The body of one event, indented."""
    from court import events as e

    indent = " " * 5

    def fact(name: str, value: object) -> str:
        return f"{indent}{name:<12}{excerpt(str(value), 160) or '-'}"

    def speech(text: str) -> str:
        return paragraph(text, indent)

    match event:
        case e.TrialOpened():
            meme, versions = event.meme, event.versions
            whose = "/".join(filter(None, (meme.namespace, meme.content_id)))
            return [
                fact("opened", f"{event.at:%Y-%m-%d %H:%M:%S} UTC"),
                fact("procedure", event.procedure.lower()),
                fact("request", event.request_id),
                *(
                    [fact("content", whose)]
                    if (whose := "/".join(filter(None, (meme.namespace, meme.content_id))))
                    else []
                ),
                fact("picture", f"{meme.format}, {meme.width}×{meme.height} pixels, {_frames(meme)}"),
                fact("bytes", f"sha256:{meme.bytes_sha256}"),
                fact("pixels", f"sha256:{meme.pixels_sha256}"),
                fact("policy", f"{event.policy.id} version {event.policy.version}, {event.policy.digest}"),
                f"{indent}settings",
                paragraph(
                    ", ".join(f"{name} {json.dumps(value)}" for name, value in event.settings.items()), indent * 2
                ),
                fact("software", f"memecourt {versions.software}"),
                fact("encoder", versions.encoder),
                fact("library", versions.library),
                fact("text reader", versions.text_reader),
                fact("trace", event.trace_id),
            ]
        case e.TextRead():
            head = {
                e.TextSource.CALLER: "given by the caller",
                e.TextSource.OCR: f"read off the picture by {event.reader} in {event.latency_s:.2f} s",
                e.TextSource.NONE: "the meme has no text",
            }[event.source]
            confident = [fact(f"{line.confidence:.2f}", f"“{line.text}”") for line in event.lines]
            return [f"{indent}{head}", *([speech(event.text)] if event.text and not confident else confident)]
        case e.NearDuplicatesFound():
            return [
                f"{indent}memes tried before that are nearly this one, found in {event.latency_s:.3f} s",
                *(_duplicate(duplicate, indent) for duplicate in event.duplicates),
            ]
        case e.PrecedentsCited():
            return _precedents(event, indent)
        case e.Described():
            return [speech(event.description)]
        case e.QuestionAsked():
            return [f"{indent}{event.side.lower()}, round {event.round}", speech(event.question)]
        case e.AnswerGiven():
            return [f"{indent}to the {event.side.lower()}, round {event.round}", speech(event.answer)]
        case e.Summarised():
            change = "" if event.entropy_change is None else f", change {event.entropy_change:.3f}"
            return [
                f"{indent}{event.side.lower()}, round {event.round}, entropy {event.entropy:.3f} bit{change}",
                speech(event.summary),
                *([speech(event.justification)] if event.justification else []),
            ]
        case e.SummarisedAhead():
            head = f"{indent}{event.side.lower()}, round {event.round}, before it was known whether the round counts"
            return [head, speech(event.summary), speech(event.justification)]
        case e.SideRested():
            return [fact(event.side.lower(), f"after {event.rounds} rounds: {word(event.reason)}")]
        case e.VerdictGiven():
            verdict = event.verdict
            strengths = verdict.strengths
            return [
                f"{indent}{click.style(str(verdict.label).replace('_', ' '), bold=True)}",
                *(
                    [fact("policy", f"{found.category}, clause {found.clause or '-'}, at {found.target or '-'}")]
                    if (found := verdict.finding)
                    else []
                ),
                *([fact("harm score", f"{verdict.harm_score:.3f}")] if verdict.harm_score is not None else []),
                *(
                    [fact("strengths", f"harmful {strengths.harmful.lower()}, benign {strengths.benign.lower()}")]
                    if strengths
                    else []
                ),
                fact("rule", verdict.rule),
                *_unused(event.unused, fact),
                speech(verdict.rationale),
                *(speech(f"a person should look: {review.detail}") for review in verdict.review),
                *(fact("steering", _sign(sign)) for sign in event.steering),
            ]
        case e.TrialFailed():
            again = "asking again may help" if event.retryable else "asking again will not help"
            return [
                fact("at step", event.step),
                *_unused(event.unused, fact),
                speech(f"{event.message} ({event.reason}; {again})"),
            ]
        case e.TrialResumed():
            return [fact("software", f"memecourt {event.software}")]
        case e.VerdictReviewed():
            unseen = ", before the verdict was shown" if event.blind else ""
            return [fact(event.outcome.lower(), f"{event.label} by {event.reviewer}{unseen}"), speech(event.reason)]
        case e.SecondOpinionAsked():
            return [fact("asked by", event.by), speech(event.reason)]


def _duplicate(duplicate: NearDuplicate, indent: str) -> str:
    label = word(duplicate.label)
    text = "same text" if duplicate.same_text else "other text"
    picture = ", no tile differs" if duplicate.same_picture else ""
    return f"{indent}{duplicate.trial_id}  {label:<13}{duplicate.distance} of 256 bits, {text}{picture}"


def _unused(unused: Unused | None, fact: Callable[[str, object], str]) -> list[str]:
    """What calls cost that no event tells of; nothing where there were none."""
    if unused is None or not (unused.calls or unused.unanswered):
        return []
    tokens = f"{unused.tokens_in:,} tokens in, {unused.tokens_out:,} out"
    return [fact("unused", f"{unused.calls} more calls ({tokens}); {unused.unanswered} not answered")]


def _precedents(event: object, indent: str) -> list[str]:
    from court.events import PrecedentsCited

    assert isinstance(event, PrecedentsCited)
    findings, held = event.findings, event.vote
    search = findings.search
    lines = [
        f"{indent}{findings.library.name}: {findings.library.size:,} memes searched in {event.latency_s:.3f} s, "
        f"weight of the text {search.alpha:.2f}, {search.excluded} left out"
    ]
    lines += [f"{indent}{excerpt(note, 160)}" for note in findings.notes]
    for exhibit in findings.exhibits:
        halves = "  ".join(
            f"{name} {'–' if value is None else format(value, '.3f')}"
            for name, value in (("text", exhibit.text_similarity), ("picture", exhibit.picture_similarity))
        )
        label = word(exhibit.label)
        lines.append(
            f"{indent}{excerpt(exhibit.id, 30):<16}{label:<13}{halves}  {', '.join(exhibit.categories)}".rstrip()
        )
        lines.append(f"{indent}    “{excerpt(exhibit.text, 90)}”")
    if held is None:
        lines.append(f"{indent}vote        none: no precedent is near enough")
    else:
        lines.append(
            f"{indent}vote        {held.harmful} of {held.voters} harmful, weighted share {held.share:.3f}, "
            f"calibrated {held.probability:.3f}, threshold {held.settings.threshold:.3f}"
        )
    return lines


def _sign(sign: object) -> str:
    from court.events import SteeringFound

    assert isinstance(sign, SteeringFound)
    where = f"event {sign.event}{', precedent ' + sign.precedent if sign.precedent else ''}"
    return f"{word(sign.kind)}: {where}, characters {sign.start} to {sign.end}"


def _frames(meme: object) -> str:
    from court.events import MemeIdentity

    assert isinstance(meme, MemeIdentity)
    if meme.frame_count == 1:
        return "one frame"
    return f"frames {', '.join(map(str, meme.frames_used))} of {meme.frame_count}"


def _line_json(line: DocketLine) -> dict[str, object]:
    return {
        "trial_id": line.trial_id,
        "opened_at": line.opened_at.isoformat(),
        "procedure": line.procedure,
        "namespace": line.namespace,
        "content_id": line.content_id,
        "state": line.state,
        "label": line.label,
        "needs_human_review": line.needs_human_review,
        "request_id": line.request_id,
        "failure_reason": line.failure_reason,
        "review": line.review and line.review.model_dump(mode="json"),
        "erased": line.erased,
    }


async def _resumed(settings: Settings, trial_id: str, watch: bool) -> TrialRecord:
    from serving.wiring import open_court

    async with open_court(settings, tell=tell) as courthouse:
        if watch:
            courthouse.feed.subscribe(show_event)
        return await courthouse.resume(trial_id)


async def _record(docket: Path | Address | None, trial_id: str) -> TrialRecord:
    async with docket_in(settings_of(docket=docket)) as store:
        return await store.trials.record(trial_id)


async def _lines(docket: Path | Address | None, limit: int) -> list[DocketLine]:
    async with docket_in(settings_of(docket=docket)) as store:
        return list(await store.index.list(limit=limit))
