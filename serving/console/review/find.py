"""Search for trials by words and outcome, whose address can be a bookmark, and how far reviewers agree."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest
from court.verdict import Label
from serving.access.callers import NotAllowed
from serving.console.registry import Page, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import PRIORITY_WORDS, behind, blinded_ids, hidden_and_marked, reviewing_of
from serving.console.review.queue import why_of
from serving.console.visitors import Role
from serving.docket.review.queue import Search
from serving.docket.store.tables import stamp

FIELDS = ("text", "label", "since", "until", "namespace", "model", "category", "reviewer", "why")
_PAGE = 50
_LONGEST = 1000


async def find(request: Request) -> Response:
    """Lists the trials that match all criteria, newest first."""
    visitor, reviews, params = visitor_of(request), reviewing_of(request).queue, request.query_params
    fields = {name: params[name].strip()[:_LONGEST] for name in FIELDS if params.get(name, "").strip()}
    which = search_of(fields)
    # Refused rather than found empty: an empty page would read as if there were none.
    if which.namespace is not None and not visitor.sees(which.namespace):
        raise NotAllowed("That namespace is not for you to see.", reason="NAMESPACE_NOT_ALLOWED")
    after = (params.get("opened", ""), params["after"]) if params.get("after") else None
    blind = blinded_ids(request)
    # One more than is shown says whether there is another page.
    cases = list(await reviews.find(which, limit=_PAGE + 1, after=after, namespaces=visitor.namespaces, blind=blind))
    more = ""
    if len(cases) > _PAGE:
        cases = cases[:_PAGE]
        last = cases[-1]
        opened = stamp(last.opened_at) if last.opened_at else ""
        more = urlencode({**fields, "opened": opened, "after": last.trial_id})
    names = await hidden_and_marked(request, [case.trial_id for case in cases if case.label is not None])
    known = {name: await reviews.known(column, visitor.namespaces, blind=blind) for name, column in _KNOWN.items()}
    return render(
        request,
        "review/find.html",
        cases=cases,
        behind=await behind(request),
        asked=fields,
        more=more,
        known=known,
        labels=list(Label),
        words=PRIORITY_WORDS,
        hidden=names,
        # Always stated, and without a count, which would reveal the outcomes.
        left_out=bool(blind) and (which.label is not None or bool(which.category)),
    )


_KNOWN = {"namespace": "namespace", "category": "category", "model": "models", "reviewer": "reviewer"}


def search_of(fields: Mapping[str, str]) -> Search:
    """Parses a search from form fields.

    Raises:
        BadRequest: A field is malformed.
    """
    label = fields.get("label", "")
    if label and label not in Label.__members__:
        raise BadRequest("There is no such label.", field="label")
    until = _day(fields.get("until", ""), "until")
    return Search(
        text=fields.get("text", ""),
        label=Label(label) if label else None,
        since=_day(fields.get("since", ""), "since"),
        # The last day is inclusive.
        until=until + timedelta(days=1) if until else None,
        namespace=fields.get("namespace"),
        model=fields.get("model", ""),
        category=fields.get("category", ""),
        reviewer=fields.get("reviewer", ""),
        why=why_of(fields.get("why", "")),
    )


def _day(value: str, field: str) -> datetime | None:
    if not value:
        return None
    try:
        found = datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC)
        # A day is added to the end of a search, and datetime ends with that year.
        return found if found.year < 9999 else None
    except ValueError:
        raise BadRequest("A day is written as 2026-11-22.", field=field) from None


async def agreement(request: Request) -> Response:
    """Shows how far reviewers agree with each other and with the court, by all reviews or by a selection."""
    params, visitor = request.query_params, visitor_of(request)
    filters = {name: params[name].strip()[:20] for name in ("since", "until") if params.get(name, "").strip()}
    times = search_of(filters)
    blind, drawn = params.get("blind") == "yes", params.get("drawn") == "yes"
    figures = await reviewing_of(request).queue.agreement(
        since=times.since, until=times.until, blind=blind, drawn=drawn, namespaces=visitor.namespaces
    )
    return render(request, "review/agreement.html", figures=figures, asked=filters, blind=blind, drawn=drawn)


PAGES = (
    Page("/desk/find", find, role=Role.VIEWER, name="find", nav="Find"),
    Page("/desk/agreement", agreement, role=Role.REVIEWER, name="agreement", nav="Agreement"),
)
