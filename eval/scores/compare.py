"""Comparison of two sets of predictions on the same memes: which is better, and is the difference significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from court.errors import BadRequest
from eval.datasets.protocol import Protocol
from eval.runs.results import NOT_JUDGED, Judged, Results
from eval.scores import resampling
from eval.scores.metrics import RESAMPLES, Figure, group_numbers_of
from eval.scores.resampling import Ints
from eval.solvers.prediction import Outcome

SURE = 0.05
"""Significance level: a difference with a smaller p-value is not attributed to chance."""
FEWEST_TO_SAY = 6
"""Fewest memes that only one of two systems gets right for the exact test to fall below :data:`SURE` (2 * 0.5 ** 6)."""
TOO_FEW_DIFFER = (
    "Fewer than six memes (or groups of them) of difference count as noise, whatever the interval: so few all fall on "
    "one side by chance too often."
)
"""Explains why a difference counts as noise although its interval excludes 0."""

_COLUMN = {Outcome.NOT_HARMFUL: 0, Outcome.HARMFUL: 1, Outcome.UNDECIDED: 2, Outcome.FAILED: 2}
"""Column of a strict confusion matrix; the last means that no class was given."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A meme on which A and B differ.

    Attributes:
        harmful: Its gold label under the protocol.
    """

    meme: str
    harmful: bool
    a: Outcome
    b: Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """A and B on the memes that both were asked about. A missing class counts as wrong, as in the strict figures.

    Attributes:
        protocol: Protocol by which gold labels became two classes.
        n: Number of memes compared.
        left_out_a: Ids of memes that only A was asked about; not compared.
        left_out_b: Ids of memes that only B was asked about; not compared.
        not_judged_a: Number of the ``n`` memes that A has not judged yet.
        not_judged_b: Number of the ``n`` memes that B has not judged yet.
        both_right: Number of memes that both got right.
        only_a_right: Number of memes that A got right and B wrong.
        only_b_right: Number of memes that B got right and A wrong.
        both_wrong: Number of memes that both got wrong.
        accuracy_a: Strict accuracy of A on these memes.
        macro_f1_a: Strict macro-F1 of A on these memes.
        macro_f1_b: Macro-F1 of B.
        difference_accuracy: A minus B, with a 95 % interval by paired bootstrap over memes.
        difference_macro_f1: Difference in macro-F1, with its interval.
        mcnemar_p: Two-sided p-value of the exact McNemar test.
        needed: Smallest difference in accuracy, as a share, that would be significant with the same number of memes
            that only one of the two gets right; more than 1 if the memes are too few for any difference to be.
        flipped: Every meme on which the outcomes of A and B differ, in the order of A.
        groups: Number of groups that the bootstrap drew, if the data set's card names groups; 0 if it drew memes.
    """

    protocol: Protocol
    name_a: str
    name_b: str
    n: int
    left_out_a: tuple[str, ...]
    left_out_b: tuple[str, ...]
    not_judged_a: int
    not_judged_b: int
    both_right: int
    only_a_right: int
    only_b_right: int
    both_wrong: int
    accuracy_a: float
    accuracy_b: float
    macro_f1_a: float
    macro_f1_b: float
    difference_accuracy: Figure
    difference_macro_f1: Figure
    mcnemar_p: float
    needed: float
    flipped: tuple[Flip, ...]
    groups: int = 0

    @property
    def sure(self) -> bool:
        """True if the difference in accuracy is significant."""
        return self.mcnemar_p < SURE


def compare(a: Results, b: Results, protocol: Protocol, *, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """Compares A and B meme by meme.

    Memes are matched by id. The bootstrap draws memes together with the answers of both, so that a meme that is hard
    for both is so in every resample (Efron & Tibshirani 1993, chapter 8). It draws whole groups if the card names some.

    Raises:
        BadRequest: They share no meme, or disagree on a gold label.
        ValueError: The protocol is not for a data set of this kind.
    """
    in_a = {one.meme.id: (gold, one) for gold, one in a.under(protocol)}
    in_b = {one.meme.id: (gold, one) for gold, one in b.under(protocol)}
    # In the order of A, so that the list of flipped memes is the same each time.
    shared = [meme for meme in in_a if meme in in_b]
    if not shared:
        raise BadRequest(
            f"{a.name} and {b.name} share no meme under the protocol {protocol}: there is nothing to compare. Compare "
            "predictions of the same split.",
            reason="NOTHING_SHARED",
        )
    at_odds = [meme for meme in shared if in_a[meme][0] != in_b[meme][0]]
    if at_odds:
        raise BadRequest(
            f"{a.name} and {b.name} disagree on the gold label of {len(at_odds):,} memes, {at_odds[0]} among them: "
            "they were scored on different data, or different versions of it.",
            reason="GOLD_DIFFERS",
        )
    # Gold x answer of A x answer of B: all that the figures and the paired bootstrap depend on.
    triples = [
        (int(in_a[meme][0]), *(_COLUMN[of[meme][1].prediction.outcome] for of in (in_a, in_b))) for meme in shared
    ]
    places = np.ravel_multi_index(np.array(triples).T, (2, 3, 3))
    cells = np.bincount(places, minlength=18).reshape(2, 3, 3)
    # Column 2 means no class, which is wrong whatever the gold label is.
    right = (
        (cells[0, 0, 0], cells[1, 1, 1]),
        (cells[0, 0, 1:], cells[1, 1, [0, 2]]),
        (cells[0, 1:, 0], cells[1, [0, 2], 1]),
    )
    both, only_a, only_b = (int(sum(np.sum(part) for part in parts)) for parts in right)
    n = len(shared)
    accuracy_a, f1_a = _strict(cells[None].sum(axis=3))
    accuracy_b, f1_b = _strict(cells[None].sum(axis=2))
    groups = group_numbers_of([in_a[meme][1] for meme in shared])
    if groups is None:
        drawn = resampling.draw_cells(cells, resamples, seed)
    else:
        drawn = resampling.draw_group_cells(places, cells.shape, groups, resamples=resamples, seed=seed)
    drawn_a, drawn_b = resampling.rates(drawn.sum(axis=3)), resampling.rates(drawn.sum(axis=2))
    return Comparison(
        protocol=protocol,
        name_a=a.name,
        name_b=b.name,
        n=n,
        left_out_a=tuple(meme for meme in in_a if meme not in in_b),
        left_out_b=tuple(meme for meme in in_b if meme not in in_a),
        not_judged_a=_not_judged([in_a[meme][1] for meme in shared]),
        not_judged_b=_not_judged([in_b[meme][1] for meme in shared]),
        both_right=both,
        only_a_right=only_a,
        only_b_right=only_b,
        both_wrong=n - both - only_a - only_b,
        accuracy_a=accuracy_a,
        accuracy_b=accuracy_b,
        macro_f1_a=f1_a,
        macro_f1_b=f1_b,
        difference_accuracy=Figure(
            # From the counts: the difference of two equal shares computed in floating point need not be exactly 0.
            (only_a - only_b) / n,
            *resampling.interval(drawn_a.accuracy - drawn_b.accuracy),
        ),
        difference_macro_f1=Figure(f1_a - f1_b, *resampling.interval(drawn_a.macro_f1 - drawn_b.macro_f1)),
        mcnemar_p=mcnemar(only_a, only_b),
        needed=_needed(only_a + only_b) / n,
        flipped=tuple(
            Flip(meme, in_a[meme][0], in_a[meme][1].prediction.outcome, in_b[meme][1].prediction.outcome)
            for meme in shared
            if in_a[meme][1].prediction.outcome is not in_b[meme][1].prediction.outcome
        ),
        groups=0 if groups is None else int(groups.max()) + 1,
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the exact McNemar test.

    The probability that the memes that only one of the two gets right split at least as unevenly as here if each were
    equally likely to go to either (Agresti 2013, "Categorical Data Analysis", section 11.1).
    """
    # If no meme is right in only one of them, there is nothing to test, and SciPy would raise.
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down procedure, in the same order."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        # Monotone: an adjusted p-value must not be smaller than that of a test with a smaller raw p-value.
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = largest
    return corrected


