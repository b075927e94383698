"""Ratings by people: means with intervals, agreement among raters, and of each with itself.

Agreement is told four ways, for papers name it loosely: Fleiss' kappa (scores as names), Cohen's kappa with quadratic
weights as a mean over pairs of raters, Krippendorff's alpha for ordered scores (:mod:`eval.scores.alpha`), and the
share of repeated items that a rater scored alike.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from eval.scores.alpha import alpha
from eval.scores.metrics import Figure
from eval.scores.resampled_means import mean_of
from serving.docket.review.agreement import Kappa, fleiss


class Rating(BaseModel):
    """One score of one person; one line of ``--ratings``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str = Field(min_length=1)
    who: str = Field(min_length=1)
    """A name that stands for the person, and need not be theirs."""
    criterion: str = Field(min_length=1)
    score: int


@dataclass(frozen=True, slots=True)
class SelfAgreement:
    """Agreement of raters with themselves, on items that they were shown twice.

    Attributes:
        n: Pairs of scores.
        alike: Share of them that are the same; None without any.
        kappa: Cohen's kappa with quadratic weights; None where it is not defined.
    """

    n: int
    alike: float | None
    kappa: float | None


@dataclass(frozen=True, slots=True)
class CriterionRatings:
    """Ratings by one criterion.

    Attributes:
        criterion: Key of the criterion.
        items: Items that were rated, each counted once however often it was shown.
        raters: Number of people.
        mean: Mean score, by bootstrap over items.
        fleiss: Fleiss' kappa.
        cohen: Mean of Cohen's kappa with quadratic weights over pairs of raters; None where none is defined.
        pairs: Number of pairs of raters that have one.
        alpha: Krippendorff's alpha, ordinal; None where it is not defined.
        self_agreement: Agreement with oneself on repeated items.
    """

    criterion: str
    items: int
    raters: int
    mean: Figure
    fleiss: Kappa
    cohen: float | None
    pairs: int
    alpha: float | None
    self_agreement: SelfAgreement


def summarise(ratings: Sequence[Rating], repeat_of: Mapping[str, str]) -> tuple[CriterionRatings, ...]:
    """Figures of each criterion, in the order in which criteria first come.

    Args:
        ratings: Scores; of several by one person for one item and criterion, the last counts.
        repeat_of: The item that an item repeats, of those that do.
    """
    found = []
    for criterion in dict.fromkeys(one.criterion for one in ratings):
        own = {(one.item, one.who): one.score for one in ratings if one.criterion == criterion}
        # Repeats count for self-agreement alone: elsewhere their item would weigh twice.
        first = {key: score for key, score in own.items() if key[0] not in repeat_of}
        again = [
            (own[repeat_of[item], who], score)
            for (item, who), score in own.items()
            if item in repeat_of and (repeat_of[item], who) in own
        ]
        # Nothing but repeats was rated by it.
        if not first:
            continue
        by_item: dict[str, dict[str, int]] = defaultdict(dict)
        for (item, who), score in first.items():
            by_item[item][who] = score
        # Items are what is drawn, with all their scores: raters of one item see the same text.
        mean = mean_of([(item, float(score)) for (item, _), score in first.items()])
        assert mean is not None
        kappas = _pairwise(by_item)
        found.append(
            CriterionRatings(
                criterion=criterion,
                items=len(by_item),
                raters=len({who for _, who in first}),
                mean=mean,
                fleiss=fleiss([[str(score) for score in scores.values()] for scores in by_item.values()]),
                cohen=float(np.mean(kappas)) if kappas else None,
                pairs=len(kappas),
                alpha=alpha([list(scores.values()) for scores in by_item.values()]),
                self_agreement=SelfAgreement(
                    n=len(again),
                    alike=float(np.mean([one == other for one, other in again])) if again else None,
                    kappa=weighted_kappa(again),
                ),
            )
        )
    return tuple(found)


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa with quadratic weights; None where it is not defined, as where everybody gives one score."""
    from sklearn.metrics import cohen_kappa_score

    if len(pairs) < 2 or len({score for pair in pairs for score in pair}) < 2:
        return None
    one, other = zip(*pairs, strict=True)
    # All scores between, given or not: weights go by places, and 2 and 5 are not neighbours for want of a 3 and a 4.
    scores = range(min(*one, *other), max(*one, *other) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0 / 0, which is told by what comes out
        value = float(cohen_kappa_score(one, other, labels=scores, weights="quadratic"))
    return None if np.isnan(value) else value


def _pairwise(by_item: Mapping[str, Mapping[str, int]]) -> list[float]:
    raters = sorted({who for scores in by_item.values() for who in scores})
    found = []
    for one, other in itertools.combinations(raters, 2):
        value = weighted_kappa(
            [(scores[one], scores[other]) for scores in by_item.values() if one in scores and other in scores]
        )
        if value is not None:
            found.append(value)
    return found
