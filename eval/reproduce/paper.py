"""A published paper as data: its benchmarks, the runs that its tables and figures take, its figures and its claims.

A further paper is a further file in ``papers``.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Protocol

FOLDER = "papers"
# Slightly more than half of the last place, since floats are not exact decimal fractions.
_ROUNDING = 0.005 + 1e-9
"""Largest distance, in percent, of a figure from its value rounded to two places."""


class _PaperPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BenchmarkSpec(_PaperPart):
    """A split that figures are compared on."""

    name: str
    data: str
    """Name of the data set in the paper's tables."""
    title: str
    dataset: str
    """Data set of ours."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Other versions of the data set, by name."""
    split: str
    protocol: Protocol
    drops: bool = False
    """True if memes that the protocol drops are excluded from the precedents, too."""
    drawn: str = ""
    """Synthetic data set in its place; empty if there is none."""


class RunsSpec(_PaperPart):
    """Runs that some tables and figures take, in addition to the full court."""

    tables: frozenset[int] = frozenset()
    figures: frozenset[int] = frozenset()
    data: tuple[str, ...]
    arms: tuple[str, ...] = ()
    controls: bool = False
    """True to add the arms that the paper lacks."""
    every_size: bool = False
    """True for runs with each model, not only with the largest."""

    def wanted(self, tables: frozenset[int], figures: frozenset[int]) -> bool:
        """True if one of these tables or figures takes the runs."""
        return bool(tables & self.tables or figures & self.figures)


class ClaimSpec(_PaperPart):
    """A claim, and the name of its test in :mod:`eval.reproduce.claims`."""

    id: str
    test: str
    claim: str
    arms: tuple[str, ...] = ()
    why: str = ""
    """Reason why it can't be tested."""


class Chain(_PaperPart):
    """Meme whose chain of questions the paper shows."""

    data: str
    meme: str
    note: str


class Target(_PaperPart):
    """A published row, with figures in percent."""

    id: str
    table: int
    row: str
    data: str
    arm: str
    size: str
    accuracy: float = Field(ge=0, le=100)
    macro_f1: float = Field(ge=0, le=100)


class Paper(_PaperPart):
    """A paper, and all figures that it publishes about itself."""

    paper: str
    preset: str
    models: dict[str, str]
    """Models by size, from the smallest to the largest."""
    controls: tuple[str, ...] = ()
    """Arms that the paper lacks."""
    tables: dict[int, str]
    """Titles of its tables."""
    benchmarks: tuple[BenchmarkSpec, ...]
    runs: tuple[RunsSpec, ...]
    claims: tuple[ClaimSpec, ...] = ()
    chain: Chain
    targets: tuple[Target, ...]
    baselines: dict[str, tuple[tuple[float, float], ...]] = Field(default_factory=dict)
    """Accuracy and macro-F1 of systems that it quotes, by data set in the order of the benchmarks."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Sizes of its models, from the smallest to the largest."""
        return tuple(self.models)

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of its data sets."""
        return tuple(dict.fromkeys(each.title for each in self.benchmarks))

    def numbers(self, what: Literal["tables", "figures"]) -> frozenset[int]:
        """Numbers of the tables, or of the figures, that runs are known for."""
        return frozenset().union(*(getattr(each, what) for each in self.runs))


def papers() -> tuple[str, ...]:
    """Names of the papers that can be reproduced."""
    folder = files("eval.reproduce") / FOLDER
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml")))


@cache
def read_paper(name: str = "memecourt") -> Paper:
    """Reads the file of a paper."""
    file = files("eval.reproduce") / FOLDER / f"{name}.toml"
    return Paper.model_validate(tomllib.loads(file.read_text("utf-8")))


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
