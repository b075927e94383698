"""Pages of a trial: the whole, changed parts while it runs, the messages of a call, and a comparison with another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from court.events import AnyEvent, RoundEvent
from court.record import TrialRecord
from court.transcript import transcript
from court.verdict import Label
from serving.console.pictures import TEXT, changed_since, frames_of, keys_in, stored_picture
from serving.console.proof import proof_of, unreadable
from serving.console.registry import Page, console_of, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import hidden_and_marked, mark_shown, mark_verdict_shown
from serving.console.visitors import Role
from serving.docket.errors import DocketError, TrialErased, TrialUnknown
from serving.docket.store.listing import DocketLine, TrialFilter
from serving.views.compare import compare
from serving.views.trial_view import view_of

_PARTS = (
    *("head", "meme", "description", "cases", "precedents", "expert", "judge", "flips", "questions", "review"),
    *("costs", "log"),
)
"""Parts of the page, each a template, in the order in which they are sent. Rounds are parts of their own."""
_OF_ALL = {"head", "costs", "log"}
"""Parts that every event changes."""


async def trial(request: Request) -> Response:
    """Returns the page of a trial, as far as it has come."""
    try:
        record = await trial_of(request)
    except (TrialErased, DocketError) as error:
        return await _stored(request, error)
    # Before the page is made: whoever reads it can't review the verdict blind afterwards.
    await mark_verdict_shown(request, record)
    shown = keys_in(request, record)
    others = [
        what for what in shown if what != TEXT and changed_since(record, what, await frames_of(request, record, what))
    ]
    values = await _values(request, record)
    return render(request, "trial/page.html", **values, shown=shown, others_now=others)


async def _stored(request: Request, error: TrialErased | DocketError) -> Response:
    """Shows the stored entries of a record that was erased, or that can't be read, so that tampering becomes visible.

    Its namespace is no longer known, so only visitors who may see all namespaces see it.
    """
    visitor, trial_id = visitor_of(request), request.path_params["trial_id"]
    if visitor.namespaces is not None:
        raise error
    proof = await proof_of(console_of(request).docket.auditor, trial_id)
    await mark_shown(request, [trial_id])  # a verdict may be among what is stored
    entries = [(one, unreadable(one.entry)) for one in proof.entries]
    title = "This record was erased" if isinstance(error, TrialErased) else "This record can’t be read"
    values: dict[str, Any] = {
        "title": title,
        "said": error.message,
        "entries": entries,
        "trial_id": trial_id,
        "proof_of_trial": proof,
    }
    return render(request, "trial/stored.html", **values)


async def news(request: Request) -> Response:
    """Returns the parts of the page that changed since an event, to replace the former ones.

    A part that has not changed is not sent, so that what a reader has unfolded there stays so.
    """
    record = await trial_of(request)
    since = _number(request.query_params.get("from", "0")) or 0
    fresh = record.events[since:]
    if not fresh:
        return Response(status_code=204)  # htmx then leaves the page as it is
    await mark_verdict_shown(request, record)
    values = await _values(request, record)
    changed = _OF_ALL.union(*(event.parts for event in fresh))
    rounds = _rounds(fresh)
    # A round that the page does not show yet is appended below the others.
    known = _rounds(record.events[:since])
    laid_out = transcript(record).rounds
    return render(
        request,
        "trial/news.html",
        **values,
        shown={},
        parts_changed=[part for part in _PARTS if part in changed],
        changed=[one for one in laid_out if one.number in rounds & known],
        added=[one for one in laid_out if one.number in rounds - known],
    )


async def messages(request: Request) -> Response:
    """Returns the messages of the calls that an event reports."""
    from serving.views.messages import messages_of

    record = await trial_of(request)
    seq = _number(request.path_params["seq"])
    if seq is None or seq >= len(record.events):
        raise TrialUnknown("There is no such event in this trial.", field="seq")
    event = record.events[seq]
    await mark_verdict_shown(request, record)
    values: dict[str, Any] = {"record": record, "event": event, "sent": messages_of(record, event)}
    piece = request.headers.get("hx-request") == "true"
    return render(request, "trial/sent.html" if piece else "trial/messages.html", **values)


async def _values(request: Request, record: TrialRecord) -> dict[str, Any]:
    console = console_of(request)
    return {
        "view": view_of(record),
        "record": record,
        "harmful_now": record.label_in_force is Label.HARMFUL,
        "pictures": console.pictures is not None,
        "proof_of_trial": await proof_of(console.docket.auditor, record.trial_id),
        "may_record": console.trying is not None and visitor_of(request).judges,
        "quiet_s": (datetime.now(UTC) - record.events[-1].at).total_seconds(),
        "kept": await stored_picture(request, record),
    }


def _number(value: str) -> int | None:
    """Parses a number in an address; None if it is none, or longer than any of ours."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def _rounds(events: Sequence[AnyEvent]) -> set[int]:
    return {event.round for event in events if isinstance(event, RoundEvent) and "rounds" in event.parts} - {0}


_MOST = 50


async def comparison(request: Request) -> Response:
    """Compares both trials row by row; if no second one is named, lists the candidates."""
    record = await trial_of(request)
    other = request.query_params.get("with", "").strip()
    # Same access check as for the first: the visitor names this id too.
    second = await trial_of(request, other) if other else None
    which = TrialFilter(namespaces=visitor_of(request).namespaces, pixels_sha256=record.opened.meme.digest)
    lines = await console_of(request).docket.index.list(limit=_MOST, which=which)
    others: list[DocketLine] = [line for line in lines if line.trial_id != record.trial_id]
    duplicates = record.duplicates
    # Recorded before rendering: a visitor who reads a verdict here can't review it blind afterwards.
    for each in (record, second) if second else ():
        await mark_verdict_shown(request, each)
    named = {line.trial_id for line in others if line.label} | {
        one.trial_id for one in (duplicates.duplicates if duplicates else ())
    }
    hidden = await hidden_and_marked(request, named)
    return render(
        request,
        "compare.html",
        record=record,
        second=second,
        groups=compare(record, second) if second else (),
        others=others,
        hidden=hidden,
        near=[
            one
            for one in (duplicates.duplicates if duplicates else ())
            if one.trial_id not in {o.trial_id for o in others}
        ],
    )


PAGES = (
    Page("/trials/{trial_id}", trial, role=Role.VIEWER, name="trial"),
    Page("/trials/{trial_id}/news", news, role=Role.VIEWER, name="news"),
    Page("/trials/{trial_id}/messages/{seq}", messages, role=Role.VIEWER, name="messages"),
    Page("/trials/{trial_id}/compare", comparison, role=Role.VIEWER, name="compare"),
)
