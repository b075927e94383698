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

    def table(self, seed: int) -> Battles:
        """Simulates one table of battles."""
        rng = np.random.default_rng(seed)
        n = len(self.strengths)
        left, right, score, meme = [], [], [], []
        for number in range(self.memes):
            # Drawn once per meme: battles over the same meme are correlated, as in an arena.
            fit_ = np.array(self.strengths) + rng.normal(0, self.meme_effect, n)
            for _ in range(self.tasks):
                three = rng.choice(n, 3, replace=False)
                for i, j in ((0, 1), (0, 2), (1, 2)):
                    # In random order, as judges are shown answers.
                    a, b = rng.permutation(three[[i, j]])
                    won = float(rng.random() < 1 / (1 + np.exp(fit_[b] - fit_[a])))
                    left.append(a)
                    right.append(b)
                    score.append(0.5 if rng.random() < self.ties else won)
                    meme.append(number)
        places = (np.array(column, dtype=np.int64) for column in (left, right))
        names = tuple(f"model {place}" for place in range(n))
        return Battles(names, *places, np.array(score), np.array(meme, dtype=np.int64))


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
