"""Figures of a docket for its overview: what waits, what was decided, and how people judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, case, func, select

from court.events import ReviewOutcome
from serving.access.callers import SANDBOX
from serving.docket.ports import TrialReader
from serving.docket.review.agreement import Agreement
from serving.docket.review.drift import ErrorFigure, measure_drift
from serving.docket.review.queue import ReviewQueue
from serving.docket.store import review_tables as t
from serving.docket.store.tables import stamp

WEEKS: Final = 12
DAYS: Final = 28
"""Last weeks and days that are shown."""
QUICK_S: Final = 2.0
"""Time from the look to the decision below which nobody can have judged a meme."""
_AGES: Final = {"1 hour": 1, "4 hours": 4, "1 day": 24, "1 week": 168, "longer": None}
"""Upper ends of the ages of waiting cases, in hours."""

_case, _review = t.cases.c, t.reviews.c


@dataclass(frozen=True, slots=True)
class Period:
    """Verdicts of a day or a week, by the opening of their trials.

    Attributes:
        reviewed: Number that a person has reviewed; ``overruled`` of these by the last one.
    """

    start: date
    decided: int = 0
    reviewed: int = 0
    overruled: int = 0


@dataclass(frozen=True, slots=True)
class ReviewerFigures:
    """Reviews of one person of trials of the last days.

    Attributes:
        quick: Number of decisions within :data:`QUICK_S` of the look.
    """

    name: str
    reviews: int
    overruled: int
    quick: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the overview shows.

    Attributes:
        ages: Number of waiting cases by age, the youngest first.
        days: The last days, also those without a verdict.
    """

    ages: Mapping[str, int]
    oldest: datetime | None
    days: Sequence[Period]
    weeks: Sequence[Period]
    agreement: Mapping[date, Agreement]
    drift: Mapping[date, ErrorFigure]
    reviewers: Sequence[ReviewerFigures]

    @property
    def waiting(self) -> int:
        """Number of waiting cases."""
        return sum(self.ages.values())


async def read_overview(
    queue: ReviewQueue, trials: TrialReader, *, now: datetime, namespaces: frozenset[str] | None = None
) -> Overview:
    """Reads the figures of the namespaces that somebody may see. Raises Unavailable."""
    since = now - timedelta(weeks=WEEKS)
    # Tries are no work, and erased content is no figure.
    visible = [_case.namespace != SANDBOX, ~_case.erased]
    if namespaces is not None:
        visible.append(_case.namespace.in_(sorted(namespaces)))
    ages, oldest, days, reviewers = await queue.read(lambda c: _figures(c, visible, now))
    first = _monday(since.date())
    weeks = dict[date, Period]()
    for monday in (first + timedelta(weeks=number) for number in range((_monday(now.date()) - first).days // 7 + 1)):
        own = [day for day in days if _monday(day.start) == monday]
        sums = (sum(getattr(day, name) for day in own) for name in ("decided", "reviewed", "overruled"))
        weeks[monday] = Period(monday, *sums)
    # One review suffices for a point of the chart; its interval tells how little that is.
    drift = await measure_drift(queue, trials, now=now, weeks=WEEKS, wanted=1, namespaces=namespaces)
    return Overview(
        ages=ages,
        oldest=oldest,
        days=days[-DAYS:],
        weeks=list(weeks.values()),
        agreement=await queue.agreement_by(_monday, since=since, namespaces=namespaces),
        drift=drift.weeks,
        reviewers=reviewers,
    )


def _figures(connection: Connection, visible: Sequence[ColumnElement[bool]], now: datetime) -> Any:
    waits, before = [*visible, _case.waiting], "~"
    ages = dict[str, int]()
    for name, hours in _AGES.items():
        # By an index: at most what waits is counted.
        younger = stamp(now - timedelta(hours=hours)) if hours else ""
        count = select(func.count()).where(*waits, _case.opened_at > younger, _case.opened_at <= before)
        ages[name], before = connection.execute(count).scalar_one(), younger
    oldest = connection.execute(select(func.min(_case.opened_at)).where(*waits)).scalar_one()

    first, day = _monday(now.date() - timedelta(weeks=WEEKS)), func.substr(_case.opened_at, 1, 10)
    reviewed, overruled = _case.outcome != "", _case.outcome == ReviewOutcome.OVERRULED
    query = select(day, func.count(), _number(reviewed), _number(overruled)).group_by(day)
    query = query.where(*visible, _case.label != "", _case.opened_at >= first.isoformat())
    found = {
        date.fromisoformat(each[0]): Period(date.fromisoformat(each[0]), *each[1:])
        for each in connection.execute(query)
    }
    days = [first + timedelta(days=number) for number in range((now.date() - first).days + 1)]

    # Trials and not reviews: who corrects a review of theirs has still judged one trial.
    number = func.count(func.distinct(_review.trial_id))
    quick, differs = _review.look_s < QUICK_S, _review.outcome == ReviewOutcome.OVERRULED
    by = select(_review.reviewer, number, _number(differs), _number(quick)).group_by(_review.reviewer)
    by = by.join(t.cases, _case.trial_id == _review.trial_id).order_by(number.desc(), _review.reviewer)
    by = by.where(*visible, _case.opened_at >= days[-DAYS].isoformat())
    return (
        ages,
        datetime.fromisoformat(oldest) if oldest else None,
        [found.get(each, Period(each)) for each in days],
        [ReviewerFigures(*each) for each in connection.execute(by.limit(50))],
    )


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())
