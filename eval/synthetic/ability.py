"""Ability of the oracle, the model whose answers are known in advance."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ability:
    """Ability of the oracle: shares of memes, each in [0, 1].

    Attributes:
        harmful: Share of the harmful memes with a recognised badge that it judges correctly.
        benign: Share of the other memes with a recognised badge that it judges correctly.
        eyes: Share of all memes whose badge the Judge recognises without help.
        description: Additional share with a description that names the right badge.
        answers: Additional share with arguments that are based on the Proposer's answers.
        arguments: Additional share with arguments that are based on the description alone.
        precedents: Additional share with precedents most of which are labelled by the rule.
    """

    harmful: float = 0.9
    benign: float = 0.85
    eyes: float = 0.4
    description: float = 0.2
    answers: float = 0.2
    arguments: float = 0.1
    precedents: float = 0.2
    seed: int = 0


def chance_of(seed: int, what: str, text: str, badge: str) -> float:
    """Returns a number in [0, 1) that is a function of its arguments."""
    # Ignores spacing and case: a text that is laid out or read differently has the same outcome.
    words = " ".join(text.lower().split())
    digest = hashlib.sha256(f"{seed}\0{what}\0{words}\0{badge}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
