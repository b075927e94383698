"""Comparison of two sets of predictions on the same memes: which is better, and is the difference significant."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from court.errors import BadRequest
from eval.datasets.items import Protocol
from eval.runs.results import Results
from eval.scores.measure import (
    FEWEST_TO_SAY,
    LOWER_IS_BETTER,
    RESAMPLES,
    SURE,
    Figure,
    differing_answers,
    draws_among,
    figure,
    mcnemar,
    metric_of,
    name_over_all,
    paired_differences,
    right_answers,
    value_of,
)
from eval.scores.metrics import answers_of, metrics_of, question_of, shared_answers


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """A meme on which the answers of A and B differ; None for no answer, and in verdicts the reason in a word."""

    meme: str
    gold: tuple[str, ...]
    a: tuple[str, ...] | None
    b: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A and B on the memes that both were asked about; a meme without an answer is wrong."""

    task: str
    protocol: Protocol | None
    """Protocol by which gold labels of verdicts became two classes; None if the runs asked a question of a card."""
    name_a: str
    name_b: str
    n: int
    groups: int
    """Number of groups that the bootstrap drew; 0 if it drew memes."""
    left_out_a: tuple[str, ...]
    left_out_b: tuple[str, ...]
    official: str
    """Metric that the data set's authors rank by; its strict form if one of the two has no value for some memes."""
    a: Mapping[str, float | None]
    b: Mapping[str, float | None]
    differences: Mapping[str, Figure]
    """A minus B by metric over all ``n``, with a 95 % interval by paired bootstrap. Metrics that one of the two has for
    some memes only are compared in their strict form."""
    both_right: int
    only_a_right: int
    only_b_right: int
    both_wrong: int
    mcnemar_p: float
    """Two-sided p-value of the exact McNemar test on the memes that only one of the two gets right."""
    changed: tuple[ChangedAnswer, ...]
    """Every meme on which their answers differ, in the order of A."""
    differing: int
    """Number of independent draws (memes, or groups) on which they differ in labels or probabilities."""

    @property
    def better(self) -> str:
        """Name of the one that is ahead in the official metric; empty if neither is."""
        difference = self.differences.get(self.official)
        if difference is None or not difference.value:
            return ""
        return self.name_a if (difference.value > 0) is not (self.official in LOWER_IS_BETTER) else self.name_b

    @property
    def sure(self) -> bool:
        """True if the difference in the official metric is significant: of verdicts by McNemar's exact test.

        Of other answers, if its interval excludes 0; never with fewer than six memes on which they differ: resamples of
        so few may all fall on one side, yet one of the two is ahead on all of them by chance more often than one time
        in twenty.
        """
        if self.protocol is not None:
            return self.mcnemar_p < SURE
        difference = self.differences.get(self.official)
        outside = difference is not None and not difference.low <= 0 <= difference.high
        return outside and self.differing >= FEWEST_TO_SAY

    @property
    def judgment(self) -> str:
        """``better``, ``worse``, ``within noise`` or ``too few to say``: A, in the official metric."""
        # So few can't make either test significant, however they fall.
        odd = self.differing if self.protocol is None else self.only_a_right + self.only_b_right
        if 0 < odd < FEWEST_TO_SAY:
            return "too few to say"
        if not self.sure:
            return "within noise"
        return "better" if self.better == self.name_a else "worse"


