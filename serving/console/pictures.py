"""Pictures: blurred by default, shown sharp once on request, after the access was logged.

A sharp picture has no address that could be guessed, linked to or opened twice. Requesting it (a form) logs the visitor
and returns a single-use address; before that the picture is not sent to the browser, not even hidden.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from court.backends.pictures.normalise import has_pixels
from court.errors import BadRequest
from court.events import Look
from court.record import TrialRecord
from serving.console.registry import Page, console_of, form_of, redirect, session_of, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.visitors import Role
from serving.docket.errors import TrialUnknown
from serving.views.blur import blurred, empty, media_type

MEME, TEXT, ALL = "meme", "text", "all"
CASE = "case"
"""Value of a form's ``back`` on the page of a case."""
_MOST_KEYS = 64
_PRECEDENT = "precedent:"

_log = logging.getLogger("memecourt.console")


def path_of(trial_id: str) -> str:
    """Returns the path of a trial's page."""
    return f"/trials/{quote(trial_id, safe='')}"


async def veiled_picture(request: Request) -> Response:
    """Returns a picture, small, grey and blurred; an empty one if none is stored (the trial's page then says so)."""
    record = await trial_of(request)
    try:
        frames = await frames_of(request, record, request.query_params.get("of", MEME))
    except TrialUnknown:
        return Response(empty(), media_type="image/png")
    number = _frame_number(request.query_params.get("frame", "0"), len(frames))
    # The list is rendered again with each case that is opened beside it, so the browser may cache its pictures briefly,
    # for this session only (hence vary: cookie); nothing is recognizable in them.
    headers = {"cache-control": "private, max-age=600", "vary": "cookie"}
    return Response(await asyncio.to_thread(blurred, frames[number]), media_type="image/png", headers=headers)


async def show(request: Request) -> Response:
    """Logs one view of what the visitor asked for, and lets its pictures be fetched once."""
    record, what, case = await trial_of(request), form_of(request).get("of", MEME), form_of(request).get("back") == CASE
    frames, keys = await view(request, record, what)
    if request.headers.get("hx-request") == "true":
        figures = [await _figure(record, each, frames=pngs, key=keys[each]) for each, pngs in frames.items()]
        views = await views_of(request, record) if case else None
        values: dict[str, Any] = {"figures": figures, "views": views, "keys": keys, "back": CASE if case else ""}
        return render(request, "trial/figures.html", record=record, alone=what not in (TEXT, ALL), **values)
    # The page of a case does not show the verdict yet.
    at = path_of(record.trial_id).replace("/trials/", "/desk/cases/", 1) if case else path_of(record.trial_id)
    return redirect(request, f"{at}?shown={'.'.join(keys.values())}")


async def view(
    request: Request, record: TrialRecord, what: str
) -> tuple[Mapping[str, Sequence[bytes]], Mapping[str, str]]:
    """Logs one view; returns the frames of each picture that it shows, and the keys that show each part once."""
    frames = await _frames_shown(request, record, what)
    # After the pictures were found and before they can be fetched: the log lists exactly what was shown.
    await record_shown(request, record, what)
    session, sessions = session_of(request), console_of(request).sessions
    with_text = (TEXT,) if what in (TEXT, ALL) else ()  # with its picture a text is shown anyway
    return frames, {each: session.grant(record.trial_id, each, sessions.now()) for each in (*frames, *with_text)}


async def _frames_shown(request: Request, record: TrialRecord, what: str) -> Mapping[str, Sequence[bytes]]:
    """Returns the frames of each picture to show; of everything at once, those that there are."""
    if what == TEXT:
        return {}
    if what != ALL:
        return {what: await frames_of(request, record, what)}
    found = {}
    for each in (
        MEME,
        *(f"{_PRECEDENT}{one.id}" for one in (record.precedents.findings.exhibits if record.precedents else ())),
    ):
        with suppress(TrialUnknown):
            found[each] = await frames_of(request, record, each)
    return found


def keys_in(request: Request, record: TrialRecord) -> Mapping[str, str]:
    """Returns the keys that unblur pictures and text in this very answer, where they were requested without script."""
    session, now = session_of(request), console_of(request).sessions.now()
    found = {}
    for key in request.query_params.get("shown", "").split(".")[:_MOST_KEYS]:
        grant = session.granted(key, now)
        # Single use, for this trial only: an address that is shared or opened again shows nothing.
        if grant is not None and grant.trial_id == record.trial_id and not grant.fetched:
            found[grant.what] = key
            if grant.what == TEXT:
                grant.fetched.add(0)  # it is in this answer
    return found


@dataclass(frozen=True, slots=True)
class Views:
    """Views of a meme by the visitor who is to decide.

    Attributes:
        missing: Parts that exist and were not shown to them yet: ``picture``, ``text``.
        gone: True if the picture was erased, or can't be decoded.
        text: True if the text was shown.
        since: Time since when all of it has been shown; None while something is missing.
    """

    missing: Sequence[str]
    gone: bool
    text: bool
    since: datetime | None = None

    @property
    def for_record(self) -> Look:
        """Returns the word for the record of a decision."""
        return Look.GONE if self.gone else Look.SHOWN


