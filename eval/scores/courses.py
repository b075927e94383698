"""Courses of the trials of a run: rounds of the sides, and entropy of their summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from court.events import Side
from eval.runs.results import Results


@dataclass(frozen=True, slots=True)
class Rounds:
    """Number of rounds of a side, over memes of one gold label."""

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
    """The entropy of a side's summaries at one round, in bits."""

    round: int
    """Counted from 1."""
    n: int
    """Number of summaries; a side that has already rested has none."""
    low: float
    middle: float
    high: float


def rounds_of(results: Results) -> tuple[Rounds, ...]:
    """Rounds per side and gold label; empty if no side ever asked.

    Gold is the data set's own two classes, or the protocol ``merged`` if it has three.
    """
    found = []
    for side in Side:
        for harmful in (False, True):
            counts = [
                one.prediction.sides[side].rounds
                for one in results.tried
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
        sides = (one.prediction.sides[side] for one in results.tried if side in one.prediction.sides)
        courses = [one.entropies for one in sides if one.rounds]
        longest = max(map(len, courses), default=0)
        by_round = [[course[at] for course in courses if len(course) > at] for at in range(longest)]
        if by_round:
            found[side] = tuple(_quartiles(number, values) for number, values in enumerate(by_round, 1))
    return found


def _quartiles(number: int, values: Sequence[float]) -> EntropyAt:
    # quantiles() needs two values. Inclusive: these are all values, not a sample of a larger population.
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return EntropyAt(round=number, n=len(values), low=low, middle=middle, high=high)
