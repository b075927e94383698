"""A logistic regression of harm on the vectors of a library's memes, with held-out log-odds to calibrate it by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.calibration.leave_one_out import NEARLY

STRENGTHS = (0.3, 1.0, 0.1)
"""Inverse strengths of the L2 penalty (C) that are tried; the first is preferred where several are equally good."""
MOST = 10_000
"""Memes that it is fitted to at most: of more, an even sample tells as much of a few hundred weights."""
_STEPS = 30


@dataclass(frozen=True, slots=True)
class Fitted:
    """A regression before calibration."""

    weights: NDArray[np.float64]
    intercept: float

    def log_odds(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-odds of harm, shape (n,), of memes of shape (n, dim)."""
        return x @ self.weights + self.intercept


def fit(x: NDArray[np.float64], y: NDArray[np.bool_], strength: float) -> Fitted:
    """Fits by Newton's method, the intercept without a penalty; ``strength`` is that of L2 inverted (C)."""
    n, dim = x.shape
    if n < dim:
        # The weights are a sum of the vectors, so a basis of those has fewer unknowns and the same solution.
        basis = np.linalg.qr(x.T).Q
        within = fit(x @ basis, y, strength)
        return Fitted(basis @ within.weights, within.intercept)
    design = np.concatenate([x, np.ones((n, 1))], axis=1)
    # A tiny penalty on the intercept too, so that the system can always be solved.
    penalty = np.append(np.full(dim, 1 / strength), 1e-9)
    w = np.zeros(dim + 1)
    share = y.mean()
    # Starts at the solution for uninformative vectors, which saves steps.
    w[-1] = np.log(share) - np.log1p(-share)
    for _ in range(_STEPS):
        # Computed by tanh, which does not overflow.
        p = 0.5 * (1 + np.tanh(0.5 * (design @ w)))
        gradient = design.T @ (p - y) + penalty * w
        hessian = (design * (p * (1 - p))[:, None]).T @ design
        hessian[np.diag_indices(dim + 1)] += penalty
        step = np.linalg.solve(hessian, gradient)
        w -= step
        if np.abs(step).max() < 1e-8:
            break
    return Fitted(w[:-1], float(w[-1]))


def cross_validated_log_odds(
    x: NDArray[np.float64], y: NDArray[np.bool_], folds: NDArray[np.int64], learnable: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Log-odds of memes, shape (``STRENGTHS``, n), by regressions without their fold and near-duplicates."""
    # A fold without which only one label is left gets the log-odds of that label's share.
    z = np.zeros((len(STRENGTHS), len(y)))
    length = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    for fold in np.unique(folds):
        test, train = np.flatnonzero(folds == fold), np.flatnonzero((folds != fold) & learnable)
        train = train[(unit[train] @ unit[test].T).max(axis=1) <= NEARLY]
        if len(np.unique(y[train])) < 2:
            # As if one more of each label had been seen, so that the log-odds are finite.
            share = (y[train].sum() + 1) / (train.size + 2)
            z[:, test] = np.log(share) - np.log1p(-share)
            continue
        for number, strength in enumerate(STRENGTHS):
            z[number, test] = fit(x[train], y[train], strength).log_odds(x[test])
    return z
