"""Battles: which models met, over which meme, and which one won."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from court.errors import CourtError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCALE = 400 / np.log(10)
"""Points of a rating for one unit of log-odds: 400 points are odds of ten to one."""
MIDDLE = 1000.0
"""The mean of all ratings, or the anchor's."""


class NotRanked(CourtError):
    """Raised if there are no finite ratings because some models were never beaten by any of the others.

    Attributes:
        groups: Groups of models that can be rated against each other; no model of a group lost to one of the next
            group, if they met at all.
    """

    default_reason = "NOT_RANKED"

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self.groups = tuple(tuple(group) for group in groups)
        words = "; ".join(", ".join(group) for group in self.groups)
        super().__init__(
            f"Maximum likelihood has no finite ratings for these battles: they fall into {len(self.groups)} groups of "
            f"which none has both won and lost against the others ({words}). More battles, or fewer models, are needed."
        )


@dataclass(frozen=True, slots=True)
class Battles:
    """A table of battles, in chronological order."""

    models: tuple[str, ...]
    """Names of the models; all other fields refer to them by index."""
    left: Ints
    """Index of one model, int of shape (battles,)."""
    right: Ints
    """Index of the other model, int of shape (battles,)."""
    score: Floats
    """Score of the left one: 1 won, 0.5 tied, 0 lost; float of shape (battles,)."""
    meme: Ints
    """Index of the meme, int of shape (battles,); battles over one meme are not independent."""

    def __post_init__(self) -> None:
        n = len(self.models)
        if not (self.left.shape == self.right.shape == self.score.shape == self.meme.shape):
            raise ValueError("a table of battles has columns of one length")
        if self.left.size:
            places = (self.left, self.right)
            if min(int(p.min()) for p in places) < 0 or max(int(p.max()) for p in places) >= n:
                raise ValueError(f"there are {n} models")
            if bool((self.left == self.right).any()):
                raise ValueError("nobody fights against itself")
            if not bool(((self.score >= 0) & (self.score <= 1)).all()):
                raise ValueError("scores lie in [0, 1]")

    def at(self, rows: Ints) -> Self:
        """Returns the battles at some indices, which may repeat."""
        return type(self)(self.models, self.left[rows], self.right[rows], self.score[rows], meme=self.meme[rows])

    def __len__(self) -> int:
        return int(self.left.size)

    @property
    def memes(self) -> int:
        """Number of meme indices; some may have no battle."""
        return int(self.meme.max()) + 1 if len(self) else 0


def battles(models: Sequence[str], rows: Sequence[tuple[str, str, float, str]]) -> Battles:
    """Builds a table from rows of left name, right name, score of the left one, and meme.

    Raises KeyError: A row names a model that is not in ``models``.
    """
    place = {name: number for number, name in enumerate(models)}
    memes: dict[str, int] = {}
    return Battles(
        models=tuple(models),
        left=np.array([place[left] for left, _, _, _ in rows], dtype=np.int64),
        right=np.array([place[right] for _, right, _, _ in rows], dtype=np.int64),
        score=np.array([score for _, _, score, _ in rows], dtype=np.float64),
        meme=np.array([memes.setdefault(meme, len(memes)) for _, _, _, meme in rows], dtype=np.int64),
    )


def wins_by(table: Battles, unit: Ints, units: int) -> Floats:
    """Counts wins in each part of the battles, a tie as half a win for each; float of shape (units, models, models).

    Args:
        unit: Number of each battle's part, such as its meme; int of shape (battles,), in [0, units).
    """
    n = len(table.models)
    at = (unit * n + table.left) * n + table.right
    won = np.bincount(at, weights=table.score, minlength=units * n * n).reshape(units, n, n)
    fought = np.bincount(at, minlength=units * n * n).reshape(units, n, n)
    # The right one scores what the left one did not: a tie gives half a win to each.
    return np.asarray(won + (fought - won).transpose(0, 2, 1))


def wins(table: Battles) -> Floats:
    """Counts the wins of each model over each other, a tie as half a win for each; float (models, models)."""
    return np.asarray(wins_by(table, np.zeros(len(table), dtype=np.int64), 1)[0])


def win_rates(won: Floats) -> Floats:
    """Returns win rates counted from battles, not derived from ratings; float of shape (models,), NaN without any."""
    # 0 / 0 gives the documented NaN.
    with np.errstate(invalid="ignore"):
        return np.asarray(won.sum(axis=1) / (won + won.T).sum(axis=1))


def reaches(won: Floats) -> NDArray[np.bool_]:
    """Computes which models beat which, directly or through others.

    Args:
        won: float of shape (…, models, models).

    Returns:
        bool of the same shape; every model reaches itself.
    """
    n = won.shape[-1]
    reach = (won > 0) | np.eye(n, dtype=bool)
    # Each squaring doubles the length of the paths, so the logarithm of the number of models suffices. In float32,
    # because NumPy multiplies Booleans without BLAS; sums of at most n ones are exact in it.
    for _ in range(max(1, int(np.ceil(np.log2(max(n, 2)))))):
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    return np.asarray(reach)


def connected(won: Floats) -> NDArray[np.bool_]:
    """True if every model reaches every other, so that ratings are finite; bool of shape (…)."""
    return np.asarray(reaches(won).all(axis=(-1, -2)))


def groups(won: Floats, models: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the strongly connected components of the graph of wins, those that reach most models first."""
    reach = reaches(won)
    both = reach & reach.T
    found = {tuple(np.flatnonzero(row).tolist()) for row in both}
    # All members of a component reach the same models, so the first one represents it.
    ordered = sorted(found, key=lambda group: (-int(reach[group[0]].sum()), group))
    return tuple(tuple(models[place] for place in group) for group in ordered)


def rated(theta: Floats, anchor: int | None) -> Floats:
    """Converts log-odds to ratings.

    Args:
        theta: float of shape (…, models).
        anchor: Model whose rating is 1000; None to fix the mean.
    """
    zero = theta.mean(axis=-1, keepdims=True) if anchor is None else theta[..., anchor : anchor + 1]
    return np.asarray(MIDDLE + SCALE * (theta - zero))
