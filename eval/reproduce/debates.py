"""Measures of a court's debates and ablations, on which claims rest that no other command has a figure for."""

from collections.abc import Callable, Mapping, Sequence
from math import comb
from typing import Any

import numpy as np

from court.events import Side
from eval.runs.results import Judged, Results
from eval.scores.means import MemeValues, ResampledMeans, difference_of, mean_of
from eval.scores.measure import RESAMPLES, SURE, Figure, mcnemar

Measured = tuple[Figure | None, float | None]
"""A figure and its p-value; None if these memes have none, or only the interval is used."""


def _order(runs: Sequence[Results], _: str, seed: int) -> Measured:
    """Share of resamples in which accuracy rises from each run to the next, and as its p that of the rarer case."""
    right = [[(one.meme.id, float(one.prediction.outcome.harmful is gold)) for gold, one in _gold(run)] for run in runs]
    # The same draws for all runs, so that differences are paired.
    means = ResampledMeans((meme for run in right for meme, _ in run), RESAMPLES, seed)
    drawn = [means.of(run)[1] for run in right]
    share = float((np.diff(drawn, axis=0) > 0).all(axis=0).mean())
    return Figure(share, share, share), min(share, 1 - share)


def _fewer(runs: Sequence[Results], side: str, seed: int) -> Measured:
    """Rounds of a side in the first run less those in the second, by meme, with the p of a sign test."""
    first, second = ({one.meme.id: rounds_in(one) for one in run.judged} for run in runs)
    # Only memes that both runs examined, or rounds of different memes would be compared.
    both = [meme for meme in first if first[meme] and second.get(meme)]
    return _signed([(meme, first[meme][Side(side)] - second[meme][Side(side)]) for meme in both], seed)


def _lead(runs: Sequence[Results], of: str, seed: int) -> Measured:
    """Rounds of the Accuser less the Defender on memes of one label, or on harmful memes less the same on others."""
    leads: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for gold, one in _gold(runs[0]):
        if rounds := rounds_in(one):
            leads[gold].append((one.meme.id, rounds[Side.ACCUSER] - rounds[Side.DEFENDER]))
    if of != "both":
        return _signed(leads[of == "harmful"], seed)
    # Number of ways to assign the leads to two labels, of which a two-sided permutation test counts the extreme ones.
    least = 2 / comb(sum(map(len, leads.values())), len(leads[True]))
    figure = difference_of(leads[True], leads[False], resamples=RESAMPLES, seed=seed)
    return figure, least if least >= SURE else None


def _signed(differences: MemeValues, seed: int) -> Measured:
    # Resamples of a few memes that agree have no width; the exact test knows how few they are.
    signs = [value > 0 for _, value in differences if value]
    return mean_of(differences, RESAMPLES, seed), mcnemar(signs.count(True), signs.count(False))


def _gold(run: Results) -> Sequence[tuple[bool, Judged]]:
    return run.under(run.protocols[0])


def rounds_in(one: Judged) -> dict[Side, int]:
    """Rounds of both sides; empty where either asked nothing."""
    sides: Mapping[str, Any] = one.prediction.sides
    found = {side: sides[side].rounds if side in sides else 0 for side in Side}
    return found if all(found.values()) else {}


MEASURES: Mapping[str, Callable[[Sequence[Results], str, int], Measured]] = {
    "order": _order,
    "rounds": _fewer,
    "lead": _lead,
}
"""Measures of arms by name, each with the side or the labels that it is of."""
