"""Chooses the search and vote settings of a library by leave-one-out evaluation on the library itself.

Every meme is judged by the rest of the library, without near-duplicates and adjacent memes
(:mod:`retrieval.calibration.leave_one_out`), with every setting of a grid; the setting with the highest likelihood is
chosen. The vote of the neighbours is combined with a logistic regression over all vectors
(:mod:`retrieval.calibration.regression`), whose held-out log-odds are calibrated in the same way; the probability of
harm is that of the mean of both log-odds.

The reported figures are cross-validated, choosing on four fifths of the memes and judging the last: on the memes used
to choose it, the best of many settings looks better than it is. The same judgments measure how often labels are wrong
if the riskiest memes go to a person (:class:`court.precedents.RiskCurve`) and if a vote settles a meme
(:mod:`retrieval.calibration.thresholds`).

With fewer than :data:`FEWEST_OF_A_LABEL` memes of a label nothing is chosen, fitted or measured, as it would be chance.

A library with pictures is also searched for texts without a picture. By text alone its memes are harder to tell apart,
so the probabilities of the first tuning would be overconfident: everything is chosen and measured a second time, with
the whole weight on the text (``Tuning.text_alone``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from court.precedents import MinSimilarity, RiskCurve, RiskPoint, VoteSettings
from retrieval.calibration.leave_one_out import (
    GROUP,
    Neighbours,
    leave_one_out_neighbours,
    repeated_memes,
    silent_memes,
)
from retrieval.calibration.regression import MOST, STRENGTHS, cross_validated_log_odds, fit
from retrieval.calibration.thresholds import ERROR, choose_sure_range, settled
from retrieval.library.manifest import Calibration, LabelledMeme, Regression, Safeguards, TextTuning, Tuning

# Each grid begins with the value preferred on ties.
_ALPHAS = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9)
_KS = (25, 50, 15, 100)
_TAUS = (0.1, 0.07, 0.15, 0.05, 0.2)
_FOLDS = 5
FEWEST_OF_A_LABEL = 50
"""Memes of either label below which nothing is chosen: every fitted head collapses to the more frequent label."""
_MOST_TRIED = 4000
"""Maximum number of memes judged: a larger library is sampled evenly."""
# 0 to 95 %: if all memes go to a person, no label is left to be wrong.
_RATES = np.arange(20) / 20


@dataclass(frozen=True, slots=True)
class _FittedVote:
    alpha: float
    settings: VoteSettings
    likelihood: float


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """Held-out log-odds of harm of q judged memes for one alpha; by regression of shape (strengths, q), or (0, q)."""

    neighbours: Neighbours
    fold: NDArray[np.int64]
    regression: NDArray[np.float64]


def calibrate(
    rows: NDArray[np.float32],
    memes: Sequence[LabelledMeme],
    text_dim: int,
    floors: MinSimilarity,
    *,
    text_floors: Mapping[str, float] | None = None,
    error: float = ERROR,
    safeguards: Safeguards | None = None,
    groups: NDArray[np.int64] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Tunes a library; if it has pictures and texts, also for memes without a picture.

    Args:
        groups: int64 of shape (n,): memes of a group, such as a template, are left out together and share a fold; None
            to group adjacent memes of the library.
    """
    calibrated = partial(
        _calibrate, text_dim=text_dim, floors=floors, text_floors=text_floors, error=error, safeguards=safeguards
    )
    alphas = _alphas(memes)
    tuning = calibrated(rows, memes, groups=groups, alphas=alphas, progress=progress)
    # Without pictures this already is the tuning for texts; without texts there is none.
    if len(alphas) == 1:
        return tuning
    indices = [index for index, meme in enumerate(memes) if meme.has_text]
    if len(indices) < len(memes):
        rows, memes = rows[indices], [memes[index] for index in indices]
        groups = None if groups is None else groups[indices]
    text_only = calibrated(rows, memes, groups=groups, alphas=(1.0,), progress=None)
    by_text = TextTuning(**{name: getattr(text_only, name) for name in TextTuning.model_fields})
    return tuning.model_copy(update={"text_alone": by_text})


