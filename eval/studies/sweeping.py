"""Choosing settings on a validation split, and how much the best of many owes to luck."""

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
from eval.runs.prediction import Outcome
from eval.runs.results import Results
from eval.scores.compare import FEWEST_TO_SAY
from eval.scores.metrics import Figure, draws_among, group_numbers_of
from eval.scores.resampling import Floats, interval
from eval.studies.arms import Arm, parse_setting

_AT_ONCE = 500
"""Resamples held in memory at once."""
_FEWEST = 4
"""Harmful and harmless memes each, below which nothing can be chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of judging the split.

    Attributes:
        run: Name of the run whose predictions these are.
        threshold: Score from which on a meme counts as harmful; None for the verdicts as they were given.
        macro_f1: Strict, with a 95 % interval by bootstrap over memes, or over groups of them where there are some.
        accuracy: Strict.
        coverage: Share of the memes with a class.
        behind: Lead of the best over it in macro-F1, paired bootstrap; 0 for the best itself.
        differing: Independent draws (memes, or groups of them) on which it and the best did not say the same.
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
        """True if the split can't tell it from the best; with fewer than six memes of difference it never can."""
        return self.behind.low <= 0 or self.differing < FEWEST_TO_SAY


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of a sweep under one protocol.

    Attributes:
        protocol: Protocol by which gold labels became two classes.
        n: Memes.
        candidates: Best first.
        flattered_by: Share of the best one's macro-F1 that is due to its having been picked as the best of all, by
            bootstrap.
    """

    protocol: Protocol
    n: int
    candidates: tuple[Candidate, ...]
    flattered_by: float

    @property
    def best(self) -> Candidate:
        """The first."""
        return self.candidates[0]


def require_not_test(dataset: Dataset, split: str) -> None:
    """Raises BadRequest if settings must not be chosen on this split."""
    if split not in dataset.splits:
        raise BadRequest(f"{dataset.title} has no split {split!r}; it has {', '.join(dataset.splits)}.")
    role = dataset.splits[split].role
    # Validation alone: train memes are the precedents, and test memes measure what was chosen.
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
    """An arm for every combination; the study's own settings where there is no axis.

    Raises:
        BadRequest: An axis has no value, or the same one twice.
    """
    for name, values in axes.items():
        # By words, since values that are written alike would share a folder.
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
    """A setting and its values from ``name=v1,v2``. Raises BadRequest if there is no such setting."""
    name, _, values = text.partition("=")
    each = [parse_setting(f"{name}={value}") for value in values.split(",") if value.strip()]
    if not each:
        raise BadRequest(f"{text!r} names no values. Write NAME=V1,V2.", field="grid")
    return each[0][0], tuple(value for _, value in each)


def parse_thresholds(text: str) -> tuple[float, ...]:
    """Thresholds from ``t1,t2``, each once. Raises BadRequest if one is no number between 0 and 1."""
    try:
        # A threshold that is named twice would stand in the table twice.
        each = tuple(dict.fromkeys(float(one) for one in text.split(",") if one.strip()))
    except ValueError:
        # Outside of [0, 1], so that the error below names it.
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
    """All runs, each as it judged and at each threshold on its scores; best first, ties in the order given.

    A meme without a score keeps the verdict that it has at every threshold, and one without a verdict is wrong.

    Args:
        runs: On the same memes.
        protocol: Protocol by which gold labels become two classes.
        thresholds: On scores, in [0, 1]; none needed.
        resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap.

    Raises:
        BadRequest: The runs are not of the same memes, or those are too few of a kind to choose anything by.
    """
    pairs = [run.under(protocol) for run in runs]
    memes = [[(one.meme.id, gold) for gold, one in each] for each in pairs]
    # In the same order too: candidates are compared column by column.
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
        # Class 2 is none, for undecided and failed alike.
        outcomes = np.array([_CLASS.get(one.prediction.outcome, 2) for _, one in each])
        scores = np.array([np.nan if (s := one.prediction.score) is None else s for _, one in each])
        names.append((run.name, None))
        predicted.append(outcomes)
        # Without any score each threshold would repeat the verdicts, as one more candidate that is as good.
        if np.isnan(scores).all():
            continue
        for threshold in thresholds:
            names.append((run.name, threshold))
            predicted.append(np.where(np.isnan(scores), outcomes, (scores >= threshold).astype(np.int64)))
    table = np.stack(predicted)
    whole = _macro_f1(np.ones((1, gold.size)), gold, table)[0]
    # Rounded, else the last bits of a sum would decide between candidates that are equally good.
    order = np.argsort(-whole.round(12), kind="stable")
    # What shares a group or a template is no independent draw, as in all other intervals.
    groups = group_numbers_of([one for _, one in pairs[0]])
    drawn, flattered_by = _resampled(gold, table, groups, best=int(order[0]), resamples=resamples, seed=seed)
    # Class 2, none, equals no gold label: it is wrong here, as in all strict figures.
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
    """Macro-F1 of every candidate in every resample, and by how much picking the best flatters it.

    In each resample the candidate is picked that is best on the memes drawn, and looked at on the memes that were not
    drawn, about 37 % of them (the bootstrap of Tsamardinos, Greasidou & Borboudakis 2018, "Bootstrapping the
    out-of-sample predictions for efficient and accurate cross-validation", section 3). What the best of all scores
    there, less what those picked score there, is what the picking adds. Both are taken on the same memes, so that
    what fewer memes do to a macro-F1 falls out.

    Returns:
        float of shape (resamples, candidates), and the mean.
    """
    rng = np.random.default_rng(seed)
    units = gold.size if groups is None else int(groups.max()) + 1
    drawn: list[Floats] = []
    losses: list[Floats] = []
    for start in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - start)
        # Memes and not classes are drawn, so that the share of harmful ones varies as it would.
        weights = rng.multinomial(units, np.full(units, 1 / units), size=size).astype(np.float64)
        # A meme comes up as often as its group.
        weights = weights if groups is None else weights[:, groups]
        left = (weights == 0).astype(np.float64)
        inside, outside = _macro_f1(weights, gold, predicted), _macro_f1(left, gold, predicted)
        drawn.append(inside)
        # Where one class is not among those left, there is no macro-F1 to speak of.
        both = (left @ gold > 0) & (left @ ~gold > 0)
        each = np.arange(size)
        # Best on the drawn memes, looked at on those left: the first of equals, as in the table itself.
        losses.append((outside[each, best] - outside[each, inside.argmax(axis=1)])[both])
    lost = np.concatenate(losses)
    # Below 0 it is chance: picking the best can't make it worse than it is.
    return np.concatenate(drawn), max(0.0, float(lost.mean())) if lost.size else 0.0


def _macro_f1(weights: Floats, gold: NDArray[np.bool_], predicted: NDArray[np.int64]) -> Floats:
    """Strict macro-F1, as :func:`eval.scores.resampling.rates` has it, of many candidates on many draws of the memes.

    Args:
        weights: float of shape (draws, memes): how often each meme was drawn.
        gold: bool of shape (memes,).
        predicted: int of shape (candidates, memes): 0, 1, or 2 for no class.

    Returns:
        float of shape (draws, candidates).
    """
    f1 = []
    for number, of_class in enumerate((~gold, gold)):
        hits = weights @ ((predicted == number) & of_class).T
        claimed = weights @ (predicted == number).T
        # 0 / 0 counts 0, as in eval.scores.resampling.rates.
        f1.append(2 * hits / np.maximum(claimed + (weights @ of_class)[:, None], 1))
    return np.asarray((f1[0] + f1[1]) / 2, dtype=np.float64)
