"""Protocols: rules that make two classes of a data set's own labels."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class Level(IntEnum):
    """HarMeme's three labels, in their order (Pramanick et al. 2021, section 3)."""

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
    """Rule that turns a gold label into one of two classes. Figures without their protocol can't be compared."""

    MERGED = "merged"
    """Somewhat and very harmful are harmful: what nearly everyone reports on HarMeme."""
    EXTREME = "extreme"
    """Memes that are somewhat harmful are dropped: what the court's paper did."""
    PLAIN = "plain"
    """The data set has two classes of its own."""


def of_level(level: Level, protocol: Protocol) -> bool | None:
    """True if a meme of this level is harmful; None if the protocol drops it."""
    if protocol is Protocol.EXTREME and level is Level.SOMEWHAT_HARMFUL:
        return None
    return level is not Level.NOT_HARMFUL
