"""A panel of judges: several rulings on one meme, combined into one verdict.

The rule is applied to the median strengths, computed per side. Of two middle values, the one worse for the meme is
used: the stronger harmful and the weaker harmless evidence, because in doubt a meme is harmful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from court.events import OddsGiven
from court.replies import RulingReply
from court.verdict import Label, Review, ReviewReason, Strength, Strengths, rule


@dataclass(frozen=True, slots=True)
class Opinion:
    """The opinion of one judge.

    Attributes:
        odds: Probabilities of the two labels by its model; None if unknown.
    """

    ruling: RulingReply
    odds: OddsGiven | None = None

    @property
    def strengths(self) -> Strengths:
        """Strengths of the two sides."""
        return Strengths(harmful=self.ruling.harmful_strength, benign=self.ruling.harmless_strength)

    @property
    def label(self) -> Label:
        """Label that follows from its strengths."""
        return rule(self.ruling.harmful_strength, self.ruling.harmless_strength)


def median_strengths(opinions: Sequence[Opinion]) -> Strengths:
    """Returns the median strength of each side; of two middle values, the one worse for the meme.

    Args:
        opinions: At least one.
    """
    by_level = {strength.level: strength for strength in Strength}
    harmful = sorted(opinion.ruling.harmful_strength.level for opinion in opinions)
    benign = sorted(opinion.ruling.harmless_strength.level for opinion in opinions)
    return Strengths(
        harmful=by_level[harmful[len(harmful) // 2]],
        benign=by_level[benign[(len(benign) - 1) // 2]],
    )


def spokesman_of(opinions: Sequence[Opinion]) -> int:
    """Returns the index of the judge who explains the panel's label: of those that agree, the nearest to the median.

    At least one judge agrees: if the median benign evidence is strong and the median harmful evidence is not, more than
    half of the judges have the first and at least half the second.

    Args:
        opinions: At least one.
    """
    median = median_strengths(opinions)
    label = rule(median.harmful, median.benign)

    def distance(index: int) -> tuple[bool, int, int]:
        own = opinions[index].strengths
        apart = abs(own.harmful.level - median.harmful.level) + abs(own.benign.level - median.benign.level)
        # False sorts first, so judges with the panel's label come first; the index breaks ties, for a deterministic
        # choice.
        return opinions[index].label is not label, apart, index

    return min(range(len(opinions)), key=distance)


def disagreement(opinions: Sequence[Opinion]) -> tuple[Review, ...]:
    """A reason for review if the judges of a panel give different labels; empty if they agree."""
    harmful = sum(opinion.label is Label.HARMFUL for opinion in opinions)
    if harmful in (0, len(opinions)):
        return ()
    detail = f"Of {len(opinions)} judges {harmful} found the meme harmful and {len(opinions) - harmful} did not."
    return (Review(reason=ReviewReason.JUDGES_DISAGREE, detail=detail),)
