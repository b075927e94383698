"""Answers of runs as arrays, and the card of figures of verdicts, which answer one task: is the meme harmful?

Decided figures are over the memes that were given a class, strict ones over all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import compress
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from court.display import word
from court.errors import BadRequest
from eval.datasets.items import JudgedMeme, Level, Outcome, Protocol
from eval.runs.results import Judged, Results
from eval.scores.measure import (
    NOTHING,
    RESAMPLES,
    Figure,
    Ints,
    TaskArrays,
    figure,
    figure_over,
    measure,
    metric_of,
    value_of,
)
from eval.solvers.question import Question, gold_of
from retrieval.audit.leakage import number_linked

OUTCOMES = (Outcome.NOT_HARMFUL, Outcome.HARMFUL, Outcome.UNDECIDED, Outcome.FAILED)
"""The columns of a confusion matrix, in this order."""

BINS = 10
"""Largest number of bins of a calibration curve."""


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Scores of one class."""

    name: str
    precision: Figure | None
    recall: Figure | None
    f1: Figure
    """Harmonic mean of both; 0 if the class is neither present nor predicted, as in scikit-learn."""
    support: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Figures of labels over some memes."""

    n: int
    accuracy: Figure
    macro_f1: Figure
    classes: tuple[ClassScores, ClassScores]


@dataclass(frozen=True, slots=True)
class Bin:
    """One point of a calibration curve."""

    low: float
    high: float
    n: int
    mean_score: float
    share_harmful: float


Confusion = tuple[tuple[int, int, int, int], tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Card:
    """All figures of one set of predictions under one protocol."""

    protocol: Protocol
    n: int
    harmful: int
    benign: int
    dropped: int
    """Number of memes that the protocol excludes; not in ``n``."""
    undecided: int
    failed: int
    coverage: Figure
    """Share of the ``n`` memes that were given a class."""
    majority: float
    majority_macro_f1: float
    decided: Rates | None
    """Rates over the memes that were given a class; None if there are none."""
    strict: Rates
    """Rates over all ``n``. A meme without a class is wrong: never a hit, a miss of its gold class, and not a
    prediction of the other, so that it lowers accuracy, recall and F1 but not precision."""
    confusion: Confusion
    """Counts, gold (not harmful, harmful) x outcomes (:data:`OUTCOMES`)."""
    scored: int
    """Number of memes with a score, which memes without a class may have too."""
    auroc: Figure | None
    """Area under the ROC curve over ``scored``; None unless these include both classes."""
    brier: Figure | None
    """Mean squared difference of score and gold over ``scored``; None if there are none."""
    calibration: tuple[Bin, ...]
    """Calibration of ``scored``, in rising order of score, in at most :data:`BINS` bins with nearly equal numbers of
    memes."""
    ece: float | None
    levelled: int
    mmae: Figure | None
    """Macro-averaged mean absolute error over ``levelled``, in levels; None if there are none."""
    voted: int
    vote: Rates | None
    scored_decided: int
    auroc_decided: Figure | None
    auroc_strict: Figure | None
    """AUROC over all ``n``: a meme without a score is ranked wrongly against every meme of the other class, as a meme
    without a class is wrong in ``strict``. None if no meme has a score, or all are of one class."""
    groups: int = 0
    """Number of groups that the bootstrap drew, if the data set's card names groups; 0 if it drew memes."""
    mistrials: int = 0
    strict_without_mistrials: Figure | None = None
    """Strict accuracy over the others; None if there are no mistrials, or nothing else."""


def group_numbers_of(judged: Sequence[Judged]) -> NDArray[np.int64] | None:
    """Number of each meme's group, shape (memes,); a meme without one is its own group. None if no meme has a group.

    Memes share a group if they share a group of the card or, in a run that held templates apart, a template: such
    memes are not independent draws.
    """
    if not any(one.meme.group or one.meme.template for one in judged):
        return None
    # Keyed by kind, so that a group is never confused with a template of the same name.
    shared = (
        (place, (kind, name))
        for place, one in enumerate(judged)
        for kind, name in (("group", one.meme.group), ("template", one.meme.template))
        if name
    )
    first: dict[tuple[str, str], int] = {}
    return number_linked(len(judged), ((place, first.setdefault(key, place)) for place, key in shared))


