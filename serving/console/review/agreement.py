"""Page on how far reviewers agree with each other and with the court."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, visitor_of
from serving.console.rendering import render
from serving.console.review.find import search_of
from serving.console.review.parts import reviewing_of
from serving.console.visitors import Role


async def agreement(request: Request) -> Response:
    """Shows the agreement figures of all reviews, or of a selection."""
    params, visitor = request.query_params, visitor_of(request)
    filters = {name: params[name].strip()[:20] for name in ("since", "until") if params.get(name, "").strip()}
    times = search_of(filters)
    blind, drawn = params.get("blind") == "yes", params.get("drawn") == "yes"
    figures = await reviewing_of(request).queue.agreement(
        since=times.since, until=times.until, blind=blind, drawn=drawn, namespaces=visitor.namespaces
    )
    return render(request, "review/agreement.html", figures=figures, asked=filters, blind=blind, drawn=drawn)


PAGES = (Page("/desk/agreement", agreement, role=Role.REVIEWER, name="agreement", nav="Agreement"),)
