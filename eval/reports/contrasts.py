"""Contrasts of each run, meme by meme: with the first run, its own precedents' vote, and the majority class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from court.errors import BadRequest
from eval.datasets.protocol import Protocol
from eval.reports import words
from eval.runs.results import Judged, Results
from eval.scores.compare import FEWEST_TO_SAY, SURE, Comparison, compare, holm
from eval.scores.metrics import Card
from eval.scores.tables import noise_in_words
from eval.solvers.prediction import Outcome, Prediction

_FEW = 50
"""Number of memes of a class below which the report says how much a single one weighs."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Comparison of a run with a rival, on the memes of both."""

    label: str
    against: str
    comparison: Comparison

    @property
    def judgment(self) -> str:
        """``better``, ``worse``, ``within noise`` or ``too few to say``, in accuracy.

        With fewer than six memes that only one of the two gets right, McNemar's exact test can't fall below 0.05.
        """
        odd = self.comparison.only_a_right + self.comparison.only_b_right
        # So few can't make the exact test significant, however they fall.
        if 0 < odd < FEWEST_TO_SAY:
            return "too few to say"
        if not self.comparison.sure:
            return "within noise"
        return "better" if self.comparison.only_a_right > self.comparison.only_b_right else "worse"


def contrasts(runs: Sequence[tuple[str, Results]], protocol: Protocol, resamples: int) -> tuple[Contrast, ...]:
    """Compares each finished run (label, results) with the majority class, its vote, and the first of them.

    Raises:
        BadRequest: Two runs disagree on a gold label.
    """
    found = []
    # In an unfinished run, memes without an answer yet would count as wrong.
    finished = [run for run in runs if run[1].finished]
    for place, (label, results) in enumerate(finished):
        rivals = [(f"always “{_word(_majority(results, protocol))}”", _constant(results, protocol))]
        if (voted := _vote(results)).judged:
            rivals.append(("the precedents' vote", voted))
        if place:
            rivals.append(finished[0])
        for against, rival in rivals:
            try:
                compared = compare(results, rival, protocol, resamples=resamples)
            except BadRequest as error:
                if error.reason == "NOTHING_SHARED":  # parts of a split, or memes that the protocol drops
                    continue
                raise
            found.append(Contrast(label, against, compared))
    return tuple(found)


def remarks(rows: Sequence[tuple[str, Card]], against: Sequence[Contrast]) -> tuple[str, ...]:
    """Explains the limits of a table's figures, in sentences."""
    label, card = rows[0]
    found = [noise_in_words(card)]
    if card.groups:
        found.append(
            f"The memes are of {card.groups:,} groups (of the card, or of one template), which are drawn whole for the "
            "intervals: memes of a group are no independent draws, and where they are alike, tests by memes are too "
            "sure."
        )
    few, name = min((card.harmful, "harmful"), (card.benign, "not harmful"))
    if 0 < few < _FEW:
        found.append(
            f"Only {few:,} of {card.n:,} memes are {name}: one of them more or less moves that class's recall by "
            f"{100 / few:.1f} points."
        )
    elif few == 0:
        found.append(f"None of the {card.n:,} memes is {name}: neither macro-F1 nor AUROC says anything here.")
    if any((other.n, other.harmful) != (card.n, card.harmful) for _, other in rows):
        found.append(
            f"The runs judged different memes, and are compared on those of both. The sentences above are on {label}'s."
        )
    found += [_sentence(rival, against) for rival in dict.fromkeys(contrast.against for contrast in against)]
    if len(against) > 3:
        found.append(
            f"These are {len(against)} comparisons. Among so many between systems that are equally good, one in "
            f"{1 / SURE:.0f} comes out with p < {SURE} by chance. {_after_correction(against)}"
        )
    return tuple(found)


def _after_correction(against: Sequence[Contrast]) -> str:
    """Names the comparisons of a table that remain significant after Holm's correction."""
    corrected = holm([one.comparison.mcnemar_p for one in against])
    left = [f"{one.label} against {one.against}" for one, p in zip(against, corrected, strict=True) if p < SURE]
    return f"Left after Holm's correction for that many: {'; '.join(left) or 'none'}."


def _sentence(rival: str, against: Sequence[Contrast]) -> str:
    """Sums up the contrasts of all runs with one rival."""
    parts = []
    for judgment, words_of in (
        ("better", "better by more than chance often makes"),
        ("worse", "worse by more than chance often makes"),
        ("within noise", "within noise"),
        ("too few to say", "not to be told from it on so few memes"),
    ):
        runs = [one.label for one in against if one.against == rival and one.judgment == judgment]
        if runs:
            parts.append(f"{words.listed(runs)} {'is' if len(runs) == 1 else 'are'} {words_of}")
    return f"In accuracy against {rival}: {'; '.join(parts)}."


def _majority(results: Results, protocol: Protocol) -> bool:
    gold = [harmful for harmful, _ in results.under(protocol)]
    # If the classes are of equal size, either will do.
    return 2 * sum(gold) > len(gold)


def _constant(results: Results, protocol: Protocol) -> Results:
    outcome = _outcome(_majority(results, protocol))
    constant = (Judged(one.meme, Prediction(meme=one.meme.id, outcome=outcome)) for one in results.judged)
    return replace(results, name=f"always {_word(outcome is Outcome.HARMFUL)}", judged=tuple(constant))


def _vote(results: Results) -> Results:
    votes = (
        Judged(one.meme, Prediction(meme=one.meme.id, outcome=_outcome(one.prediction.vote_harmful)))
        for one in results.judged
        if one.prediction.vote_harmful is not None
    )
    return replace(results, name=f"the precedents' vote of {results.name}", judged=tuple(votes))


def _outcome(harmful: bool) -> Outcome:
    return Outcome.HARMFUL if harmful else Outcome.NOT_HARMFUL


def _word(harmful: bool) -> str:
    return "harmful" if harmful else "not harmful"
