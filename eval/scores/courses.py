"""Courses of the trials of a run: rounds of the sides."""

from dataclasses import dataclass

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
