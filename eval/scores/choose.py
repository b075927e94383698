"""Choice among systems on the same memes: the best, those within noise of it, and the optimism of the choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from court.errors import BadRequest
from eval.datasets.items import Protocol
from eval.runs.results import Results
from eval.scores.measure import (
    FEWEST_TO_SAY,
    LOWER_IS_BETTER,
    RESAMPLES,
    Figure,
    Floats,
    TaskArrays,
    differing_answers,
    draws_among,
    interval,
    metric_of,
    name_over_all,
    right_answers,
    value_of,
    weights_of,
)
from eval.scores.metrics import Answers, answers_of, metrics_of, question_of

TOO_FEW_DIFFER = (
    "Fewer than six memes (or groups of them) of difference count as noise, whatever the interval: so few all fall on "
    "one side by chance too often."
)
"""Explains why a difference counts as noise although its interval excludes 0."""


@dataclass(frozen=True, slots=True)
class RankedSystem:
    """Figures of one of several systems on the same memes."""

    run: str
    threshold: float | None
    """Lowest score that counts as harmful; None for the answers as they were given."""
    value: Figure
    accuracy: float
    """Share of memes with the right answer; one without an answer is wrong."""
    coverage: float
    behind: Figure
    """Lead of the best over it, by paired bootstrap; 0 for the best itself."""
    differing: int
    """Number of independent draws (memes, or groups of them) on which it differs from the best."""

    @property
    def name(self) -> str:
        """Name of the run, with the threshold if there is one."""
        return self.run if self.threshold is None else f"{self.run}, harmful from {self.threshold:g}"

    @property
    def within_noise(self) -> bool:
        """True if its difference from the best is not significant, as always with fewer than six differing memes."""
        return self.behind.low <= 0 or self.differing < FEWEST_TO_SAY


@dataclass(frozen=True, slots=True)
class Choice:
    """Systems, best first, ties in the order given."""

    metric: str
    """Metric by which they are ordered: the official one, in its strict form if a way has no value for some memes."""
    n: int
    ways: tuple[RankedSystem, ...]
    flattered_by: float
    """Selection bias: how much the best one's value is inflated by being picked as the best."""

    @property
    def best(self) -> RankedSystem:
        """The best one."""
        return self.ways[0]

    @property
    def expected(self) -> float:
        """Value of the best one without the luck of being picked."""
        return self.best.value.value - _direction(self.metric) * self.flattered_by


