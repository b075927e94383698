"""The arena's enumerations: relevance of profiles, verdicts, errors and settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

OVERALL = "overall"
"""Name of the criterion that ranks."""
Row = dict[str, Any]
"""Named figures of one line of a report, as programs read them."""


class Relevance(StrEnum):
    """Relevance of a person's background to a meme."""

    HIGH = "high"
    MODERATE = "moderate"
    UNRELATED = "unrelated"


class Verdict(StrEnum):
    """Verdict on two answers; A is shown first, B second."""

    A_FAR = "A>>B"
    A = "A>B"
    TIE = "A=B"
    """Neither is better; of five levels."""
    BOTH_GOOD = "both good"
    BOTH_BAD = "both bad"
    B = "B>A"
    B_FAR = "B>>A"

    @property
    def lead(self) -> int:
        """Lead of A: 2 where it is far better, 0 for a tie, and below 0 where B is better."""
        return {"A>>B": 2, "A>B": 1, "B>A": -1, "B>>A": -2}.get(self.value, 0)

    @property
    def score(self) -> float:
        """Score of A: 1 won, 0.5 tied, 0 lost."""
        return 0.5 if not self.lead else float(self.lead > 0)


_THREE = {"A": Verdict.A, "B": Verdict.B, "both good": Verdict.BOTH_GOOD, "both bad": Verdict.BOTH_BAD}
_FIVE = {str(verdict): verdict for verdict in (Verdict.A_FAR, Verdict.A, Verdict.TIE, Verdict.B, Verdict.B_FAR)}


def words_of(levels: int) -> Mapping[str, Verdict]:
    """Returns the words that a judge may use and their verdicts. Raises KeyError unless levels is 3 or 5."""
    return {3: _THREE, 5: _FIVE}[levels]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of a judge on two answers."""

    why: str
    by_dimension: Mapping[str, Verdict]
    answer: str = ""
    """The judge's own answer; empty if it was not asked for one."""


LossError = Literal["text", "perception", "reasoning", "knowledge", "refusal", "none"]
"""Kind of error that made an answer lose."""
LOSS_ERRORS: tuple[LossError, ...] = get_args(LossError)


class Setting(StrEnum):
    """Reference that a judge is shown; the four settings under which its bias is studied."""

    FUSED = "fused"
    """What the panel's views were merged into: the arena's own."""
    OWN = "own"
    """Its own answer."""
    HUMAN = "human"
    """What people wrote."""
    NONE = "none"
    """Nothing."""


SETTING_WORDS: Mapping[Setting, str] = {
    Setting.FUSED: "fused guideline",
    Setting.OWN: "its own answer",
    Setting.HUMAN: "written by people",
    Setting.NONE: "no reference",
}
"""Settings as reports write them."""