class VerdictFault(IntEnum):
    """Kind of wrong verdict, the worst first."""

    MISSED = 0
    FALSE_ALARM = 1
    UNDECIDED = 2
    FAILED = 3

    @property
    def title(self) -> str:
        """Title of the kind."""
        return ("Harmful, said not harmful", "Not harmful, said harmful", "Undecided", "Failed")[self]


def faults_of(results: Results) -> Iterator[tuple[VerdictFault, Judged]]:
    """Every wrong verdict of a run, under any of its protocols, in the order of the split."""
    for one in results.tried:
        harmful, outcome = one.meme.harmful, one.prediction.outcome
        # A meme that every protocol drops has no gold class to compare with.
        if outcome.harmful is harmful or all(one.meme.gold(protocol) is None for protocol in results.protocols):
            continue
        if outcome.harmful is not None:
            yield VerdictFault.MISSED if harmful else VerdictFault.FALSE_ALARM, one
        else:
            yield VerdictFault.UNDECIDED if outcome is Outcome.UNDECIDED else VerdictFault.FAILED, one


HARM = ("not harmful", "harmful")
"""Labels of the task that trials answer."""
_KINDS = ("precision", "recall", "f1")
_RATES = ("accuracy", "macro-f1", *(f"{kind}:{label}" for label in HARM for kind in _KINDS))


def verdict_arrays(pairs: Sequence[tuple[bool, Judged]]) -> TaskArrays:
    """Verdicts as answers to the task of harm: gold (harmful or not) and prediction of each meme."""
    scores = np.array([np.nan if (s := one.prediction.score) is None else s for _, one in pairs], dtype=np.float64)
    arrays = harm_arrays([gold for gold, _ in pairs], [one.prediction.outcome.harmful for _, one in pairs])
    # A meme without a class may have a score, too.
    return replace(arrays, scores=np.stack([1 - scores, scores], axis=1))


def harm_arrays(gold: Sequence[bool], predicted: Sequence[bool | None]) -> TaskArrays:
    """Labels of two classes, True for harmful; None for a meme without one."""

    def flags(labels: Sequence[bool | None]) -> NDArray[np.bool_]:
        return np.array([[label is False, label is True] for label in labels], dtype=np.bool_)

    answered = np.array([label is not None for label in predicted], dtype=np.bool_)
    return TaskArrays(HARM, flags(gold), flags(predicted), answered, scores=np.full((len(gold), 2), np.nan))


@dataclass(frozen=True, slots=True)
class Answers:
    """A run's answers to one task on memes with a gold label: verdicts on harm, or answers to a card's question."""

    run: str
    task: str
    judged: tuple[Judged, ...]
    arrays: TaskArrays
    verdicts: bool

    @property
    def groups(self) -> Ints | None:
        """Number of each meme's group, shape (memes,); None if no meme has a group."""
        return group_numbers_of(self.judged)

    @property
    def gold(self) -> list[tuple[str, ...]]:
        """Gold labels of each meme."""
        return [tuple(compress(self.arrays.labels, row)) for row in self.arrays.gold.tolist()]

    @property
    def answers(self) -> list[tuple[str, ...] | None]:
        """Labels that were given to each meme; None without an answer, but of verdicts the outcome in a word."""
        if self.verdicts:
            return [(word(one.prediction.outcome),) for one in self.judged]
        answers = (one.prediction.said.get(self.task) for one in self.judged)
        return [None if answer is None else answer.labels for answer in answers]

    def at(self, places: Sequence[int]) -> Answers:
        """Returns the answers on some of the memes, in this order."""
        judged = tuple(self.judged[place] for place in places)
        return replace(self, judged=judged, arrays=self.arrays.at(np.array(places, dtype=np.int64)))