def in_words(comparison: Comparison) -> list[str]:
    """Describes the comparison and its caveats, in sentences."""
    a, b, n = comparison.name_a, comparison.name_b, comparison.n
    sentences = [
        f"Protocol {comparison.protocol}, {_memes(n)}: {a} has an accuracy of {comparison.accuracy_a:.3f}, {b} of "
        f"{comparison.accuracy_b:.3f}; macro-F1 {comparison.macro_f1_a:.3f} and {comparison.macro_f1_b:.3f}."
    ]
    for name, left_out in ((a, comparison.left_out_a), (b, comparison.left_out_b)):
        if left_out:
            verb = "is" if len(left_out) == 1 else "are"
            sentences.append(f"{_memes(len(left_out))} that only {name} was asked about {verb} not compared.")
    for name, count in ((a, comparison.not_judged_a), (b, comparison.not_judged_b)):
        if count:
            verb = "counts" if count == 1 else "count"
            sentences.append(f"{name} says nothing of {_memes(count)}, which {verb} as wrong.")
    if comparison.groups:
        sentences.append(
            f"The intervals are drawn over the {comparison.groups:,} groups that the card names; McNemar's test takes "
            "memes for independent, and is too sure where those of a group are alike."
        )
    sentences += [
        f"{a} is right on {_memes(comparison.only_a_right)} that {b} gets wrong, {b} on {comparison.only_b_right:,} "
        f"that {a} gets wrong; exact McNemar p = {comparison.mcnemar_p:.3g}.",
        f"The difference ({a} less {b}) is {signed_interval(comparison.difference_accuracy)} in accuracy and "
        f"{signed_interval(comparison.difference_macro_f1)} in macro-F1.",
    ]
    if comparison.sure:
        better = a if comparison.only_a_right > comparison.only_b_right else b
        sentences.append(f"{better} is better by more than chance would often make of two systems that are as good.")
    elif comparison.only_a_right == comparison.only_b_right == 0:
        sentences.append("They are right on the same memes: this test set can't tell them apart.")
    else:
        need = comparison.needed
        sentences.append(
            "This is within noise: this test set can't tell them apart. "
            + (
                f"With {_memes(n)} it would take a difference of about {100 * need:.1f} points."
                if need <= 1
                else f"{_memes(n)} are too few to tell any two systems apart."
            )
        )
    return sentences


def _strict(cells: Ints) -> tuple[float, float]:
    rates = resampling.rates(cells)
    return float(rates.accuracy[0]), float(rates.macro_f1[0])


def _not_judged(judged: list[Judged]) -> int:
    return sum(one.prediction.reason == NOT_JUDGED for one in judged)


def _needed(odd: int) -> int:
    """Smallest significant surplus of one side if ``odd`` memes are right in only one of the two.

    With fewer than six such memes no surplus is significant, and the answer is six: all of them on one side.
    """
    odd = max(odd, FEWEST_TO_SAY)
    # In steps of two: the two sides add up to `odd`, so their difference has the same parity.
    return next(
        surplus for surplus in range(odd % 2, odd + 1, 2) if mcnemar((odd + surplus) // 2, (odd - surplus) // 2) < SURE
    )


def _memes(count: int) -> str:
    return f"{count:,} meme" if count == 1 else f"{count:,} memes"


def signed_interval(figure: Figure) -> str:
    """A difference with its sign and its interval: ``+0.012 [-0.020, +0.044]``."""
    return f"{figure.value:+.3f} [{figure.low:+.3f}, {figure.high:+.3f}]"
