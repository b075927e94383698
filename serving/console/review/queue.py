"""The queue: cases that wait for a person, each with why, and the one to take next."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from court.errors import BadRequest
from serving.console.registry import Page, form_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import TOLD, behind, case_path, hidden_and_noted, review_queue_of
from serving.console.visitors import Role
from serving.docket.review.projection import ReviewPriority
from serving.docket.review.queue import place_of

_PAGE = 25


async def queue(request: Request) -> Response:
    """Cases that this visitor may take, the most urgent first."""
    visitor, reviews = visitor_of(request), review_queue_of(request)
    why = why_of(request.query_params.get("why", ""))
    cases = list(
        await reviews.queue(
            visitor.name, limit=_PAGE + 1, after=_after(request), why=why, namespaces=visitor.namespaces
        )
    )
    more = ""
    if len(cases) > _PAGE:
        cases = cases[:_PAGE]
        urgency, opened, trial_id = place_of(cases[-1])
        more = urlencode({"why": why or "", "urgency": urgency, "opened": opened, "after": trial_id})
    counts = await reviews.counts(visitor.namespaces)
    return render(
        request,
        "review/queue.html",
        cases=cases,
        behind=await behind(request),
        more=more,
        counts=counts,
        why=why,
        words=TOLD,
        hidden=await hidden_and_noted(request, [case.trial_id for case in cases]),
        none_left="none" in request.query_params,
    )


async def take_next(request: Request) -> Response:
    """Takes the most urgent case that nobody has, and opens it."""
    visitor = visitor_of(request)
    why = why_of(form_of(request).get("why", ""))
    case = await review_queue_of(request).take_next(visitor.name, why=why, namespaces=visitor.namespaces)
    return RedirectResponse("/desk?none=" if case is None else case_path(case.trial_id), status_code=303)


def why_of(given: str) -> ReviewPriority | None:
    """The reason that a page asks for. Raises BadRequest if there is none of that name."""
    if not given:
        return None
    if given not in ReviewPriority.__members__:
        raise BadRequest("There is no such reason to look at a case.", field="why")
    return ReviewPriority(given)


def _after(request: Request) -> tuple[int, str, str] | None:
    given = request.query_params
    if not given.get("after"):
        return None
    urgency = given.get("urgency", "")
    # The address is anyone's to write; isdecimal alone is true of the digits of any script.
    if not urgency.isascii() or not urgency.isdecimal() or len(urgency) > 3:
        raise BadRequest("That page of the queue can't be found. Begin with the first.", field="urgency")
    return int(urgency), given.get("opened", ""), given["after"]


PAGES = (
    Page("/desk", queue, role=Role.REVIEWER, name="desk", nav="Desk"),
    Page("/desk/next", take_next, role=Role.REVIEWER, methods=("POST",), name="take_next"),
)
