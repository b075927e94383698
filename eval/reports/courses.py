"""Rounds and entropies of a run's examinations and costs of its trials: the data behind the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from court.events import Side
from eval.runs.results import NOT_JUDGED, Judged, Results


@dataclass(frozen=True, slots=True)
class Rounds:
    """Number of rounds of a side, over memes of one gold label.

    Attributes:
        harmful: True if the gold label is harmful.
        counts: Number of memes by number of rounds.
    """

    side: Side
    harmful: bool
    counts: dict[int, int]

    @property
    def n(self) -> int:
        """Number of memes."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Mean number of rounds per meme."""
        return sum(rounds * memes for rounds, memes in self.counts.items()) / self.n


@dataclass(frozen=True, slots=True)
class EntropyAt:
    """The entropy of a side's summaries at one round, in bits.

    Attributes:
        round: Counted from 1.
        n: Number of summaries; a side that has already rested has none.
        high: Upper quartile.
    """

    round: int
    n: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class MeanCost:
    """Mean cost of a meme in a run; see :class:`eval.solvers.prediction.Cost`.

    Attributes:
        n: Number of judged memes.
        stored: Share of the calls that were answered from the store.
        chain: Median of the longest chain of calls.
        seconds: Median duration of a trial, in seconds.
    """

    n: int
    calls: float
    stored: float
    tokens_in: float
    tokens_out: float
    tokens_cached: float
    chain: float
    seconds: float

    @property
    def tokens(self) -> float:
        """Mean number of tokens read and written per meme."""
        return self.tokens_in + self.tokens_out


def judged_of(results: Results) -> tuple[Judged, ...]:
    """The memes that were judged, including failures."""
    # The placeholder of a meme that is not judged yet has neither rounds nor cost.
    return tuple(one for one in results.judged if one.prediction.reason != NOT_JUDGED)


def rounds_of(results: Results) -> tuple[Rounds, ...]:
    """Rounds per side and gold label; empty if no side ever asked.

    Gold is the data set's own two classes, or the protocol ``merged`` if it has three.
    """
    found = []
    for side in Side:
        for harmful in (False, True):
            counts = [
                one.prediction.sides[side].rounds
                for one in judged_of(results)
                if one.meme.harmful is harmful and side in one.prediction.sides
            ]
            if counts:
                found.append(Rounds(side, harmful, {rounds: counts.count(rounds) for rounds in sorted(set(counts))}))
    # All at 0 rounds if sides ask nothing, as in the arm no-captioner.
    return tuple(found) if any(rounds for one in found for rounds in one.counts) else ()


def entropies_of(results: Results) -> dict[Side, tuple[EntropyAt, ...]]:
    """Median and quartiles of the summaries' entropy by round, per side; only sides that summed up after a round."""
    found = {}
    for side in Side:
        courses = [
            one.prediction.sides[side].entropies
            for one in judged_of(results)
            if side in one.prediction.sides and one.prediction.sides[side].rounds
        ]
        longest = max(map(len, courses), default=0)
        by_round = [[course[at] for course in courses if len(course) > at] for at in range(longest)]
        if by_round:
            found[side] = tuple(_quartiles(number, values) for number, values in enumerate(by_round, 1))
    return found


def cost_of(results: Results) -> MeanCost | None:
    """Means over the judged memes; None if costs are unknown (predictions from elsewhere)."""
    costs = [one.prediction.cost for one in judged_of(results)]
    if not costs or not any(cost.calls or cost.seconds for cost in costs):
        return None
    calls = sum(cost.calls for cost in costs)
    return MeanCost(
        n=len(costs),
        calls=calls / len(costs),
        stored=sum(cost.stored for cost in costs) / calls if calls else 0.0,
        tokens_in=fmean(cost.tokens_in for cost in costs),
        tokens_out=fmean(cost.tokens_out for cost in costs),
        tokens_cached=fmean(cost.tokens_cached for cost in costs),
        # Medians: a few trials that waited for a busy server would distort a mean.
        chain=median(cost.chain for cost in costs),
        seconds=median(cost.seconds for cost in costs),
    )


def _quartiles(number: int, values: Sequence[float]) -> EntropyAt:
    # quantiles() needs two values.
    if len(values) == 1:
        return EntropyAt(round=number, n=1, low=values[0], middle=values[0], high=values[0])
    # Inclusive: these are all values, not a sample of a larger population.
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return EntropyAt(round=number, n=len(values), low=low, middle=middle, high=high)
