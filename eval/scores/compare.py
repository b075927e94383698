"""Comparison of two sets of predictions on the same memes: which is better, and is the difference significant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from court.errors import BadRequest
from eval.datasets.protocol import Protocol
from eval.runs.results import NOT_JUDGED, Judged, Results
from eval.scores.bootstrap import RESAMPLES, Figure, Ints, draws_among, interval
from eval.scores.label_metrics import (
    LOWER_IS_BETTER,
    TaskArrays,
    differing_answers,
    metric_of,
    name_over_all,
    resampled,
    right_answers,
    value_of,
)
from eval.scores.metrics import HARM, Card, group_numbers_of, verdict_arrays
from eval.scores.tables import figure, listed, noise_in_words
from eval.scores.task_card import arrays_of, metrics_of, question_of
from eval.solvers.question import Outcome, Prediction, gold_of


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """A meme on which the answers of A and B differ; None for no answer."""

    meme: str
    gold: tuple[str, ...]
    a: tuple[str, ...] | None
    b: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """A and B on the memes that both were asked about; a meme without an answer is wrong."""

    task: str
    name_a: str
    name_b: str
    n: int
    groups: int
    """Number of groups that the bootstrap drew; 0 if it drew memes."""
    only_one: int
    """Number of memes that only one of the two was asked about; not compared."""
    official: str
    """Metric that the data set's authors rank by; its strict form if one of the two has no value for some memes."""
    a: Mapping[str, float | None]
    b: Mapping[str, float | None]
    differences: Mapping[str, Figure]
    """A minus B by metric over all ``n``, with a 95 % interval by paired bootstrap. Metrics that one of the two has for
    some memes only are compared in their strict form."""
    only_a_right: int
    """Number of memes on which only A's answer equals gold."""
    only_b_right: int
    """Number of memes on which only B's answer equals gold."""
    mcnemar_p: float
    """Two-sided p-value of the exact McNemar test on these."""
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


SURE = 0.05
"""Significance level: a difference with a smaller p-value is not attributed to chance."""
FEWEST_TO_SAY = 6
"""Fewest memes that only one of two systems gets right for the exact test to fall below :data:`SURE` (2 * 0.5 ** 6)."""
TOO_FEW_DIFFER = (
    "Fewer than six memes (or groups of them) of difference count as noise, whatever the interval: so few all fall on "
    "one side by chance too often."
)
"""Explains why a difference counts as noise although its interval excludes 0."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A meme on which A and B differ."""

    meme: str
    harmful: bool
    a: Outcome
    b: Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """A and B on the memes that both were asked about. A missing class counts as wrong, as in the strict figures."""

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
    """A minus B, with a 95 % interval by paired bootstrap over memes."""
    difference_macro_f1: Figure
    mcnemar_p: float
    needed: float
    """Smallest difference in accuracy, as a share, that would be significant with the same number of memes that only
    one of the two gets right; more than 1 if the memes are too few for any difference to be."""
    flipped: tuple[Flip, ...]
    """Every meme on which the outcomes of A and B differ, in the order of A."""
    groups: int = 0
    """Number of groups that the bootstrap drew, if the data set's card names groups; 0 if it drew memes."""

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
    shared = shared_memes(
        a,
        b,
        {meme: gold for meme, (gold, _) in in_a.items()},
        {meme: gold for meme, (gold, _) in in_b.items()},
        where=f" under the protocol {protocol}",
    )
    pairs = [(in_a[meme], in_b[meme]) for meme in shared]
    of_a, of_b = verdict_arrays([one for one, _ in pairs]), verdict_arrays([other for _, other in pairs])
    groups = group_numbers_of([one for (_, one), _ in pairs])
    differences = paired_differences(("accuracy", "macro-f1"), (of_a, of_b), groups, resamples=resamples, seed=seed)
    right_a, right_b = right_answers(of_a), right_answers(of_b)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    n, accuracy, macro_f1 = len(shared), differences["accuracy"], differences["macro-f1"]
    return Comparison(
        protocol=protocol,
        name_a=a.name,
        name_b=b.name,
        n=n,
        left_out_a=tuple(meme for meme in in_a if meme not in in_b),
        left_out_b=tuple(meme for meme in in_b if meme not in in_a),
        not_judged_a=_not_judged(one for (_, one), _ in pairs),
        not_judged_b=_not_judged(one for _, (_, one) in pairs),
        both_right=int((right_a & right_b).sum()),
        only_a_right=only_a,
        only_b_right=only_b,
        both_wrong=int((~right_a & ~right_b).sum()),
        accuracy_a=float(right_a.mean()),
        accuracy_b=float(right_b.mean()),
        macro_f1_a=_macro_f1(of_a),
        macro_f1_b=_macro_f1(of_b),
        # From the counts: the difference of two equal shares computed in floating point need not be exactly 0.
        difference_accuracy=replace(accuracy, value=(only_a - only_b) / n),
        difference_macro_f1=macro_f1,
        mcnemar_p=mcnemar(only_a, only_b),
        needed=_needed(only_a + only_b) / n,
        flipped=tuple(
            Flip(meme, gold, one.prediction.outcome, other.prediction.outcome)
            for meme, ((gold, one), (_, other)) in zip(shared, pairs, strict=True)
            if one.prediction.outcome is not other.prediction.outcome
        ),
        groups=0 if groups is None else int(groups.max()) + 1,
    )


def shared_memes(
    a: Results, b: Results, gold_a: Mapping[str, object], gold_b: Mapping[str, object], where: str = ""
) -> list[str]:
    """Ids of the memes that both were asked about, in the order of A, so that lists of memes are the same each time.

    Raises BadRequest: There are none, or A and B disagree on a gold label.
    """
    shared = [meme for meme in gold_a if meme in gold_b]
    if not shared:
        raise BadRequest(
            f"{a.name} and {b.name} share no meme{where}: there is nothing to compare. Compare predictions of the same "
            "split.",
            reason="NOTHING_SHARED",
        )
    # With two versions of gold, the comparison would be between the versions.
    at_odds = [meme for meme in shared if gold_a[meme] != gold_b[meme]]
    if at_odds:
        raise BadRequest(
            f"{a.name} and {b.name} disagree on the gold label of {len(at_odds):,} memes, {at_odds[0]} among them: "
            "they were scored on different data, or different versions of it.",
            reason="GOLD_DIFFERS",
        )
    return shared


def paired_differences(
    names: Sequence[str],
    systems: tuple[TaskArrays, TaskArrays],
    groups: Ints | None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Figure]:
    """Differences between two systems on the same memes, by metric, without those that have no value."""
    metrics = [metric_of(name, systems[0].labels) for name in names]
    drawn = resampled(metrics, systems, groups, resamples=resamples, seed=seed)
    found = {}
    for name, metric, over in zip(names, metrics, drawn[0] - drawn[1], strict=True):
        one, other = (value_of(metric, arrays) for arrays in systems)
        over = over[~np.isnan(over)]
        if one is not None and other is not None and over.size:
            found[name] = Figure(one - other, *interval(over))
    return found


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


def _macro_f1(arrays: TaskArrays) -> float:
    value = value_of(metric_of("macro-f1", HARM), arrays)
    assert value is not None, "it is defined for any memes"
    return value


def _not_judged(judged: Iterable[Judged]) -> int:
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

    Raises BadRequest: Two runs disagree on a gold label.
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
            parts.append(f"{listed(runs)} {'is' if len(runs) == 1 else 'are'} {words_of}")
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
