"""Figures that others published on a data set, as its card has them."""

from __future__ import annotations

from pydantic import Field, model_validator

from eval.datasets.protocol import Protocol
from eval.datasets.verbs import CardModel

_IN_LEVELS = "mmae"
"""The one metric that is no share: its unit is a level."""


# Names of metrics are not checked here, as this module stands below what scores: one that there is none of has a column
# of its own in reports.
class CardPublished(CardModel):
    """One system's published figures on one task of one split, in one setup."""

    system: str = Field(min_length=1)
    year: int | None = None
    task: str
    """Task of the card; of one with variants, ``ID:VARIANT``: a figure by one jury says nothing of another's labels."""
    split: str
    protocol: Protocol = Protocol.PLAIN
    """Protocol by which levels became two classes; ``plain`` where the labels are as they stand."""
    setup: str = ""
    """What was shown to the system, and how many examples."""
    figures: dict[str, float] = Field(min_length=1)
    """Shares, not percent, by the names that a task's ``metrics`` have."""
    n: int | None = Field(default=None, ge=1)
    """Memes that it was measured on; None where that is not said."""
    source: str = ""
    """The paper and its table; the card's ``citation`` where it is empty."""
    remark: str = ""
    """Obstacle to a comparison."""

    @model_validator(mode="after")
    def _shares(self) -> CardPublished:
        for metric, value in self.figures.items():
            # Percent would stand beside shares and look a hundred times as good.
            if value < 0 or (value > 1 and metric != _IN_LEVELS):
                raise ValueError(f"{metric} of {self.system} is {value:g}: give a share between 0 and 1, not percent")
        return self
