"""Comparison of two sets of predictions on the same memes: which is better, and is the difference significant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from court.display import word
from court.errors import BadRequest
from eval.datasets.items import Outcome, Prediction, Protocol
from eval.runs.results import NOT_JUDGED, Judged, Results
from eval.scores.measure import (
    LOWER_IS_BETTER,
    RESAMPLES,
    Figure,
    Ints,
    TaskArrays,
    differing_answers,
    draws_among,
    figure,
    interval,
    listed,
    metric_of,
    name_over_all,
    resampled,
    right_answers,
    value_of,
)
from eval.scores.metrics import HARM, Card, group_numbers_of, noise_in_words, verdict_arrays
from eval.scores.task_card import arrays_of, metrics_of, question_of
from eval.solvers.question import gold_of

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
    not_judged_a: int
    not_judged_b: int
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
    needed: float
    """Smallest difference in accuracy, as a share, that would be significant with the same number of memes that only
    one of the two gets right; more than 1 if the memes are too few for any difference to be."""
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


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of a run to be compared: gold labels and prediction of each meme, by id."""

    of: Mapping[str, tuple[tuple[str, ...], Judged]]
    arrays: Callable[[Sequence[Judged]], TaskArrays]
    said: Callable[[Judged], tuple[str, ...] | None]

    @classmethod
    def under(cls, results: Results, protocol: Protocol) -> _Answers:
        """Verdicts, as answers to the task of harm."""
        gold = {one.meme.id: (harmful, one) for harmful, one in results.under(protocol)}
        return cls(
            {id_: ((HARM[harmful],), one) for id_, (harmful, one) in gold.items()},
            lambda judged: verdict_arrays([(gold[one.meme.id][0], one) for one in judged]),
            lambda one: (word(one.prediction.outcome),),
        )

    @classmethod
    def to_question(cls, results: Results) -> _Answers:
        question = question_of(results)

        def labels(one: Judged) -> tuple[str, ...] | None:
            answer = one.prediction.said.get(question.task)
            return None if answer is None else answer.labels

        return cls(
            {
                one.meme.id: (question.in_order(gold_of(one.meme, question.task) or frozenset()), one)
                for one in arrays_of(results)[0]
            },
            lambda judged: arrays_of(replace(results, judged=tuple(judged)))[1],
            labels,
        )


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
    if protocol is not None:
        of_a, of_b = (_Answers.under(run, protocol) for run in (a, b))
    else:
        _require_same_question(a, b)
        of_a, of_b = (_Answers.to_question(run) for run in (a, b))
    ids = _shared_memes(a, b, of_a, of_b, where=f" under the protocol {protocol}" if protocol else "")
    judged_a, judged_b = ([of.of[id_][1] for id_ in ids] for of in (of_a, of_b))
    systems = of_a.arrays(judged_a), of_b.arrays(judged_b)
    groups, n = group_numbers_of(judged_a), len(ids)
    if protocol is not None:
        task, official = "harm", "accuracy"
        usual: tuple[str, ...] = ("accuracy", "macro-f1")
    else:
        question = question_of(a)
        # Metrics of probabilities only if both have some; the ceiling of agreement is a figure of the annotators.
        scored = all(bool((~np.isnan(of.scores)).any()) for of in systems)
        task, usual = question.task, metrics_of(question, scored=scored, votes=False)
        official = question.official or usual[0]
    # A system that leaves the harder memes open is better on the others, which is no merit.
    names = tuple(dict.fromkeys(name_over_all(name, *systems) for name in usual))
    values = [{name: value_of(metric_of(name, of.labels), of) for name in names} for of in systems]
    differences = paired_differences(names, systems, groups, resamples=resamples, seed=seed)
    right_a, right_b = map(right_answers, systems)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    if protocol is not None:
        # From the counts: the difference of two equal shares computed in floating point need not be exactly 0.
        differences["accuracy"] = replace(differences["accuracy"], value=(only_a - only_b) / n)
    answers = [(of_a.said(one), of_b.said(other)) for one, other in zip(judged_a, judged_b, strict=True)]
    return Comparison(
        task=task,
        protocol=protocol,
        name_a=a.name,
        name_b=b.name,
        n=n,
        groups=0 if groups is None else int(groups.max()) + 1,
        left_out_a=tuple(id_ for id_ in of_a.of if id_ not in of_b.of),
        left_out_b=tuple(id_ for id_ in of_b.of if id_ not in of_a.of),
        not_judged_a=_not_judged(judged_a),
        not_judged_b=_not_judged(judged_b),
        official=name_over_all(official, *systems),
        a=values[0],
        b=values[1],
        differences=differences,
        both_right=int((right_a & right_b).sum()),
        only_a_right=only_a,
        only_b_right=only_b,
        both_wrong=int((~right_a & ~right_b).sum()),
        mcnemar_p=mcnemar(only_a, only_b),
        needed=_needed(only_a + only_b) / n,
        changed=tuple(
            ChangedAnswer(id_, of_a.of[id_][0], one, other)
            for id_, (one, other) in zip(ids, answers, strict=True)
            if one != other
        ),
        differing=draws_among(differing_answers(*systems), groups),
    )


