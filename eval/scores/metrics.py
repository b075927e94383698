"""Answers of runs as arrays, and the card of their figures. Harm is a task like any other, whose answers are verdicts.

Intervals are 95 %, by percentile bootstrap over memes; if the card names groups (templates, sources), whole groups are
drawn, since memes of one group are not independent (Field & Welsh 2007).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import compress
from typing import Any, Self

import numpy as np

from court.display import word
from court.errors import BadRequest
from eval.datasets.items import JudgedMeme, Level, Outcome, Prediction, Protocol
from eval.runs.results import Judged, Results
from eval.scores.measure import (
    BASELINE_FREE,
    METRICS,
    RESAMPLES,
    Bools,
    Figure,
    Ints,
    TaskArrays,
    counted_memes,
    measure,
    metric_of,
    strict_name,
    value_of,
)
from eval.solvers.question import Question, gold_of
from retrieval.audit.leakage import number_linked

BINS = 10
"""Largest number of bins of a calibration curve."""


@dataclass(frozen=True, slots=True)
class Bin:
    """One point of a calibration curve."""

    low: float
    high: float
    n: int
    mean_score: float
    share_harmful: float


@dataclass(frozen=True, slots=True)
class TaskCard:
    """All figures of one set of answers to a task: whether memes are harmful, or a question of a data set's card."""

    task: str
    protocol: Protocol | None
    """Protocol by which gold labels became two classes; None for answers to a question."""
    question: Question | None
    n: int
    dropped: int
    """Number of memes that the protocol excludes, or without a gold label of the task; not in ``n``."""
    groups: int
    """Number of groups that the bootstrap drew; 0 if it drew memes."""
    unanswered: int
    """Number of memes without an answer, which count as wrong."""
    failed: int
    """Number of these that failed instead of being left open."""
    figures: Mapping[str, Figure | None]
    """Figures over all memes by metric, the official one first, then those of each label; None if undefined. A meme
    without an answer is wrong: never a hit, and a miss of its gold labels."""
    decided: Mapping[str, Figure | None]
    """Some of these figures over the memes that have an answer; empty if there are none."""
    decided_over: Mapping[str, int]
    """Number of memes behind each of these: fewer than have an answer if some of them have no probability."""
    over: Mapping[str, int]
    """Number of memes behind each figure: fewer than ``n`` for metrics of probabilities and of steps if memes have
    none. Their strict forms are over all."""
    baseline: Mapping[str, float | None]
    """Figures of a constant answer, the least that a system has to beat."""
    baseline_words: str
    gold: Mapping[str, int]
    """Number of memes that have each label."""
    said: Mapping[str, int]
    """Number of memes that were given each label."""
    confusion: tuple[tuple[int, ...], ...]
    """Counts of memes by gold label (rows), and by label, left open, failed (columns); empty if a meme may have several
    labels."""
    voted: int = 0
    vote: Mapping[str, Figure | None] = field(default_factory=dict)
    """Figures of the precedents' vote over the ``voted`` memes."""
    calibration: tuple[Bin, ...] = ()
    """Calibration of the harm scores in rising order, in at most :data:`BINS` bins of nearly equal numbers of memes."""
    ece: float | None = None
    mistrials: int = 0
    sound: Figure | None = None
    """Accuracy without the mistrials; None if there are none, or nothing else."""
    by_order: tuple[Mapping[str, float | None], ...] = ()
    """Values of the metrics for each order of the options, if the question was asked with several."""

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that the card is about, without those of each label."""
        return list(self.over)

    @property
    def official(self) -> str:
        """Metric that the data set's authors rank by; the first one if the card names none."""
        return self.metrics[0]

    def known(self, name: str) -> Figure:
        """Returns the figure of a metric that has a value on any memes, such as the accuracy."""
        return known_figure(self.figures[name])


def group_numbers_of(judged: Sequence[Judged]) -> Ints | None:
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


def faults_of(results: Results) -> Iterator[tuple[VerdictFault | None, Judged]]:
    """The verdicts of a run that any of its protocols scores, in the order of the split; None for a right one."""
    for one in results.tried:
        harmful, outcome = one.meme.harmful, one.prediction.outcome
        # A meme that every protocol drops has no gold class to compare with.
        if all(one.meme.gold(protocol) is None for protocol in results.protocols):
            continue
        # `is`, not `==`: an undecided verdict is None, which is never right.
        if outcome.harmful is harmful:
            yield None, one
        elif outcome.harmful is not None:
            yield VerdictFault.MISSED if harmful else VerdictFault.FALSE_ALARM, one
        else:
            yield VerdictFault.UNDECIDED if outcome is Outcome.UNDECIDED else VerdictFault.FAILED, one


