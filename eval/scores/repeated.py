"""A figure over repeats of a measurement with other draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class RepeatedFigure:
    """A figure over all repeats.

    Attributes:
        values: Its value in each repeat; None where there is none.
        mean: Mean of those that there are; None without any.
        sd: Their standard deviation, with n − 1; None with fewer than two.
    """

    values: tuple[float | None, ...]
    mean: float | None
    sd: float | None


def repeated(values: Sequence[float | None]) -> RepeatedFigure:
    """Mean and spread of a figure's values.

    Args:
        values: Its value in each repeat, None where there is none.
    """
    there = [value for value in values if value is not None]
    return RepeatedFigure(tuple(values), fmean(there) if there else None, stdev(there) if len(there) > 1 else None)
