"""The list of trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest
from court.record import TrialState
from court.verdict import Label
from serving.access.callers import SANDBOX
from serving.console.registry import Page, console_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import PRIORITY_WORDS, blinded_ids, cases_of, hidden_and_marked, hidden_ids
from serving.console.visitors import Role
from serving.docket.store.listing import DocketLine, TrialFilter

_PAGE = 50
_FILTERS = ("label", "state", "look", "since", "until", "namespace", "reviewed")


async def trials(request: Request) -> Response:
    """Lists the trials that the visitor may see, newest first, page by page."""
    params = request.query_params
    which = filter_of(request)
    lines = await _lines(request, which, _after(params.get("after", "")))
    page = lines[:_PAGE]
    filters = {name: params.get(name, "") for name in _FILTERS}
    own = {name: value for name, value in filters.items() if value}
    older = urlencode({**own, "after": _cursor(page[-1])}) if len(lines) > _PAGE else ""
    # Reviewers decide before they see the verdict.
    values: dict[str, Any] = {
        "hidden": await hidden_and_marked(request, [line.trial_id for line in page if line.label and not line.erased]),
        "left_out": _tells(which) and bool(blinded_ids(request)),
        "lines": page,
        "cases": await cases_of(request, [line.trial_id for line in page]),
        "words": PRIORITY_WORDS,
        "older": older,
        "first": "after" not in params,
        "kept": filters,
        "own": own,
    }
    return render(request, "trials.html", **values, labels=list(Label), states=list(TrialState))


async def _lines(request: Request, which: TrialFilter, after: tuple[datetime, str] | None) -> Sequence[DocketLine]:
    """Returns the lines of a page, and one more if there is another page.

    Neither a filter nor the end of a page may reveal a verdict: if the list is filtered by
    the outcome, trials whose verdict is still hidden from the visitor are left out.
    """
    index, found = console_of(request).docket.index, list[DocketLine]()
    while True:
        lines = await index.list(limit=_PAGE + 1, after=after, which=which)
        hidden = await hidden_ids(request, [line.trial_id for line in lines]) if _tells(which) else frozenset()
        found += [line for line in lines if line.trial_id not in hidden]
        if len(lines) <= _PAGE or len(found) > _PAGE:
            return found
        # The cursor is the last line read, hidden or not: the next page of the index starts after it.
        after = (lines[-1].opened_at, lines[-1].trial_id)


def _tells(which: TrialFilter) -> bool:
    """True if a filter reveals the verdicts of the trials that pass it."""
    return bool(which.labels) or which.needs_review is not None


def filter_of(request: Request) -> TrialFilter:
    """Returns the filter in the address, limited to what the visitor may see. Raises BadRequest if it is malformed."""
    params = request.query_params
    try:
        labels = frozenset(Label(label) for label in params.getlist("label") if label)
        states = frozenset(TrialState(state) for state in params.getlist("state") if state)
        since, until = (_midnight(params.get(name, "")) for name in ("since", "until"))
    except ValueError:
        raise BadRequest("Trials can't be chosen by that.", reason="BAD_FILTER", field="filter") from None
    return TrialFilter(
        labels=labels,
        states=states,
        opened_from=since,
        opened_until=until,
        namespace=params.get("namespace") or None,
        reviewed={"yes": True, "no": False}.get(params.get("reviewed", "")),
        needs_review=True if params.get("look") else None,
        namespaces=visitor_of(request).namespaces,
        # Tries are listed only where their namespace is asked for.
        other_than=frozenset() if params.get("namespace") == SANDBOX else frozenset({SANDBOX}),
    )


def _midnight(day: str) -> datetime | None:
    return datetime.combine(date.fromisoformat(day), time(), UTC) if day else None


def _cursor(line: DocketLine) -> str:
    return f"{line.opened_at.isoformat()} {line.trial_id}"


def _after(value: str) -> tuple[datetime, str] | None:
    if not value:
        return None
    at, _, trial_id = value.partition(" ")
    try:
        opened = datetime.fromisoformat(at)
        # Without a zone it would be taken as local time; at the ends of the calendar conversion to UTC may overflow.
        if opened.tzinfo is not None and trial_id:
            return opened.astimezone(UTC), trial_id
    except (ValueError, OverflowError):
        pass
    raise BadRequest("That is no place in the list of trials.", field="after")


PAGES = (Page("/", trials, role=Role.VIEWER, name="trials", nav="Trials"),)
