"""Guidelines by round of their fusion, as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from eval.arena.rating import RoundMeasures, RoundRatings
from eval.reports.sections import Section


def round_section(rounds: Sequence[RoundRatings], end: int | None) -> Section:
    """Mean ratings by round, and the round after which nothing is gained.

    Args:
        rounds: Mean scores by round, in order.
        end: The round that :func:`eval.arena.rating.plateau` finds.
    """
    rows = [
        (str(one.round), f"{one.items:,}", f"{one.mean.value:.2f} [{one.mean.low:.2f}, {one.mean.high:.2f}]")
        for one in rounds
    ]
    if len(rounds) < 2:
        told = "Guidelines of several rounds (--rounds 0-14) show from which one on nothing is gained."
    elif end is None:
        told = "The last round that was rated still gained half the width of its interval or more."
    else:
        told = (
            f"After round {end}, no further one gains half the width of its interval: with "
            f"fusion_rounds = {max(1, end)} in [arena] the calls of all later ones are saved. Published: about 8 of 14."
        )
    notes = ("All criteria together; intervals are 95 %, by bootstrap over memes.", told)
    return Section("rounds", "By round of the fusion", (("round", "guidelines", "mean score"), *rows), notes)


def measure_section(measures: Sequence[RoundMeasures]) -> Section:
    """Free measures by round."""
    rows = [
        (str(one.round), f"{one.n:,}", f"{one.words:.0f}", "–" if one.kept is None else f"{100 * one.kept:.0f} %")
        for one in measures
    ]
    note = "Kept: words that this text and the one before it have in common, of all that they have (Jaccard)."
    return Section("measures", "By round of the fusion", (("round", "guidelines", "words", "kept"), *rows), (note,))