def _calibrate(
    rows: NDArray[np.float32],
    memes: Sequence[LabelledMeme],
    *,
    text_dim: int,
    floors: MinSimilarity,
    text_floors: Mapping[str, float] | None,
    error: float,
    safeguards: Safeguards | None,
    groups: NDArray[np.int64] | None,
    alphas: Sequence[float],
    progress: Callable[[int, int], None] | None,
) -> Tuning:
    n, harmful = len(memes), sum(meme.harmful for meme in memes)
    # Laplace smoothing, so that a library with a single label still has a prior.
    prior = harmful / n if 0 < harmful < n else (harmful + 1) / (n + 2)
    guarded = (safeguards or Safeguards()).model_copy(update={"sources": len({meme.source for meme in memes})})
    repeated = repeated_memes(rows, memes, text_dim, _MOST_TRIED)
    by_script = dict(text_floors or {})
    defaults = Tuning(
        alpha=alphas[0],
        vote=VoteSettings(k=min(15, n), tau=0.1, prior=prior),
        floors=floors,
        text_floors=by_script,
        calibration=Calibration(
            method="defaults",
            n=0,
            majority=max(harmful, n - harmful) / n,
            repeated=repeated,
            note=f"nothing was chosen: that takes {FEWEST_OF_A_LABEL} memes of each label that differ",
        ),
        settle_error=error,
        safeguards=guarded,
    )
    if min(harmful, n - harmful) < FEWEST_OF_A_LABEL:
        return defaults

    # Adjacent memes of a library were often collected together, so they share a fold.
    folds = (np.arange(n) // GROUP if groups is None else groups) % _FOLDS
    # The choice made without a fold is evaluated on that fold.
    chosen: dict[int | None, _FittedVote] = {}
    tried: dict[float, Neighbours] = {}
    # One more neighbour than voters: it moves up when another is excluded (safeguarded_votes).
    found = leave_one_out_neighbours(
        rows,
        memes,
        text_dim,
        alphas=alphas,
        depth=max(_KS) + 1,
        limit=_MOST_TRIED,
        apart=True,
        safeguards=guarded,
        groups=groups,
    )
    for number, (alpha, neighbours) in enumerate(zip(alphas, found, strict=True)):
        if min(neighbours.labels.sum(), (~neighbours.labels).sum()) < FEWEST_OF_A_LABEL:
            return defaults  # many memes, but mostly near-duplicates
        tried[alpha] = neighbours
        logits, settings = _grid(neighbours, prior)
        for left in (None, *range(_FOLDS)):
            choice = _best(
                alpha, logits, settings=settings, labels=neighbours.labels, chosen_by=folds[neighbours.rows] != left
            )
            # Strictly greater: on ties the first, which is preferred, stays.
            if left not in chosen or choice.likelihood > chosen[left].likelihood:
                chosen[left] = choice
        if progress:
            progress(number + 1, len(alphas))

    x_of, held_out = {}, {}
    for alpha in {choice.alpha for choice in chosen.values()}:
        x_of[alpha] = _features(rows, text_dim, alpha)
        held_out[alpha] = _left_out(x_of[alpha], memes, tried[alpha], safeguards=guarded, folds=folds)
    best = chosen[None]
    scales = {left: _scale(held_out[choice.alpha], left) for left, choice in chosen.items()}

    def judged(fold: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Probabilities of harm of a fold's memes, by the settings chosen without it, and their labels."""
        choice, left_out = chosen[fold], held_out[chosen[fold].alpha]
        part = left_out.fold == fold
        p = safeguarded_votes(
            left_out.neighbours.similarities[part], left_out.neighbours.harmful[part], choice.settings, guarded
        )
        strength, intercept, slope = scales[fold]
        z = intercept + slope * left_out.regression[strength, part]
        # Clipped, as the vote is 1 if no voter is left, whose log-odds are infinite.
        return _sigmoid((_logit(np.clip(p, 1e-9, 1 - 1e-9)) + z) / 2), left_out.neighbours.labels[part]

    parts = [judged(fold) for fold in range(_FOLDS)]
    p, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    predicted = p >= best.settings.threshold
    wrong = int((labels != predicted).sum())
    # Of each label, F1 = 2 hits / (2 hits + wrong); both labels are there, so there is a hit or an error.
    hits = (labels & predicted).sum(), (~labels & ~predicted).sum()
    macro_f1 = sum(2 * int(each) / (2 * int(each) + wrong) for each in hits) / 2
    settles = choose_sure_range(p, labels, best.settings.threshold, error)
    settled_share, settled_error = _settling(parts, best.settings.threshold, error)
    return Tuning(
        alpha=best.alpha,
        vote=best.settings,
        floors=floors,
        text_floors=by_script,
        calibration=Calibration(
            method="leave-one-out",
            n=int(labels.size),
            accuracy=1 - wrong / labels.size,
            macro_f1=macro_f1,
            brier=float(np.mean((p - labels) ** 2)),
            majority=float(max(labels.mean(), 1 - labels.mean())),
            settled_share=settled_share,
            settled_error=settled_error,
            repeated=repeated,
            note="" if labels.size == n else f"measured on {labels.size} of {n} memes",
        ),
        settles=settles,
        settle_error=error,
        safeguards=guarded,
        regression=_regression(
            x_of[best.alpha], memes, text_dim=text_dim, alpha=best.alpha, scale=scales[None], safeguards=guarded
        ),
        risk=risk_curve(np.minimum(p, 1 - p), predicted != labels),
    )


def risk_curve(risk: NDArray[np.float64], wrong: NDArray[np.bool_]) -> RiskCurve:
    """Error rate of the remaining memes by the share of the riskiest ones that go to a person; shapes (n,)."""
    order = np.argsort(risk, kind="stable")
    ranked = risk[order]
    # Rounded down, so that no more memes are reviewed than the rate allows; unless risks are equal, which no cutoff
    # tells apart: then all of them are reviewed, or none.
    counts = [len(risk) - int(rate * len(risk)) for rate in _RATES]
    counts = [n if n == len(risk) else int(np.searchsorted(ranked, ranked[n])) for n in counts]
    missed = [int(wrong[order[:n]].sum()) for n in counts]
    return RiskCurve(
        n=len(risk),
        points=tuple(
            RiskPoint(
                rate=rate,
                cutoff=float(ranked[n - 1]) if n else 0.0,
                # One more than observed, as if the next meme were wrong too (court.precedents.RiskCurve).
                risk=(errors + 1) / (len(risk) + 1),
                error=min((errors + 1) / (n + 1), 1.0),
            )
            for rate, n, errors in zip(_RATES.tolist(), counts, missed, strict=True)
        ),
    )


def _settling(
    parts: Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]], threshold: float, error: float
) -> tuple[float, float | None]:
    """Share of memes settled by bounds chosen without their fold, and the error rate of those."""
    n = done = wrong = 0
    for fold, (p, labels) in enumerate(parts):
        others = [part for index, part in enumerate(parts) if index != fold]
        settles = choose_sure_range(
            np.concatenate([other for other, _ in others]),
            np.concatenate([other for _, other in others]),
            threshold,
            error,
        )
        sure = settled(p, settles)
        n, done = n + sure.size, done + int(sure.sum())
        wrong += int((sure & ((p >= threshold) != labels)).sum())
    return done / n, wrong / done if done else None


