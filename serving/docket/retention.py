"""Retention: erases trials that are older than the settings allow.

It erases the same as ``memecourt docket erase``, with a log entry for each trial. Age counts from the opening of a
trial, whatever happened to it since.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from court.errors import CourtError
from serving.access.callers import SANDBOX
from serving.docket.open import Docket
from serving.docket.review.corrections import name_of
from serving.docket.store.erasure import UNFINISHED
from serving.docket.store.listing import DocketLine, TrialFilter, TrialIndex
from serving.settings import Settings

SANDBOX_DAYS: Final = 1
"""Days after which tries are erased."""
EVERY_S: Final = 3600.0
"""Seconds between two passes of a server."""
WHO: Final = "retention"
"""Name recorded as the author of erasures by age."""

_AT_ONCE = 200
"""Maximum number of trials that are erased together."""

_log = logging.getLogger("memecourt.retention")

Forget = Callable[[str], Awaitable[object]]
"""Deletes a precedent from the library, by its id."""


@dataclass(frozen=True, slots=True)
class RetentionPeriod:
    """Days after which trials of some namespaces are erased."""

    days: int
    which: TrialFilter

    def expired_at(self, now: datetime) -> TrialFilter:
        """Returns the filter of trials that have expired."""
        return replace(self.which, opened_until=now - timedelta(days=self.days), erased=False)


@dataclass(frozen=True, slots=True)
class RetentionPass:
    """Result of one pass over a docket.

    Attributes:
        overdue: Number of expired trials that could not be erased, or not completely.
        unfinished: Trials of which files or the picture storage still contain something, with their precedents.
    """

    erased: Mapping[str, int]
    overdue: int
    unfinished: Mapping[str, Sequence[str]] = field(default_factory=dict)


def retention_periods(settings: Settings) -> Sequence[RetentionPeriod]:
    """Returns the periods in the settings, and that of tries, which no setting changes."""
    own = {name: each.retention_days for name, each in settings.namespaces.items() if each.retention_days is not None}
    own[SANDBOX] = SANDBOX_DAYS
    periods = [RetentionPeriod(days, TrialFilter(namespace=name)) for name, days in own.items() if days != "unlimited"]
    if settings.retention_days is not None:
        # Except namespaces with their own setting, including those that keep everything.
        periods.append(RetentionPeriod(settings.retention_days, TrialFilter(other_than=frozenset(own))))
    return periods


async def find_expired(
    index: TrialIndex, period: RetentionPeriod, now: datetime
) -> AsyncIterator[Sequence[DocketLine]]:
    """Yields pages of expired trials, the oldest first."""
    after = None
    # Each page starts after the previous one: trials that could not be erased are not met again in this pass.
    while lines := await index.list(limit=_AT_ONCE, after=after, which=period.expired_at(now), oldest_first=True):
        yield lines
        after = (lines[-1].opened_at, lines[-1].trial_id)


async def erase_expired(
    docket: Docket,
    periods: Sequence[RetentionPeriod],
    *,
    now: datetime,
    forget: Forget | None = None,
    unfinished: Mapping[str, Sequence[str]] | None = None,
    finding_days: int | None = None,
) -> RetentionPass:
    """Erases all expired trials, and the precedents made from their overrulings.

    Args:
        periods: Periods, no two of which apply to the same namespace.
    """
    await docket.findings.expire(now)
    erased: Counter[str] = Counter()
    overdue, left = 0, dict(unfinished or {})
    # First, since records already say that these are erased while some of their data still exists (PR-1).
    why = "erased before, and not everywhere"
    if left and await _erase(docket, left, why=why, now=now, finding_days=finding_days) is None:
        left.clear()
    for period in periods:
        why = f"older than {period.days} days, which is how long it is kept"
        async for lines in find_expired(docket.index, period, now):
            ready, error = await _forget_precedents(lines, forget)
            precedents = {line.trial_id: (name_of(line.trial_id),) if line.review else () for line in ready}
            gone = True
            if (failed := await _erase(docket, precedents, why=why, now=now, finding_days=finding_days)) is not None:
                # Unfinished means erased in the docket but not everywhere: counted as erased, and retried.
                error, gone = failed, failed.reason == UNFINISHED
                if gone:
                    left |= precedents
            erased.update(line.namespace for line in ready if gone)
            if error is not None:
                # Erased together or not at all: on failure all are late, otherwise only those whose precedents are
                # still there.
                late = len(lines) - (0 if failed else len(ready))
                overdue += late
                _log.error("%d trials can't be erased now: reason=%s", late, error.reason)
    return RetentionPass(erased, overdue, left)


async def _erase(
    docket: Docket, trials: Mapping[str, Sequence[str]], *, why: str, now: datetime, finding_days: int | None
) -> CourtError | None:
    """Erases trials; returns the error if that failed."""
    try:
        await docket.eraser.erase_all(trials, who=WHO, why=why, at=now, keep_findings_days=finding_days)
    except CourtError as error:
        return error
    return None


async def _forget_precedents(
    lines: Sequence[DocketLine], forget: Forget | None
) -> tuple[Sequence[DocketLine], CourtError | None]:
    """Deletes the precedents of trials; returns the trials without any left, and the error of the others."""
    ready: list[DocketLine] = []
    failed: CourtError | None = None
    for line in lines:
        try:
            # Before the trial is erased: an erased trial is not found again, and its precedent would stay.
            if line.review is not None and forget is not None:
                await forget(name_of(line.trial_id))
        except CourtError as error:
            failed = error
        else:
            ready.append(line)
    return ready, failed


async def keep_retention(
    docket: Docket,
    settings: Settings,
    *,
    forget: Forget | None,
    report: Callable[[int, int], None],
    every_s: float = EVERY_S,
) -> None:
    """Erases expired trials periodically until cancelled. Several servers may do so on one docket."""
    periods = retention_periods(settings)
    unfinished: Mapping[str, Sequence[str]] = {}
    while periods:
        now = datetime.now(UTC)
        try:
            done = await erase_expired(
                docket, periods, now=now, forget=forget, unfinished=unfinished, finding_days=settings.findings.days
            )
        # Continue: a temporary outage of the docket must not end retention.
        except CourtError as error:
            _log.error("nothing can be erased by age now: reason=%s", error.reason)
        else:
            unfinished = done.unfinished
            count = sum(done.erased.values())
            report(count, done.overdue)
            if count:
                _log.info("erased by age: trials=%d", count)
        await asyncio.sleep(every_s)
