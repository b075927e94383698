"""Page that compares two trials of the same meme."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, console_of, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import hidden_and_marked, mark_verdict_shown
from serving.console.visitors import Role
from serving.docket.store.listing import DocketLine, TrialFilter
from serving.views.compare import compare

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


PAGES = (Page("/trials/{trial_id}/compare", comparison, role=Role.VIEWER, name="compare"),)
