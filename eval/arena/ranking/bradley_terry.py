"""Bradley-Terry by maximum likelihood: Newton's method on counts, or on battles if there are covariates.

The probability that i beats j is ``σ(θ_i − θ_j)``, with covariates ``σ(θ_i − θ_j + x·β)`` (Bradley & Terry 1952; Hunter
2004 on when a maximum exists). A tie is half a win each. The likelihood is concave: if every model reaches every other
one by wins, there is one maximum, up to a constant added to all.
"""

import numpy as np

from court.errors import CourtError
from eval.arena.ranking.battles import MIDDLE, Battles, Floats, Ints, NotRanked, connected, groups, rated, wins

K = 4.0
"""Points that a battle moves a rating by at most: that of Chatbot Arena (Chiang et al. 2024), which makes the order
matter little."""


def elo(table: Battles, orders: Ints | None = None, *, k: float = K) -> Floats:
    """Computes ratings after the last battle, from 1000; float of shape (models,), or (orders, models).

    The chance of a win is that of 400 points for odds of ten to one; ProBench prints its exponent with the opposite
    sign, which would make the weaker model the favourite.

    Args:
        orders: Indices of battles in sequence, int of shape (orders, steps), −1 for none; None for that of the table.
    """
    if orders is None:
        return np.asarray(elo(table, np.arange(len(table), dtype=np.int64)[None], k=k)[0])
    rows = np.arange(len(orders))
    rating = np.full((len(orders), len(table.models)), MIDDLE)
    for battle in orders.T:
        left, right = table.left[battle], table.right[battle]
        chance = 1 / (1 + 10 ** ((rating[rows, right] - rating[rows, left]) / 400))
        # Index -1 reads the last battle, which then changes no rating.
        move = np.where(battle < 0, 0.0, k * (table.score[battle] - chance))
        rating[rows, left] += move
        rating[rows, right] -= move
    return rating


_STEPS = 200
_CLOSE = 1e-9
"""Newton decrement below which a step is taken whole and the next ones converge by squares."""
_DONE = 1e-13
"""Longest step, in log-odds, that ends it: a ten-billionth of a point."""


class NoMaximum(CourtError):
    """The likelihood has no finite maximum: the covariates separate winners from losers perfectly."""

    default_reason = "NO_MAXIMUM"


def quarter_ties(n: int) -> Floats:
    """Returns wins of a quarter of a tied battle per pair of models; adding them makes any ratings finite.

    Returns float of shape (n, n).
    """
    return np.asarray((1 - np.eye(n)) / 8)


def finite_ratings(won: Floats) -> Floats:
    """Computes ratings with a mean of 1000 and a quarter of a tied battle added to each pair; float (…, models).

    They exist however few battles there are, such as those of one judge, or over drawn memes.
    """
    return rated(fit(won + quarter_ties(won.shape[-1])), None)


def fit(won: Floats) -> Floats:
    """Computes the log-odds of models, with a mean of 0.

    Args:
        won: Counts as :func:`eval.arena.ranking.battles.wins` gives them, or several such tables: float of shape
            (…, models, models). Each must be connected.

    Returns:
        float of shape (…, models).
    """
    n = won.shape[-1]
    tables = won.reshape(-1, n, n).astype(np.float64)
    fought = tables + tables.transpose(0, 2, 1)
    scored = tables.sum(axis=2)
    theta = np.zeros((len(tables), n))
    ones = np.full((n, n), 1.0 / n)
    # Converged tables drop out, so that a slow one does not keep the others iterating.
    todo = np.arange(len(tables))
    for _ in range(_STEPS):
        t, games = theta[todo], fought[todo]
        chance = _sigmoid(t[:, :, None] - t[:, None, :])
        slope = scored[todo] - (games * chance).sum(axis=2)
        bend = games * chance * (1 - chance)
        # The Laplacian of the curvatures. Adding a constant to all changes nothing, so that direction is filled in,
        # scaled, as curvatures get tiny where probabilities are far from a half.
        laplacian = -bend
        laplacian[:, np.arange(n), np.arange(n)] += bend.sum(axis=2)
        size = np.einsum("rii->r", laplacian)[:, None, None] / n
        # Never 0, which would leave the matrix singular: curvatures may underflow.
        step = np.linalg.solve(laplacian + ones * np.maximum(size, 1e-300), slope[:, :, None])[:, :, 0]
        step -= step.mean(axis=1, keepdims=True)
        gain = (slope * step).sum(axis=1)
        theta[todo] = t + _damped(tables[todo], t, step, gain)
        # Relative to the largest rating: floats far from 0 can't resolve steps of _DONE.
        todo = todo[np.abs(step).max(axis=1) > _DONE * np.maximum(1.0, np.abs(t).max(axis=1))]
        if not todo.size:
            theta -= theta.mean(axis=1, keepdims=True)
            return theta.reshape(won.shape[:-1])
    raise ArithmeticError(f"{todo.size} tables did not converge in {_STEPS} steps")


