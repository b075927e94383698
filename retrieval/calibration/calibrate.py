"""How a library is to be searched and how its precedents are to vote, chosen on the library itself.

Every meme is tried before the rest (:mod:`retrieval.calibration.leave_one_out`), by every setting of a grid, and the
likeliest is taken; then the threshold that maximises the mean of accuracy and macro-F1. The figures that are kept are
measured by choosing on four fifths of the memes and voting on the last, in turn: the best of many settings flatters
itself on the memes it was chosen by.

So with the probabilities at which the vote settles a meme (:mod:`retrieval.calibration.thresholds`): they are chosen by
such votes on memes that the settings have not seen, and what they are worth is measured on a fifth that neither has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from court.precedents import MinSimilarity, VoteSettings
from retrieval.calibration.leave_one_out import Neighbours, leave_one_out_neighbours
from retrieval.calibration.thresholds import ERROR, choose_sure_range, settled
from retrieval.library.manifest import Calibration, LabelledMeme, Safeguards, Tuning

# Each grid begins with what is preferred where several are equally good.
_ALPHAS = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9)
_KS = (25, 15, 40, 60, 100, 7)
_TAUS = (0.1, 0.07, 0.15, 0.05, 0.2, 0.03, 0.3)
_THRESHOLDS = np.array(sorted(np.arange(30, 71) / 100, key=lambda t: (abs(t - 0.5), t)))
_FOLDS = 5
_FEWEST = 20
"""Memes below which nothing is chosen: the figures would be chance."""
_FEWEST_OF_A_LABEL = 5
_MOST_TRIED = 4000
"""Memes tried at most: a larger library is judged by an even sample of it."""


@dataclass(frozen=True, slots=True)
class _Choice:
    alpha: float
    settings: VoteSettings
    likelihood: float


@dataclass(frozen=True, slots=True)
class _Votes:
    """Votes on memes that the settings were chosen without.

    Attributes:
        probabilities: float64 of shape (q,).
        said: Boolean of shape (q,): whether the vote is for harmful.
        labels: Boolean of shape (q,): whether it is.
    """

    probabilities: NDArray[np.float64]
    said: NDArray[np.bool_]
    labels: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[_Votes]) -> _Votes:
        return cls(
            np.concatenate([part.probabilities for part in parts]),
            np.concatenate([part.said for part in parts]),
            np.concatenate([part.labels for part in parts]),
        )


def calibrate(
    rows: NDArray[np.float32],
    memes: Sequence[LabelledMeme],
    text_dim: int,
    floors: MinSimilarity,
    *,
    error: float = ERROR,
    safeguards: Safeguards | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """The tuning of a library with these memes.

    Args:
        rows: float32 of shape (n, text_dim + picture_dim).
        memes: Theirs, at least one.
        text_dim: Where the text half ends.
        floors: The encoder's.
        error: What share of wrong labels is put up with where the vote alone is to do.
        safeguards: What the library is searched with, and so calibrated with; None for what every library has.
        progress: Told how many of how many alphas are done.
    """
    n, harmful = len(memes), sum(meme.harmful for meme in memes)
    alphas = _alphas(memes)
    # As if one more of each kind had been seen: a library of one kind alone still has a prior.
    prior = harmful / n if 0 < harmful < n else (harmful + 1) / (n + 2)
    majority = max(harmful, n - harmful) / n
    guarded = (safeguards or Safeguards()).model_copy(update={"sources": len({meme.source for meme in memes})})
    defaults = _defaults(alphas[0], prior, floors, n, majority, error, guarded)
    if n < _FEWEST or min(harmful, n - harmful) < _FEWEST_OF_A_LABEL:
        return defaults

    # What is chosen without a fold is tried on it; without two, it also tells what may be settled in a third.
    candidates: dict[frozenset[int], list[_Choice]] = {
        frozenset(left): [] for size in range(3) for left in combinations(range(_FOLDS), size)
    }
    tried: dict[float, tuple[Neighbours, NDArray[np.int64]]] = {}
    found = leave_one_out_neighbours(
        rows, memes, text_dim, alphas=alphas, depth=max(_KS) + 1, limit=_MOST_TRIED, safeguards=guarded
    )
    for number, (alpha, near) in enumerate(zip(alphas, found, strict=True)):
        if near.labels.size < _FEWEST or min(near.labels.sum(), (~near.labels).sum()) < _FEWEST_OF_A_LABEL:
            return defaults  # many memes, but most of them twins of each other
        fold = np.arange(near.labels.size) % _FOLDS
        tried[alpha] = (near, fold)
        logits, settings = _grid(near, prior)
        for left, choices in candidates.items():
            choices.append(_best(alpha, logits, settings, near.labels, ~np.isin(fold, list(left))))
        if progress:
            progress(number + 1, len(alphas))
    chosen = {left: _first_best(choices) for left, choices in candidates.items()}

    def held_out(fold: int, left: frozenset[int]) -> _Votes:
        """The votes on a fold by what was chosen without the folds in ``left``, itself among them."""
        choice = chosen[left]
        near, folds = tried[choice.alpha]
        part = folds == fold
        p = safeguarded_votes(near.similarities[part], near.harmful[part], choice.settings, guarded)
        return _Votes(p, p >= choice.settings.threshold, near.labels[part])

    best = chosen[frozenset()]
    votes = _Votes.joined([held_out(fold, frozenset({fold})) for fold in range(_FOLDS)])
    accuracy, macro_f1 = _scores(votes.labels[None], votes.said[None])
    settles = choose_sure_range(votes.probabilities, votes.labels, best.settings.threshold, error)
    settled_share, settled_error = _settling(held_out, chosen, error)
    return Tuning(
        alpha=best.alpha,
        vote=best.settings,
        floors=floors,
        calibration=Calibration(
            method="leave-one-out",
            n=int(votes.labels.size),
            accuracy=float(accuracy[0]),
            macro_f1=float(macro_f1[0]),
            brier=float(np.mean((votes.probabilities - votes.labels) ** 2)),
            majority=float(max(votes.labels.mean(), 1 - votes.labels.mean())),
            settled_share=settled_share,
            settled_error=settled_error,
            note="" if votes.labels.size == n else f"measured on {votes.labels.size} of {n} memes",
        ),
        settles=settles,
        settle_error=error,
        safeguards=guarded,
    )


def _settling(
    held_out: Callable[[int, frozenset[int]], _Votes], chosen: Mapping[frozenset[int], _Choice], error: float
) -> tuple[float, float | None]:
    """Share of the memes that are settled by what was chosen without their fold, and of those the share of errors."""
    n = done = wrong = 0
    for fold in range(_FOLDS):
        alone = frozenset({fold})
        others = _Votes.joined([held_out(other, alone | {other}) for other in range(_FOLDS) if other != fold])
        settles = choose_sure_range(others.probabilities, others.labels, chosen[alone].settings.threshold, error)
        votes = held_out(fold, alone)
        sure = settled(votes.probabilities, settles)
        n, done = n + sure.size, done + int(sure.sum())
        wrong += int((sure & (votes.said != votes.labels)).sum())
    return done / n, wrong / done if done else None


def shares(
    similarities: NDArray[np.float64], harmful: NDArray[np.bool_], settings: VoteSettings
) -> NDArray[np.float64]:
    """:func:`court.precedents.share` of many memes at once: arrays of shape (q, depth) give one of shape (q,)."""
    weights = np.exp((similarities[:, : settings.k] - similarities[:, :1]) / settings.tau)
    for_harm = (weights * harmful[:, : settings.k]).sum(axis=1)
    m = settings.prior_weight
    together: NDArray[np.float64] = (for_harm + m * settings.prior) / (weights.sum(axis=1) + m)
    return together


def safeguarded_votes(
    similarities: NDArray[np.float64], harmful: NDArray[np.bool_], settings: VoteSettings, safeguards: Safeguards
) -> NDArray[np.float64]:
    """The vote's probabilities of harm as a search would have them, shape (q,).

    Where sole acquittals are left out (:func:`retrieval.precedents.search.search_library`), a vote for acquittal counts
    only if it stands without any one of its voters; else it is what is left without the one that matters most.

    Args:
        similarities: Shape (q, depth), nearest first, -inf where there are no more; one more than vote, where there is.
        harmful: Labels of the neighbours, same shape.
        settings: Of the vote.
        safeguards: Of the library.
    """
    p = probabilities_of(shares(similarities, harmful, settings), settings)
    acquitted = np.flatnonzero(p < settings.threshold)
    if not safeguards.no_sole_acquittal or not acquitted.size:
        return p
    # One column more, of nobody: so there is always one that moves up.
    near = np.pad(similarities[acquitted, : settings.k + 1], ((0, 0), (0, 1)), constant_values=-np.inf)
    harm = np.pad(harmful[acquitted, : settings.k + 1], ((0, 0), (0, 1)))
    voters = min(settings.k, near.shape[1] - 1)
    weights = np.exp((near - near[:, :1]) / settings.tau)
    moved_up = weights[:, voters]
    for_harm = (weights * harm)[:, :voters].sum(axis=1) + moved_up * harm[:, voters]
    benign = ~harm[:, :voters] & np.isfinite(near[:, :voters])
    for_any = (weights[:, :voters].sum(axis=1) + moved_up)[:, None] - np.where(benign, weights[:, :voters], 0.0)
    m = settings.prior_weight
    without = probabilities_of((for_harm[:, None] + m * settings.prior) / (for_any + m), settings)
    # Without the nearest, all is weighed by the next; and where nobody is left to speak, that is no acquittal.
    speaks = np.isfinite(near[:, 1])
    rest = np.where(speaks[:, None], near[:, 1:], 0.0)
    without[:, 0] = np.where(speaks, probabilities_of(shares(rest, harm[:, 1:], settings), settings), 1.0)
    most = np.where(benign, without, 0.0).max(axis=1)
    p[acquitted] = np.where(most >= settings.threshold, most, p[acquitted])
    return p


def probabilities_of(share: NDArray[np.float64], settings: VoteSettings) -> NDArray[np.float64]:
    """:func:`court.precedents.probability` of many shares at once, shape (q,)."""
    return _sigmoid(settings.intercept + settings.slope * _logit(share))


def _alphas(memes: Sequence[LabelledMeme]) -> tuple[float, ...]:
    if not any(meme.has_picture for meme in memes):
        return (1.0,)
    return _ALPHAS if any(meme.has_text for meme in memes) else (0.0,)


def _defaults(
    alpha: float, prior: float, floors: MinSimilarity, n: int, majority: float, error: float, guarded: Safeguards
) -> Tuning:
    return Tuning(
        alpha=alpha,
        vote=VoteSettings(k=min(15, n), tau=0.1, prior=prior),
        floors=floors,
        calibration=Calibration(
            method="defaults",
            n=0,
            majority=majority,
            note=f"nothing was chosen: that takes {_FEWEST} memes that differ, {_FEWEST_OF_A_LABEL} of each label",
        ),
        settle_error=error,
        safeguards=guarded,
    )


def _grid(near: Neighbours, prior: float) -> tuple[NDArray[np.float64], list[VoteSettings]]:
    """For all settings, the logit of the share of each meme, shape (settings, q)."""
    depth = min(near.similarities.shape[1], max(_KS))
    ks = [k for k in _KS if k <= depth] or [depth]
    logits, settings = [], []
    for tau in _TAUS:
        weights = np.exp((near.similarities - near.similarities[:, :1]) / tau)
        for_harm, for_any = (weights * near.harmful).cumsum(axis=1), weights.cumsum(axis=1)
        for k in ks:
            logits.append(_logit((for_harm[:, k - 1] + prior) / (for_any[:, k - 1] + 1)))
            settings.append(VoteSettings(k=k, tau=tau, prior=prior, prior_weight=1.0))
    return np.array(logits), settings


def _best(
    alpha: float,
    logits: NDArray[np.float64],
    settings: Sequence[VoteSettings],
    labels: NDArray[np.bool_],
    chosen_by: NDArray[np.bool_],
) -> _Choice:
    """The likeliest settings, calibrated, by the memes marked in ``chosen_by``, shape (q,)."""
    x, y = logits[:, chosen_by], labels[chosen_by]
    intercept, slope = fit_logistic(x, y)
    p = _sigmoid(intercept[:, None] + slope[:, None] * x)
    # Likelihood tells settings apart by every meme, accuracy only by those near the threshold: of a few hundred memes
    # the latter is mostly chance. Rounded, so that what is equal but for the last bit is equal, and the first is taken.
    likelihood = np.where(y, np.log(p), np.log1p(-p)).mean(axis=1).round(9)
    best = int(np.argmax(likelihood))
    worth = np.array([np.mean(_scores(y[None], p[best : best + 1] >= threshold)) for threshold in _THRESHOLDS]).round(9)
    # The first is the middle. It is left only for a gain of more than one standard error.
    threshold = _THRESHOLDS[int(np.argmax(worth))] if worth.max() - worth[0] > 0.5 / y.size**0.5 else _THRESHOLDS[0]
    tuned = settings[best].model_copy(
        update={"intercept": float(intercept[best]), "slope": float(slope[best]), "threshold": float(threshold)}
    )
    return _Choice(alpha, tuned, float(likelihood[best]))


def _first_best(choices: Sequence[_Choice]) -> _Choice:
    return max(choices, key=lambda choice: choice.likelihood)


def fit_logistic(
    x: NDArray[np.float64], y: NDArray[np.bool_], *, l2: float = 2.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Intercepts and slopes, shape (m,) each, of m logistic regressions of y, shape (q,), on a row of x, shape (m, q).

    Newton's method on all at once. A pull towards intercept 0 and slope 1, as much as a few memes weigh, keeps small
    and separable data sober; the slope is kept positive, since more harm nearby must never speak for less.
    """
    a, b = np.zeros(len(x)), np.ones(len(x))
    for _ in range(50):
        p = _sigmoid(a[:, None] + b[:, None] * x)
        error, weight = p - y, p * (1 - p)
        da, db = error.sum(axis=1) + l2 * a, (error * x).sum(axis=1) + l2 * (b - 1)
        aa, ab, bb = weight.sum(axis=1) + l2, (weight * x).sum(axis=1), (weight * x * x).sum(axis=1) + l2
        determinant = aa * bb - ab * ab
        step_a, step_b = (bb * da - ab * db) / determinant, (aa * db - ab * da) / determinant
        # Bounded steps: far from its end Newton's method may overshoot.
        a, b = a - np.clip(step_a, -2, 2), b - np.clip(step_b, -2, 2)
        if max(np.abs(step_a).max(), np.abs(step_b).max()) < 1e-10:
            break
    return np.clip(a, -5, 5), np.clip(b, 0.05, 10)


def _scores(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy and macro-F1 of each row of ``said``, shape (m, q), against ``truth``, shape (1, q)."""
    right = (truth & said).sum(axis=1), (~truth & ~said).sum(axis=1)
    wrong = (truth != said).sum(axis=1)
    f1 = [np.divide(2 * hits, 2 * hits + wrong, out=np.zeros(len(said)), where=2 * hits + wrong > 0) for hits in right]
    return (right[0] + right[1]) / truth.shape[1], (f1[0] + f1[1]) / 2


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    # By the tanh, which does not overflow.
    return 0.5 * (1 + np.tanh(0.5 * z))


def _logit(share: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(share) - np.log1p(-share)
