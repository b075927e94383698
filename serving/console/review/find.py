"""Finding trials, by words and by what they came to; searches can be kept under a name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from court.errors import BadRequest
from court.verdict import Label
from serving.access.callers import NotAllowed
from serving.console.registry import Page, form_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import TOLD, behind, blinded_ids, hidden_and_noted, review_queue_of
from serving.console.review.queue import why_of
from serving.console.visitors import Role
from serving.docket.review.queue import Search
from serving.docket.store.tables import stamp

FIELDS = ("text", "label", "since", "until", "namespace", "model", "category", "reviewer", "why")
_PAGE = 50
_LONGEST = 1000


async def find(request: Request) -> Response:
    """Trials that all of what is asked holds for, the last opened first."""
    visitor, reviews, given = visitor_of(request), review_queue_of(request), request.query_params
    asked = {name: given[name].strip()[:_LONGEST] for name in FIELDS if given.get(name, "").strip()}
    which = search_of(asked)
    # Refused rather than found empty: an empty page would read as if there were none.
    if which.namespace is not None and not visitor.sees(which.namespace):
        raise NotAllowed("That namespace is not for you to see.", reason="NAMESPACE_NOT_ALLOWED")
    after = (given.get("opened", ""), given["after"]) if given.get("after") else None
    blind = blinded_ids(request)
    # One more than is shown says whether there is another page.
    cases = list(await reviews.find(which, limit=_PAGE + 1, after=after, namespaces=visitor.namespaces, blind=blind))
    more = ""
    if len(cases) > _PAGE:
        cases = cases[:_PAGE]
        last = cases[-1]
        opened = stamp(last.opened_at) if last.opened_at else ""
        more = urlencode({**asked, "opened": opened, "after": last.trial_id})
    names = await hidden_and_noted(request, [case.trial_id for case in cases if case.label is not None])
    known = {name: await reviews.known(column, visitor.namespaces, blind=blind) for name, column in _KNOWN.items()}
    return render(
        request,
        "review/find.html",
        cases=cases,
        behind=await behind(request),
        asked=asked,
        more=more,
        known=known,
        labels=list(Label),
        words=TOLD,
        hidden=names,
        # Always said, and not how many: that would tell what they came to.
        left_out=bool(blind) and (which.label is not None or bool(which.category)),
        saved={name: urlencode(query) for name, query in (await reviews.saved(visitor.name)).items()},
        query=urlencode(asked),
    )


async def save(request: Request) -> Response:
    """Keeps a search under a name."""
    form = form_of(request)
    asked = {name: form[name].strip()[:_LONGEST] for name in FIELDS if form.get(name, "").strip()}
    # Only to check it: what can't be searched for is not worth keeping.
    search_of(asked)
    await review_queue_of(request).save(visitor_of(request).name, form.get("name", ""), asked)
    return RedirectResponse(f"/desk/find?{urlencode(asked)}", status_code=303)


async def drop(request: Request) -> Response:
    """Removes a saved search."""
    await review_queue_of(request).drop(visitor_of(request).name, form_of(request).get("name", ""))
    return RedirectResponse("/desk/find", status_code=303)


_KNOWN = {"namespace": "namespace", "category": "category", "model": "models", "reviewer": "reviewer"}


def search_of(asked: Mapping[str, str]) -> Search:
    """A search as a form says it.

    Raises:
        BadRequest: A part of it can't be understood.
    """
    label = asked.get("label", "")
    if label and label not in Label.__members__:
        raise BadRequest("There is no such label.", field="label")
    until = _day(asked.get("until", ""), "until")
    return Search(
        text=asked.get("text", ""),
        label=Label(label) if label else None,
        since=_day(asked.get("since", ""), "since"),
        # Whoever names a last day means all of it.
        until=until + timedelta(days=1) if until else None,
        namespace=asked.get("namespace"),
        model=asked.get("model", ""),
        category=asked.get("category", ""),
        reviewer=asked.get("reviewer", ""),
        why=why_of(asked.get("why", "")),
    )


def _day(given: str, field: str) -> datetime | None:
    if not given:
        return None
    try:
        found = datetime.strptime(given, "%Y-%m-%d").replace(tzinfo=UTC)
        # A day is added to the end of a search, and datetime ends with that year.
        return found if found.year < 9999 else None
    except ValueError:
        raise BadRequest("A day is written as 2026-11-22.", field=field) from None


PAGES = (
    Page("/desk/find", find, role=Role.VIEWER, name="find", nav="Find"),
    Page("/desk/searches", save, role=Role.VIEWER, methods=("POST",)),
    Page("/desk/searches/drop", drop, role=Role.VIEWER, methods=("POST",)),
)