def answers_of(results: Results, protocol: Protocol | None = None) -> Answers:
    """The verdicts of a run under a protocol or, without one, its answers to a question.

    Raises:
        BadRequest: No meme has a gold label, the protocol drops all, or the run has no such answers.
        ValueError: The protocol is not for a data set of this kind.
    """
    if protocol is None:
        question = question_of(results)
        return Answers(results.name, question.task, *_arrays_of(results, question), verdicts=False)
    # Memes that the protocol drops are in no figure.
    pairs = results.under(protocol)
    if not pairs:
        raise BadRequest(
            f"Under the protocol {protocol} no meme of {results.name} is left to be scored: it drops all of them. "
            "Judge more memes, or choose another protocol.",
            reason="NOTHING_TO_SCORE",
        )
    return Answers(results.name, "harm", tuple(one for _, one in pairs), verdict_arrays(pairs), verdicts=True)


def shared_answers(a: Answers, b: Answers) -> tuple[Answers, Answers]:
    """Both on the memes that both were asked about, in the order of A, so that lists of memes are the same each time.

    Raises BadRequest: They share no meme, or disagree on a gold label.
    """
    places = {one.meme.id: place for place, one in enumerate(b.judged)}
    of_a = [place for place, one in enumerate(a.judged) if one.meme.id in places]
    if not of_a:
        raise BadRequest(
            f"{a.run} and {b.run} share no meme: there is nothing to compare. Compare predictions of the same split.",
            reason="NOTHING_SHARED",
        )
    both = a.at(of_a), b.at([places[a.judged[place].meme.id] for place in of_a])
    # With two versions of gold, the comparison would be between the versions.
    if len(at_odds := np.flatnonzero((both[0].arrays.gold != both[1].arrays.gold).any(axis=1))):
        raise BadRequest(
            f"{a.run} and {b.run} disagree on the gold label of {len(at_odds):,} memes, "
            f"{both[0].judged[at_odds[0]].meme.id} among them: they were scored on different data, or different "
            "versions of it.",
            reason="GOLD_DIFFERS",
        )
    return both


def question_of(results: Results) -> Question:
    """The question that a run asked. Raises BadRequest if the run held trials."""
    question = results.question
    if question is None:
        raise BadRequest(f"{results.name} asked no question of a card: its verdicts are scored by protocols.")
    return question


def _arrays_of(results: Results, question: Question) -> tuple[tuple[Judged, ...], TaskArrays]:
    """Memes with a gold label, and their answers as arrays. Raises BadRequest if no meme has one."""
    # Without a gold label a meme is in no figure, not even as one without labels: "none" is an answer,
    # absent is not.
    judged = tuple(one for one in results.judged if gold_of(one.meme, question.task) is not None)
    if not judged:
        raise BadRequest(f"No meme of {results.name} has a gold label of {question.task}.", reason="NOTHING_TO_SCORE")
    labels = question.labels
    gold = [gold_of(one.meme, question.task) or frozenset() for one in judged]
    answers = [one.prediction.said.get(question.task) for one in judged]
    # NaN instead of 0: a label without a probability must not rank below those that have one.
    scores = [[(a.scores if a else {}).get(label, np.nan) for label in labels] for a in answers]
    return judged, TaskArrays(
        labels=labels,
        gold=label_flags(gold, labels),
        predicted=label_flags([a.labels if a else () for a in answers], labels),
        answered=np.array([a is not None for a in answers]),
        scores=np.array(scores, dtype=np.float64),
        votes=_votes_of([one.meme for one in judged], question),
    )


def label_flags(sets: Sequence[frozenset[str] | tuple[str, ...]], labels: Sequence[str]) -> NDArray[np.bool_]:
    """True where a meme has a label, shape (memes, labels)."""
    return np.array([[label in one for label in labels] for one in sets], dtype=np.bool_)


