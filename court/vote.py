"""The precedents' vote: how labelled neighbours become a probability of harm. One definition, used by the trial and by
the calibration of a library."""  # noqa: D205, D209

from __future__ import annotations

import math
from collections.abc import Sequence

from court.precedents import TallyEntry, Vote, VoteSettings
from court.verdict import Label


def share(similarities: Sequence[float], harmful: Sequence[bool], settings: VoteSettings) -> float:
    """Weighted share of harm among the nearest ``settings.k`` precedents, in (0, 1).

    Weights fall off exponentially from the nearest, ``exp((s_i - s_1) / tau)``, so that they do not depend on where
    an encoder's similarities happen to lie; the prior counts as ``prior_weight`` voters as near as the nearest.

    Args:
        similarities: Of the precedents, nearest first.
        harmful: Whether each is labelled harmful, in the same order.
        settings: Of the library.

    Raises:
        ValueError: There is no precedent, or the two sequences differ in length.
    """
    if len(similarities) != len(harmful) or not similarities:
        raise ValueError("a vote needs at least one precedent, and a label for each")
    nearest = similarities[0]
    weights = [math.exp((s - nearest) / settings.tau) for s in similarities[: settings.k]]
    for_harm = sum(weight for weight, is_harmful in zip(weights, harmful, strict=False) if is_harmful)
    m = settings.prior_weight
    return (for_harm + m * settings.prior) / (sum(weights) + m)


def probability(share: float, settings: VoteSettings) -> float:
    """The share as a calibrated P(harmful): ``sigmoid(intercept + slope * logit(share))``."""
    logit = math.log(share) - math.log1p(-share)
    z = settings.intercept + settings.slope * logit
    # Two forms, so that neither overflows.
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def vote(tally: Sequence[TallyEntry], settings: VoteSettings) -> Vote:
    """The vote of a tally, nearest first. Raises ValueError if it is empty."""
    voters = tally[: settings.k]
    harmful = [entry.label is Label.HARMFUL for entry in voters]
    weighed = share([entry.similarity for entry in voters], harmful, settings)
    return Vote(
        voters=len(voters),
        harmful=sum(harmful),
        share=weighed,
        probability=probability(weighed, settings),
        settings=settings,
    )
