"""Pages of the review queue: waiting cases with their reasons, the one to take next, and how far reviewers agree."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest
from serving.console.registry import Page, form_of, redirect, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import PRIORITY_WORDS, behind, case_path, hidden_and_marked, reviewing_of
from serving.console.visitors import Role
from serving.docket.errors import TrialUnknown
from serving.docket.review.projection import ReviewPriority
from serving.docket.review.queue import cursor_of
from serving.docket.review.search import day_of

_PAGE = 50


async def queue(request: Request) -> Response:
    """Lists the cases that this visitor may take, most urgent first."""
    return render(request, "review/queue.html", **await listing(request))


async def listing(request: Request, *, at_case: str = "") -> dict[str, Any]:
    """Values of the list of cases, which stands alone on its page and beside each case."""
    visitor, reviews = visitor_of(request), reviewing_of(request).queue
    params = request.query_params
    try:
        why, after = why_in(request, params.get("why", "")), await _after(request)
    except BadRequest:
        if not at_case:
            raise
        # Beside a case, fall back to the top of the list: a malformed address must not lose what is being written.
        why, after = None, None
    cases = list(
        await reviews.queue(visitor.name, limit=_PAGE + 1, after=after, why=why, namespaces=visitor.namespaces)
    )
    more = ""
    if len(cases) > _PAGE:
        cases = cases[:_PAGE]
        more = urlencode({"why": why or "", "after": cases[-1].trial_id})
    return {
        "at_case": at_case,
        "cases": cases,
        "behind": await behind(request),
        "more": more,
        "first": after is None,
        "place": list_query(request),
        "counts": await reviews.counts(visitor.namespaces),
        "told_why": sees_reasons(request),
        "why": why,
        "words": PRIORITY_WORDS,
        "hidden": await hidden_and_marked(request, [case.trial_id for case in cases]),
        "none_left": "none" in params,
    }


def list_query(request: Request) -> str:
    """Returns the part of an address that keeps the list where it is when a case of it is opened; empty at its top."""
    names = ("why", "after") if sees_reasons(request) else ("after",)
    query = {name: request.query_params[name] for name in names if request.query_params.get(name)}
    return f"?{urlencode(query)}" if query else ""


async def take_next(request: Request) -> Response:
    """Takes the most urgent case that nobody has, and opens it."""
    visitor = visitor_of(request)
    why = why_in(request, form_of(request).get("why", ""))
    case = await reviewing_of(request).queue.take_next(visitor.name, why=why, namespaces=visitor.namespaces)
    query = f"?why={why}" if why else ""  # keep the reviewer's filter
    return redirect(request, "/desk?none=" if case is None else f"{case_path(case.trial_id)}{query}")


def sees_reasons(request: Request) -> bool:
    """True if the visitor may know why cases wait before they decide: a reason may tell the verdict."""
    return visitor_of(request).role >= Role.ADMIN or not reviewing_of(request).blind_first


def why_in(request: Request, value: str) -> ReviewPriority | None:
    """Returns the reason that a page asks for; None for visitors who are not told it. Raises BadRequest."""
    return why_of(value) if sees_reasons(request) else None


def why_of(value: str) -> ReviewPriority | None:
    """The reason that a page asks for. Raises BadRequest if there is none of that name."""
    if not value:
        return None
    if value not in ReviewPriority.__members__:
        raise BadRequest("There is no such reason to look at a case.", field="why")
    return ReviewPriority(value)


async def _after(request: Request) -> tuple[int, str, str] | None:
    """Returns the position behind the case in the address, which does not tell how urgent it is."""
    if not (trial_id := request.query_params.get("after", "")):
        return None
    try:
        case = await reviewing_of(request).queue.case(trial_id)
    except TrialUnknown:
        raise BadRequest("That page of the queue can't be found. Begin with the first.", field="after") from None
    return cursor_of(case)


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


PAGES = (
    Page("/desk", queue, role=Role.REVIEWER, name="desk", nav="Review queue"),
    Page("/desk/next", take_next, role=Role.REVIEWER, methods=("POST",), name="take_next"),
    Page("/desk/agreement", agreement, role=Role.REVIEWER, name="agreement", nav="Agreement"),
)
