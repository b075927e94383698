"""Precedents: labelled memes similar to the one on trial, and the search that found them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from court.display import word
from court.values import Value
from court.verdict import Label

PrecedentLabel = Literal[Label.HARMFUL, Label.NOT_HARMFUL]
"""Label of a precedent, which is never undecided."""


class Relation(StrEnum):
    """Relation of a precedent to the meme on trial."""

    SAME_MEME = "SAME_MEME"
    """The same pixels and the same text."""
    SAME_PICTURE = "SAME_PICTURE"
    """The same pixels, other text."""
    SAME_TEXT = "SAME_TEXT"
    """The same text (case and spacing aside), another picture or none."""
    SIMILAR = "SIMILAR"


class Precedent(Value):
    """A labelled meme shown as an exhibit; similarities are cosines, ``None`` where a meme lacks that half."""

    id: str
    label: PrecedentLabel
    text: str
    similarity: float = Field(allow_inf_nan=False)
    """``alpha * text_similarity + (1 - alpha) * picture_similarity``; a missing half counts as 0."""
    text_similarity: float | None = Field(default=None, allow_inf_nan=False)
    picture_similarity: float | None = Field(default=None, allow_inf_nan=False)
    relation: Relation = Relation.SIMILAR
    categories: tuple[str, ...] = ()
    source: str = ""
    """Data set and split, or person, that it came from."""
    source_label: str = ""
    """Label in the source's own words; empty if unknown to the library."""


class VerifiedCopy(Value):
    """A precedent that is the meme on trial, with a label that a named person answers for."""

    id: str
    label: PrecedentLabel
    who: str = Field(min_length=1)
    """Person who has verified the label."""
    at: AwareDatetime
    namespace: str = ""
    """Namespace that it binds in; empty for every one that uses its library."""
    policy: str = ""
    """Id of the policy that it binds under; empty for any."""

    @property
    def in_words(self) -> str:
        """The precedent and its origin, for people."""
        return f"{self.id}, labelled {word(self.label)} by {self.who} on {self.at:%d %B %Y}"


class TallyEntry(Value):
    """One of the many precedents that are counted but not shown."""

    id: str
    label: PrecedentLabel
    similarity: float = Field(allow_inf_nan=False)


class VoteSettings(Value):
    """Settings that turn neighbours into a probability, chosen by leave-one-out on the library when it is built.

    The share of harm among the ``k`` nearest is ``(sum w_i y_i + m * prior) / (sum w_i + m)`` with
    ``w_i = exp((s_i - s_1) / tau)``; the probability is ``sigmoid(intercept + slope * logit(share))``.
    """

    k: int = Field(ge=1, le=100)
    tau: float = Field(gt=0, allow_inf_nan=False)
    prior: float = Field(gt=0, lt=1)
    """Share of harmful memes in the library."""
    prior_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """``m``: weight of the prior, in nearest neighbours."""
    intercept: float = Field(default=0.0, allow_inf_nan=False)
    slope: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """Probability from which the vote is for harmful."""


