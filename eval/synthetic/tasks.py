"""Tasks of the invented world besides harm: whom a meme attacks, and what it shows.

Gold is a function of text and badge, as for harm. A benchmark of :mod:`eval.synthetic.make` has the labels in separate
files, with a card that describes them.
"""

from __future__ import annotations

from eval.datasets.protocol import Level
from eval.synthetic.world import GROUPS, claim_of

NOBODY = "nobody"
TARGETS = (*GROUPS, NOBODY)
"""Labels of the task ``target``: the group that a meme attacks. One a meme."""
ATTACK, STRONG, SHOWN = "attack", "strong words", "shown"
SIGNS = (ATTACK, STRONG, SHOWN)
"""Labels of the task ``signs``: something bad is said; it is very bad; the group that is named is shown. Any number."""


def target_of(text: str, badge: str | None) -> str:
    """Gold of the task ``target``: the group that the text says something bad about, if it is the group shown."""
    claim = claim_of(text)
    return claim.group if claim is not None and claim.bad and claim.group == badge else NOBODY


def signs_of(text: str, badge: str | None) -> tuple[str, ...]:
    """Gold of the task ``signs``."""
    claim = claim_of(text)
    if claim is None:
        return ()
    found = {ATTACK: claim.bad, STRONG: claim.level is Level.VERY_HARMFUL, SHOWN: claim.group == badge}
    return tuple(sign for sign in SIGNS if found[sign])


def caption_of(badge: str | None) -> str:
    """Returns a caption of a meme's picture, as people might write it."""
    return "A drawn scene." if badge is None else f"A drawn scene with the badge of {badge} in the middle."
