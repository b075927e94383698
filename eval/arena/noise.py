"""Check for noise: if judges' choices say nothing about the answers, there is no basis for a ranking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from scipy.stats import binomtest

from eval.arena.events import Event, Judged

_MOST_BY_PLACE = 0.8
"""Share of decided battles that may go to the same place, first or second shown. A panel that looks at answers alone
comes out near a half, whoever wins; beyond this, four of five choices are of the place."""
_CONFIDENCE = 0.95


def noise_in(events: Sequence[Event], dimension: str) -> str:
    """Returns the reason why verdicts of a dimension can't rank models; empty if they can."""
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    decided = [event for event in fought if event.verdicts[dimension].score != 0.5]
    first = sum(event.verdicts[dimension].score > 0.5 for event in decided)
    both_orders = judged_in_both_orders(fought, dimension)
    for won, place in ((first, "first"), (len(decided) - first, "second")):
        # Uses the lower end of the interval, so that a few battles alone are not called noise.
        if decided and binomtest(won, len(decided)).proportion_ci(_CONFIDENCE, "wilson").low > _MOST_BY_PLACE:
            # If that was done already, changing the judges is the only remedy.
            orders = "" if both_orders else ", or have battles judged in both orders"
            return (
                f"No ranking: the answer shown {place} won {won:,} of {len(decided):,} decided battles. The judges "
                f"chose by the place and not by the answer; take other judges{orders}."
            )
    # A tie in either order leaves no winner to compare.
    twice = [pair for pair in both_orders if 0.5 not in pair]
    same, both = sum((one > 0.5) == (other > 0.5) for one, other in twice), len(twice)
    # Here the burden of proof is reversed: verdicts count only if they are surely better than a coin flip.
    if both and binomtest(same, both).proportion_ci(_CONFIDENCE, "wilson").low <= 0.5:
        return (
            f"No ranking: judged in both orders, {same:,} of {both:,} battles had the same outcome, which a coin "
            "could have given too. Take other judges, or more battles."
        )
    return ""


def judged_in_both_orders(fought: Sequence[Judged], dimension: str) -> list[tuple[float, float]]:
    """Pairs the scores that a judge gave an answer when it was shown first and second, in the order of the turns."""
    twice: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    for event in fought:
        one, other = sorted((event.a, event.b))
        score = event.verdicts[dimension].score
        twice[event.meme, event.task, one, other, event.judge][event.turn] = score if event.a == one else 1 - score
    return [(turns[0], turns[1]) for turns in twice.values() if len(turns) == 2]