def rank(
    runs: Sequence[Results],
    protocol: Protocol | None = None,
    thresholds: Sequence[float] = (),
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Choice:
    """Orders runs on the same memes: answers to a question by its official metric, verdicts by their macro-F1.

    Verdicts are ordered with each threshold on their scores, too. A meme without a score keeps its verdict at every
    threshold, and one without an answer is wrong.

    Each resample picks the system that is best on the drawn memes and scores it on the memes that were not drawn, about
    37 % of them (the bootstrap of Tsamardinos, Greasidou & Borboudakis 2018, "Bootstrapping the out-of-sample
    predictions for efficient and accurate cross-validation", section 3). The bias is the mean score of the overall best
    on these memes minus that of the picked ones. Both use the same memes, so that the effect of having fewer memes
    cancels out.

    Raises BadRequest: The runs are on different memes, or the official metric is undefined for one.
    """
    read = [answers_of(run, protocol) for run in runs]
    # In the same order too: rows of the arrays are compared by position.
    if len({tuple(one.meme.id for one in each.judged) for each in read}) > 1:
        raise BadRequest("The runs did not judge the same memes.", reason="MEMES_DIFFER")
    official = "macro-f1" if protocol else metrics_of(question_of(runs[0]), scored=False)[0]
    systems = _systems(read, protocol, thresholds)
    arrays_of, groups = [arrays for *_, arrays in systems], read[0].groups
    # A way that leaves the harder memes open must not win by its figure over the others.
    name = name_over_all(official, *arrays_of)
    metric, up, n = metric_of(name, arrays_of[0].labels), _direction(name), len(read[0].judged)
    whole = [value_of(metric, each) for each in arrays_of]
    values = up * np.array([np.nan if value is None else value for value in whole])
    if np.isnan(values).any():
        raise BadRequest(
            f"{official} has no value on these memes: nothing can be chosen by it.", reason="TOO_FEW_TO_CHOOSE"
        )
    # Rounded, or the last bits of a sum would decide between equally good systems.
    order = np.argsort(-values.round(12), kind="stable")
    best = int(order[0])
    inside, lost = [], []
    for weights in weights_of(groups, n, resamples=resamples, seed=seed):
        # Memes that a resample left out did not influence its pick, so they measure it without bias.
        left = (weights == 0).astype(np.float64)
        drawn = up * np.stack([metric(each, weights) for each in arrays_of], axis=1)
        outside = up * np.stack([metric(each, left) for each in arrays_of], axis=1)
        inside.append(drawn)
        # A system without a value in a resample is not picked there.
        each_, picked = np.arange(len(weights)), np.nan_to_num(drawn, nan=-np.inf).argmax(axis=1)
        loss = outside[each_, best] - outside[each_, picked]
        # Where one class alone was left out, a macro-F1 means nothing.
        lost.append(loss[(left @ read[0].arrays.gold > 0).all(axis=1)] if protocol else loss)
    over, losses = np.concatenate(inside), np.concatenate(lost)
    losses = losses[~np.isnan(losses)]

    def figure(value: float, drawn: Floats) -> Figure:
        return Figure(value, *interval(drawn[~np.isnan(drawn)]))

    return Choice(
        metric=name,
        n=n,
        ways=tuple(
            RankedSystem(
                run=systems[place][0],
                threshold=systems[place][1],
                value=figure(up * float(values[place]), up * over[:, place]),
                accuracy=float(right_answers(arrays_of[place]).mean()),
                coverage=float(arrays_of[place].answered.mean()),
                behind=figure(float(values[best] - values[place]), over[:, best] - over[:, place]),
                differing=draws_among(differing_answers(arrays_of[best], arrays_of[place]), groups),
            )
            for place in order.tolist()
        ),
        # By chance a pick may do better outside its resample; a bias below 0 is meaningless.
        flattered_by=max(0.0, float(losses.mean())) if losses.size else 0.0,
    )


def _systems(
    read: Sequence[Answers], protocol: Protocol | None, thresholds: Sequence[float]
) -> list[tuple[str, float | None, TaskArrays]]:
    systems: list[tuple[str, float | None, TaskArrays]] = []
    for each in read:
        arrays, scores = each.arrays, each.arrays.scores[:, -1]
        if protocol is not None:
            # Verdicts differ by their labels alone: scores are compared only through thresholds.
            arrays = replace(arrays, scores=np.full_like(arrays.scores, np.nan))
        systems.append((each.run, None, arrays))
        scored = ~np.isnan(scores)
        # Without any score, each threshold would add a candidate with the same verdicts.
        for threshold in thresholds if scored.any() else ():
            harmful = scores >= threshold
            predicted = np.where(scored[:, None], np.stack([~harmful, harmful], axis=1), arrays.predicted)
            relabelled = replace(arrays, predicted=predicted, answered=arrays.answered | scored)
            systems.append((each.run, threshold, relabelled))
    return systems


def _direction(metric: str) -> int:
    """1 if a higher value is better, -1 if a lower one is."""
    return -1 if metric in LOWER_IS_BETTER else 1


def choice_in_words(choice: Choice) -> list[str]:
    """Describes the result of a choice and its open questions, in sentences."""
    best, many = choice.best, len(choice.ways)
    if many == 1:
        return [f"There was nothing to choose: {best.name} is all that was tried."]
    equals = sum(one.within_noise for one in choice.ways) - 1
    lines = [f"Best of {many:,}: {best.name}, with a {choice.metric} of {best.value.value:.3f}."]
    if equals:
        lines.append(
            f"{equals:,} of the other {many - 1:,} lie within noise of it: these memes can't tell them from the best, "
            "and the simplest of them is as good a choice."
        )
    if any(one.within_noise and one.behind.low > 0 for one in choice.ways):
        lines.append(TOO_FEW_DIFFER)
    lines.append(
        f"The best of many is flattered by its luck on these very memes, here by about {choice.flattered_by:.3f}: "
        f"expect about {choice.expected:.3f} on others, and measure that on the test split, once."
    )
    return lines