HARM = ("not harmful", "harmful")
"""Labels of the task that trials answer."""
KINDS = ("precision", "recall", "f1")
"""Figures of each label."""
KINDS_OF_MANY = ("binary-accuracy", "binary-macro-f1", "auroc", "auroc-strict")
"""Further figures of each label; of two labels, of which each meme has one, they are those of the whole answer."""
DECIDED = ("accuracy", "exact", "macro-f1", "auroc")
"""Figures that a card has over the answered memes too."""
VERDICTS = ("accuracy", "macro-f1", "coverage")
SINGLE = ("accuracy", "macro-f1", "micro-f1", "weighted-f1")
MULTI = (
    "mean-binary-accuracy",
    "mean-binary-macro-f1",
    "macro-f1",
    "micro-f1",
    "weighted-f1",
    "jaccard",
    "masi",
    "exact",
)
SCORED = ("auroc", "micro-auroc", "brier")
"""Metrics of probabilities, added if there are any."""


def harm_arrays(gold: Sequence[bool], predicted: Sequence[bool | None]) -> TaskArrays:
    """Labels of two classes, True for harmful; None for a meme without one."""
    named = [None if label is None else (HARM[label],) for label in predicted]
    return _arrays(HARM, [(HARM[label],) for label in gold], named)


def _arrays(
    labels: tuple[str, ...],
    gold: Sequence[Collection[str]],
    predicted: Sequence[Collection[str] | None],
    scores: Sequence[Mapping[str, float]] | None = None,
) -> TaskArrays:
    """Gold labels, answers (None for a meme without one) and probabilities by label of each meme, as arrays."""
    return TaskArrays(
        labels=labels,
        gold=_flags(gold, labels),
        predicted=_flags([one or () for one in predicted], labels),
        answered=np.array([one is not None for one in predicted], dtype=np.bool_),
        # NaN instead of 0: a label without a probability must not rank below those that have one.
        scores=np.array([[one.get(label, np.nan) for label in labels] for one in scores or [{}] * len(gold)]),
    )


def _flags(sets: Sequence[Collection[str]], labels: Sequence[str]) -> Bools:
    """True where a meme has a label, shape (memes, labels)."""
    return np.array([[label in one for label in labels] for one in sets], dtype=np.bool_)


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

    def at(self, places: Sequence[int]) -> Self:
        """Returns the answers on some of the memes, in this order."""
        judged = tuple(self.judged[place] for place in places)
        return replace(self, judged=judged, arrays=self.arrays.at(np.array(places, dtype=np.int64)))

    def where(self, wanted: Callable[[Judged], bool]) -> Self:
        """Returns the answers on the memes that are wanted, which may be none."""
        return self.at([place for place, one in enumerate(self.judged) if wanted(one)])


def answers_of(results: Results, protocol: Protocol | None = None) -> Answers:
    """The verdicts of a run under a protocol or, without one, its answers to a question.

    Raises:
        BadRequest: No meme has a gold label, the protocol drops all, or the run has no such answers.
        ValueError: The protocol is not for a data set of this kind.
    """
    if protocol is None:
        question = question_of(results)
        task, labels = question.task, question.labels
        # Without a gold label a meme is in no figure, not even as one without labels: "none" is an answer, absent is
        # not.
        rows = [
            (one, gold, answer.labels if answer else None, answer.scores if answer else {})
            for one, answer in ((one, one.prediction.said.get(task)) for one in results.judged)
            if (gold := gold_of(one.meme, task)) is not None
        ]
        none = f"No meme of {results.name} has a gold label of {task}."
        votes = _votes_of([one.meme for one, *_ in rows], question)
    else:
        task, labels, votes = "harm", HARM, None
        # Memes that the protocol drops are in no figure. A meme without a class may have a score, too.
        rows = [
            (one, frozenset({HARM[harmful]}), *_verdict(one.prediction)) for harmful, one in results.under(protocol)
        ]
        none = (
            f"Under the protocol {protocol} no meme of {results.name} is left to be scored: it drops all of them. "
            "Judge more memes, or choose another protocol."
        )
    if not rows:
        raise BadRequest(none, reason="NOTHING_TO_SCORE")
    judged, *columns = zip(*rows, strict=True)
    arrays = replace(_arrays(labels, *columns), votes=votes)
    return Answers(results.name, task, judged, arrays, verdicts=protocol is not None)


def _verdict(prediction: Prediction) -> tuple[tuple[str, ...] | None, dict[str, float]]:
    """The label of a verdict (None without a class) and the probabilities of both."""
    harmful, score = prediction.outcome.harmful, prediction.score
    scores = {} if score is None else dict(zip(HARM, (1 - score, score), strict=True))
    return None if harmful is None else (HARM[harmful],), scores


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


