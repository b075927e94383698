"""Published figures to compare a reproduction with, and a check that a split can produce them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

SizeName = Literal["3b", "7b", "32b"]
BenchName = Literal["harm-c", "harm-p", "fhm"]
# Slightly more than half of the last place, since floats are not exact decimal fractions.
_ROUNDING = 0.005 + 1e-9
"""Largest distance, in percent, of a figure from its value rounded to two places."""


class _TargetRow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(_TargetRow):
    """A published row, with figures in percent."""

    id: str
    table: int
    row: str
    bench: BenchName
    arm: str
    size: SizeName
    accuracy: float = Field(ge=0, le=100)
    macro_f1: float = Field(ge=0, le=100)


class Targets(_TargetRow):
    """All figures that a paper publishes about itself, and baselines that it quotes."""

    paper: str
    targets: tuple[Target, ...]
    baselines: dict[str, tuple[tuple[float, float], ...]] = Field(default_factory=dict)
    """Accuracy and macro-F1 by data set, in the order of :data:`BenchName`."""


@cache
def published() -> Targets:
    """The figures of the MemeCourt paper."""
    return Targets.model_validate(tomllib.loads((files("eval.reproduce") / "targets.toml").read_text("utf-8")))


def is_reachable(target: Target, *, benign: int, harmful: int) -> bool:
    """True if some confusion matrix over these classes rounds to the target's accuracy and macro-F1.

    All ``(benign + 1) * (harmful + 1)`` matrices are tried.

    Args:
        target: Published figures, in percent, with two decimals.
        benign: Number of memes that are not harmful.
    """
    if not benign + harmful:
        return False
    # Each pair: hits among the benign and among the harmful memes.
    right = np.mgrid[: benign + 1, : harmful + 1].reshape(2, -1).astype(np.int64)
    n, hits = benign + harmful, right.sum(axis=0)
    # 2 TP over predicted and gold; a class that is neither present nor predicted counts as 0.
    predicted = np.stack([right[0] + harmful - right[1], right[1] + benign - right[0]])
    f1 = 2 * right / np.maximum(predicted + np.array([[benign], [harmful]]), 1)
    close = (np.abs(100 * hits / n - target.accuracy) <= _ROUNDING) & (
        np.abs(100 * f1.mean(axis=0) - target.macro_f1) <= _ROUNDING
    )
    return bool(close.any())


def has_accuracy(percent: float, n: int) -> bool:
    """True if some number of right answers among ``n`` rounds to this accuracy."""
    return bool(n) and bool(np.any(np.abs(100 * np.arange(n + 1) / n - percent) <= _ROUNDING))
