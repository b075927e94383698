"""A paper's claims, C1 to C7, as statistical tests on the memes that we judged.

Differences are paired by meme; intervals are 95 %, by bootstrap over memes; p is that of the exact McNemar test. A
claim of several parts holds if all parts hold, and fails if one significantly contradicts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import comb

import numpy as np

from court.events import Side
from eval.datasets.protocol import Protocol
from eval.runs.results import Results
from eval.scores.bootstrap import RESAMPLES, Figure
from eval.scores.compare import FEWEST_TO_SAY, SURE, compare
from eval.scores.metrics import card
from eval.scores.resampled_means import ResampledMeans, difference_of, mean_of

_ORDER = ("dull-judge", "no-advocates", "no-captioner", "no-precedents")
"""Ablations from the largest loss in accuracy to the smallest, as published."""


class ClaimVerdict(StrEnum):
    """Outcome of a claim's test."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "can't be told from chance"
    UNTESTED = "not tested"


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One measurement of a claim.

    Attributes:
        p: Its p-value; None if only the interval is used.
        verdict: Outcome of this part.
    """

    what: str
    figure: Figure
    p: float | None
    verdict: ClaimVerdict


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its outcome.

    Attributes:
        id: ``C1`` to ``C7``.
        verdict: Outcome of the whole claim.
        parts: Measurements; empty if it was not tested.
        why: Reason why it was not tested, or a remark; empty for none.
    """

    id: str
    claim: str
    verdict: ClaimVerdict
    parts: tuple[ClaimPart, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class JudgedArms:
    """Runs on the bench that the claims are about.

    Attributes:
        arms: Runs of the largest model by arm.
        sizes: Runs of the full court by size, the smallest first.
    """

    arms: Mapping[str, Results]
    sizes: Mapping[str, Results]
    protocol: Protocol
    seed: int = 0
    resamples: int = RESAMPLES

    def lacks(self, *arms: str) -> str:
        """Names the arms that were not run; empty if all were."""
        missing = [arm for arm in arms if arm not in self.arms]
        return f"not run: {', '.join(missing)}" if missing else ""


def claims_of(judged: JudgedArms) -> tuple[Claim, ...]:
    """All claims, each tested if its runs exist."""
    return (
        _parts_are_worth_something(judged),
        _losses_in_order(judged),
        _larger_is_better(judged),
        _late_stance_is_below_chance(judged),
        _stance_saves_rounds(judged),
        _favoured_side_stops_sooner(judged),
        Claim(
            "C7",
            "ExplainHM is beaten on all three data sets",
            ClaimVerdict.UNTESTED,
            why="its predictions are not public, and its figures were not measured on these memes",
        ),
    )


def worth_of_leaks(judged: JudgedArms, arm: str) -> ClaimPart | None:
    """The lead in accuracy of an arm with leaks over the full court; None if either was not run.

    Not a claim of the paper: it is the gain that precedents which contain the judged memes could explain.
    """
    if judged.lacks("full", arm):
        return None
    return _better(judged, judged.arms[arm], judged.arms["full"])


def _parts_are_worth_something(judged: JudgedArms) -> Claim:
    claim = "the full court is better than without precedents, advocates or questions, and than a dull Judge"
    if why := judged.lacks("full", *_ORDER):
        return Claim("C1", claim, ClaimVerdict.UNTESTED, why=why)
    return _whole("C1", claim, [_better(judged, judged.arms["full"], judged.arms[arm]) for arm in _ORDER])


def _losses_in_order(judged: JudgedArms) -> Claim:
    claim = f"accuracy is lost most in this order: {', '.join(_ORDER)}"
    if why := judged.lacks(*_ORDER):
        return Claim("C2", claim, ClaimVerdict.UNTESTED, why=why)
    right = [_right(judged.arms[arm], judged.protocol) for arm in _ORDER]
    # The same draws for all arms, so that differences are paired.
    means = ResampledMeans((meme for arm in right for meme, _ in arm), judged.resamples, judged.seed)
    observed, drawn = zip(*map(means.of, right), strict=True)
    share = float((np.diff(drawn, axis=0) > 0).all(axis=0).mean())
    part = ClaimPart(
        "share of resamples in which the four stand in that order",
        Figure(share, share, share),
        None,
        # A level of 5 % on either side: nearly all resamples have this order, or nearly none.
        ClaimVerdict.HOLDS if share >= 1 - SURE else ClaimVerdict.FAILS if share <= SURE else ClaimVerdict.OPEN,
    )
    ranked = sorted(zip(observed, _ORDER, strict=True))
    words = ", ".join(f"{name} {100 * accuracy:.1f} %" for accuracy, name in ranked)
    return Claim("C2", claim, part.verdict, parts=(part,), why=f"here, from the lowest accuracy: {words}")


def _larger_is_better(judged: JudgedArms) -> Claim:
    claim = "a larger model is better: 3B < 7B < 32B, and the last step is small (published: 1.14 points)"
    if len(judged.sizes) < 3:
        have = ", ".join(judged.sizes) or "none"
        return Claim("C3", claim, ClaimVerdict.UNTESTED, why=f"needs the full court of three sizes; run: {have}")
    # Sizes are sorted, smallest first, so neighbours are the steps of the claim.
    names = list(judged.sizes)
    parts = [
        _better(judged, judged.sizes[large], judged.sizes[small], f"accuracy of {large} less {small}")
        for small, large in pairwise(names)
    ]
    return _whole("C3", claim, parts)


def _late_stance_is_below_chance(judged: JudgedArms) -> Claim:
    claim = "sides that learn their stance only at the summary are far below the full court, and below chance"
    if why := judged.lacks("full", "post-stance"):
        return Claim("C4", claim, ClaimVerdict.UNTESTED, why=why)
    late = card(judged.arms["post-stance"], judged.protocol, resamples=judged.resamples, seed=judged.seed)
    accuracy = late.strict.accuracy
    parts = [
        _better(judged, judged.arms["full"], judged.arms["post-stance"]),
        ClaimPart("accuracy with the stance at the summary (chance: 0.5)", accuracy, None, _below(accuracy, 0.5)),
        ClaimPart(
            f"the same less always saying the more frequent class ({late.majority:.3f})",
            Figure(*(value - late.majority for value in (accuracy.value, accuracy.low, accuracy.high))),
            None,
            _below(accuracy, late.majority),
        ),
    ]
    return _whole("C4", claim, parts)


def _stance_saves_rounds(judged: JudgedArms) -> Claim:
    claim = "sides that know their stance from the start need fewer rounds"
    if why := judged.lacks("full", "post-stance"):
        return Claim("C5", claim, ClaimVerdict.UNTESTED, why=why)
    late = {one.meme.id: _rounds(one.prediction.sides) for one in judged.arms["post-stance"].judged}
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
            return Claim("C5", claim, ClaimVerdict.UNTESTED, why="no meme was examined in both")
        what = f"rounds of the {side.lower()}, from the start less at the summary, {len(differences):,} memes"
        verdict = _below(figure, 0.0) if _enough(differences) else ClaimVerdict.OPEN
        parts.append(ClaimPart(what, figure, None, verdict))
    return _whole("C5", claim, parts)


def _favoured_side_stops_sooner(judged: JudgedArms) -> Claim:
    claim = "the side that the gold label favours needs fewer rounds"
    if why := judged.lacks("full"):
        return Claim("C6", claim, ClaimVerdict.UNTESTED, why=why)
    leads: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for gold, one in judged.arms["full"].under(judged.protocol):
        if rounds := _rounds(one.prediction.sides):
            leads[gold].append((one.meme.id, rounds[Side.ACCUSER] - rounds[Side.DEFENDER]))
    harmful, benign = (mean_of(leads[gold], judged.resamples, judged.seed) for gold in (True, False))
    difference = difference_of(leads[True], leads[False], resamples=judged.resamples, seed=judged.seed)
    if harmful is None or benign is None or difference is None:
        return Claim("C6", claim, ClaimVerdict.UNTESTED, why="no examined memes of both labels")
    measured, unsure = "rounds of the Accuser less the Defender", ClaimVerdict.OPEN
    # Number of ways to assign the leads to two labels, of which a two-sided permutation test counts the extreme ones.
    dealt = comb(len(leads[True]) + len(leads[False]), len(leads[True]))
    of_harmful = _below(harmful, 0.0) if _enough(leads[True]) else unsure
    of_benign = _above(benign, 0.0) if _enough(leads[False]) else unsure
    of_both = _below(difference, 0.0) if 2 / dealt < SURE else unsure
    parts = [
        ClaimPart(f"{measured}, {len(leads[True]):,} harmful memes", harmful, None, of_harmful),
        ClaimPart(f"{measured}, {len(leads[False]):,} others", benign, None, of_benign),
        ClaimPart("the former less the latter", difference, None, of_both),
    ]
    return _whole("C6", claim, parts, decided_by=parts[-1:])


def _better(judged: JudgedArms, better: Results, worse: Results, what: str = "") -> ClaimPart:
    """The lead of one run over another in accuracy, by McNemar's test."""
    found = compare(better, worse, judged.protocol, resamples=judged.resamples, seed=judged.seed)
    verdict = ClaimVerdict.OPEN
    if found.sure:
        verdict = ClaimVerdict.HOLDS if found.only_a_right > found.only_b_right else ClaimVerdict.FAILS
    what = what or f"accuracy of {better.name} less {worse.name}"
    return ClaimPart(what, found.difference_accuracy, found.mcnemar_p, verdict)


def _whole(id_: str, claim: str, parts: Sequence[ClaimPart], decided_by: Sequence[ClaimPart] = ()) -> Claim:
    # A significantly contradicting part makes the claim fail; an open part leaves it open.
    verdicts = {part.verdict for part in decided_by or parts}
    verdict = ClaimVerdict.FAILS if ClaimVerdict.FAILS in verdicts else ClaimVerdict.OPEN
    return Claim(id_, claim, ClaimVerdict.HOLDS if verdicts == {ClaimVerdict.HOLDS} else verdict, tuple(parts))


def _below(figure: Figure, bound: float) -> ClaimVerdict:
    if figure.high < bound:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.FAILS if figure.low > bound else ClaimVerdict.OPEN


def _enough(differences: Sequence[tuple[str, float]]) -> bool:
    """True if a sign test of the differences could be significant; resamples of two equal memes have no width."""
    return sum(difference != 0 for _, difference in differences) >= FEWEST_TO_SAY


def _above(figure: Figure, bound: float) -> ClaimVerdict:
    # Mirrored, so that both directions follow one rule.
    return _below(Figure(-figure.value, -figure.high, -figure.low), -bound)


def _right(results: Results, protocol: Protocol) -> list[tuple[str, float]]:
    """1 for each meme that was judged correctly, else 0; a meme without a class counts as wrong."""
    return [(one.meme.id, float(one.prediction.outcome.harmful is gold)) for gold, one in results.under(protocol)]


def _rounds(sides: Mapping[str, object]) -> dict[Side, int]:
    """Rounds of both sides; empty where either asked nothing."""
    found = {side: getattr(sides.get(side), "rounds", 0) for side in Side}
    return found if all(found.values()) else {}
