"""Precedents: labelled memes like the one on trial, and what was looked for to find them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from court.verdict import Label

PrecedentLabel = Literal[Label.HARMFUL, Label.NOT_HARMFUL]
"""A precedent has been decided."""


class Relation(StrEnum):
    """Relation of a precedent to the meme on trial."""

    SAME_MEME = "SAME_MEME"
    """The same pixels and the same text."""
    SAME_PICTURE = "SAME_PICTURE"
    """The same pixels, other text."""
    SAME_TEXT = "SAME_TEXT"
    """The same text (case and spacing aside), another picture or none."""
    SIMILAR = "SIMILAR"


class _StoredValue(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Precedent(_StoredValue):
    """A labelled meme that is shown as an exhibit.

    Similarities are cosines in [-1, 1]; ``None`` where either meme lacks that half.
    """

    id: str
    label: PrecedentLabel
    text: str
    similarity: float = Field(allow_inf_nan=False)
    """``alpha * text_similarity + (1 - alpha) * picture_similarity``, a missing half counting 0."""
    text_similarity: float | None = Field(default=None, allow_inf_nan=False)
    picture_similarity: float | None = Field(default=None, allow_inf_nan=False)
    relation: Relation = Relation.SIMILAR
    categories: tuple[str, ...] = ()
    source: str = ""
    """The data set and split, or the person, that it came from."""
    source_label: str = ""
    """The label in the source's own words; empty where the library does not know, and in records of before this was
    kept."""


class TallyEntry(_StoredValue):
    """One of the many precedents that are counted but not shown."""

    id: str
    label: PrecedentLabel
    similarity: float = Field(allow_inf_nan=False)


class VoteSettings(_StoredValue):
    """Settings that turn neighbours into a probability, chosen by leave-one-out on the library when it is built.

    The share of harm among the ``k`` nearest is ``(sum w_i y_i + m * prior) / (sum w_i + m)`` with
    ``w_i = exp((s_i - s_1) / tau)``; the probability is ``sigmoid(intercept + slope * logit(share))``.
    """

    k: int = Field(ge=1, le=100)
    tau: float = Field(gt=0, allow_inf_nan=False)
    prior: float = Field(gt=0, lt=1)
    """Share of harmful memes in the library."""
    prior_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """``m``: how many nearest neighbours the prior weighs."""
    intercept: float = Field(default=0.0, allow_inf_nan=False)
    slope: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """Probability from which on the vote is for harmful."""


class SureRange(_StoredValue):
    """Range in which a library's vote decides alone: probabilities of at most ``below``, or of at least ``above``.

    Chosen when the library is built, on its own memes, each left out. A side on which nothing is settled has its bound
    where no probability is: ``below`` -1, ``above`` 2.
    """

    error: float = Field(gt=0, lt=1)
    """What share of wrong labels is put up with, on either side."""
    below: float = Field(ge=-1, le=1, allow_inf_nan=False)
    """The label is not harmful."""
    above: float = Field(ge=0, le=2, allow_inf_nan=False)
    """The label is harmful."""
    share: float = Field(ge=0, le=1)
    """Share of the memes that these bounds settle."""
    n: int = Field(ge=0)
    """Memes that they were chosen by."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= self.above:
            raise ValueError("a vote can't settle a meme both ways")
        return self


class RiskPoint(_StoredValue):
    """A share of memes to send to a person, and what is then expected of the labels that no person looks at."""

    rate: float = Field(ge=0, le=1)
    """Share of memes that go to a person."""
    cutoff: float = Field(ge=0, le=1)
    """Risk above which a meme is one of them."""
    risk: float = Field(ge=0, le=1)
    """Expected share, of all memes, of those whose label is wrong and that no person looks at."""
    error: float = Field(ge=0, le=1)
    """Expected share of wrong labels among the memes that no person looks at."""


class RiskCurve(_StoredValue):
    """The trade between memes sent to a person and wrong labels among the rest, measured on a library's own memes.

    Each was judged by what the library makes of the others, without those that are nearly the same. The risk is
    ``(wrong + 1) / (n + 1)``, as conformal risk control has it (Angelopoulos et al., 2024, eq. 4): a mean over
    libraries like this one, not a promise for a single day.
    """

    n: int = Field(ge=1)
    """Memes that it was measured on."""
    points: tuple[RiskPoint, ...] = Field(min_length=1)
    """By rising rate, from 0, and falling risk."""

    def at_rate(self, rate: float) -> RiskPoint:
        """The point of a share of memes to be reviewed, in [0, 1], interpolated between its neighbours."""
        after = next((n for n, point in enumerate(self.points) if point.rate >= rate), len(self.points))
        return self._between(after, rate, "rate")

    def at_risk(self, risk: float) -> RiskPoint:
        """The lowest rate at which the risk is no higher; where none is so low, everything goes to a person."""
        after = next((n for n, point in enumerate(self.points) if point.risk <= risk), len(self.points))
        return self._between(after, risk, "risk")

    def _between(self, after: int, wanted: float, axis: Literal["rate", "risk"]) -> RiskPoint:
        if after == len(self.points):
            # Beyond the measured curve everything goes to a person, and no label is left that nobody sees.
            return RiskPoint(rate=1, cutoff=0, risk=0, error=0)
        if after == 0:
            return self.points[0]
        left, right = self.points[after - 1].model_dump(), self.points[after].model_dump()
        span = right[axis] - left[axis]
        # Neighbours with the same value: the right one is the first that satisfies what is wanted.
        part = (wanted - left[axis]) / span if span else 1.0
        return RiskPoint(**{name: left[name] + part * (right[name] - left[name]) for name in left})


