"""A published paper as data: its benchmarks, the runs that its tables and figures take, its figures and its claims.

A further paper is a further file in ``papers``.

Claims are statistical tests on the memes that we judged. Differences are paired by meme; intervals are 95 %,
by bootstrap over memes; p is that of the exact McNemar test. A claim of several parts holds if all parts hold, and
fails if one significantly contradicts it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import comb
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from court.events import Side
from eval.datasets.items import Protocol
from eval.runs.results import Results
from eval.scores.compare import compare
from eval.scores.means import ResampledMeans, difference_of, mean_of
from eval.scores.measure import FEWEST_TO_SAY, RESAMPLES, SURE, Figure
from eval.scores.metrics import task_card


class ClaimVerdict(StrEnum):
    """Outcome of a claim's test."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "can't be told from chance"
    UNTESTED = "not tested"


class Reached(StrEnum):
    """Relation of a published figure to ours."""

    WITHIN = "within interval"
    OUTSIDE = "outside"
    DIFFERS = "differs"
    """Ours has no interval."""
    UNREACHABLE = "unreachable on this split"
    NOT_RUN = "not run"
    NONE = "nothing published"


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One measurement of a claim."""

    what: str
    figure: Figure
    p: float | None
    """Its p-value; None if only the interval is used."""
    verdict: ClaimVerdict


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its outcome."""

    id: str
    claim: str
    verdict: ClaimVerdict
    parts: tuple[ClaimPart, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class JudgedArms:
    """Runs on the benchmark that the claims are about."""

    arms: Mapping[str, Results]
    sizes: Mapping[str, Results]
    protocol: Protocol
    seed: int = 0
    resamples: int = RESAMPLES

    def lacks(self, *arms: str) -> str:
        """Names the arms that were not run; empty if all were."""
        missing = [arm for arm in arms if arm not in self.arms]
        return f"not run: {', '.join(missing)}" if missing else ""


def claims_of(judged: JudgedArms, claims: Sequence[ClaimSpec]) -> tuple[Claim, ...]:
    """All claims of a paper, each tested if its runs exist."""
    return tuple(_tested(judged, spec) for spec in claims)


def _tested(judged: JudgedArms, spec: ClaimSpec) -> Claim:
    test = _TESTS.get(spec.test)
    # All tests but those of order and of sizes are about the full court too.
    needed = {"accuracy in this order": spec.arms, "larger is better": ()}.get(spec.test, ("full", *spec.arms))
    why = spec.why or judged.lacks(*needed)
    if test is None or why:
        return Claim(spec.id, spec.claim, ClaimVerdict.UNTESTED, why=why)
    found = test(judged, spec.arms)
    if isinstance(found, str):
        return Claim(spec.id, spec.claim, ClaimVerdict.UNTESTED, why=found)
    return Claim(spec.id, spec.claim, found.verdict, parts=tuple(found.parts), why=found.remark)


@dataclass(frozen=True, slots=True)
class _TestOutcome:
    """Outcome of a test."""

    verdict: ClaimVerdict
    parts: Sequence[ClaimPart]
    remark: str = ""


def _losses_in_order(judged: JudgedArms, arms: Sequence[str]) -> _TestOutcome:
    right = [_right(judged.arms[arm], judged.protocol) for arm in arms]
    # The same draws for all arms, so that differences are paired.
    means = ResampledMeans((meme for arm in right for meme, _ in arm), judged.resamples, judged.seed)
    observed, drawn = zip(*map(means.of, right), strict=True)
    share = float((np.diff(drawn, axis=0) > 0).all(axis=0).mean())
    part = ClaimPart(
        f"share of resamples in which the {len(arms)} arms stand in that order",
        Figure(share, share, share),
        None,
        # A level of 5 % on either side: nearly all resamples have this order, or nearly none.
        ClaimVerdict.HOLDS if share >= 1 - SURE else ClaimVerdict.FAILS if share <= SURE else ClaimVerdict.OPEN,
    )
    ranked = sorted(zip(observed, arms, strict=True))
    words = ", ".join(f"{name} {100 * accuracy:.1f} %" for accuracy, name in ranked)
    return _TestOutcome(part.verdict, (part,), f"here, from the lowest accuracy: {words}")


def _larger_is_better(judged: JudgedArms, _: Sequence[str]) -> _TestOutcome | str:
    if len(judged.sizes) < 3:
        return f"needs the full court of three sizes; run: {', '.join(judged.sizes) or 'none'}"
    # Sizes are sorted, smallest first, so neighbours are the steps of the claim.
    names = list(judged.sizes)
    parts = [
        _better(judged, judged.sizes[large], judged.sizes[small], f"accuracy of {large} less {small}")
        for small, large in pairwise(names)
    ]
    return _whole(parts)


def _below_chance(judged: JudgedArms, arms: Sequence[str]) -> _TestOutcome:
    (arm,) = arms
    late = task_card(judged.arms[arm], judged.protocol, resamples=judged.resamples, seed=judged.seed)
    accuracy, majority = late.known("accuracy"), late.baseline["accuracy"] or 0.0
    parts = [
        _better(judged, judged.arms["full"], judged.arms[arm]),
        ClaimPart("accuracy with the stance at the summary (chance: 0.5)", accuracy, None, below(accuracy, 0.5)),
        ClaimPart(
            f"the same less always saying the more frequent class ({majority:.3f})",
            Figure(*(value - majority for value in (accuracy.value, accuracy.low, accuracy.high))),
            None,
            below(accuracy, majority),
        ),
    ]
    return _whole(parts)


def _fewer_rounds(judged: JudgedArms, arms: Sequence[str]) -> _TestOutcome | str:
    (arm,) = arms
    late = {one.meme.id: _rounds(one.prediction.sides) for one in judged.arms[arm].judged}
    # Only memes that both runs examined, or rounds of different memes would be compared.
    pairs = [
        (one.meme.id, early, late[one.meme.id])
        for one in judged.arms["full"].judged
        if (early := _rounds(one.prediction.sides)) and late.get(one.meme.id)
    ]
    parts = []
    for side in Side:
        differences = [(meme, early[side] - after[side]) for meme, early, after in pairs]
        figure = mean_of(differences, judged.resamples, judged.seed)
        if figure is None:
            return "no meme was examined in both"
        what = f"rounds of the {side.lower()}, from the start less at the summary, {len(differences):,} memes"
        verdict = below(figure, 0.0) if _enough(differences) else ClaimVerdict.OPEN
        parts.append(ClaimPart(what, figure, None, verdict))
    return _whole(parts)


def _favoured_side_stops_sooner(judged: JudgedArms, _: Sequence[str]) -> _TestOutcome | str:
    leads: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for gold, one in judged.arms["full"].under(judged.protocol):
        if rounds := _rounds(one.prediction.sides):
            leads[gold].append((one.meme.id, rounds[Side.ACCUSER] - rounds[Side.DEFENDER]))
    harmful, benign = (mean_of(leads[gold], judged.resamples, judged.seed) for gold in (True, False))
    difference = difference_of(leads[True], leads[False], resamples=judged.resamples, seed=judged.seed)
    if harmful is None or benign is None or difference is None:
        return "no examined memes of both labels"
    measured, unsure = "rounds of the Accuser less the Defender", ClaimVerdict.OPEN
    # Number of ways to assign the leads to two labels, of which a two-sided permutation test counts the extreme ones.
    dealt = comb(len(leads[True]) + len(leads[False]), len(leads[True]))
    of_harmful = below(harmful, 0.0) if _enough(leads[True]) else unsure
    of_benign = above(benign, 0.0) if _enough(leads[False]) else unsure
    of_both = below(difference, 0.0) if 2 / dealt < SURE else unsure
    parts = [
        ClaimPart(f"{measured}, {len(leads[True]):,} harmful memes", harmful, None, of_harmful),
        ClaimPart(f"{measured}, {len(leads[False]):,} others", benign, None, of_benign),
        ClaimPart("the former less the latter", difference, None, of_both),
    ]
    return _whole(parts, decided_by=parts[-1:])


def _better(judged: JudgedArms, better: Results, worse: Results, what: str = "") -> ClaimPart:
    """The lead of one run over another in accuracy, by McNemar's test."""
    found = compare(better, worse, judged.protocol, resamples=judged.resamples, seed=judged.seed)
    verdict = ClaimVerdict.OPEN
    if found.sure:
        verdict = ClaimVerdict.HOLDS if found.only_a_right > found.only_b_right else ClaimVerdict.FAILS
    what = what or f"accuracy of {better.name} less {worse.name}"
    return ClaimPart(what, found.differences["accuracy"], found.mcnemar_p, verdict)


def _whole(parts: Sequence[ClaimPart], decided_by: Sequence[ClaimPart] = ()) -> _TestOutcome:
    return _TestOutcome(whole(decided_by or parts), parts)


def whole(parts: Sequence[ClaimPart]) -> ClaimVerdict:
    """The verdict on a claim of several parts."""
    # A significantly contradicting part makes the claim fail; an open part leaves it open.
    verdicts = {part.verdict for part in parts}
    verdict = ClaimVerdict.FAILS if ClaimVerdict.FAILS in verdicts else ClaimVerdict.OPEN
    return ClaimVerdict.HOLDS if verdicts == {ClaimVerdict.HOLDS} else verdict


def below(figure: Figure, bound: float) -> ClaimVerdict:
    """Says whether a figure is below a bound, by its whole interval."""
    if figure.high < bound:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.FAILS if figure.low > bound else ClaimVerdict.OPEN


def _enough(differences: Sequence[tuple[str, float]]) -> bool:
    """True if a sign test of the differences could be significant; resamples of two equal memes have no width."""
    return sum(difference != 0 for _, difference in differences) >= FEWEST_TO_SAY


def above(figure: Figure, bound: float) -> ClaimVerdict:
    """Says whether a figure is above a bound, by its whole interval."""
    # Mirrored, so that both directions follow one rule.
    return below(Figure(-figure.value, -figure.high, -figure.low), -bound)


def _right(results: Results, protocol: Protocol) -> list[tuple[str, float]]:
    """1 for each meme that was judged correctly, else 0; a meme without a class counts as wrong."""
    return [(one.meme.id, float(one.prediction.outcome.harmful is gold)) for gold, one in results.under(protocol)]


def _rounds(sides: Mapping[str, object]) -> dict[Side, int]:
    """Rounds of both sides; empty where either asked nothing."""
    found = {side: getattr(sides.get(side), "rounds", 0) for side in Side}
    return found if all(found.values()) else {}


_TESTS: Mapping[str, Callable[[JudgedArms, Sequence[str]], _TestOutcome | str]] = {
    "better than each": lambda judged, arms: _whole(
        [_better(judged, judged.arms["full"], judged.arms[arm]) for arm in arms]
    ),
    "accuracy in this order": _losses_in_order,
    "larger is better": _larger_is_better,
    "below the court and chance": _below_chance,
    "fewer rounds than": _fewer_rounds,
    "favoured side stops sooner": _favoured_side_stops_sooner,
}
"""Tests by name, each of some arms; a sentence in place of an outcome says why there is none."""


FOLDER = "papers"
# Slightly more than half of the last place, since floats are not exact decimal fractions.
_ROUNDING = 0.005 + 1e-9
"""Largest distance, in percent, of a figure from its value rounded to two places."""


class PaperPart(BaseModel):
    """A part of a paper's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BenchmarkSpec(PaperPart):
    """A split that figures are compared on."""

    name: str
    data: str
    title: str
    dataset: str
    split: str
    protocol: Protocol
    drops: bool = False
    """True if memes that the protocol drops are excluded from the precedents, too."""
    drawn: str = ""
    """Synthetic data set in its place; empty if there is none."""


class RunsSpec(PaperPart):
    """Runs that some tables and figures take, in addition to the full court."""

    tables: frozenset[int] = frozenset()
    figures: frozenset[int] = frozenset()
    data: tuple[str, ...]
    arms: tuple[str, ...] = ()
    every_size: bool = False
    """True for runs with each model, not only with the largest."""

    def wanted(self, tables: frozenset[int], figures: frozenset[int]) -> bool:
        """True if one of these tables or figures takes the runs."""
        return bool(tables & self.tables or figures & self.figures)


class ClaimSpec(PaperPart):
    """A claim, and the name of its test in :mod:`eval.reproduce.paper`."""

    id: str
    test: str
    claim: str
    arms: tuple[str, ...] = ()
    why: str = ""


class Chain(PaperPart):
    """Meme whose chain of questions the paper shows."""

    data: str
    meme: str
    note: str


class Target(PaperPart):
    """A published row, with figures in percent."""

    id: str
    table: int
    row: str
    data: str
    arm: str
    size: str
    accuracy: float = Field(ge=0, le=100)
    macro_f1: float = Field(ge=0, le=100)


class Paper(PaperPart):
    """A paper, and all figures that it publishes about itself."""

    paper: str
    preset: str
    figures: Literal["is published", "must be"] = "is published"
    """What its figures beside ours are: the oracle must reach those of the drawn benchmarks."""
    models: dict[str, str]
    tables: dict[int, str]
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


@cache
def read_paper(name: str = "memecourt") -> Paper:
    """Reads the file of a paper."""
    file = files("eval.reproduce") / FOLDER / f"{name}.toml"
    return Paper.model_validate(tomllib.loads(file.read_text("utf-8")))


def is_reachable(target: Target, *, benign: int, harmful: int) -> bool:
    """True if some confusion matrix over these classes rounds to the target's accuracy and macro-F1.

    All ``(benign + 1) * (harmful + 1)`` matrices are tried.
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
    return has_share(percent / 100, n, _ROUNDING / 100)


def has_share(share: float, n: int, rounding: float) -> bool:
    """True if some number out of ``n`` is this share, within a rounding."""
    return bool(n) and bool(np.any(np.abs(np.arange(n + 1) / n - share) <= rounding))
