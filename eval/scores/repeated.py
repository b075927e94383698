"""A figure over repeats of a measurement with other random seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class RepeatedFigure:
    """A figure over all repeats.

    Attributes:
        values: Value in each repeat; None if there is none.
        mean: Mean of the available values; None if there are none.
        sd: Standard deviation with n − 1 degrees of freedom; None with fewer than two values.
    """

    values: tuple[float | None, ...]
    mean: float | None
    sd: float | None


def repeated(values: Sequence[float | None]) -> RepeatedFigure:
    """Mean and spread of a figure's values.

    Args:
        values: Value in each repeat, None if there is none.
    """
    there = [value for value in values if value is not None]
    return RepeatedFigure(tuple(values), fmean(there) if there else None, stdev(there) if len(there) > 1 else None)