def _require_same_question(a: Results, b: Results) -> None:
    question_a, question_b = question_of(a), question_of(b)
    # The way of asking may differ: that is the purpose of the comparison.
    if question_a.material() != question_b.material():
        raise BadRequest(
            f"{a.name} asked for {question_a.task} and {b.name} for {question_b.task}, or with other labels: their "
            "answers can't be compared.",
            reason="NOTHING_SHARED",
        )


def _shared_memes(a: Results, b: Results, of_a: _Answers, of_b: _Answers, where: str) -> list[str]:
    """Ids of the memes that both were asked about, in the order of A, so that lists of memes are the same each time."""
    shared = [meme for meme in of_a.of if meme in of_b.of]
    if not shared:
        raise BadRequest(
            f"{a.name} and {b.name} share no meme{where}: there is nothing to compare. Compare predictions of the same "
            "split.",
            reason="NOTHING_SHARED",
        )
    # With two versions of gold, the comparison would be between the versions.
    at_odds = [meme for meme in shared if of_a.of[meme][0] != of_b.of[meme][0]]
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
    a, b, official = comparison.name_a, comparison.name_b, comparison.official
    what = f"Protocol {comparison.protocol}" if comparison.protocol else comparison.task
    figures = (
        f"{name} of {a} {figure(value)}, of {b} {figure(comparison.b[name])}" for name, value in comparison.a.items()
    )
    sentences = [f"{what}, {_memes(comparison.n)}: {'; '.join(figures)}."]
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
    sentences.append(
        f"{a} is right on {_memes(comparison.only_a_right)} that {b} gets wrong, {b} on {comparison.only_b_right:,} "
        f"that {a} gets wrong; exact McNemar p = {comparison.mcnemar_p:.3g}."
    )
    differences = [f"{signed_interval(figure)} in {name}" for name, figure in comparison.differences.items()]
    if differences:
        sentences.append(f"The difference ({a} less {b}) is {', '.join(differences)}.")
    if comparison.sure:
        return [
            *sentences,
            f"{comparison.better} is better in {official} by more than chance would often make of two systems that are "
            "as good.",
        ]
    noise = f"In {official} this is within noise: this test set can't tell them apart."
    if official == "accuracy" and comparison.only_a_right == comparison.only_b_right == 0:
        noise = "They are right on the same memes: this test set can't tell them apart."
    elif official == "accuracy":
        need = comparison.needed
        noise += (
            f" With {_memes(comparison.n)} it would take a difference of about {100 * need:.1f} points."
            if need <= 1
            else f" {_memes(comparison.n)} are too few to tell any two systems apart."
        )
    sentences.append(noise)
    if comparison.mcnemar_p < SURE:
        sentences.append("Whole answers differ by more than chance, the official figure does not.")
    return sentences


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
