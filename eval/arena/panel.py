"""The panel of judges: its vote on a battle, smaller panels, and choices that say nothing of the answers."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from scipy.stats import binomtest

from eval.arena.events import Event, Judged
from eval.arena.words import Verdict

Vote = Literal["pool", "majority"]
_LISTED = 20_000
"""Panels that are listed, to draw among them; beyond, panels are drawn one by one."""
_MOST_BY_PLACE = 0.8
"""Share of decided battles that may go to the same place, first or second shown. A panel that looks at answers alone
comes out near a half, whoever wins; beyond this, four of five choices are of the place."""
_CONFIDENCE = 0.95


class BattleKey(NamedTuple):
    """Key of a battle, independent of the order in which answers were shown."""

    meme: str
    task: int
    one: str
    other: str


def battle_key(event: Judged) -> BattleKey:
    """Returns the key of the battle that was judged; ``one`` comes first by name."""
    one, other = sorted((event.a, event.b))
    return BattleKey(event.meme, event.task, one, other)


def joint_scores(fought: Iterable[Judged], dimension: str) -> dict[BattleKey, float]:
    """Returns the score of ``one`` in each battle by the panel's vote: 1 won, 0.5 tied, 0 lost.

    Every judgement counts 1 for the better answer, 2 for a far better one, and 0 for a tie. The sign of the sum
    decides; a sum of 0 is a tie. With three levels, this is the majority of the judges who see a difference.
    """
    sums: dict[BattleKey, int] = defaultdict(int)
    for event in fought:
        key, lead = battle_key(event), _lead(event.verdicts[dimension])
        # Whichever order was shown, a judgement counts for the same model.
        sums[key] += lead if event.a == key.one else -lead
    return {key: 0.5 if not total else float(total > 0) for key, total in sums.items()}


def _lead(verdict: Verdict) -> int:
    """Returns the lead of the answer shown first."""
    size = 2 if verdict.far else 1
    return 0 if verdict.score == 0.5 else size if verdict.score > 0.5 else -size


def panels_of_size(judges: Sequence[str], size: int, most: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Chooses distinct panels, each with its judges in the order of ``judges``.

    The number of panels of all sizes doubles with each further judge, so at most ``most`` panels of a size are chosen,
    each with the same probability.

    Args:
        most: Maximum number of panels to return; far fewer than 20,000.
    """
    count = math.comb(len(judges), size)
    if count <= _LISTED:
        panels = list(itertools.combinations(judges, size))
        # Sampled without replacement, so that no panel counts twice.
        return panels if count <= most else rng.sample(panels, most)
    # A dictionary, not a set, whose order differs between processes.
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < most:
        # Sorted, so that a panel is the same whatever the order of its judges.
        drawn[tuple(sorted(rng.sample(range(len(judges)), size)))] = None
    return [tuple(judges[place] for place in places) for places in drawn]


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
