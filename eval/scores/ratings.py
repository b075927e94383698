"""Ratings by people: means with intervals, agreement between raters, and self-agreement of each rater.

Agreement is measured in four ways, as papers use the term loosely: Fleiss' kappa (scores as names), Cohen's kappa with
quadratic weights averaged over pairs of raters, Krippendorff's alpha for ordered scores (:mod:`eval.scores.alpha`), and
the share of repeated items to which a rater gave the same score.
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
from eval.scores.bootstrap import Figure
from eval.scores.resampled_means import mean_of
from serving.docket.review.agreement import Kappa, fleiss


class Rating(BaseModel):
    """One score by one person; a line of a file of ``--ratings``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str = Field(min_length=1)
    who: str = Field(min_length=1)
    """Name or pseudonym of the person."""
    criterion: str = Field(min_length=1)
    score: int


@dataclass(frozen=True, slots=True)
class SelfAgreement:
    """Agreement of raters with themselves, on items that they were shown twice.

    Attributes:
        alike: Share of pairs with equal scores; None if there are no pairs.
        kappa: Cohen's kappa with quadratic weights; None if it is undefined.
    """

    n: int
    alike: float | None
    kappa: float | None


@dataclass(frozen=True, slots=True)
class CriterionRatings:
    """Ratings by one criterion.

    Attributes:
        items: Number of items that were rated, each counted once however often it was shown.
        mean: Mean score, by bootstrap over items.
        cohen: Mean of Cohen's kappa with quadratic weights over pairs of raters; None if it is undefined for all.
        alpha: Krippendorff's alpha, ordinal; None if it is undefined.
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
    """Figures of each criterion, in order of first appearance.

    Args:
        ratings: Scores; a person's last score of an item by a criterion replaces earlier ones.
    """
    found = []
    for criterion in dict.fromkeys(one.criterion for one in ratings):
        own = {(one.item, one.who): one.score for one in ratings if one.criterion == criterion}
        # Repeats only count for self-agreement; otherwise their item would have double weight.
        first = {key: score for key, score in own.items() if key[0] not in repeat_of}
        repeated = [
            (own[repeat_of[item], who], score)
            for (item, who), score in own.items()
            if item in repeat_of and (repeat_of[item], who) in own
        ]
        # Only repeats were rated by this criterion.
        if not first:
            continue
        by_item: dict[str, dict[str, int]] = defaultdict(dict)
        for (item, who), score in first.items():
            by_item[item][who] = score
        # The bootstrap draws items with all their scores, as raters of an item see the same text.
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
                    n=len(repeated),
                    alike=float(np.mean([one == other for one, other in repeated])) if repeated else None,
                    kappa=weighted_kappa(repeated),
                ),
            )
        )
    return tuple(found)


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa with quadratic weights; None if it is undefined, for example if all scores are equal."""
    from sklearn.metrics import cohen_kappa_score

    if len(pairs) < 2 or len({score for pair in pairs for score in pair}) < 2:
        return None
    one, other = zip(*pairs, strict=True)
    # Includes unused scores: weights depend on positions, and 2 and 5 must not become adjacent if 3 and 4 are unused.
    scores = range(min(*one, *other), max(*one, *other) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0 / 0, which shows in the result
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
