"""Results of Judge as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from memecourt.v1 import court_pb2 as wire


class Decision(StrEnum):
    """Decision on the content."""

    ALLOW = "allow"
    BLOCK = "block"
    REVIEW = "review"
    """A person has to decide."""


class Label(StrEnum):
    """Label of the verdict."""

    HARMFUL = "HARMFUL"
    NOT_HARMFUL = "NOT_HARMFUL"
    UNDECIDED = "UNDECIDED"


class Reason(NamedTuple):
    """Reason for review by a person."""

    code: str
    """Name of the ``ReviewReason`` without its prefix, such as ``RISK_ABOVE_CUTOFF``."""
    detail: str
    """Sentence for people."""


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict and the decision on the content; ``message`` has everything else that the contract knows."""

    message: wire.JudgeResponse

    @property
    def decision(self) -> Decision:
        """Decision on the content; REVIEW if a later server sends a word that this client does not know."""
        word = self.message.decision
        return Decision(word) if word in set(Decision) else Decision.REVIEW

    @property
    def in_force(self) -> wire.InForce:
        """Finding in force on the content, which the decision follows from: by whom, label, when, id."""
        return self.message.in_force

    @property
    def label(self) -> Label:
        """Label of the verdict; UNDECIDED if a later server sends one that this client does not know."""
        return _LABELS.get(self.message.label, Label.UNDECIDED)

    @property
    def verdict_id(self) -> str:
        """Id of the verdict, and of the trial's record."""
        return self.message.verdict_id

    @property
    def rationale(self) -> str:
        """Rationale for people, in English."""
        return self.message.rationale

    @property
    def risk(self) -> float | None:
        """Estimated probability that the label is wrong; None if unknown."""
        return self.message.risk if self.message.HasField("risk") else None

    @property
    def precedents(self) -> Sequence[wire.Precedent]:
        """Precedents that the verdict rests on, nearest first."""
        return self.message.precedents

    @property
    def reasons(self) -> Sequence[Reason]:
        """Reasons for review by a person; empty if none is needed."""
        return [Reason(_reason_name(each.reason), each.detail) for each in self.message.review_reasons]


_LABELS = {wire.Label.Value(f"LABEL_{label}"): label for label in Label}


def _reason_name(reason: wire.ReviewReason.ValueType) -> str:
    # The name of a number that a later server has added is its number.
    known = reason in wire.ReviewReason.values()
    return wire.ReviewReason.Name(reason).removeprefix("REVIEW_REASON_") if known else str(reason)
