"""Protocols: rules that reduce a data set's own labels to two classes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class Level(IntEnum):
    """HarMeme's three labels, in ascending order of harm (Pramanick et al. 2021, section 3)."""

    NOT_HARMFUL = 0
    SOMEWHAT_HARMFUL = 1
    VERY_HARMFUL = 2


LEVELS: Mapping[str, Level] = {
    "not harmful": Level.NOT_HARMFUL,
    "somewhat harmful": Level.SOMEWHAT_HARMFUL,
    "very harmful": Level.VERY_HARMFUL,
}
"""HarMeme's labels, in its words."""


class Protocol(StrEnum):
    """Rule that turns a gold label into one of two classes. Results under different protocols can't be compared."""

    MERGED = "merged"
    """Somewhat and very harmful count as harmful: what nearly everyone reports on HarMeme."""
    EXTREME = "extreme"
    """Somewhat harmful memes are dropped, as in the court's paper."""
    PLAIN = "plain"
    """The data set has two classes of its own."""


def of_level(level: Level, protocol: Protocol) -> bool | None:
    """True if a meme of this level is harmful; None if the protocol drops it."""
    if protocol is Protocol.EXTREME and level is Level.SOMEWHAT_HARMFUL:
        return None
    return level is not Level.NOT_HARMFUL