async def views_of(request: Request, record: TrialRecord) -> Views:
    """Returns which parts of a meme its reviewer was shown, by the log."""
    meme = record.opened.meme
    seen = await console_of(request).docket.reviews.views(record.trial_id, visitor_of(request).name)
    gone = meme.picture_given and await stored_picture(request, record) in ("", "unreadable")
    wanted = {
        "picture": (MEME, ALL) if meme.picture_given and not gone else (),
        "text": (MEME, TEXT, ALL) if record.text is not None and record.text.text else (),
    }
    # The first view of each part that exists; with its picture the text is shown as well.
    first = {part: [seen[one] for one in ways if one in seen] for part, ways in wanted.items() if ways}
    missing = [part for part, times in first.items() if not times]
    since = max(map(min, first.values())) if first and not missing else None
    return Views(missing, gone, bool(seen.keys() & {MEME, TEXT, ALL}), since)


async def stored_picture(request: Request, record: TrialRecord) -> str:
    """Compares a trial's stored picture with the judged one: ``same``, ``other``, ``unreadable``; empty without any."""
    digest = record.opened.meme.pixels_sha256
    if not (frames := await console_of(request).docket.trials.frames(digest)):
        return ""
    try:
        return "same" if await asyncio.to_thread(has_pixels, frames, digest) else "other"
    except ValueError:
        return "unreadable"


async def hide(request: Request) -> Response:
    """Replaces the sharp picture by the blurred one."""
    record, what = await trial_of(request), request.query_params.get("of", MEME)
    figure = await _figure(record, what, frames=await frames_of(request, record, what), key="")
    back = CASE if request.query_params.get("back") == CASE else ""
    return render(request, "trial/figures.html", record=record, alone=True, figures=[figure], back=back)


async def sharp_picture(request: Request) -> Response:
    """Returns the unblurred picture to the visitor who was just granted access; each frame once."""
    record = await trial_of(request)
    sessions = console_of(request).sessions
    grant = session_of(request).granted(request.path_params["key"], sessions.now())
    if grant is None or grant.trial_id != record.trial_id:
        raise TrialUnknown("This look at the picture is over. Ask for it again on the trial’s page.")
    frames = await frames_of(request, record, grant.what)
    number = _frame_number(request.path_params["frame"], len(frames))
    # Each frame once: an address leaked by browser history or logs is useless.
    if number in grant.fetched:
        raise TrialUnknown("This look at the picture is over. Ask for it again on the trial’s page.")
    # Marked only now: a picture that could not be read has not been seen.
    grant.fetched.add(number)
    return Response(frames[number], media_type=media_type(frames[number]))


async def _figure(record: TrialRecord, what: str, *, frames: Sequence[bytes], key: str) -> Mapping[str, Any]:
    number = 0
    if what.startswith(_PRECEDENT):
        cited = record.precedents
        ids = [one.id for one in cited.findings.exhibits] if cited else []
        number = ids.index(what.removeprefix(_PRECEDENT)) + 1
    another = bool(key) and changed_since(record, what, frames)
    return {"what": what, "number": number, "frames": len(frames), "another": another, "key": key}


def changed_since(record: TrialRecord, what: str, frames: Sequence[bytes]) -> bool:
    """True if a precedent's picture is known to differ from the one that the Judge was shown."""
    read = record.readings.get(what.removeprefix(_PRECEDENT)) if what.startswith(_PRECEDENT) else None
    if read is None or not read.picture:
        return False
    return [hashlib.sha256(frame).hexdigest() for frame in frames] != [read.picture]


async def record_shown(request: Request, record: TrialRecord, what: str) -> None:
    """Logs who viewed what; raises if that can't be stored, so that nothing is shown."""
    who = visitor_of(request).name
    await console_of(request).docket.reviews.record_access(record.trial_id, who=who, what=what, at=datetime.now(UTC))
    _log.info("shown trial=%s visitor=%s", record.trial_id, who)


async def frames_of(request: Request, record: TrialRecord, what: str) -> Sequence[bytes]:
    """Returns the frames of the meme, or the picture of a precedent that was cited in the trial.

    Raises:
        TrialUnknown: The picture is not stored, or does not belong to this trial.
        BadRequest: The name does not denote a picture.
    """
    if what == MEME:
        frames = await console_of(request).docket.trials.frames(record.opened.meme.pixels_sha256)
        if frames:
            return frames
        reason = (
            "The picture of this trial is not kept." if record.opened.meme.picture_given else "No picture was sent."
        )
        raise TrialUnknown(reason, reason="PICTURE_MISSING")
    if not what.startswith(_PRECEDENT):
        raise BadRequest("There is no picture of that name.", field="of")
    id_, cited, pictures = what.removeprefix(_PRECEDENT), record.precedents, console_of(request).pictures
    # Only precedents that this trial cites: a trial must not give access to every picture of the library.
    if cited is None or id_ not in {one.id for one in cited.findings.exhibits} or pictures is None:
        raise TrialUnknown("That precedent has no picture here.", reason="PICTURE_MISSING")
    (frame,) = await pictures.pictures([id_])
    if frame is None:
        raise TrialUnknown("The library has no picture of that precedent.", reason="PICTURE_MISSING")
    return [frame.png]


def _frame_number(value: str, count: int) -> int:
    # isdecimal accepts digits of any script, and int() is slow for long numbers.
    if not value.isascii() or not value.isdecimal() or len(value) > 4 or int(value) >= count:
        raise BadRequest("There is no such frame.", field="frame")
    return int(value)


PAGES = (
    Page("/trials/{trial_id}/picture", veiled_picture, role=Role.VIEWER, name="veiled_picture"),
    Page("/trials/{trial_id}/show", show, role=Role.VIEWER, methods=("POST",), name="show_picture"),
    Page("/trials/{trial_id}/hide", hide, role=Role.VIEWER, name="hide_picture"),
    Page("/trials/{trial_id}/sharp/{key}/{frame}", sharp_picture, role=Role.VIEWER, name="sharp_picture"),
)