def _votes_of(memes: Sequence[JudgedMeme], question: Question) -> NDArray[np.int64] | None:
    """Votes of annotators by label, shape (memes, labels); None if no meme has several annotators."""
    # With one annotator per meme there is no agreement to compute a ceiling from.
    if not any(meme.annotators.get(question.task, 0) > 1 for meme in memes):
        return None
    return np.array(
        [
            [
                # Shares are stored, not counts; rounding gives back the whole number that a product of
                # floats may miss by its last bit.
                round(meme.shares.get(question.task, {}).get(label, 0.0) * meme.annotators.get(question.task, 0))
                for label in question.labels
            ]
            for meme in memes
        ],
        dtype=np.int64,
    )


def harm_values(gold: Sequence[bool], predicted: Sequence[bool]) -> tuple[float, float]:
    """Accuracy and macro-F1 of labels of two classes."""
    arrays = harm_arrays(gold, predicted)
    accuracy, macro_f1 = (value_of(metric_of(name, HARM), arrays) for name in ("accuracy", "macro-f1"))
    assert accuracy is not None and macro_f1 is not None, "shares of all memes have a value"
    return accuracy, macro_f1


def card(results: Results, protocol: Protocol, *, resamples: int = RESAMPLES, seed: int = 0) -> Card:
    """Scores all predictions under one protocol.

    The resamples of each figure start from the same seed, so that no figure depends on which others are computed.

    Raises:
        BadRequest: The protocol leaves no meme to score.
        ValueError: The protocol is not for a data set of this kind.
    """
    answers = answers_of(results, protocol)
    judged, arrays, groups = answers.judged, answers.arrays, answers.groups
    pairs = [(bool(gold), one) for gold, one in zip(arrays.gold[:, 1], judged, strict=True)]
    measured = partial(measure, resamples=resamples, seed=seed)
    more = ("coverage", "auroc:harmful", "auroc-strict:harmful", "brier")
    # One draw for coverage, decided and strict figures: how many are decided varies in it as it does among memes.
    found = measured(arrays, (*_RATES, *more), groups)
    decided = measured(arrays, (*_RATES, "auroc:harmful"), groups, only=arrays.answered)
    outcomes = [OUTCOMES.index(one.prediction.outcome) for one in judged]
    cells = np.bincount(len(OUTCOMES) * arrays.gold[:, 1] + outcomes, minlength=2 * len(OUTCOMES)).reshape(2, -1)
    n, harmful = len(pairs), int(arrays.gold[:, 1].sum())
    # The score of a constant answer on this split, which is the least that a system has to beat.
    majority = max(harmful, n - harmful) / n
    sound = [(gold, one) for gold, one in pairs if not one.prediction.mistrial]
    apart = {}
    if sound and len(sound) < n:
        apart = measured(verdict_arrays(sound), ("accuracy",), group_numbers_of([one for _, one in sound]))
    voted = [(gold, one) for gold, one in pairs if one.prediction.vote_harmful is not None]
    votes = harm_arrays([gold for gold, _ in voted], [one.prediction.vote_harmful for _, one in voted])
    vote = measured(votes, _RATES, group_numbers_of([one for _, one in voted])) if voted else {}
    with_score = ~np.isnan(arrays.scores[:, 1])
    scored = [(gold, score) for gold, one in pairs if (score := one.prediction.score) is not None]
    bins = _calibration(scored)
    levelled, mmae = _mmae(judged, resamples, seed)
    return Card(
        protocol=protocol,
        n=n,
        harmful=harmful,
        benign=n - harmful,
        dropped=len(results.judged) - n,
        undecided=int(cells[:, 2].sum()),
        failed=int(cells[:, 3].sum()),
        coverage=known_figure(found["coverage"]),
        majority=majority,
        # The other class has an F1 of 0; this one a recall of 1 and a precision of its share.
        majority_macro_f1=majority / (1 + majority),
        decided=_rates(decided, arrays.at(arrays.answered)) if arrays.answered.any() else None,
        strict=_rates(found, arrays),
        confusion=(_row(cells[0]), _row(cells[1])),
        scored=len(scored),
        auroc=found["auroc:harmful"],
        brier=found["brier"],
        calibration=bins,
        # Weighted by the size of each bin, as ties make bins uneven.
        ece=sum(b.n * abs(b.mean_score - b.share_harmful) for b in bins) / len(scored) if scored else None,
        levelled=levelled,
        mmae=mmae,
        voted=len(voted),
        vote=_rates(vote, votes) if voted else None,
        scored_decided=int((with_score & arrays.answered).sum()),
        auroc_decided=decided["auroc:harmful"],
        auroc_strict=found["auroc-strict:harmful"],
        groups=0 if groups is None else int(groups.max()) + 1,
        mistrials=n - len(sound),
        strict_without_mistrials=known_figure(apart["accuracy"]) if apart else None,
    )


