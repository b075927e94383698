"""Weights of the evidence of full trials: a small logistic regression on labelled memes, measured by cross-validation.

Inputs are the log-odds of the Judge before and after it heard the sides and of the precedents' vote; failed checks
count against the label of their trial. No weight is negative. Inputs are scaled to unit variance, so that odds between
.47 and .55 that rank memes well get the weight that they earn; an input stays only if the cross-validated likelihood
is better with it by more than chance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from court.audition import INPUTS, evidence_of
from court.errors import BadRequest
from court.precedents import RiskCurve
from eval.scores.measure import Bools, Floats, Ints
from retrieval.calibration.calibrate import FEWEST_OF_A_LABEL, risk_curve

FEWEST = 200
"""Labelled memes that have to be tried; all but a tenth of these trials have to give all evidence."""
CHECKS = "checks"
_OFTEN_MISSING = 0.1
"""Share of memes without an input above which the input is left out instead of the memes."""
_FOLDS = 5
_PENALTY = 1.0
"""Weight of the squared, scaled coefficients against the likelihood of the memes: worth a few memes."""
_BY_CHANCE = 1.645
"""Standard errors by which an input has to improve the likelihood: one chance in twenty for one without information."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one full trial, and the truth."""

    meme: str
    harmful: bool
    """Label of people."""
    ruled: bool | None
    """True if the trial found it harmful; None without a label."""
    before: float | None = None
    after: float | None = None
    vote: float | None = None
    failed: int = 0
    """Number of kinds of checks that failed."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """Fitted weights, and the cross-validated probability of each meme."""

    memes: tuple[str, ...]
    """Memes that could be used, in order."""
    intercept: float
    weights: dict[str, float]
    """Weight of each input with information."""
    doubt: float
    probabilities: Floats
    """Cross-validated probability of harm of each meme, shape (memes,)."""
    risk: RiskCurve
    likelihood: float
    """Mean log-likelihood, cross-validated."""


def require_enough(harmful: Sequence[bool], fewest: int | None = None) -> None:
    """Raises BadRequest if there are too few memes to calibrate by, or too few of a label.

    Args:
        harmful: Label of each meme by people.
        fewest: Memes that it takes, of which a quarter have to be of either label; None for :data:`FEWEST`.
    """
    fewest = fewest or FEWEST
    least = min(FEWEST_OF_A_LABEL, fewest // 4)
    rare = min(sum(harmful), len(harmful) - sum(harmful))
    if len(harmful) < fewest or rare < least:
        raise BadRequest(
            f"A calibration takes {fewest} labelled memes, and {least} of either label; there are {len(harmful)}, and "
            f"{rare} of the rarer label.",
            reason="TOO_FEW_LABELLED",
        )


def weigh(evidence: Sequence[Evidence], *, seed: int = 0, fewest: int | None = None) -> Weighing:
    """Fits the weights and measures them.

    Args:
        fewest: Memes that it takes; None for :data:`FEWEST`.

    Raises:
        BadRequest: There are too few memes, or too many of their trials did not give all evidence.
    """
    require_enough([each.harmful for each in evidence], fewest)
    ruled = [each for each in evidence if each.ruled is not None]
    inputs = [
        name
        for name in INPUTS
        if ruled and sum(getattr(each, name) is None for each in ruled) <= _OFTEN_MISSING * len(ruled)
    ]
    used = [each for each in ruled if all(getattr(each, name) is not None for name in inputs)]
    # Some trials of small models fail, which must not cost somebody with just enough memes the hours of the others.
    least = math.ceil((1 - _OFTEN_MISSING) * (fewest or FEWEST))
    if len(used) < least:
        raise BadRequest(
            f"Of {len(evidence)} trials {len(used)} ended in a label with all evidence; a calibration takes {least}.",
            reason="TOO_FEW_LABELLED",
        )
    log_odds_of = [[evidence_of(getattr(each, name)) for name in inputs] for each in used]
    # Against whichever label was given: a failed check speaks for neither.
    against = [-each.failed if each.ruled else each.failed for each in used]
    # Log-odds of the inputs, shape (memes, inputs), and in the last column the failed checks against the label.
    x = np.column_stack([np.array(log_odds_of), against]).astype(float)
    y = np.array([each.harmful for each in used], dtype=np.bool_)
    folds = _folds(y, seed)
    # Chosen anew without each fold: a choice that has seen a meme looks better on it than it is.
    log_odds, evident = np.zeros(len(used)), np.zeros(len(used))
    for fold in range(_FOLDS):
        out = folds == fold
        columns, beta = _chosen(x[~out], y[~out], seed)
        log_odds[out] = beta[0] + x[out][:, columns] @ beta[1:]
        evident[out] = beta[0] + x[out][:, columns] @ np.where(columns == len(inputs), 0.0, beta[1:])
    said_harmful = np.array([bool(each.ruled) for each in used])
    # As a court decides: failed checks keep from an acquittal, and never from a block.
    risk = _sigmoid(np.where(said_harmful, -evident, log_odds))
    columns, beta = _chosen(x, y, seed)
    weights = dict(zip(((*inputs, CHECKS)[column] for column in columns), beta[1:].tolist(), strict=True))
    doubt = weights.pop(CHECKS, 0.0)
    return Weighing(
        memes=tuple(each.meme for each in used),
        intercept=float(beta[0]),
        weights=weights,
        doubt=doubt,
        probabilities=_sigmoid(evident),
        risk=risk_curve(risk, said_harmful != y),
        likelihood=-float(_losses(log_odds, y).mean()),
    )


def _folds(y: Bools, seed: int) -> Ints:
    """Draws the fold of each meme; folds have the same share of harm."""
    rng, folds = np.random.default_rng(seed), np.zeros(len(y), dtype=np.int64)
    for label in (True, False):
        rows = rng.permutation(np.flatnonzero(y == label))
        folds[rows] = np.arange(len(rows)) % _FOLDS
    return folds


def _chosen(x: Floats, y: Bools, seed: int) -> tuple[Ints, Floats]:
    """Drops columns, the least useful first, that improve the likelihood by no more than chance; returns the fit."""
    # A column that never varies can't be told from the intercept.
    columns = np.flatnonzero(x.std(axis=0) > 1e-9)
    losses = _validated_losses(x, y, columns, seed)
    while len(columns):
        without = [np.delete(columns, place) for place in range(len(columns))]
        each = [_validated_losses(x, y, rest, seed) for rest in without]
        least = int(np.argmin([rest.mean() for rest in each]))
        gain = each[least] - losses
        if gain.mean() > _BY_CHANCE * gain.std() / np.sqrt(len(gain)):
            break
        columns, losses = without[least], each[least]
    beta = _fit(x, y, columns)
    # A weight that is held at 0 is none.
    positive = beta[1:] > 1e-9
    return columns[positive], beta[np.r_[True, positive]]


def _validated_losses(x: Floats, y: Bools, columns: Ints, seed: int) -> Floats:
    folds, losses = _folds(y, seed), np.zeros(len(y))
    for fold in range(_FOLDS):
        out = folds == fold
        beta = _fit(x[~out], y[~out], columns)
        losses[out] = _losses(beta[0] + x[out][:, columns] @ beta[1:], y[out])
    return losses


def _fit(x: Floats, y: Bools, columns: Ints) -> Floats:
    """Intercept and coefficients of some columns, none of them negative, by penalised likelihood."""
    z, checks = x[:, columns], columns == x.shape[1] - 1
    scale = np.where((sd := z.std(axis=0)) > 1e-9, sd, 1.0)
    # Failed checks are not centred: none is no evidence.
    centre = np.where(checks, 0.0, z.mean(axis=0))
    z, sign = (z - centre) / scale, np.where(y, 1.0, -1.0)

    def loss(beta: Floats) -> tuple[float, Floats]:
        margin = sign * (beta[0] + z @ beta[1:])
        slope = -sign * _sigmoid(-margin)
        gradient = np.concatenate([[slope.sum()], z.T @ slope + 2 * _PENALTY * beta[1:]])
        return float(np.logaddexp(0, -margin).sum() + _PENALTY * (beta[1:] ** 2).sum()), gradient

    bounds = [(None, None), *[(0.0, None)] * z.shape[1]]
    found = minimize(loss, np.zeros(z.shape[1] + 1), jac=True, bounds=bounds, method="L-BFGS-B").x
    return np.concatenate([[found[0] - (found[1:] / scale) @ centre], found[1:] / scale])


def _losses(log_odds: Floats, y: Bools) -> Floats:
    return np.asarray(np.logaddexp(0, np.where(y, -log_odds, log_odds)))


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * z)))