def _votes_of(memes: Sequence[JudgedMeme], question: Question) -> Ints | None:
    """Votes of annotators by label, shape (memes, labels); None if no meme has several annotators."""
    counts = np.array([meme.annotators.get(question.task, 0) for meme in memes], dtype=np.int64)
    # With one annotator per meme there is no agreement to compute a ceiling from.
    if not (counts > 1).any():
        return None
    shares = [[meme.shares.get(question.task, {}).get(label, 0.0) for label in question.labels] for meme in memes]
    # Shares are stored, not counts; rounding gives back the whole number that a product of floats may miss by its last
    # bit.
    return np.rint(np.array(shares) * counts[:, None]).astype(np.int64)


def harm_values(gold: Sequence[bool], predicted: Sequence[bool]) -> tuple[float, float]:
    """Accuracy and macro-F1 of labels of two classes."""
    arrays = harm_arrays(gold, predicted)
    accuracy, macro_f1 = (value_of(metric_of(name, HARM), arrays) for name in ("accuracy", "macro-f1"))
    assert accuracy is not None and macro_f1 is not None, "shares of all memes have a value"
    return accuracy, macro_f1


def task_card(
    results: Results, protocol: Protocol | None = None, *, resamples: int = RESAMPLES, seed: int = 0
) -> TaskCard:
    """Scores verdicts under a protocol or, without one, the answers to a run's question.

    The resamples of each figure start from the same seed, so that no figure depends on which others are computed.

    Raises:
        BadRequest: No meme is left to score, the run has no such answers, or a metric of the card is unknown.
        ValueError: The protocol is not for a data set of this kind.
    """
    answers = answers_of(results, protocol)
    question = None if protocol else question_of(results)
    arrays, groups, judged = answers.arrays, answers.groups, answers.judged
    multi, labels, n = question is not None and question.multi, arrays.labels, len(judged)
    # Which metrics apply depends on the answers too: only some runs have probabilities, only some data sets have
    # several annotators.
    scored = bool((~np.isnan(arrays.scores)).any())
    # Next to a metric over some memes stands its form over all.
    usual = metrics_of(question, scored=scored, votes=arrays.votes is not None)
    names = tuple(dict.fromkeys(form for name in usual for form in (name, strict_name(name))))
    kinds = (*KINDS, *(KINDS_OF_MANY if multi or len(labels) > 2 else ()))
    measured = partial(measure, resamples=resamples, seed=seed)
    figures = measured(arrays, (*names, *(f"{kind}:{label}" for label in labels for kind in kinds)), groups)
    over = {name: counted_memes(name, arrays) for name in names}
    decided = {name: figures[name] for name in DECIDED if name in names}
    if not arrays.answered.all():
        # The same draw as of all memes: how many are answered varies in it as it does among memes.
        decided = measured(arrays, tuple(decided), groups, only=arrays.answered) if arrays.answered.any() else {}
    always, words = baseline_of(arrays, multi=multi)
    failed = np.array([one.prediction.outcome is Outcome.FAILED for one in judged])
    outcomes = np.column_stack([arrays.predicted, ~arrays.answered & ~failed, failed]).astype(np.int64)
    of_verdicts: dict[str, Any] = {}
    if protocol is not None:
        of_verdicts = _verdict_figures(answers, measured)
        levelled = answers.where(lambda one: one.meme.level is not None and one.prediction.level is not None)
        if levelled.judged:
            gold = [(one.meme.level.name,) for one in levelled.judged if one.meme.level is not None]
            predicted = [(one.prediction.level.name,) for one in levelled.judged if one.prediction.level is not None]
            of_levels = _arrays(tuple(level.name for level in Level), gold, predicted)
            figures |= measured(of_levels, ("mmae",), levelled.groups)
            over["mmae"] = len(levelled.judged)
    return TaskCard(
        task=answers.task,
        protocol=protocol,
        question=question,
        n=n,
        dropped=len(results.judged) - n,
        groups=0 if groups is None else int(groups.max()) + 1,
        unanswered=int((~arrays.answered).sum()),
        # Left open and failed both count as wrong; they are told apart because only a failure may be cured by trying
        # again.
        failed=int(failed.sum()),
        figures=figures,
        decided=decided,
        decided_over={name: counted_memes(name, arrays.at(arrays.answered)) for name in decided},
        over=over,
        # A constant answer ranks nothing, so that a baseline of AUROC or Brier would be an artefact of the code.
        baseline={name: None if name in BASELINE_FREE else value_of(metric_of(name, labels), always) for name in names},
        baseline_words=words,
        gold=dict(zip(labels, arrays.gold.sum(axis=0).tolist(), strict=True)),
        said=dict(zip(labels, arrays.predicted.sum(axis=0).tolist(), strict=True)),
        confusion=() if multi else tuple(map(tuple, (arrays.gold.astype(np.int64).T @ outcomes).tolist())),
        by_order=_by_order(answers, question, names) if question else (),
        **of_verdicts,
    )


