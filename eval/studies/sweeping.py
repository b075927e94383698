"""Choice of settings on a validation split, and the selection bias of the best of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from court.errors import BadRequest
from eval.datasets.known import Dataset, SplitRole
from eval.datasets.protocol import Protocol
from eval.runs.results import Results
from eval.scores.compare import FEWEST_TO_SAY
from eval.scores.metrics import Figure, draws_among, group_numbers_of
from eval.scores.resampling import Floats, interval
from eval.solvers.prediction import Outcome
from eval.studies.arms import Arm, parse_setting

_AT_ONCE = 500
"""Resamples held in memory at once."""
_FEWEST = 4
"""Fewest harmful and fewest harmless memes for a choice."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of judging the split.

    Attributes:
        threshold: Lowest score that counts as harmful; None for the verdicts as they were given.
        macro_f1: Strict macro-F1, with a 95 % interval by bootstrap over memes, or over groups if there are any.
        coverage: Share of the memes with a class.
        behind: Lead of the best candidate over this one in macro-F1, by paired bootstrap; 0 for the best itself.
        differing: Number of independent draws (memes, or groups of them) on which it differs from the best.
    """

    run: str
    threshold: float | None
    macro_f1: Figure
    accuracy: float
    coverage: float
    behind: Figure
    differing: int

    @property
    def within_noise(self) -> bool:
        """True if its difference from the best is not significant, as always with fewer than six differing memes."""
        return self.behind.low <= 0 or self.differing < FEWEST_TO_SAY


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of a sweep under one protocol.

    Attributes:
        protocol: Protocol by which gold labels became two classes.
        candidates: Candidates, best first.
        flattered_by: Selection bias: how much the best one's macro-F1 is inflated by being picked as the best, by
            bootstrap.
    """

    protocol: Protocol
    n: int
    candidates: tuple[Candidate, ...]
    flattered_by: float

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.candidates[0]


def require_not_test(dataset: Dataset, split: str) -> None:
    """Raises BadRequest if settings must not be chosen on this split."""
    if split not in dataset.splits:
        raise BadRequest(f"{dataset.title} has no split {split!r}; it has {', '.join(dataset.splits)}.")
    role = dataset.splits[split].role
    # Validation only: train memes are the precedents, and test memes measure what was chosen.
    if role is SplitRole.VALIDATION:
        return
    fit = ", ".join(one.name for one in dataset.of_role(SplitRole.VALIDATION)) or "none"
    why = (
        "what was chosen on the memes that it is then measured on scores better than it is, and nobody can say by how "
        "much"
        if role is SplitRole.TEST
        else "its memes are the precedents themselves"
    )
    raise BadRequest(
        f"Settings are not chosen on {split}, a {role} split of {dataset.title}: {why}. Splits for choosing: {fit}.",
        reason="NOT_A_VALIDATION_SPLIT",
        field="split",
    )


def grid(axes: Mapping[str, Sequence[JsonValue]]) -> tuple[Arm, ...]:
    """An arm for every combination; a single arm with the study's own settings if there is no axis.

    Raises:
        BadRequest: An axis has no values, or a duplicate.
    """
    for name, values in axes.items():
        # Compared as strings, since values that are written the same would share a folder.
        if not values or len({_word(value) for value in values}) < len(values):
            raise BadRequest(f"The grid's axis {name} needs values, each of them once.", field="grid")
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return tuple(
        Arm(
            name=",".join(f"{name}={_word(value)}" for name, value in point.items()) or "as-set",
            what="a point of the grid",
            overlay=point,
        )
        for point in points
    )


def parse_axis(text: str) -> tuple[str, tuple[JsonValue, ...]]:
    """Parses a setting and its values, ``name=v1,v2``. Raises BadRequest if there is no such setting."""
    name, _, values = text.partition("=")
    each = [parse_setting(f"{name}={value}") for value in values.split(",") if value.strip()]
    if not each:
        raise BadRequest(f"{text!r} names no values. Write NAME=V1,V2.", field="grid")
    return each[0][0], tuple(value for _, value in each)


def parse_thresholds(text: str) -> tuple[float, ...]:
    """Parses thresholds, ``t1,t2``, without duplicates. Raises BadRequest if one is not a number in [0, 1]."""
    try:
        # A duplicate threshold would be in the table twice.
        each = tuple(dict.fromkeys(float(one) for one in text.split(",") if one.strip()))
    except ValueError:
        # Outside of [0, 1], so that the check below fails.
        each = (-1.0,)
    if not all(0 <= one <= 1 for one in each):
        raise BadRequest(f"{text!r} holds something that is no score: thresholds lie in [0, 1].", field="thresholds")
    return each


def _word(value: JsonValue) -> str:
    """A value as part of a folder's name."""
    plain = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(c if c.isalnum() or c in "._+-" else "-" for c in plain)


