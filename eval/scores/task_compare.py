"""Comparison of two runs that asked the same question on the same memes, with significance tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from court.errors import BadRequest
from eval.runs.results import Judged, Results
from eval.scores.bootstrap import RESAMPLES, Figure, draws_among
from eval.scores.compare import FEWEST_TO_SAY, SURE, mcnemar, paired_differences, shared_memes, signed_interval
from eval.scores.label_metrics import (
    LOWER_IS_BETTER,
    differing_answers,
    metric_of,
    name_over_all,
    right_answers,
    value_of,
)
from eval.scores.metrics import group_numbers_of
from eval.scores.tables import figure
from eval.scores.task_card import arrays_of, metrics_of, question_of
from eval.solvers.question import gold_of


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """A meme on which the answers of A and B differ; None for no answer."""

    meme: str
    gold: tuple[str, ...]
    a: tuple[str, ...] | None
    b: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """A and B on the memes that both were asked about; a meme without an answer is wrong.

    Attributes:
        groups: Number of groups that the bootstrap drew; 0 if it drew memes.
        only_one: Number of memes that only one of the two was asked about; not compared.
        official: Metric that the data set's authors rank by; its strict form if one of the two has no value for some
            memes.
        differences: A minus B by metric over all ``n``, with a 95 % interval by paired bootstrap. Metrics that one of
            the two has for some memes only are compared in their strict form.
        only_a_right: Number of memes on which only A's answer equals gold.
        only_b_right: Number of memes on which only B's answer equals gold.
        mcnemar_p: Two-sided p-value of the exact McNemar test on these.
        changed: Every meme on which their answers differ, in the order of A.
        differing: Number of independent draws (memes, or groups) on which they differ in labels or probabilities.
    """

    task: str
    name_a: str
    name_b: str
    n: int
    groups: int
    only_one: int
    official: str
    a: Mapping[str, float | None]
    b: Mapping[str, float | None]
    differences: Mapping[str, Figure]
    only_a_right: int
    only_b_right: int
    mcnemar_p: float
    changed: tuple[ChangedAnswer, ...]
    differing: int

    @property
    def better(self) -> str:
        """Name of the one that is ahead in the official metric; empty if neither is."""
        difference = self.differences.get(self.official)
        if difference is None or not difference.value:
            return ""
        return self.name_a if (difference.value > 0) is not (self.official in LOWER_IS_BETTER) else self.name_b

    @property
    def sure(self) -> bool:
        """True if the interval of the difference in the official metric excludes 0.

        Never true with fewer than six memes on which they differ: resamples of so few may all fall on one side, yet one
        of the two is ahead on all of them by chance more often than one time in twenty.
        """
        difference = self.differences.get(self.official)
        outside = difference is not None and not difference.low <= 0 <= difference.high
        return outside and self.differing >= FEWEST_TO_SAY


def compare_tasks(a: Results, b: Results, *, resamples: int = RESAMPLES, seed: int = 0) -> TaskComparison:
    """Compares A and B meme by meme, matched by id.

    The bootstrap draws memes, or groups of them, together with the answers of both.

    Raises BadRequest: They asked different questions, share no meme, or disagree on a gold label.
    """
    question_a, question_b = question_of(a), question_of(b)
    # The way of asking may differ: that is the purpose of the comparison.
    if question_a.material() != question_b.material():
        raise BadRequest(
            f"{a.name} asked for {question_a.task} and {b.name} for {question_b.task}, or with other labels: their "
            "answers can't be compared.",
            reason="NOTHING_SHARED",
        )
    task = question_a.task
    in_a, in_b = ({one.meme.id: one for one in arrays_of(results)[0]} for results in (a, b))
    gold_a, gold_b = ({id_: gold_of(one.meme, task) for id_, one in of.items()} for of in (in_a, in_b))
    pairs = [(in_a[id_], in_b[id_]) for id_ in shared_memes(a, b, gold_a, gold_b)]
    # Both on the same memes in the same order: rows of the arrays are compared one by one.
    (judged, of_a), (_, of_b) = (
        arrays_of(replace(results, judged=tuple(pair[place] for pair in pairs))) for place, results in enumerate((a, b))
    )
    groups = group_numbers_of(judged)
    # Metrics of probabilities only if both have some.
    scored = bool((~np.isnan(of_a.scores)).any() and (~np.isnan(of_b.scores)).any())
    # The ceiling of agreement is a figure of the annotators, the same for both runs.
    usual = metrics_of(question_a, scored=scored, votes=False)
    # A system that leaves the harder memes open is better on the others, which is no merit.
    names = tuple(dict.fromkeys(name_over_all(name, of_a, of_b) for name in usual))
    figures = [{name: value_of(metric_of(name, question_a.labels), of) for name in names} for of in (of_a, of_b)]
    right_a, right_b = right_answers(of_a), right_answers(of_b)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    return TaskComparison(
        task=task,
        name_a=a.name,
        name_b=b.name,
        n=len(pairs),
        groups=0 if groups is None else int(groups.max()) + 1,
        only_one=len(in_a.keys() ^ in_b.keys()),
        official=name_over_all(question_a.official or usual[0], of_a, of_b),
        a=figures[0],
        b=figures[1],
        differences=paired_differences(names, (of_a, of_b), groups, resamples=resamples, seed=seed),
        only_a_right=only_a,
        only_b_right=only_b,
        mcnemar_p=mcnemar(only_a, only_b),
        changed=tuple(
            ChangedAnswer(x.meme.id, question_a.in_order(gold_of(x.meme, task) or frozenset()), labels_a, labels_b)
            for x, y in pairs
            if (labels_a := _answered_labels(x, task)) != (labels_b := _answered_labels(y, task))
        ),
        differing=draws_among(differing_answers(of_a, of_b), groups),
    )


def task_comparison_in_words(comparison: TaskComparison) -> list[str]:
    """Describes the comparison, in sentences."""
    a, b, official = comparison.name_a, comparison.name_b, comparison.official
    over = f" in {comparison.groups:,} groups" if comparison.groups else ""
    sentences = [
        f"{comparison.task}, {comparison.n:,} memes{over}: {official} of {a} {figure(comparison.a[official])}, of {b} "
        f"{figure(comparison.b[official])}."
    ]
    if comparison.only_one:
        sentences.append(f"{comparison.only_one:,} memes that one alone was asked about are not compared.")
    sentences.append(
        f"{a} is right on {comparison.only_a_right:,} memes that {b} gets wrong, {b} on {comparison.only_b_right:,} "
        f"that {a} gets wrong; exact McNemar p = {comparison.mcnemar_p:.3g}."
    )
    differences = [f"{signed_interval(figure)} in {name}" for name, figure in comparison.differences.items()]
    if differences:
        sentences.append(f"The difference ({a} less {b}) is {', '.join(differences)}.")
    if comparison.sure:
        sentences.append(f"{comparison.better} is better in {official} by more than these memes leave to chance.")
    else:
        sentences.append(f"In {official} this is within noise: these memes can't tell the two apart.")
    if comparison.mcnemar_p < SURE and not comparison.sure:
        sentences.append("Whole answers differ by more than chance, the official figure does not.")
    return sentences


def _answered_labels(one: Judged, task: str) -> tuple[str, ...] | None:
    answer = one.prediction.said.get(task)
    return None if answer is None else answer.labels
