"""Exports: one trial as HTML, JSON, a draft statement of reasons or a bundle of proofs; a selection as a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from court.errors import BadRequest
from serving.console.pages.trials import search_of
from serving.console.pictures import record_shown
from serving.console.registry import Page, console_of, form_of, trial_of, visitor_of
from serving.console.review.parts import mark_shown, mark_verdict_shown
from serving.console.visitors import Role
from serving.docket.errors import TrialUnknown
from serving.docket.store.listing import DocketLine
from serving.export.source import Pictures, gather
from serving.export.trial_file import TrialForm, file_name, write_trial

_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "dsa": "application/json",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


async def one(request: Request) -> Response:
    """Exports a trial as a file with blurred pictures."""
    return await _file(request, Pictures.VEILED)


async def one_sharp(request: Request) -> Response:
    """Exports a trial as a file with the pictures as judged, after logging the access."""
    if form_of(request).get("pictures") != Pictures.SHARP:
        raise BadRequest("Only pictures as they were judged are asked for like this.", field="pictures")
    return await _file(request, Pictures.SHARP)


async def _file(request: Request, pictures: Pictures) -> Response:
    # Untrusted, from the address: checked against the list before it selects a media type or file name.
    named = request.path_params["form"]
    if named not in list(TrialForm):
        raise TrialUnknown(f"A trial can be downloaded as {', '.join(TrialForm)}.", field="form")
    form = TrialForm(named)
    record = await trial_of(request)
    console = console_of(request)
    if form is TrialForm.DSA:
        # A draft contains no picture, so no access is logged.
        pictures = Pictures.NONE
    source = await gather(
        record.trial_id,
        trials=console.docket.trials,
        log=console.docket.log,
        pictures=pictures,
        library=console.pictures,
    )
    # Logged before the file is written: an access that can't be logged must not happen.
    if pictures is Pictures.SHARP:
        for what in ("meme", *(f"precedent:{id_}" for id_ in source.precedents)):
            await record_shown(request, record, what)
    await mark_verdict_shown(request, source.record)  # a visitor who has read a verdict can't review it blind
    # A page with many pictures takes a second; other pages are served meanwhile.
    data = await asyncio.to_thread(lambda: write_trial(source, form, pictures=pictures))
    name = f"trial-{file_name(record.trial_id, form)}"
    return Response(data, media_type=_TYPES[form], headers=_attached(name))


async def many(request: Request) -> Response:
    """Exports what a search finds, streamed while it is read; each trial counts as viewed."""
    from serving.export.tables import Form, Selection

    named = request.path_params["form"]
    if named not in list(Form):
        raise TrialUnknown(f"A selection can be downloaded as {', '.join(Form)}.", field="form")
    console, which = console_of(request), (await search_of(request)).which
    selection = Selection(console.docket.index, console.docket.trials, which, partial(_record_export, request, named))
    chunks = selection.chunks(Form(named))
    # Before the answer begins: it can still be refused.
    first = await anext(chunks, b"")

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    name = f"trials-{datetime.now(UTC):%Y%m%d-%H%M%S}.{named}"
    return StreamingResponse(whole(), media_type=_TYPES[named], headers=_attached(name))


async def _record_export(request: Request, form: str, lines: Sequence[DocketLine]) -> None:
    """Logs that trials are exported; raises if that can't be stored, so that nothing goes out."""

    async def record(trial_id: str) -> None:
        with suppress(TrialUnknown):  # it has just been erased, and is passed over
            await console_of(request).docket.reviews.record_access(
                trial_id, who=visitor_of(request).name, what=f"export as {form}", at=datetime.now(UTC)
            )

    # Concurrently, so that many share one commit.
    await asyncio.gather(*(record(line.trial_id) for line in lines))
    await mark_shown(request, [line.trial_id for line in lines if line.label])


async def bundle(request: Request) -> Response:
    """Returns the bundle that ``memecourt docket bundle`` writes, without the names of those who viewed the picture.

    Raises:
        DocketError: The docket's private key is not available here, so nothing can be signed.
    """
    record, console = await trial_of(request), console_of(request)
    text = await console.docket.auditor.bundle(record.trial_id)
    # Read again: the bundle may contain newer events.
    await mark_verdict_shown(request, await console.docket.trials.record(record.trial_id))
    return Response(text, media_type="application/json", headers=_attached("trial.bundle.json"))


def _attached(name: str) -> dict[str, str]:
    """Headers of a download: shown inline, a file with untrusted text would run in an origin with our cookies."""
    return {"content-disposition": f'attachment; filename="{name}"'}


PAGES = (
    Page("/trials/{trial_id}/export/{form}", one, role=Role.VIEWER, name="export"),
    Page("/trials/{trial_id}/export/{form}", one_sharp, role=Role.VIEWER, methods=("POST",)),
    Page("/export/{form}", many, role=Role.VIEWER),
    Page("/trials/{trial_id}/bundle", bundle, role=Role.VIEWER, name="bundle"),
)
