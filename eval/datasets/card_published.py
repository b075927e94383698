"""Results that others published on a data set, as listed in its card."""

from __future__ import annotations

from pydantic import Field, model_validator

from eval.datasets.protocol import Protocol
from eval.datasets.verbs import CardModel

_IN_LEVELS = "mmae"
"""The only metric that is not a share: its unit is a level."""


# Metric names are not checked here, as this module sits below the scoring code: reports give an unknown metric its own
# column.
class CardPublished(CardModel):
    """One system's published results on one task of one split, in one setup."""

    system: str = Field(min_length=1)
    year: int | None = None
    task: str
    """Task of the card, with variants as ``ID:VARIANT``: results by one jury say nothing about another's labels."""
    split: str
    protocol: Protocol = Protocol.PLAIN
    """Protocol by which levels became two classes; ``plain`` for unchanged labels."""
    setup: str = ""
    """Input shown to the system, and number of examples."""
    figures: dict[str, float] = Field(min_length=1)
    """Shares in [0, 1], not percent, by metric names as in a task's ``metrics``."""
    n: int | None = Field(default=None, ge=1)
    """Number of memes it was measured on; None if unknown."""
    source: str = ""
    """The paper and its table; the card's ``citation`` if empty."""
    remark: str = ""
    """Reason why a comparison may be unfair."""

    @model_validator(mode="after")
    def _shares(self) -> CardPublished:
        for metric, value in self.figures.items():
            # Percentages would look a hundred times better beside shares.
            if value < 0 or (value > 1 and metric != _IN_LEVELS):
                raise ValueError(f"{metric} of {self.system} is {value:g}: give a share between 0 and 1, not percent")
        return self
