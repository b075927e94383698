"""The page of the agreement of reviewers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import reviewing_of
from serving.console.visitors import Role
from serving.docket.review.search import day_of


async def agreement(request: Request) -> Response:
    """Shows how far reviewers agree with each other and with the court, by all reviews or by a selection."""
    params, visitor = request.query_params, visitor_of(request)
    fields = {name: params[name].strip()[:20] for name in ("since", "until") if params.get(name, "").strip()}
    days = {name: day_of(name, value) for name, value in fields.items()}
    blind, drawn = params.get("blind") == "yes", params.get("drawn") == "yes"
    figures = await reviewing_of(request).queue.agreement(
        **days, blind=blind, drawn=drawn, namespaces=visitor.namespaces
    )
    return render(request, "review/agreement.html", figures=figures, asked=fields, blind=blind, drawn=drawn)


PAGES = (Page("/desk/agreement", agreement, role=Role.REVIEWER, name="agreement", nav="Agreement"),)
