"""Agreement of reviewers among themselves and with the court, beyond chance.

Cohen's kappa for two people who judged the same memes (Cohen 1960, with the asymptotic variance of Fleiss, Cohen and
Everitt 1969), Fleiss' kappa for more (Fleiss 1971). An undefined kappa is None, never 0 or 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

_Z95 = 1.959963984540054


FEWEST = 10
"""Minimum number of memes for a meaningful kappa: below it, a single meme changes the figure too much."""


@dataclass(frozen=True, slots=True)
class Kappa:
    """Agreement of two or more reviewers.

    Attributes:
        n: Number of memes that at least two have judged.
        observed: Share of memes that agree, or for many reviewers of pairs of judgements; None if n is 0.
        expected: Share that would agree by chance, from the frequency of each label; None if n is 0.
        value: ``(observed - expected) / (1 - expected)``; None if everybody always gives the same label.
    """

    n: int
    observed: float | None = None
    expected: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def enough(self) -> bool:
        """True if there are enough memes to show the value."""
        return self.n >= FEWEST


def cohen(pairs: Sequence[tuple[str, str]]) -> Kappa:
    """Cohen's kappa of two judges."""
    n = len(pairs)
    if not n:
        return Kappa(0)
    cells = {cell: count / n for cell, count in Counter(pairs).items()}
    labels = sorted({label for pair in cells for label in pair})
    first = {label: sum(share for (a, _), share in cells.items() if a == label) for label in labels}
    second = {label: sum(share for (_, b), share in cells.items() if b == label) for label in labels}
    observed = sum(share for (a, b), share in cells.items() if a == b)
    expected = sum(first[label] * second[label] for label in labels)
    # Everybody always gave the same label: avoid a division by 0 below.
    if math.isclose(expected, 1.0):
        return Kappa(n, observed, expected)
    kappa = (observed - expected) / (1 - expected)
    # The large-sample variance of Fleiss, Cohen and Everitt (1969), times n and (1 - expected)².
    agreeing = sum(share * (1 - (first[a] + second[a]) * (1 - kappa)) ** 2 for (a, b), share in cells.items() if a == b)
    differing = sum(share * (second[a] + first[b]) ** 2 for (a, b), share in cells.items() if a != b)
    spread = agreeing + (1 - kappa) ** 2 * differing - (kappa - expected * (1 - kappa)) ** 2
    # Rounding may make a variance of 0 slightly negative.
    half = _Z95 * math.sqrt(max(spread, 0.0) / n) / (1 - expected)
    # The normal approximation may exceed the range of kappa, [-1, 1].
    return Kappa(
        n, observed=observed, expected=expected, value=kappa, low=max(kappa - half, -1.0), high=min(kappa + half, 1.0)
    )


def fleiss(memes: Sequence[Sequence[str]]) -> Kappa:
    """Fleiss' kappa of many judges.

    If all memes have the same number of judgements, this is Fleiss' original. If not, each meme counts once, with its
    share of agreeing pairs and its shares of labels.

    Args:
        memes: Labels of each meme, in any order; memes with fewer than two judgements are left out.
    """
    judged = [Counter(labels) for labels in memes if len(labels) > 1]
    n = len(judged)
    if not n:
        return Kappa(0)
    agreement, shares = 0.0, Counter[str]()
    for counts in judged:
        m = counts.total()
        agreement += sum(count * (count - 1) for count in counts.values()) / (m * (m - 1))
        for label, count in counts.items():
            shares[label] += count / m / n  # type: ignore[assignment]
    observed = agreement / n
    expected = sum(share**2 for share in shares.values())
    if math.isclose(expected, 1.0):
        return Kappa(n, observed, expected)
    return Kappa(n, observed, expected, (observed - expected) / (1 - expected))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of reviewers.

    Attributes:
        pairs: Cohen's kappa of each pair of reviewers with at least one meme in common.
        court: Cohen's kappa of each reviewer with the court, over memes for which the court had a label.
        undecided: Number of judgements of memes on which the court was undecided, which figures with the court exclude.
    """

    reviewed: int
    judgements: int
    all: Kappa
    pairs: Mapping[tuple[str, str], Kappa]
    court: Mapping[str, Kappa]
    court_all: Kappa
    undecided: int


def agreement(
    labels: Mapping[K, Mapping[str, str]], court: Mapping[K, Mapping[str, str]], *, undecided: str
) -> Agreement:
    """Computes all figures.

    Args:
        court: Label of the court in the trial that each of these reviewers reviewed, by meme.
    """
    reviewers = sorted({who for words in labels.values() for who in words})
    pairs = {}
    for one, other in combinations(reviewers, 2):
        common = [(words[one], words[other]) for words in labels.values() if one in words and other in words]
        # A pair without a common meme has no kappa.
        if common:
            pairs[one, other] = cohen(common)
    with_court = {
        who: [
            (words[who], court[meme][who])
            for meme, words in labels.items()
            if who in words and court[meme][who] != undecided
        ]
        for who in reviewers
    }
    return Agreement(
        reviewed=len(labels),
        judgements=sum(len(words) for words in labels.values()),
        all=fleiss([list(words.values()) for words in labels.values()]),
        pairs=pairs,
        court={who: cohen(own) for who, own in with_court.items()},
        court_all=cohen([pair for own in with_court.values() for pair in own]),
        undecided=sum(court[meme][who] == undecided for meme, words in labels.items() for who in words),
    )
