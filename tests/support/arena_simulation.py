"""Simulated battles with known strengths, to test the coverage of intervals.

A meme suits some models better than others in all battles over it, which a bootstrap over battles can't capture.
"""

from dataclasses import dataclass, replace

import numpy as np

from eval.arena.ranking.battles import Battles, Floats, rated
from eval.arena.ranking.bootstrap import spread
from eval.arena.ranking.bradley_terry import fit


@dataclass(frozen=True, slots=True)
class World:
    """Source of simulated battles.

    Attributes:
        strengths: Strengths of the models, in log-odds.
        meme_effect: Standard deviation of how much a meme suits a model, in log-odds.
        ties: Share of battles that are tied regardless of strength.
        tasks: Number of tasks per meme; three models meet on each, in all pairs.
    """

    strengths: tuple[float, ...] = (0.8, 0.4, 0.1, -0.3, -1.0)
    meme_effect: float = 1.0
    ties: float = 0.15
    memes: int = 60
    tasks: int = 3

    def truth(self) -> Floats:
        """Ratings in the limit of many memes; float of shape (models,).

        They are not the strengths: averaging over memes shrinks differences.
        """
        theta = np.array(self.strengths)
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        shift = nodes * self.meme_effect * np.sqrt(2)  # of the difference of two
        difference = theta[:, None] - theta[None, :]
        won = (weights / weights.sum() / (1 + np.exp(-(difference[:, :, None] + shift)))).sum(axis=2)
        # A tie is half a win.
        won = (1 - self.ties) * won + self.ties / 2
        # The quadrature gives each model half a win over itself, which is not a battle.
        np.fill_diagonal(won, 0)
        return rated(fit(won), None)

    def table(self, seed: int, more: Floats | float = 0.0) -> Battles:
        """Simulates one table of battles, task by task.

        Args:
            more: Further log-odds of the models, float of shape (memes, tasks, models).
        """
        rng = np.random.default_rng(seed)
        n, shape = len(self.strengths), (self.memes, self.tasks, 3)
        # Drawn once per meme: battles over the same meme are correlated, as in an arena.
        theta = (
            self.strengths + rng.normal(0, self.meme_effect, (self.memes, 1, n)) + np.zeros((1, self.tasks, 1)) + more
        )
        three = rng.permuted(np.broadcast_to(np.arange(n), (*shape[:2], n)), axis=2)[:, :, :3]
        # In random order, as judges are shown answers.
        left, right = np.moveaxis(rng.permuted(three[:, :, [[0, 1], [0, 2], [1, 2]]], axis=3), 3, 0)
        lead = np.take_along_axis(theta, left, axis=2) - np.take_along_axis(theta, right, axis=2)
        score = (rng.random(shape) < 1 / (1 + np.exp(-lead))).astype(np.float64)
        score[rng.random(shape) < self.ties] = 0.5
        meme = np.broadcast_to(np.arange(self.memes)[:, None, None], shape)
        names = tuple(f"model {place}" for place in range(n))
        return Battles(names, *(column.ravel() for column in (left, right, score, meme)))


def coverage(world: World, tables: int, *, resamples: int) -> tuple[float, float]:
    """Simulates tables; returns the shares of intervals with the truth, by bootstrap over memes and over battles."""
    truth = world.truth()

    def holds(table: Battles, seed: int) -> Floats:
        found = spread(table, resamples=resamples, seed=seed)
        assert found.low is not None and found.high is not None
        return np.asarray((found.low <= truth) & (truth <= found.high), dtype=np.float64)

    drawn = [world.table(number) for number in range(tables)]
    # As if every battle were over a meme of its own.
    apart = [replace(table, meme=np.arange(len(table), dtype=np.int64)) for table in drawn]
    by_meme, by_battle = (np.mean([holds(one, seed) for seed, one in enumerate(each)]) for each in (drawn, apart))
    return float(by_meme), float(by_battle)
