"""The panel's vote on a battle: the judgements of several judges, or in both orders, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from eval.arena.events import Judged
from eval.arena.words import Verdict

Vote = Literal["pool", "majority"]


class BattleKey(NamedTuple):
    """Names a battle, whichever answer was shown first."""

    meme: str
    task: int
    one: str
    other: str


def battle_key(event: Judged) -> BattleKey:
    """Returns the key of the battle that was judged; ``one`` comes first by name."""
    one, other = sorted((event.a, event.b))
    return BattleKey(event.meme, event.task, one, other)


def joint_scores(fought: Iterable[Judged], dimension: str) -> dict[BattleKey, float]:
    """Score of ``one`` in each battle by the panel's vote: 1 won, 0.5 tied, 0 lost.

    Every judgement counts 1 for who is better, 2 for who is far better, and 0 for a tie; the sign of the sum decides,
    and a sum of 0 is a tie. With three levels that is the majority of those who see a difference.

    Args:
        fought: Judgements of battles.
        dimension: Dimension of the verdicts.
    """
    sums: dict[BattleKey, int] = defaultdict(int)
    for event in fought:
        key, lead = battle_key(event), _lead(event.verdicts[dimension])
        # Shown in either order, a judgement counts for the same model.
        sums[key] += lead if event.a == key.one else -lead
    return {key: 0.5 if not total else float(total > 0) for key, total in sums.items()}


def _lead(verdict: Verdict) -> int:
    """Lead of the answer shown first."""
    size = 2 if verdict.far else 1
    return 0 if verdict.score == 0.5 else size if verdict.score > 0.5 else -size