def noise(n: int, accuracy: float) -> float:
    """Half the width of a 95 % interval of an accuracy on ``n`` memes, by the normal approximation.

    The uncertainty of a small test set: on 354 memes, 82 % plus or minus 4 points.

    Raises ValueError: There is no meme, or the accuracy is not between 0 and 1.
    """
    # A share outside of [0, 1] would give the root of a negative number.
    if n < 1 or not 0 <= accuracy <= 1:
        raise ValueError("noise needs at least one meme, and an accuracy between 0 and 1")
    return 1.96 * sqrt(accuracy * (1 - accuracy) / n)


def _row(counts: Ints) -> tuple[int, int, int, int]:
    first, second, third, fourth = (int(count) for count in counts)
    return first, second, third, fourth


def known_figure(figure: Figure | None) -> Figure:
    """The figure of a metric that has a value on any memes."""
    assert figure is not None, "shares of all memes have a value"
    return figure


def _rates(found: Mapping[str, Figure | None], arrays: TaskArrays) -> Rates:
    classes = [class_scores(found, label, int(arrays.gold[:, place].sum())) for place, label in enumerate(HARM)]
    return Rates(
        n=len(arrays.answered),
        accuracy=known_figure(found["accuracy"]),
        macro_f1=known_figure(found["macro-f1"]),
        classes=(classes[0], classes[1]),
    )


def class_scores(found: Mapping[str, Figure | None], label: str, support: int) -> ClassScores:
    """Scores of one class, from figures by the names of their metrics."""
    precision, recall, f1 = (found[f"{kind}:{label}"] for kind in _KINDS)
    return ClassScores(name=label, precision=precision, recall=recall, f1=known_figure(f1), support=support)


def _calibration(scored: Sequence[tuple[bool, float]]) -> tuple[Bin, ...]:
    """Bins with nearly equal numbers of memes; ties share a bin, so bins can be fewer and uneven.

    Equal numbers rather than equal widths (adaptive binning, Nixon et al. 2019), since models' scores cluster at both
    ends, and bins of a handful of memes are too noisy.
    """
    if not scored:
        return ()
    gold = np.array([harmful for harmful, _ in scored], dtype=np.float64)
    scores = np.array([score for _, score in scored], dtype=np.float64)
    # A meme's bin follows from its mid-rank, which equal scores share.
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = (counts.cumsum() - counts / 2)[place]
    number = np.floor(middle * min(BINS, len(scores)) / len(scores))
    return tuple(
        Bin(
            low=float(scores[here].min()),
            high=float(scores[here].max()),
            n=int(here.sum()),
            mean_score=float(scores[here].mean()),
            share_harmful=float(gold[here].mean()),
        )
        for here in (number == which for which in np.unique(number))
    )


def _mmae(judged: Sequence[Judged], resamples: int, seed: int) -> tuple[int, Figure | None]:
    levelled = [one for one in judged if one.meme.level is not None and one.prediction.level is not None]
    n = len(levelled)
    if not n:
        return 0, None
    gold, predicted = (
        np.array(levels)[:, None] == np.arange(len(Level))
        for levels in zip(*((one.meme.level, one.prediction.level) for one in levelled), strict=True)
    )
    scores = np.full((n, len(Level)), np.nan)
    arrays = TaskArrays(
        tuple(level.name for level in Level), gold, predicted, np.ones(n, dtype=np.bool_), scores=scores
    )
    return n, measure(arrays, ("mmae",), group_numbers_of(levelled), resamples=resamples, seed=seed)["mmae"]


