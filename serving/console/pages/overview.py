"""Overview: what waits, what was decided and how people judge it, each linked to the list that it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, console_of, redirect, root_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import PRIORITY_WORDS, behind
from serving.console.visitors import Role
from serving.docket.review.agreement import FEWEST
from serving.docket.review.overview import DAYS, Overview, Period, read_overview
from serving.views.charts import Column, columns


async def overview(request: Request) -> Response:
    """Shows the overview where something is on record and counted here; else the list of trials."""
    console, visitor = console_of(request), visitor_of(request)
    if console.reviewing is None:
        return redirect(request, "/trials")
    queue = console.reviewing.queue
    found = await read_overview(queue, console.docket.trials, now=datetime.now(UTC), namespaces=visitor.namespaces)
    # Empty charts tell a new user nothing.
    if not any(week.decided for week in found.weeks) and not found.waiting:
        return redirect(request, "/trials")
    chief = visitor.role >= Role.ADMIN
    # Others could tell a hidden verdict from a share of one or two.
    fewest = 1 if chief else FEWEST
    return render(
        request,
        "overview.html",
        overview=found,
        today=found.days[-1],
        recent=_sum(found.days),
        charts=_charts(request, found, fewest=fewest),
        fewest=fewest,
        # They would tell a reviewer why the next case is there.
        reasons=await queue.counts(visitor.namespaces) if chief else {},
        reviewers=found.reviewers if chief else (),
        words=PRIORITY_WORDS,
        behind=await behind(request),
        days=DAYS,
        at=lambda search: _list_of(request, search),
        by=lambda name, more="": _list_of(request, f"reviewer:{_quoted(name)} since:{found.days[0].start}{more}"),
    )


def _charts(request: Request, found: Overview, *, fewest: int) -> Sequence[Mapping[str, Any]]:
    weeks = f"since:{found.weeks[0].start}"

    def share(of: int, n: int) -> tuple[float | None, str]:
        return (of / n, f"{of / n:.0%} of {n:,}") if n >= fewest else (None, "too few")

    def chart(title: str, link: str, values: Sequence[Column], *, of_all: bool = False) -> Mapping[str, Any]:
        return {"title": title, "link": link, "drawn": columns(title, values, highest=1.0 if of_all else None)}

    agreed = [(week.start, found.agreement.get(week.start)) for week in found.weeks]
    errors = [(week.start, found.drift.get(week.start)) for week in found.weeks]
    # Others may not open the page behind the link.
    agreement = f"{root_of(request)}/desk/agreement" if visitor_of(request).role >= Role.REVIEWER else ""
    return (
        chart(
            "Waiting cases by age",
            _list_of(request, "is:waiting"),
            [Column(age, count, f"{count:,}") for age, count in found.ages.items()],
        ),
        chart(
            "Verdicts a day",
            _list_of(request, f"is:decided since:{found.days[0].start}"),
            [Column(_day(each.start), each.decided, f"{each.decided:,}") for each in found.days],
        ),
        chart(
            "Share reviewed, by week",
            _list_of(request, f"is:reviewed {weeks}"),
            [Column(_day(each.start), *share(each.reviewed, each.decided)) for each in found.weeks],
            of_all=True,
        ),
        chart(
            "Overruled share of reviewed, by week",
            _list_of(request, f"is:overruled {weeks}"),
            [Column(_day(each.start), *share(each.overruled, each.reviewed)) for each in found.weeks],
            of_all=True,
        ),
        chart(
            "Agreement of reviewers, by week",
            agreement,
            [
                Column(_day(at), *share(round((one.all.observed or 0) * one.all.n), one.all.n) if one else (None, ""))
                for at, one in agreed
            ],
            of_all=True,
        ),
        chart(
            "Error of the random sample, by week",
            agreement and f"{agreement}?{urlencode({'drawn': 'yes'})}",
            [Column(_day(at), *share(one.wrong, one.reviewed) if one else (None, "")) for at, one in errors],
            of_all=True,
        ),
    )


def _sum(periods: Sequence[Period]) -> Period:
    decided, reviewed, overruled = (
        sum(getattr(each, name) for each in periods) for name in ("decided", "reviewed", "overruled")
    )
    return Period(periods[0].start, decided, reviewed, overruled)


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list_of(request: Request, search: str) -> str:
    return f"{root_of(request)}/trials?{urlencode({'q': search})}"


PAGES = (Page("/overview", overview, role=Role.VIEWER, name="overview", nav="Overview"),)