class Vote(_StoredValue):
    """The precedents' vote, joined with the library's regression where it has one."""

    voters: int
    harmful: int
    share: float = Field(ge=0, le=1)
    """Weighted share of harm, before calibration."""
    probability: float = Field(ge=0, le=1)
    """Calibrated estimate of P(harmful)."""
    settings: VoteSettings
    regression: float | None = Field(default=None, allow_inf_nan=False)
    """Calibrated log-odds of harm by the library's regression; None where the precedents alone have a say."""

    @property
    def by_precedents(self) -> float:
        """Calibrated P(harmful) by the precedents alone."""
        return probability(self.share, self.settings)

    @property
    def by_regression(self) -> float | None:
        """P(harmful) by the library's regression alone."""
        return None if self.regression is None else sigmoid(self.regression)


class Search(_StoredValue):
    """Query of a search for precedents."""

    alpha_asked: float = Field(ge=0, le=1)
    alpha: float = Field(ge=0, le=1)
    """Weight of the text that was used: all of it where a half is missing, see ``notes``."""
    has_text: bool
    has_picture: bool
    exhibits: int
    tally: int
    excluded: int = 0
    """Precedents that were left out on purpose."""


class LibraryIdentity(_StoredValue):
    """Which library was searched."""

    name: str
    digest: str
    size: int
    encoder: str
    with_picture: int
    """How many of its memes have a picture."""


class MinSimilarity(_StoredValue):
    """Similarities below which a precedent says nothing about a meme, for each half."""

    text: float
    picture: float


class Findings(_StoredValue):
    """Result of a search, nearest first, ties by place in the library."""

    library: LibraryIdentity
    search: Search
    floors: MinSimilarity
    exhibits: tuple[Precedent, ...]
    nearest_harmful: Precedent | None
    nearest_benign: Precedent | None
    tally: tuple[TallyEntry, ...]
    vote_settings: VoteSettings
    settles: SureRange | None = None
    """Where the vote alone will do; None where nowhere."""
    text_cut: bool = False
    """Whether the text was longer than the encoder reads."""
    text_not_understood: bool = False
    """True if the encoder can't read the script or signs of the text; the text half is then absent."""
    regression: float | None = Field(default=None, allow_inf_nan=False)
    """Calibrated log-odds of harm by the library's regression; None where it has no say."""
    risk: RiskCurve | None = None
    """How often the library's verdicts are wrong; None where that was not measured."""
    notes: tuple[str, ...] = ()
    """What was handled in a way that the caller should know: a missing half, an exclusion."""


def share(similarities: Sequence[float], harmful: Sequence[bool], settings: VoteSettings) -> float:
    """Weighted share of harm among the nearest ``settings.k`` precedents, in (0, 1).

    Weights fall off exponentially from the nearest, ``exp((s_i - s_1) / tau)``, so that they do not depend on where
    an encoder's similarities happen to lie; the prior counts as ``prior_weight`` voters as near as the nearest.

    Args:
        similarities: Similarities of the precedents, nearest first.
        harmful: True for each precedent that is labelled harmful, in the same order.
        settings: Vote settings of the library.

    Raises:
        ValueError: There is no precedent, or the two sequences differ in length.
    """
    if len(similarities) != len(harmful) or not similarities:
        raise ValueError("a vote needs at least one precedent, and a label for each")
    nearest = similarities[0]
    # No exponent is above 0, so that a small tau makes weights vanish and never overflow.
    weights = [math.exp((s - nearest) / settings.tau) for s in similarities[: settings.k]]
    # Not strict: weights end with the k-th neighbour, labels may go on.
    for_harm = sum(weight for weight, is_harmful in zip(weights, harmful, strict=False) if is_harmful)
    m = settings.prior_weight
    return (for_harm + m * settings.prior) / (sum(weights) + m)


def log_odds(share: float, settings: VoteSettings) -> float:
    """The share as calibrated log-odds of harm: ``intercept + slope * logit(share)``."""
    # The prior's weight is above 0, so that the share is never exactly 0 or 1 and both logarithms are finite.
    return settings.intercept + settings.slope * (math.log(share) - math.log1p(-share))


def sigmoid(z: float) -> float:
    """The probability of these log-odds."""
    # Two forms, so that neither overflows.
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def probability(share: float, settings: VoteSettings) -> float:
    """The share as a calibrated P(harmful)."""
    return sigmoid(log_odds(share, settings))


def vote(tally: Sequence[TallyEntry], settings: VoteSettings, regression: float | None = None) -> Vote:
    """The vote of a tally.

    Args:
        tally: Nearest first.
        settings: Vote settings of the library.
        regression: Calibrated log-odds of harm by the library's regression, to be averaged with the vote's.

    Raises:
        ValueError: The tally is empty.
    """
    voters = tally[: settings.k]
    harmful = [entry.label is Label.HARMFUL for entry in voters]
    weighed = share([entry.similarity for entry in voters], harmful, settings)
    z = log_odds(weighed, settings)
    return Vote(
        voters=len(voters),
        harmful=sum(harmful),
        share=weighed,
        # The mean of both log-odds: so it was calibrated (retrieval.calibration).
        probability=sigmoid(z if regression is None else (z + regression) / 2),
        settings=settings,
        regression=regression,
    )