def _features(rows: NDArray[np.float32], text_dim: int, alpha: float) -> NDArray[np.float64]:
    """Vectors whose inner product is the fused similarity, shape (n, dim); a half of weight 0 is all zeros."""
    x = rows.astype(np.float64)
    x[:, :text_dim] *= alpha**0.5
    x[:, text_dim:] *= (1 - alpha) ** 0.5
    return x


def _left_out(
    x: NDArray[np.float64],
    memes: Sequence[LabelledMeme],
    neighbours: Neighbours,
    *,
    safeguards: Safeguards,
    folds: NDArray[np.int64],
) -> _LeftOut:
    sample, learnable = _sample(memes, safeguards, neighbours.rows)
    labels = np.array([memes[row].harmful for row in sample.tolist()])
    # A half of weight 0 gives columns of zeros, which would only enlarge the system.
    used = x[sample][:, x.any(axis=0)]
    # The sample is sorted and contains every judged meme, so searchsorted finds the index of each.
    z = cross_validated_log_odds(used, labels, folds[sample], learnable)
    return _LeftOut(neighbours, folds[neighbours.rows], z[:, np.searchsorted(sample, neighbours.rows)])


def _sample(
    memes: Sequence[LabelledMeme], safeguards: Safeguards, also: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sorted indexes of an even sample and of ``also``, and a mask of those usable for training."""
    silent = silent_memes(memes, safeguards)
    even = np.linspace(0, len(memes) - 1, min(len(memes), MOST)).round().astype(np.int64)
    sample = np.union1d(even, also)
    return sample, ~silent[sample]


def _scale(left_out: _LeftOut, left: int | None) -> tuple[int, float, float]:
    """Index of the likeliest strength, and its calibrating intercept and slope, chosen without fold ``left``."""
    others = left_out.fold != left
    z, labels = left_out.regression[:, others], left_out.neighbours.labels[others]
    intercept, slope = fit_logistic(z, labels)
    p = _sigmoid(intercept[:, None] + slope[:, None] * z)
    best = int(np.argmax(_likelihood(p, labels)))
    return best, float(intercept[best]), float(slope[best])


def _regression(
    x: NDArray[np.float64],
    memes: Sequence[LabelledMeme],
    text_dim: int,
    alpha: float,
    scale: tuple[int, float, float],
    safeguards: Safeguards,
) -> Regression:
    """Fits the regression on the whole library, with its calibration and the weights of the halves folded in."""
    sample, learnable = _sample(memes, safeguards, np.empty(0, dtype=np.int64))
    learnt = sample[learnable]
    number, intercept, slope = scale
    used = x.any(axis=0)
    fitted = fit(x[learnt][:, used], np.array([memes[row].harmful for row in learnt.tolist()]), STRENGTHS[number])
    weights = np.zeros(x.shape[1])
    weights[used] = slope * fitted.weights
    # x is scaled by the roots of the weights. A search passes unscaled vectors, so the coefficients take the scaling.
    weights[:text_dim] *= alpha**0.5
    weights[text_dim:] *= (1 - alpha) ** 0.5
    return Regression.of(weights, intercept + slope * fitted.intercept, text_dim=text_dim, strength=STRENGTHS[number])


def shares(
    similarities: NDArray[np.float64], harmful: NDArray[np.bool_], settings: VoteSettings
) -> NDArray[np.float64]:
    """Vectorised :func:`court.precedents.share`: arrays of shape (q, depth) give one of shape (q,)."""
    weights = np.exp((similarities[:, : settings.k] - similarities[:, :1]) / settings.tau)
    for_harm = (weights * harmful[:, : settings.k]).sum(axis=1)
    m = settings.prior_weight
    together: NDArray[np.float64] = (for_harm + m * settings.prior) / (weights.sum(axis=1) + m)
    return together


def safeguarded_votes(
    similarities: NDArray[np.float64], harmful: NDArray[np.bool_], settings: VoteSettings, safeguards: Safeguards
) -> NDArray[np.float64]:
    """The vote's probabilities of harm as a search would compute them, shape (q,)."""
    # If sole acquittals are excluded (:func:`retrieval.precedents.search.search_library`), a vote for acquittal only
    # counts if it holds without any one of its voters; else the result is the vote without the most decisive one.
    p = probabilities_of(shares(similarities, harmful, settings), settings)
    acquitted = np.flatnonzero(p < settings.threshold)
    if not safeguards.no_sole_acquittal or not acquitted.size:
        return p
    # Padded by an empty column, so that there is always a neighbour that moves up.
    nearest = np.pad(similarities[acquitted, : settings.k + 1], ((0, 0), (0, 1)), constant_values=-np.inf)
    harm = np.pad(harmful[acquitted, : settings.k + 1], ((0, 0), (0, 1)))
    voters = min(settings.k, nearest.shape[1] - 1)
    weights = np.exp((nearest - nearest[:, :1]) / settings.tau)
    moved_up = weights[:, voters]
    for_harm = (weights * harm)[:, :voters].sum(axis=1) + moved_up * harm[:, voters]
    benign = ~harm[:, :voters] & np.isfinite(nearest[:, :voters])
    for_any = (weights[:, :voters].sum(axis=1) + moved_up)[:, None] - np.where(benign, weights[:, :voters], 0.0)
    m = settings.prior_weight
    without = probabilities_of((for_harm[:, None] + m * settings.prior) / (for_any + m), settings)
    # Without the nearest, weights are relative to the second; if no voter is left, that is no acquittal.
    speaks = np.isfinite(nearest[:, 1])
    others = np.where(speaks[:, None], nearest[:, 1:], 0.0)
    without[:, 0] = np.where(speaks, probabilities_of(shares(others, harm[:, 1:], settings), settings), 1.0)
    most = np.where(benign, without, 0.0).max(axis=1)
    p[acquitted] = np.where(most >= settings.threshold, most, p[acquitted])
    return p


def probabilities_of(share: NDArray[np.float64], settings: VoteSettings) -> NDArray[np.float64]:
    """Vectorised :func:`court.precedents.probability`, shape (q,)."""
    return _sigmoid(settings.intercept + settings.slope * _logit(share))


def _alphas(memes: Sequence[LabelledMeme]) -> tuple[float, ...]:
    if not any(meme.has_picture for meme in memes):
        return (1.0,)
    return _ALPHAS if any(meme.has_text for meme in memes) else (0.0,)


def _grid(neighbours: Neighbours, prior: float) -> tuple[NDArray[np.float64], list[VoteSettings]]:
    """Computes the logit of each meme's share for all settings, shape (settings, q)."""
    depth = min(neighbours.similarities.shape[1], max(_KS))
    ks = [k for k in _KS if k <= depth] or [depth]
    logits, settings = [], []
    for tau in _TAUS:
        # A missing neighbour has similarity -inf, and so no weight.
        weights = np.exp((neighbours.similarities - neighbours.similarities[:, :1]) / tau)
        # Cumulative sums: all values of k cost no more than the largest.
        for_harm, for_any = (weights * neighbours.harmful).cumsum(axis=1), weights.cumsum(axis=1)
        for k in ks:
            # The prior weighs as much as the nearest precedent, which also keeps the share away from 0 and 1, whose
            # logits are infinite.
            logits.append(_logit((for_harm[:, k - 1] + prior) / (for_any[:, k - 1] + 1)))
            settings.append(VoteSettings(k=k, tau=tau, prior=prior, prior_weight=1.0))
    return np.array(logits), settings


def _best(
    alpha: float,
    logits: NDArray[np.float64],
    settings: Sequence[VoteSettings],
    labels: NDArray[np.bool_],
    chosen_by: NDArray[np.bool_],
) -> _FittedVote:
    """The settings with the highest likelihood on the memes marked in ``chosen_by``, shape (q,), calibrated on them."""
    x, y = logits[:, chosen_by], labels[chosen_by]
    intercept, slope = fit_logistic(x, y)
    p = _sigmoid(intercept[:, None] + slope[:, None] * x)
    # Likelihood compares settings by every meme, accuracy only by those near the threshold, which is mostly chance with
    # a few hundred memes. The threshold stays in the middle: moving it cost accuracy on held-out memes.
    likelihood = _likelihood(p, y)
    best = int(np.argmax(likelihood))
    tuned = settings[best].model_copy(update={"intercept": float(intercept[best]), "slope": float(slope[best])})
    return _FittedVote(alpha, tuned, float(likelihood[best]))


def _likelihood(p: NDArray[np.float64], y: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean log-likelihood of each row of p, shape (m, q)."""
    # Rounded, so that values that differ only in the last bits are ties, and the first is taken.
    likelihood: NDArray[np.float64] = np.where(y, np.log(p), np.log1p(-p)).mean(axis=1).round(9)
    return likelihood


def fit_logistic(
    x: NDArray[np.float64], y: NDArray[np.bool_], *, l2: float = 2.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fits m logistic regressions of y, shape (q,), each on a row of x, (m, q): intercepts and slopes, (m,) each."""
    # Newton's method on all at once. An L2 penalty towards intercept 0 and slope 1, worth a few memes, keeps the fit of
    # small or separable data moderate; the slope is kept positive, since more harm nearby must never lower the result.
    a, b = np.zeros(len(x)), np.ones(len(x))
    for _ in range(50):
        p = _sigmoid(a[:, None] + b[:, None] * x)
        error, weight = p - y, p * (1 - p)
        da, db = error.sum(axis=1) + l2 * a, (error * x).sum(axis=1) + l2 * (b - 1)
        aa, ab, bb = weight.sum(axis=1) + l2, (weight * x).sum(axis=1), (weight * x * x).sum(axis=1) + l2
        # Above 0, as the penalty is on the diagonal, so separable data can be solved too.
        determinant = aa * bb - ab * ab
        step_a, step_b = (bb * da - ab * db) / determinant, (aa * db - ab * da) / determinant
        # Bounded steps, as Newton's method may overshoot far from the optimum.
        a, b = a - np.clip(step_a, -2, 2), b - np.clip(step_b, -2, 2)
        if max(np.abs(step_a).max(), np.abs(step_b).max()) < 1e-10:
            break
    return np.clip(a, -5, 5), np.clip(b, 0.05, 10)


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    # Computed by tanh, which does not overflow.
    return 0.5 * (1 + np.tanh(0.5 * z))


def _logit(share: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(share) - np.log1p(-share)
