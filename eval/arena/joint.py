"""The panel's vote on a battle: combines judgements of several judges, or in both orders, into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from eval.arena.events import Judged
from eval.arena.words import Verdict

Vote = Literal["pool", "majority"]


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