class SureRange(Value):
    """Range in which a library's vote decides alone: probabilities of at most ``below``, or of at least ``above``.

    Chosen by leave-one-out on the library's own memes when it is built. A side on which no vote is conclusive has an
    unreachable bound: ``below`` -1, ``above`` 2.
    """

    error: float = Field(gt=0, lt=1)
    """Accepted share of wrong labels on each side."""
    below: float = Field(ge=-1, le=1, allow_inf_nan=False)
    """Probability up to which the label is not harmful."""
    above: float = Field(ge=0, le=2, allow_inf_nan=False)
    """Probability from which the label is harmful."""
    share: float = Field(ge=0, le=1)
    n: int = Field(ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.below >= self.above:
            raise ValueError("a vote can't settle a meme both ways")
        return self


class RiskPoint(Value):
    """A share of memes sent to review, and the expected errors among the labels that are not reviewed."""

    rate: float = Field(ge=0, le=1)
    """Share of memes sent to review."""
    cutoff: float = Field(ge=0, le=1)
    """Risk above which a meme is sent to review."""
    risk: float = Field(ge=0, le=1)
    """Expected share, among all memes, of wrong labels that are not reviewed."""
    error: float = Field(ge=0, le=1)
    """Expected share of wrong labels among the memes that are not reviewed."""


class RiskCurve(Value):
    """Trade-off between memes sent to review and wrong labels among the rest, measured on a library's own memes.

    Each meme was judged by the rest of the library without its near-duplicates. The risk is ``(wrong + 1) / (n + 1)``,
    as in conformal risk control (Angelopoulos et al., 2024, eq. 4): an expectation over libraries like this one, not a
    guarantee for a single day.
    """

    n: int = Field(ge=1)
    points: tuple[RiskPoint, ...] = Field(min_length=1)
    """Points by increasing rate, from 0, and decreasing risk."""

    def at_rate(self, rate: float) -> RiskPoint:
        """Returns the point for a share of reviewed memes, in [0, 1], interpolated between neighbours."""
        after = next((n for n, point in enumerate(self.points) if point.rate >= rate), len(self.points))
        return self._between(after, rate, "rate")

    def at_risk(self, risk: float) -> RiskPoint:
        """Returns the point of the lowest rate with at most this risk; rate 1 if the curve never gets so low."""
        after = next((n for n, point in enumerate(self.points) if point.risk <= risk), len(self.points))
        return self._between(after, risk, "risk")

    def cutoff(self, *, risk: float, rate: float | None) -> float:
        """Returns the risk above which a person must look, for an accepted ``risk`` or ``rate`` of memes to look at."""
        if rate == 0:
            return 1.0
        return (self.at_risk(risk) if rate is None else self.at_rate(rate)).cutoff

    def _between(self, after: int, wanted: float, axis: Literal["rate", "risk"]) -> RiskPoint:
        if after == len(self.points):
            # Beyond the measured curve all memes are reviewed, so no unreviewed label is left.
            return RiskPoint(rate=1, cutoff=0, risk=0, error=0)
        if after == 0:
            return self.points[0]
        left, right = self.points[after - 1].model_dump(), self.points[after].model_dump()
        span = right[axis] - left[axis]
        # For neighbours with the same value, the right one is the first that satisfies the condition.
        part = (wanted - left[axis]) / span if span else 1.0
        return RiskPoint(**{name: left[name] + part * (right[name] - left[name]) for name in left})


class Vote(Value):
    """Vote of the precedents, combined with the library's regression if it has one."""

    voters: int
    harmful: int
    share: float = Field(ge=0, le=1)
    """Weighted share of harm, before calibration."""
    probability: float = Field(ge=0, le=1)
    """Calibrated estimate of P(harmful)."""
    settings: VoteSettings
    regression: float | None = Field(default=None, allow_inf_nan=False)
    """Calibrated log-odds of harm by the library's regression; None if only the precedents count."""

    @property
    def by_precedents(self) -> float:
        """Calibrated P(harmful) by the precedents alone."""
        return probability(self.share, self.settings)

    @property
    def by_regression(self) -> float | None:
        """P(harmful) by the library's regression alone."""
        return None if self.regression is None else sigmoid(self.regression)


class Search(Value):
    """Query of a search for precedents."""

    alpha_asked: float = Field(ge=0, le=1)
    alpha: float = Field(ge=0, le=1)
    """Effective weight of the text, which is 0 or 1 if a half is missing; see ``notes``."""
    has_text: bool
    has_picture: bool
    exhibits: int
    tally: int
    excluded: int = 0
    """Number of precedents that were deliberately excluded."""


STARTER = "starter"
"""Name of the library of drawn memes that is used until an operator names one."""


class LibraryIdentity(Value):
    """Identity of the library that was searched."""

    name: str
    digest: str
    size: int
    encoder: str
    with_picture: int


class MinSimilarity(Value):
    """Minimum similarity of each half for a precedent to count as evidence."""

    text: float
    picture: float


class Findings(Value):
    """Result of a search, nearest first; ties are ordered by position in the library."""

    library: LibraryIdentity
    search: Search
    floors: MinSimilarity
    exhibits: tuple[Precedent, ...]
    nearest_harmful: Precedent | None
    nearest_benign: Precedent | None
    tally: tuple[TallyEntry, ...]
    vote_settings: VoteSettings
    settles: SureRange | None = None
    """Range in which the vote alone decides; None if it never does."""
    text_cut: bool = False
    text_not_understood: bool = False
    """True if the encoder can't read the script or signs of the text; the text half is then absent."""
    regression: float | None = Field(default=None, allow_inf_nan=False)
    """Calibrated log-odds of harm by the library's regression; None if it is not used."""
    risk: RiskCurve | None = None
    """Measured error rates of the library's verdicts; None if not measured."""
    notes: tuple[str, ...] = ()
    """Notes on special handling, such as a missing half or an exclusion."""


def share(similarities: Sequence[float], harmful: Sequence[bool], settings: VoteSettings) -> float:
    """Weighted share of harm among the nearest ``settings.k`` precedents, in (0, 1).

    Raises:
        ValueError: There is no precedent, or the two sequences differ in length.
    """
    # Weights fall off exponentially from the nearest, ``exp((s_i - s_1) / tau)``, so that they do not depend on where
    # an encoder's similarities happen to lie; the prior counts as ``prior_weight`` voters as near as the nearest.
    if len(similarities) != len(harmful) or not similarities:
        raise ValueError("a vote needs at least one precedent, and a label for each")
    nearest = similarities[0]
    # Exponents are at most 0, so a small tau makes weights vanish but never overflow.
    weights = [math.exp((s - nearest) / settings.tau) for s in similarities[: settings.k]]
    # Not strict: weights end with the k-th neighbour, there may be more labels.
    for_harm = sum(weight for weight, is_harmful in zip(weights, harmful, strict=False) if is_harmful)
    m = settings.prior_weight
    return (for_harm + m * settings.prior) / (sum(weights) + m)


def log_odds(share: float, settings: VoteSettings) -> float:
    """The share as calibrated log-odds of harm: ``intercept + slope * logit(share)``."""
    # The prior's weight is positive, so the share is never exactly 0 or 1 and both logarithms are finite.
    return settings.intercept + settings.slope * (math.log(share) - math.log1p(-share))


def sigmoid(z: float) -> float:
    """The probability of these log-odds."""
    # Two forms, so that neither overflows.
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def probability(share: float, settings: VoteSettings) -> float:
    """The share as a calibrated P(harmful)."""
    return sigmoid(log_odds(share, settings))


def joint_probability(share: float, settings: VoteSettings, regression: float | None) -> float:
    """P(harmful) by a vote's share and, if there is one, the regression's log-odds."""
    z = log_odds(share, settings)
    # The mean of both log-odds, as in the calibration (retrieval.calibration).
    return sigmoid(z if regression is None else (z + regression) / 2)


def vote(tally: Sequence[TallyEntry], settings: VoteSettings, regression: float | None = None) -> Vote:
    """Returns the vote of a tally.

    Raises:
        ValueError: The tally is empty.
    """
    voters = tally[: settings.k]
    harmful = [entry.label is Label.HARMFUL for entry in voters]
    weighed = share([entry.similarity for entry in voters], harmful, settings)
    return Vote(
        voters=len(voters),
        harmful=sum(harmful),
        share=weighed,
        probability=joint_probability(weighed, settings, regression),
        settings=settings,
        regression=regression,
    )
