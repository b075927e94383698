"""The list of trials: found by one search bar, with columns to choose and to sort; its address is the bookmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest
from serving.access.callers import SANDBOX, NotAllowed
from serving.console.registry import Page, console_of, root_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import PRIORITY_WORDS, behind, blind_reviewer, cases_of, hidden_and_marked
from serving.console.visitors import Role
from serving.docket.review.search import CHOICES, KEYS, Search, parse_search
from serving.docket.store.listing import SORTS, TrialFilter

_PAGE = 50
_COLUMNS = {
    "label": ("Label", "harm"),
    "decision": ("Decision", ""),
    "reason": ("Reason", "reason"),
    "content": ("Content", "content"),
    "procedure": ("Procedure", "procedure"),
    "opened": ("Opened", "opened"),
    "request": ("Request", ""),
    "models": ("Models", ""),
    "category": ("Category", ""),
    "trial": ("Trial", ""),
}
"""Columns beside the meme, by name: heading and order, if there is one."""
_USUAL = ("label", "decision", "reason", "content", "procedure", "opened")


@dataclass(frozen=True, slots=True)
class _Address:
    """An address of the list; methods return others that differ in one thing."""

    root: str
    terms: tuple[str, ...]
    sort: str
    columns: tuple[str, ...]

    def export(self, form: str) -> str:
        return self.at(f"/export/{form}", sort="")

    def at(self, path: str = "/trials", **more: str) -> str:
        chosen = () if self.columns == _USUAL else self.columns
        query = {"q": " ".join(self.terms), "sort": self.sort if self.sort != "-opened" else "", **more}
        pairs = [*((name, value) for name, value in query.items() if value), *(("col", name) for name in chosen)]
        return f"{self.root}{path}?{urlencode(pairs)}" if pairs else f"{self.root}{path}"

    def without(self, term: str) -> str:
        return replace(self, terms=tuple(each for each in self.terms if each != term)).at()

    def plus(self, term: str) -> str:
        return replace(self, terms=tuple(dict.fromkeys((*self.terms, term)))).at()

    def sorted(self, by: str) -> str:
        return replace(self, sort=by if self.sort == f"-{by}" else f"-{by}").at()


async def trials(request: Request) -> Response:
    """Lists the trials that a search finds and the visitor may see, page by page."""
    params = request.query_params
    sort = params.get("sort", "-opened")
    if sort.removeprefix("-") not in SORTS:
        raise BadRequest(f"The list is sorted by {', '.join(SORTS)}.", field="sort")
    columns = tuple(name for name in _COLUMNS if name in params.getlist("col")) or _USUAL
    values: dict[str, Any] = {"lines": (), "total": 0, "hidden": (), "cases": {}, "behind": 0, "more": ""}
    found, refused = Search((), TrialFilter()), None
    try:
        found = await search_of(request)
    except (BadRequest, NotAllowed) as error:
        refused = error
    address = _Address(root_of(request), found.terms, sort, columns)
    if refused is None:
        values["behind"] = await behind(request) if console_of(request).reviewing else 0
        index = console_of(request).docket.index
        # One more than is shown says whether there is another page.
        lines = await index.search(
            found.which,
            limit=_PAGE + 1,
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            after=params.get("after", ""),
        )
        page = lines[:_PAGE]
        values |= {
            "lines": page,
            "total": await index.count(found.which),
            # Reviewers decide before they see the verdict.
            "hidden": await hidden_and_marked(
                request, [line.trial_id for line in page if line.label and not line.erased]
            ),
            "cases": await cases_of(request, [line.trial_id for line in page]),
            "more": address.at(after=page[-1].trial_id) if len(lines) > _PAGE else "",
        }
    return render(
        request,
        "trials.html",
        status=403 if isinstance(refused, NotAllowed) else 400 if refused else 200,
        **values,
        refused=refused,
        asked=params.get("q", ""),
        terms=found.terms,
        address=address,
        columns=_COLUMNS,
        chosen=columns,
        choices=CHOICES,
        keys=KEYS[len(CHOICES) :],
        words=PRIORITY_WORDS,
        left_out=found.which.blind is not None and found.which.tells,
        told_why=visitor_of(request).role >= Role.ADMIN,
        parquet=find_spec("pyarrow") is not None,
    )


async def search_of(request: Request) -> Search:
    """Returns the search in the address, limited to what the visitor may see.

    Raises:
        BadRequest: The search can't be read.
        NotAllowed: The search names a namespace that is not for the visitor.
    """
    found, visitor = parse_search(request.query_params.get("q", "")), visitor_of(request)
    which = found.which
    # Refused rather than found empty: an empty page would read as if there were none.
    if which.namespace is not None and not visitor.sees(which.namespace):
        raise NotAllowed("That namespace is not for you to see.", reason="NAMESPACE_NOT_ALLOWED")
    return replace(
        found,
        which=replace(
            which,
            namespaces=visitor.namespaces,
            # Tries are listed only where their namespace is asked for.
            other_than=frozenset() if which.namespace == SANDBOX else frozenset({SANDBOX}),
            blind=blind_reviewer(request),
        ),
    )


PAGES = (
    Page("/trials", trials, role=Role.VIEWER, name="trials", nav="Trials"),
    Page("/", trials, role=Role.VIEWER, name="home"),
)
