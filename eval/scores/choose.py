"""Choice among systems on the same memes: the best, those within noise of it, and the optimism of the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from court.errors import BadRequest
from eval.runs.results import Results
from eval.scores.bootstrap import RESAMPLES, Bools, Figure, Floats, Ints, draws_among, interval, weights_of
from eval.scores.compare import FEWEST_TO_SAY
from eval.scores.label_metrics import (
    LOWER_IS_BETTER,
    TaskArrays,
    differing_answers,
    metric_of,
    name_over_all,
    value_of,
)
from eval.scores.metrics import group_numbers_of
from eval.scores.task_card import arrays_of, metrics_of, question_of


@dataclass(frozen=True, slots=True)
class RankedSystem:
    """One of several systems on the same memes."""

    number: int
    value: Figure
    behind: Figure
    """Lead of the best over it, by paired bootstrap; 0 for the best itself."""
    differing: int
    """Number of independent draws (memes, or groups of them) on which it differs from the best."""
    run: str = ""

    @property
    def within_noise(self) -> bool:
        """True if its difference from the best is not significant, as always with fewer than six differing memes."""
        return self.behind.low <= 0 or self.differing < FEWEST_TO_SAY


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways of asking, best first."""

    metric: str
    """Metric by which they are ordered: the official one, in its strict form if a way has no value for some memes."""
    ways: tuple[RankedSystem, ...]
    """Ways of asking, best first, ties in the order of the runs."""
    flattered_by: float
    """Selection bias: how much the best one's value is inflated by being picked as the best."""

    @property
    def expected(self) -> float:
        """Value of the best one without the luck of being picked."""
        return self.ways[0].value.value - _direction(self.metric) * self.flattered_by


def rank_answers(runs: Sequence[Results], *, resamples: int = RESAMPLES, seed: int = 0) -> Choice:
    """Orders runs that asked the same question of the same memes.

    Raises BadRequest: The runs are on different memes, or the official metric is undefined for one.
    """
    read = [arrays_of(run) for run in runs]
    memes = [[one.meme.id for one in judged] for judged, _ in read]
    # In the same order too: rows of the arrays are compared by position.
    if any(other != memes[0] for other in memes[1:]):
        raise BadRequest("The runs did not ask about the same memes.", reason="MEMES_DIFFER")
    question = question_of(runs[0])
    name = question.official or metrics_of(question, scored=False, votes=False)[0]
    arrays, groups = [each for _, each in read], group_numbers_of(read[0][0])
    # A way that leaves the harder memes open must not win by its figure over the others.
    official, name = name, name_over_all(name, *arrays)
    ranking = best_first(arrays, name, groups, resamples=resamples, seed=seed)
    if ranking is None:
        raise BadRequest(
            f"{official} has no value on these memes: nothing can be chosen by it.", reason="TOO_FEW_TO_CHOOSE"
        )
    return Choice(
        metric=name,
        ways=tuple(replace(one, run=runs[one.number].name) for one in ranking.systems),
        flattered_by=ranking.flattered_by,
    )


@dataclass(frozen=True, slots=True)
class Ranking:
    """Systems, best first, ties in the order given, and the selection bias of the best."""

    systems: tuple[RankedSystem, ...]
    flattered_by: float


def best_first(
    systems: Sequence[TaskArrays],
    name: str,
    groups: Ints | None,
    *,
    needed: Bools | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ranking | None:
    """Orders systems on the same memes by a metric; None if it has no value for one of them.

    Each resample picks the system that is best on the drawn memes and scores it on the memes that were not drawn, about
    37 % of them (the bootstrap of Tsamardinos, Greasidou & Borboudakis 2018, "Bootstrapping the out-of-sample
    predictions for efficient and accurate cross-validation", section 3). The bias is the mean score of the overall best
    on these memes minus that of the picked ones. Both use the same memes, so that the effect of having fewer memes
    cancels out.

    Args:
        needed: Classes that must all be among the memes left out for a score on them to mean something, bool of shape
            (memes, classes); None for no such condition.
    """
    metric, up = metric_of(name, systems[0].labels), _direction(name)
    whole = [value_of(metric, each) for each in systems]
    values = up * np.array([np.nan if value is None else value for value in whole])
    if np.isnan(values).any():
        return None
    # Rounded, or the last bits of a sum would decide between equally good systems.
    order = np.argsort(-values.round(12), kind="stable")
    best = int(order[0])
    inside, lost = [], []
    for weights in weights_of(groups, len(systems[0].answered), resamples=resamples, seed=seed):
        # Memes that a resample left out did not influence its pick, so they measure it without bias.
        left = (weights == 0).astype(np.float64)
        drawn = up * np.stack([metric(each, weights) for each in systems], axis=1)
        outside = up * np.stack([metric(each, left) for each in systems], axis=1)
        inside.append(drawn)
        # A system without a value in a resample is not picked there.
        each_, picked = np.arange(len(weights)), np.nan_to_num(drawn, nan=-np.inf).argmax(axis=1)
        loss = outside[each_, best] - outside[each_, picked]
        lost.append(loss if needed is None else loss[(left @ needed > 0).all(axis=1)])
    over, losses = np.concatenate(inside), np.concatenate(lost)
    losses = losses[~np.isnan(losses)]

    def figure(value: float, drawn: Floats) -> Figure:
        return Figure(value, *interval(drawn[~np.isnan(drawn)]))

    return Ranking(
        systems=tuple(
            RankedSystem(
                number=place,
                value=figure(up * float(values[place]), up * over[:, place]),
                behind=figure(float(values[best] - values[place]), over[:, best] - over[:, place]),
                differing=draws_among(differing_answers(systems[best], systems[place]), groups),
            )
            for place in order.tolist()
        ),
        # By chance a pick may do better outside its resample; a bias below 0 is meaningless.
        flattered_by=max(0.0, float(losses.mean())) if losses.size else 0.0,
    )


def _direction(metric: str) -> int:
    """1 if a higher value is better, -1 if a lower one is."""
    return -1 if metric in LOWER_IS_BETTER else 1
