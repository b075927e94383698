"""How a trial is held: every open point of the procedure as a setting, kept with digest in each record."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from court.digests import digest


class TrialSettings(BaseModel):
    """Settings of a trial."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exhibits: int = Field(default=3, ge=1, le=25)
    """Precedents that are shown (the paper's k)."""
    tally: int = Field(default=25, ge=1, le=100)
    """Precedents that are counted."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Weight of the text's similarity against the picture's; None for what the library was calibrated with."""
    review_margin: float = Field(default=0.1, ge=0, le=0.5)
    """A person must look where the vote's probability is nearer than this to its threshold."""
    review_one_sided: bool = True
    """A person must look where "not harmful" rests on text or picture alone although the meme has both."""
    review_confidence: float = Field(default=0.7, ge=0, le=1)
    """A person must look where the text was read off the picture with less confidence than this, on average."""

    @property
    def digest(self) -> str:
        """SHA-256 of all values."""
        return digest(self.model_dump(mode="json"))