def rank(
    runs: Sequence[Results], protocol: Protocol, thresholds: Sequence[float], *, resamples: int = 10_000, seed: int = 0
) -> Sweep:
    """All runs, with their verdicts and with each threshold on their scores; best first, ties in the order given.

    A meme without a score keeps its verdict at every threshold, and one without a verdict is wrong.

    Args:
        protocol: Protocol by which gold labels become two classes.
        thresholds: Thresholds on scores, in [0, 1]; may be empty.

    Raises:
        BadRequest: The runs are on different memes, or there are too few memes of a class.
    """
    pairs = [run.under(protocol) for run in runs]
    memes = [[(one.meme.id, gold) for gold, one in each] for each in pairs]
    # In the same order too, as candidates are compared column by column.
    if any(other != memes[0] for other in memes[1:]):
        raise BadRequest("The runs of the sweep were not held on the same memes.", reason="MEMES_DIFFER")
    gold = np.array([harmful for _, harmful in memes[0]], dtype=np.bool_)
    if min(gold.sum(), (~gold).sum()) < _FEWEST:
        raise BadRequest(
            f"Under the protocol {protocol} there are {gold.sum()} harmful and {(~gold).sum()} other memes: too few to "
            f"choose anything by. It takes at least {_FEWEST} of each.",
            reason="TOO_FEW_TO_CHOOSE",
        )
    names: list[tuple[str, float | None]] = []
    predicted: list[NDArray[np.int64]] = []
    for run, each in zip(runs, pairs, strict=True):
        # 2 means no class, for undecided and failed memes.
        outcomes = np.array([_CLASS.get(one.prediction.outcome, 2) for _, one in each])
        scores = np.array([np.nan if (s := one.prediction.score) is None else s for _, one in each])
        names.append((run.name, None))
        predicted.append(outcomes)
        # Without any score, each threshold would add a candidate with the same verdicts.
        if np.isnan(scores).all():
            continue
        for threshold in thresholds:
            names.append((run.name, threshold))
            predicted.append(np.where(np.isnan(scores), outcomes, (scores >= threshold).astype(np.int64)))
    table = np.stack(predicted)
    whole = _macro_f1(np.ones((1, gold.size)), gold, table)[0]
    # Rounded, or the last bits of a sum would decide between equally good candidates.
    order = np.argsort(-whole.round(12), kind="stable")
    # Memes that share a group or a template are not independent draws, as in all other intervals.
    groups = group_numbers_of([one for _, one in pairs[0]])
    drawn, flattered_by = _resampled(gold, table, groups, best=int(order[0]), resamples=resamples, seed=seed)
    # 2 (no class) never equals a gold label: it counts as wrong, as in all strict figures.
    right = (table == gold).mean(axis=1)
    return Sweep(
        protocol=protocol,
        n=gold.size,
        candidates=tuple(
            Candidate(
                run=names[place][0],
                threshold=names[place][1],
                macro_f1=Figure(float(whole[place]), *interval(drawn[:, place])),
                accuracy=float(right[place]),
                coverage=float((table[place] < 2).mean()),
                behind=Figure(float(whole[order[0]] - whole[place]), *interval(drawn[:, order[0]] - drawn[:, place])),
                differing=draws_among(table[order[0]] != table[place], groups),
            )
            for place in order.tolist()
        ),
        flattered_by=flattered_by,
    )


_CLASS = {Outcome.NOT_HARMFUL: 0, Outcome.HARMFUL: 1}


def _resampled(
    gold: NDArray[np.bool_],
    predicted: NDArray[np.int64],
    groups: NDArray[np.int64] | None,
    *,
    best: int,
    resamples: int,
    seed: int,
) -> tuple[Floats, float]:
    """Macro-F1 of every candidate in every resample, and the selection bias of the best.

    Each resample picks the candidate that is best on the drawn memes and scores it on the memes that were not drawn,
    about 37 % of them (the bootstrap of Tsamardinos, Greasidou & Borboudakis 2018, "Bootstrapping the out-of-sample
    predictions for efficient and accurate cross-validation", section 3). The bias is the mean score of the overall best
    on these memes minus that of the picked ones. Both use the same memes, so that the effect of having fewer memes on a
    macro-F1 cancels out.

    Returns:
        float of shape (resamples, candidates), and the mean.
    """
    rng = np.random.default_rng(seed)
    units = gold.size if groups is None else int(groups.max()) + 1
    drawn: list[Floats] = []
    losses: list[Floats] = []
    for start in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - start)
        # Draws are not stratified by class, so that the share of harmful memes varies naturally.
        weights = rng.multinomial(units, np.full(units, 1 / units), size=size).astype(np.float64)
        # A meme occurs as often as its group.
        weights = weights if groups is None else weights[:, groups]
        left = (weights == 0).astype(np.float64)
        inside, outside = _macro_f1(weights, gold, predicted), _macro_f1(left, gold, predicted)
        drawn.append(inside)
        # The macro-F1 is meaningless if the memes left out lack a class.
        both = (left @ gold > 0) & (left @ ~gold > 0)
        each = np.arange(size)
        # Picked on the drawn memes, scored on those left out; ties go to the first, as in the table itself.
        losses.append((outside[each, best] - outside[each, inside.argmax(axis=1)])[both])
    lost = np.concatenate(losses)
    # A negative bias is due to chance: picking the best can't deflate its score.
    return np.concatenate(drawn), max(0.0, float(lost.mean())) if lost.size else 0.0


def _macro_f1(weights: Floats, gold: NDArray[np.bool_], predicted: NDArray[np.int64]) -> Floats:
    """Strict macro-F1, as in :func:`eval.scores.resampling.rates`, of many candidates on many draws of the memes.

    Args:
        weights: float of shape (draws, memes): number of times that each meme was drawn.
        gold: bool of shape (memes,).
        predicted: int of shape (candidates, memes): 0, 1, or 2 for no class.

    Returns:
        float of shape (draws, candidates).
    """
    f1 = []
    for number, of_class in enumerate((~gold, gold)):
        hits = weights @ ((predicted == number) & of_class).T
        claimed = weights @ (predicted == number).T
        # 0 / 0 counts as 0, as in eval.scores.resampling.rates.
        f1.append(2 * hits / np.maximum(claimed + (weights @ of_class)[:, None], 1))
    return np.asarray((f1[0] + f1[1]) / 2, dtype=np.float64)
