"""Calibration of a full trial's verdict on labelled memes, as ``memecourt-eval audition --data`` measures it.

The log-odds of harm are a weighted sum of those of the Judge before it heard the sides, of the Judge after, and of the
precedents' vote. No weight is negative, so that more evidence of harm never lowers them. A failed check is no evidence
for either label: it moves the risk of whichever label there is up, never down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from court.digests import digest
from court.errors import BadRequest
from court.precedents import RiskCurve, sigmoid
from court.settings import TrialSettings
from court.values import Value
from court.verdict import Label

Weights = dict[Literal["before", "after", "vote"], Annotated[float, Field(ge=0, allow_inf_nan=False)]]
INPUTS = ("before", "after", "vote")
"""Evidence of a calibration: the Judge's odds before and after it heard the sides, and the precedents' vote."""
CALIBRATION = "calibration"
"""Name under which the settings of a record hold the calibration that its verdict rests on."""
_SUREST = 0.001
"""Probabilities are clipped to this distance from 0 and 1: beyond it, models are sure without being right."""
_FREE = frozenset(
    {
        *("review_risk", "review_rate", "harm_cost", "vote_disagreement", "audition", "overlap"),
        *("call_s", "find_s", "read_s", CALIBRATION),
    }
)
"""Settings that change no evidence, so that a calibration outlasts their change."""


def evidence_of(probability: float) -> float:
    """Returns a probability of harm as log-odds, bounded."""
    # Without a bound, one probability of 1 would outweigh everything else.
    bounded = min(max(probability, _SUREST), 1 - _SUREST)
    return math.log(bounded / (1 - bounded))


def _as_stored(value: Any) -> Any:
    """Returns a value with the numbers that a record has once it was stored: 60 for 60.0."""
    if isinstance(value, dict):
        return {name: _as_stored(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_stored(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Weighed(Value):
    """A calibration applied to one trial: its inputs, and what they come to."""

    calibration: str
    """Digest of the calibration."""
    before: float | None = Field(default=None, ge=0, le=1)
    """Probability of harm by the Judge's model before it heard the sides."""
    after: float | None = Field(default=None, ge=0, le=1)
    """The same after it heard them."""
    vote: float | None = Field(default=None, ge=0, le=1)
    """Probability of harm by the precedents' vote."""
    failed: int = Field(ge=0)
    """Number of kinds of checks that failed."""
    log_odds: float = Field(allow_inf_nan=False)
    """Log-odds of harm."""
    doubt: float = Field(ge=0, allow_inf_nan=False)
    """Log-odds that the failed checks take from the label, whichever it is."""
    cutoff: float = Field(ge=0, le=1)
    """Risk above which a person must look."""

    @property
    def probability(self) -> float:
        """Probability of harm."""
        return sigmoid(self.log_odds)

    def risk(self, label: Label) -> float:
        """Returns the probability that a label is wrong."""
        return sigmoid(self.doubt - self._for(label))

    def decides(self, label: Label) -> bool:
        """True if a label is sure enough to be decided without a person.

        A meme can provoke a failed check, which therefore keeps it from being allowed, and never from being blocked.
        """
        # No doubt for a block: whoever provokes a failed check must not gain a review by it.
        risk = sigmoid(-self._for(label)) if label is Label.HARMFUL else self.risk(label)
        return risk <= self.cutoff

    def _for(self, label: Label) -> float:
        return self.log_odds if label is Label.HARMFUL else -self.log_odds


class Calibration(Value):
    """Weights that turn the evidence of a full trial into a probability of harm and a risk."""

    intercept: float = Field(allow_inf_nan=False)
    weights: Weights = Field(default_factory=dict)
    """Weight of the log-odds of each input; those without information are absent."""
    doubt: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Log-odds that each kind of failed check takes from the label."""
    cutoff: float = Field(default=0.0, ge=0, le=1)
    """Risk above which a person must look."""
    audition: str = ""
    """Digest of the audition that it was measured in."""

    def of(self, *, failed: int, **inputs: float | None) -> Weighed | None:
        """Weighs the evidence of a trial; None if an input is missing that has a weight.

        Args:
            failed: Number of kinds of checks that failed.
            inputs: Probabilities of harm, by :data:`INPUTS`.
        """
        log_odds = self.intercept
        for name, weight in self.weights.items():
            # A missing input is no evidence of .5: the weights were measured with it.
            if (probability := inputs[name]) is None:
                return None
            log_odds += weight * evidence_of(probability)
        return Weighed(
            calibration=self.audition,
            **inputs,
            failed=failed,
            log_odds=log_odds,
            doubt=self.doubt * failed,
            cutoff=self.cutoff,
        )


class Bound(Value):
    """Everything that a calibration was measured with; it counts for nothing else."""

    models: dict[str, str]
    weights: dict[str, str]
    """Digest of the weights per role, as servers list them; empty where they list none."""
    prompts: str
    library: str
    policy: str
    procedure: str
    settings: str

    @classmethod
    def to(cls, *, settings: Mapping[str, Any], **bound: Any) -> Self:
        """Binds to these things, and to all settings of a record that change the evidence."""
        # Settings that an operator tunes afterwards, such as the accepted risk, keep a calibration.
        bearing = {name: value for name, value in settings.items() if name not in _FREE}
        return cls(settings=digest(_as_stored(bearing)), **bound)

    def changed(self, now: Bound) -> list[str]:
        """Names what differs."""
        return [name for name in Bound.model_fields if getattr(self, name) != getattr(now, name)]


class Audition(Value):
    """A file of calibration: weights, what they are bound to, and how they did on memes that did not fit them."""

    format: Literal["memecourt-audition/1"] = "memecourt-audition/1"
    bound: Bound
    intercept: float = Field(allow_inf_nan=False)
    weights: Weights
    doubt: float = Field(ge=0, allow_inf_nan=False)
    risk: RiskCurve
    """Trade-off between memes sent to review and wrong labels among the rest, cross-validated."""
    figures: dict[str, float | None] = Field(default_factory=dict)
    """Cross-validated figures, for people."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file. Raises BadRequest if it can't be used."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            why = f"{error.strerror}"
        except ValidationError as error:
            # The first fault with its place, without the value, which may be long.
            fault = error.errors(include_input=False, include_url=False)[0]
            why = f"{'.'.join(map(str, fault['loc'])) or 'content'}: {fault['msg']}"
        raise BadRequest(
            f"The audition {path.name} can't be used ({why}). Write it with: memecourt-eval audition --calibrate FILE.",
            reason="AUDITION_DAMAGED",
            field="audition",
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all values."""
        return digest(self.model_dump(mode="json"))

    def calibration(self, settings: TrialSettings) -> Calibration:
        """Returns what trials with these settings use."""
        return Calibration(
            intercept=self.intercept,
            weights=self.weights,
            doubt=self.doubt,
            cutoff=self.risk.cutoff(risk=settings.review_risk, rate=settings.review_rate),
            audition=self.digest,
        )
