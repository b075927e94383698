"""Drift: weekly error of randomly sampled verdicts, and the risk cut-off that follows from it.

Only the random sample is representative: everything else was reviewed because something was doubtful. The first review
of each verdict is compared with the court's label.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from court.precedents import RiskCurve
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.review.queue import ReviewQueue, SampledReview

RECENT_DAYS: Final = 28
"""Days whose error is compared with the expected error."""
FEWEST: Final = 30
"""Minimum number of sampled reviews for reporting drift: with fewer, the interval is too wide."""
_Z95: Final = 1.959963984540054


@dataclass(frozen=True, slots=True)
class SampledVerdict:
    """A reviewed verdict of the random sample.

    Attributes:
        opened_at: UTC.
        risk: Estimated probability that the verdict is wrong; None if it has none.
        passed: True if it would not have been reviewed without the sampling.
    """

    trial_id: str
    opened_at: datetime
    wrong: bool
    risk: float | None
    passed: bool
    curve: RiskCurve | None = None


@dataclass(frozen=True, slots=True)
class ErrorFigure:
    """Error of a group of sampled verdicts.

    Attributes:
        passed_wrong: Number of wrong verdicts that would not have been reviewed without the sampling.
        expected: Mean risk of the reviewed verdicts that have one; None if none has.
    """

    drawn: int
    reviewed: int
    wrong: int
    passed_wrong: int
    expected: float | None
    low: float | None
    high: float | None

    @property
    def error(self) -> float | None:
        """Share of reviewed verdicts that are wrong; None if nothing was reviewed."""
        return self.wrong / self.reviewed if self.reviewed else None

    @property
    def passed_error(self) -> float | None:
        """Share of reviewed verdicts that are wrong and would not have been reviewed without the sampling."""
        return self.passed_wrong / self.reviewed if self.reviewed else None

    @property
    def drifted(self) -> bool:
        """True if the error significantly exceeds the verdicts' own risks, with enough reviews."""
        # Compare the lower end of the interval, so that chance alone rarely raises an alarm.
        if self.reviewed < FEWEST or self.low is None or self.expected is None:
            return False
        return self.low > self.expected


@dataclass(frozen=True, slots=True)
class ProposedCutoff:
    """Risk cut-off that keeps the share of wrong unreviewed labels below a target.

    Attributes:
        error: Upper bound of the share that is wrong and unreviewed, ``(wrong + 1) / (n + 1)``.
        rate: ``review_rate`` at which the library's own curve has this cut-off; None if there is no curve.
    """

    cutoff: float
    share: float
    error: float
    rate: float | None


@dataclass(frozen=True, slots=True)
class DriftReport:
    """Error of the random sample.

    Attributes:
        proposed: Cut-off that follows from all weeks; None where no verdict has a risk, or too few were reviewed.
    """

    weeks: Mapping[date, ErrorFigure]
    recent: ErrorFigure
    proposed: ProposedCutoff | None


async def measure_drift(
    queue: ReviewQueue,
    trials: TrialReader,
    *,
    now: datetime,
    weeks: int = 12,
    wanted: float,
    namespace: str | None = None,
    namespaces: frozenset[str] | None = None,
) -> DriftReport:
    """Reads the random sample of the last weeks and its reviews."""
    drawn = await queue.sampled(
        since=now - timedelta(weeks=weeks), until=now, namespace=namespace, namespaces=namespaces
    )
    # One record at a time: only the reviewed part of a small sample is read, and records may be large.
    reviewed = {each.trial_id: await _verdict_of(each, trials) for each in drawn if each.found is not None}
    known = {trial_id: verdict for trial_id, verdict in reviewed.items() if verdict is not None}
    by_week: dict[date, list[SampledReview]] = defaultdict(list)
    for each in drawn:
        day = each.opened_at.date()
        by_week[day - timedelta(days=day.weekday())].append(each)
    recent = [each for each in drawn if each.opened_at >= now - timedelta(days=RECENT_DAYS)]
    return DriftReport(
        weeks={monday: _figure(some, known) for monday, some in sorted(by_week.items())},
        recent=_figure(recent, known),
        proposed=propose_cutoff(list(known.values()), wanted),
    )


def propose_cutoff(verdicts: Sequence[SampledVerdict], wanted: float) -> ProposedCutoff | None:
    """Finds the highest cut-off that meets the target, by conformal risk control.

    The bound is ``(wrong + 1) / (n + 1)``, as for the curve of a library (:class:`court.precedents.RiskCurve`).
    """
    rated = sorted(((each.risk, each.wrong) for each in verdicts if each.risk is not None), key=lambda pair: pair[0])
    n = len(rated)
    if n < FEWEST:
        return None
    # If no cut-off meets the target, everything is reviewed.
    best, wrong = ProposedCutoff(0.0, 1.0, 1 / (n + 1), None), 0
    for index, (risk, is_wrong) in enumerate(rated):
        wrong += is_wrong
        # Verdicts of equal risk are all passed or none.
        if index + 1 < n and rated[index + 1][0] == risk:
            continue
        # The number of wrong ones only grows, so no later cut-off can meet the target.
        if (wrong + 1) / (n + 1) > wanted:
            break
        best = ProposedCutoff(risk, 1 - (index + 1) / n, (wrong + 1) / (n + 1), None)
    # From the latest verdict with a curve, since that is the library in use.
    curve = next((each.curve for each in reversed(verdicts) if each.curve is not None), None)
    rate = None if curve is None else next((p.rate for p in curve.points if p.cutoff <= best.cutoff), 1.0)
    return ProposedCutoff(best.cutoff, best.share, best.error, rate)


def wilson(wrong: int, n: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson 1927), which also works for small and zero counts."""
    z2, share = _Z95**2, wrong / n
    middle, half = share + z2 / (2 * n), _Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))


async def _verdict_of(review: SampledReview, trials: TrialReader) -> SampledVerdict | None:
    try:
        record = await trials.record(review.trial_id)
    except TrialUnknown:
        return None  # erased meanwhile
    verdict = record.verdict
    assert verdict is not None, "only verdicts are reviewed"
    cited = record.precedents
    return SampledVerdict(
        trial_id=review.trial_id,
        opened_at=review.opened_at,
        wrong=review.found is not verdict.label,
        risk=verdict.risk,
        passed=not verdict.needs_human_review,
        curve=cited.findings.risk if cited else None,
    )


def _figure(drawn: Sequence[SampledReview], known: Mapping[str, SampledVerdict]) -> ErrorFigure:
    # Unreviewed or since erased verdicts count as drawn, but are in no share.
    verdicts = [known[each.trial_id] for each in drawn if each.trial_id in known]
    risks = [each.risk for each in verdicts if each.risk is not None]
    wrong = sum(each.wrong for each in verdicts)
    low, high = wilson(wrong, len(verdicts)) if verdicts else (None, None)
    return ErrorFigure(
        drawn=len(drawn),
        reviewed=len(verdicts),
        wrong=wrong,
        passed_wrong=sum(each.wrong and each.passed for each in verdicts),
        expected=sum(risks) / len(risks) if risks else None,
        low=low,
        high=high,
    )