def _verdict_figures(answers: Answers, measured: Callable[..., dict[str, Figure | None]]) -> dict[str, Any]:
    """Fields of a card that only verdicts have: the precedents' vote, calibration, and mistrials."""
    n, sound = len(answers.judged), answers.where(lambda one: not one.prediction.mistrial)
    apart = measured(sound.arrays, ("accuracy",), sound.groups) if 0 < len(sound.judged) < n else {}
    voted = answers.where(lambda one: one.prediction.vote_harmful is not None)
    votes = harm_arrays(voted.arrays.gold[:, 1].tolist(), [one.prediction.vote_harmful for one in voted.judged])
    bins = _calibration(answers.arrays)
    scored = sum(one.n for one in bins)
    return {
        "voted": len(voted.judged),
        "vote": measured(votes, ("accuracy", "macro-f1"), voted.groups) if voted.judged else {},
        "calibration": bins,
        # Weighted by the size of each bin, as ties make bins uneven.
        "ece": sum(b.n * abs(b.mean_score - b.share_harmful) for b in bins) / scored if bins else None,
        "mistrials": n - len(sound.judged),
        "sound": apart.get("accuracy"),
    }


def require_metrics(task: str, labels: Sequence[str], *names: str) -> None:
    """Raises BadRequest if a card names a metric that does not exist for its task; empty names are ignored."""
    for name in filter(None, names):
        try:
            metric_of(name, labels)
        except KeyError:
            raise BadRequest(
                f"The card's task {task} names the metric {name!r}. There are: {', '.join(METRICS)}; and "
                "f1, precision, recall or auroc with a label, such as f1:LABEL.",
                reason="METRIC_UNKNOWN",
            ) from None


def metrics_of(question: Question | None, *, scored: bool, votes: bool = False) -> tuple[str, ...]:
    """Names of the metrics of verdicts or of a question: the card's, the official one first, then the usual ones.

    Raises BadRequest: The card names an unknown metric.
    """
    if question is None:
        return (*VERDICTS, *(("auroc", "brier") if scored else ()))
    require_metrics(question.task, question.labels, question.official, *question.metrics)
    usual = MULTI if question.multi else (*SINGLE, *(("mmae",) if question.kind == "ordinal" else ()))
    # The card's own metrics come before the usual ones, since the first is the one that authors rank by.
    named = (*((question.official,) if question.official else ()), *question.metrics)
    also = (*(SCORED if scored else ()), *(("agreement-ceiling",) if votes else ()))
    # A usual metric that the card names too is computed once, at its earlier position.
    return tuple(dict.fromkeys((*named, *usual, *also)))


def baseline_of(arrays: TaskArrays, *, multi: bool = False) -> tuple[TaskArrays, str]:
    """The baseline's constant answers, and their description: the most frequent label, or none if there may be none."""
    always = np.zeros_like(arrays.predicted)
    if multi:
        return arrays.replaced(always), "always none"
    # Ties go to the first, as in `argmax`: the order of the labels decides, not the order of the memes.
    most = int(arrays.gold.sum(axis=0).argmax())
    always[:, most] = True
    return arrays.replaced(always), f"always {arrays.labels[most]}"


def _by_order(answers: Answers, question: Question, names: Sequence[str]) -> tuple[Mapping[str, float | None], ...]:
    """Metrics of the answers to each order of the options; a meme without an answer has none for any order."""
    turns, found = len(question.orders), []
    replies = [one.prediction.said.get(question.task) for one in answers.judged]
    for turn in range(turns if turns > 1 else 0):
        labels = [one.rotations[turn] if one and turn < len(one.rotations) else () for one in replies]
        # Probabilities were averaged over the orders and belong to none of them.
        unscored = np.full(answers.arrays.scores.shape, np.nan)
        in_order = replace(answers.arrays, predicted=_flags(labels, question.labels), scores=unscored)
        figures = {name: metric_of(name, question.labels) for name in names if name not in BASELINE_FREE}
        found.append({name: value_of(metric, in_order) for name, metric in figures.items()})
    return tuple(found)


def known_figure(figure: Figure | None) -> Figure:
    """The figure of a metric that has a value on any memes."""
    assert figure is not None, "shares of all memes have a value"
    return figure


def _calibration(arrays: TaskArrays) -> tuple[Bin, ...]:
    """Bins with nearly equal numbers of memes; ties share a bin, so bins can be fewer and uneven.

    Equal numbers rather than equal widths (adaptive binning, Nixon et al. 2019), since models' scores cluster at both
    ends, and bins of a handful of memes are too noisy.
    """
    gold, scores = arrays.gold[:, HARM.index("harmful")], arrays.scores[:, HARM.index("harmful")]
    gold, scores = gold[there := ~np.isnan(scores)], scores[there]
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