def ratings(table: Battles, *, anchor: int | None = None) -> Floats:
    """Computes ratings of the models; float of shape (models,).

    Raises NotRanked: Not every model reaches every other one by wins.
    """
    won = wins(table)
    if not bool(connected(won)):
        raise NotRanked(groups(won, table.models))
    return rated(fit(won), anchor)


def styled(table: Battles, covariates: Floats, *, anchor: int | None = None) -> Floats:
    """Computes ratings controlled for covariates, float of shape (models,).

    Args:
        covariates: Left minus right, float of shape (battles, covariates); a column that is 0 throughout has no effect.

    Raises:
        NotRanked: Not every model reaches every other one by wins.
        NoMaximum: The covariates separate winners from losers perfectly.
    """
    n, score, won = len(table.models), table.score, wins(table)
    if not bool(connected(won)):
        raise NotRanked(groups(won, table.models))
    # In units of their spread, so that the Hessian is well scaled; a column without spread has no effect.
    spread = covariates.std(axis=0)
    models = np.eye(n)
    design = np.hstack([models[table.left] - models[table.right], covariates[:, spread > 0] / spread[spread > 0]])
    at = np.zeros(design.shape[1])
    gauge = np.zeros((len(at), len(at)))
    gauge[:n, :n] = 1.0 / n

    def likelihood_at(point: Floats) -> float:
        z = design @ point
        return float((score * _log_sigmoid(z) + (1 - score) * _log_sigmoid(-z)).sum())

    now = likelihood_at(at)
    for _ in range(_STEPS):
        chance = _sigmoid(design @ at)
        slope = design.T @ (score - chance)
        hessian = design.T @ ((chance * (1 - chance))[:, None] * design)
        size = max(float(np.trace(hessian)) / len(at), 1e-300)
        try:
            step = np.linalg.solve(hessian + gauge * size, slope)
        except np.linalg.LinAlgError:
            raise _separated() from None
        step[:n] -= step[:n].mean()
        gain, size_of_step = float(slope @ step), 1.0
        if gain > _CLOSE:
            # Halved until the likelihood rises enough, by the rule of _damped.
            while (then := likelihood_at(at + size_of_step * step)) < now + 1e-4 * size_of_step * gain:
                size_of_step /= 2
                # A step this short means a likelihood that rises only towards infinity.
                if size_of_step < 1e-6:
                    raise _separated()
            now = then
        at = at + size_of_step * step
        # No finite table of battles comes near log-odds of 60: it is running away.
        if not np.isfinite(at).all() or np.abs(at).max() > 60.0:
            raise _separated()
        if np.abs(step).max() <= _DONE * max(1.0, float(np.abs(at).max())):
            return rated(at[:n], anchor)
    # The likelihood is concave: if it has a maximum, Newton's method reaches it long before this point.
    raise _separated()


def _separated() -> NoMaximum:
    return NoMaximum(
        "With these covariates the likelihood has no finite maximum: style alone tells every winner from every loser. "
        "Use fewer of them, or more battles."
    )


def _damped(tables: Floats, theta: Floats, step: Floats, gain: Floats) -> Floats:
    """Halves steps that would not raise the likelihood: far from the maximum, Newton may overshoot."""
    size = np.ones(len(tables))
    # Nearer than that, the rise is lost in rounding, and testing for it would halve good steps.
    todo = np.flatnonzero(gain > _CLOSE)
    if todo.size:
        now = likelihood(tables[todo], theta[todo])
        while todo.size:
            tried = theta[todo] + size[todo, None] * step[todo]
            # A ten-thousandth of the predicted rise: Armijo's rule with its usual constant (Nocedal & Wright 2006,
            # section 3.1).
            short = likelihood(tables[todo], tried) < now + 1e-4 * size[todo] * gain[todo]
            # Ends the halving if rounding hides the rise after all.
            short &= size[todo] > 1e-9
            size[todo[short]] /= 2
            todo, now = todo[short], now[short]
    return np.asarray(size[:, None] * step)


def likelihood(tables: Floats, theta: Floats) -> Floats:
    """Returns the logarithm of the likelihood of each table of wins, float of shape (…)."""
    return np.asarray((tables * _log_sigmoid(theta[..., :, None] - theta[..., None, :])).sum(axis=(-2, -1)))


def _sigmoid(z: Floats) -> Floats:
    # tanh and, below, logaddexp do not overflow, however far apart two ratings are.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * z)))


def _log_sigmoid(z: Floats) -> Floats:
    return np.asarray(-np.logaddexp(0.0, -z))