def cards_rows(cards: Sequence[tuple[str, Card]], unfinished: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Cards side by side, one per column: counts, figures and baselines."""
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in cards))]

    def row(title: str, cells: list[str]) -> None:
        if any(cell != NOTHING for cell in cells):
            rows.append((title, *cells))

    each = [card for _, card in cards]
    strict = [None if name in unfinished else card.strict for name, card in cards]
    decided = [card.decided for card in each]
    row("protocol", [str(card.protocol) for card in each])
    row("memes", [f"{card.n:,}: {card.harmful:,} harmful, {card.benign:,} not" for card in each])
    row("dropped by the protocol", [f"{card.dropped:,}" if card.dropped else NOTHING for card in each])
    row("undecided, failed", [f"{card.undecided:,}, {card.failed:,}" for card in each])
    row("coverage", [figure(card.coverage) for card in each])
    for kind, rates in (("strict", strict), ("decided", decided)):
        row(f"accuracy, {kind}", [figure(one.accuracy if one else None) for one in rates])
        row(f"macro-F1, {kind}", [figure(one.macro_f1 if one else None) for one in rates])
    for place, name in enumerate(("not harmful", "harmful")):
        for kind, rates in (("strict", strict), ("decided", decided)):
            for field in ("precision", "recall", "f1"):
                title = f"{name}: {'F1' if field == 'f1' else field}, {kind}"
                row(title, [figure(getattr(one.classes[place], field) if one else None) for one in rates])
    row("AUROC", [figure_over(card.auroc, card.scored, card.n) for card in each])
    row("AUROC, decided", [figure_over(card.auroc_decided, card.scored_decided, card.n) for card in each])
    row("AUROC, strict", [figure(None if name in unfinished else card.auroc_strict) for name, card in cards])
    row("Brier", [figure_over(card.brier, card.scored, card.n) for card in each])
    row("ECE", [figure_over(card.ece, card.scored, card.n) for card in each])
    row("MMAE", [figure_over(card.mmae, card.levelled, card.n) for card in each])
    row("majority: accuracy", [figure(card.majority) for card in each])
    row("majority: macro-F1", [figure(card.majority_macro_f1) for card in each])
    row("precedent vote: accuracy", [_vote(card, "accuracy") for card in each])
    row("precedent vote: macro-F1", [_vote(card, "macro_f1") for card in each])
    return tuple(rows)


def confusion_rows(card: Card) -> tuple[tuple[str, ...], ...]:
    """Confusion counts, with a row per gold label and a column per outcome."""
    words = [word(outcome) for outcome in OUTCOMES]
    counts = (tuple(f"{n:,}" for n in row) for row in card.confusion)
    return (
        ("gold \\ said", *words),
        *((name, *row) for name, row in zip(words[:2], counts, strict=True)),
    )


def noise_in_words(card: Card) -> str:
    """Describes how much the strict accuracy would vary with another sample of the same size."""
    accuracy = card.strict.accuracy
    # The normal approximation has no width at 0 and 1, and assumes that memes of a group are independent.
    if accuracy.value in (0.0, 1.0) or card.groups:
        known, within = f"to lie between {accuracy.low:.3f} and {accuracy.high:.3f}", "a difference within that"
    else:
        known, within = f"to about ±{100 * noise(card.n, accuracy.value):.1f} points", "less than that"
    memes = f"{card.n:,} meme{'' if card.n == 1 else 's'}"
    return (
        f"With {memes} an accuracy of {accuracy.value:.3f} is known {known}; {within} between two systems is "
        "noise unless they are compared meme by meme."
    )


def _vote(card: Card, field: str) -> str:
    rates: Rates | None = card.vote
    return figure_over(getattr(rates, field), card.voted, card.n) if rates else NOTHING