def compare(
    a: Results, b: Results, protocol: Protocol | None = None, *, resamples: int = RESAMPLES, seed: int = 0
) -> Comparison:
    """Compares A and B meme by meme, matched by id.

    The bootstrap draws memes together with the answers of both, so that a meme that is hard for both is so in every
    resample (Efron & Tibshirani 1993, chapter 8). It draws whole groups if the card names some.

    Raises:
        BadRequest: They asked different questions, share no meme, or disagree on a gold label.
        ValueError: The protocol is not for a data set of this kind.
    """
    if protocol is None and question_of(a).material() != question_of(b).material():
        # The way of asking may differ: that is the purpose of the comparison.
        raise BadRequest(
            f"{a.name} asked for {question_of(a).task} and {b.name} for {question_of(b).task}, or with other labels: "
            "their answers can't be compared.",
            reason="NOTHING_SHARED",
        )
    whole = answers_of(a, protocol), answers_of(b, protocol)
    of_a, of_b = shared_answers(*whole)
    systems, groups = (of_a.arrays, of_b.arrays), of_a.groups
    usual: tuple[str, ...] = ("accuracy", "macro-f1")
    if protocol is None:
        # Metrics of probabilities only if both have some.
        scored = all(bool((~np.isnan(of.scores)).any()) for of in systems)
        usual = metrics_of(question_of(a), scored=scored)
    # A system that leaves the harder memes open is better on the others, which is no merit.
    names = tuple(dict.fromkeys(name_over_all(name, *systems) for name in usual))
    values = [{name: value_of(metric_of(name, of.labels), of) for name in names} for of in systems]
    right_a, right_b = map(right_answers, systems)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    shared = {one.meme.id for one in of_a.judged}
    left_out = [tuple(one.meme.id for one in each.judged if one.meme.id not in shared) for each in whole]
    return Comparison(
        task=of_a.task,
        protocol=protocol,
        name_a=a.name,
        name_b=b.name,
        n=len(of_a.judged),
        groups=0 if groups is None else int(groups.max()) + 1,
        left_out_a=left_out[0],
        left_out_b=left_out[1],
        # The first is the one that the data set's authors rank by.
        official=names[0],
        a=values[0],
        b=values[1],
        differences=paired_differences(names, systems, groups, resamples=resamples, seed=seed),
        both_right=int((right_a & right_b).sum()),
        only_a_right=only_a,
        only_b_right=only_b,
        both_wrong=int((~right_a & ~right_b).sum()),
        mcnemar_p=mcnemar(only_a, only_b),
        changed=tuple(
            ChangedAnswer(one.meme.id, gold, *both)
            for one, gold, *both in zip(of_a.judged, of_a.gold, of_a.answers, of_b.answers, strict=True)
            if both[0] != both[1]
        ),
        differing=draws_among(differing_answers(*systems), groups),
    )


def in_words(comparison: Comparison) -> list[str]:
    """Describes the comparison and its caveats, in sentences."""
    a, b, official = comparison.name_a, comparison.name_b, comparison.official
    what = f"Protocol {comparison.protocol}" if comparison.protocol else comparison.task
    figures = "; ".join(
        f"{name} of {a} {figure(value)}, of {b} {figure(comparison.b[name])}" for name, value in comparison.a.items()
    )
    sentences = [f"{what}, {_memes(comparison.n)}: {figures}."]
    for name, left_out in ((a, comparison.left_out_a), (b, comparison.left_out_b)):
        if left_out:
            verb = "is" if len(left_out) == 1 else "are"
            sentences.append(f"{_memes(len(left_out))} that only {name} was asked about {verb} not compared.")
    if comparison.groups:
        sentences.append(
            f"The intervals are drawn over the {comparison.groups:,} groups that the card names; McNemar's test takes "
            "memes for independent, and is too sure where those of a group are alike."
        )
    sentences.append(
        f"{a} is right on {_memes(comparison.only_a_right)} that {b} gets wrong, {b} on {comparison.only_b_right:,} "
        f"that {a} gets wrong; exact McNemar p = {comparison.mcnemar_p:.3g}."
    )
    differences = [f"{figure(value, '+.3f')} in {name}" for name, value in comparison.differences.items()]
    if differences:
        sentences.append(f"The difference ({a} less {b}) is {', '.join(differences)}.")
    if comparison.sure:
        return [
            *sentences,
            f"{comparison.better} is better in {official} by more than chance would often make of two systems that are "
            "as good.",
        ]
    same = official == "accuracy" and comparison.only_a_right == comparison.only_b_right == 0
    what = "They are right on the same memes" if same else f"In {official} this is within noise"
    sentences.append(f"{what}: this test set can't tell them apart.")
    if comparison.mcnemar_p < SURE:
        sentences.append("Whole answers differ by more than chance, the official figure does not.")
    return sentences


def _memes(count: int) -> str:
    return f"{count:,} meme" if count == 1 else f"{count:,} memes"
