"""Figures of a run that asked a question: the authors' metrics with intervals, figures per label, and the baseline.

Intervals are 95 %, by percentile bootstrap over memes; if the card names groups (templates, sources), whole groups are
drawn, since memes of one group are not independent (Field & Welsh 2007). The baseline is a constant answer: the most
frequent label, or no label at all if a meme may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from eval.datasets.items import JudgedMeme
from eval.runs.results import Judged, Results
from eval.scores import resampling
from eval.scores.label_metrics import (
    BASELINE_FREE,
    METRICS,
    OF_SCORES,
    Metric,
    TaskArrays,
    counted_memes,
    metric_of,
    right_answers,
    strict_name,
    value_of,
)
from eval.scores.metrics import (
    RESAMPLES,
    Figure,
    draws_among,
    edge_figure,
    error_figure,
    group_numbers_of,
    share_figure,
)
from eval.scores.resampling import Floats
from eval.solvers.question import Question, gold_of

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
_OVER_LABELS = frozenset({"macro-f1", "binary-macro-f1", "mean-binary-macro-f1", "weighted-binary-macro-f1"})
"""Means that stay below 1 if no meme, or every meme, has some label."""
# Sixteen mebibytes of weights, whatever the number of memes.
_AT_ONCE = 1 << 21
"""Weights held in memory at once, over all resamples."""


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """Figures of one label.

    Attributes:
        gold: Number of memes that have the label.
        said: Number of memes that were given the label.
        prevalence: Share of the memes that have the label.
        precision: Share of hits among the memes that were given the label; None if there are none.
        recall: Share of hits among the memes that have the label; None if there are none.
        f1: Harmonic mean of both; 0 if the label is neither present nor predicted.
        accuracy: Share of the memes on which the label was correctly given or denied.
        macro_f1: Mean of the F1 of yes and of no.
        auroc: Area under the ROC curve of the label's probabilities, over the memes with some; None without them.
        auroc_strict: The same over all memes: one without a probability is ranked wrongly against every other.
        baseline_accuracy: Accuracy of always answering no.
        baseline_macro_f1: Macro-F1 of always answering no.
    """

    label: str
    gold: int
    said: int
    prevalence: float
    precision: Figure | None
    recall: Figure | None
    f1: Figure
    accuracy: Figure
    macro_f1: Figure
    auroc: Figure | None
    auroc_strict: Figure | None
    baseline_accuracy: float
    baseline_macro_f1: float


@dataclass(frozen=True, slots=True)
class TaskCard:
    """All figures of one set of answers.

    Attributes:
        n: Number of memes that have a gold label.
        groups: Number of groups that the bootstrap drew; 0 if it drew memes.
        unanswered: Number of memes without an answer, which count as wrong.
        failed: Number of these that failed instead of being left open.
        scored: Number of memes with a probability of each label.
        figures: Figures by metric, the official one first; None if undefined.
        over: Number of memes behind each figure: fewer than ``n`` for metrics of probabilities and of steps if memes
            have none. Their strict forms are over all.
        baseline: Figures of the constant answer.
        baseline_words: Description of the constant answer.
        labels: Figures of each label, in the card's order.
        by_order: Values of the metrics for each order of the options, if the question was asked with several.
    """

    question: Question
    n: int
    groups: int
    unanswered: int
    failed: int
    scored: int
    figures: Mapping[str, Figure | None]
    over: Mapping[str, int]
    baseline: Mapping[str, float | None]
    baseline_words: str
    labels: tuple[LabelFigures, ...]
    by_order: tuple[Mapping[str, float | None], ...]

    @property
    def official(self) -> str:
        """Metric that the data set's authors rank by; the first one if the card names none."""
        return self.question.official or next(iter(self.figures))


def task_card(results: Results, *, resamples: int = RESAMPLES, seed: int = 0) -> TaskCard:
    """Scores the answers of a run.

    Raises:
        BadRequest: The run asked no question, no meme of it has a gold label, or a metric of the card is unknown.
    """
    question = question_of(results)
    judged, arrays = arrays_of(results)
    groups = group_numbers_of(judged)
    # Which metrics apply depends on the answers too: only some runs have probabilities, only some data
    # sets have several annotators.
    usual = metrics_of(question, scored=bool((~np.isnan(arrays.scores)).any()), votes=arrays.votes is not None)
    # Next to a metric over some memes stands its form over all.
    names = tuple(dict.fromkeys(form for name in usual for form in (name, strict_name(name))))
    per_label = [f"{kind}:{label}" for label in question.labels for kind in _LABEL_KINDS]
    # A strict form differs from its metric only if memes are missing; a bootstrap of thousands takes seconds.
    same_as = {
        strict_name(name): name
        for name in (*names, *per_label)
        if strict_name(name) != name and counted_memes(name, arrays) == len(judged)
    }
    every = tuple(name for name in (*names, *per_label) if name not in same_as)
    # All metrics share the same draws, so that figures of one run can be compared.
    drawn = resampled(
        [metric_of(name, question.labels) for name in every], arrays, groups, resamples=resamples, seed=seed
    )
    each = dict(zip(every, drawn, strict=True))
    n, counts = len(judged), _draws_of(arrays, groups)

    def figure(name: str) -> Figure | None:
        name = same_as.get(name, name)
        value = value_of(metric_of(name, question.labels), arrays)
        # A metric may be undefined in a resample (a label that was not drawn), which says nothing about
        # the interval.
        over = each[name][~np.isnan(each[name])]
        if value is None or not over.size:
            return None
        return _with_interval(name, value, over, arrays=arrays, n=counts.get(name, counts[""]))

    always, words = baseline_of(question, arrays)
    return TaskCard(
        question=question,
        n=n,
        groups=0 if groups is None else int(groups.max()) + 1,
        unanswered=int((~arrays.answered).sum()),
        # Left open and failed both count as wrong; they are told apart because only a failure may be
        # cured by trying again.
        failed=sum(one.prediction.outcome == "FAILED" for one in judged),
        scored=int((~np.isnan(arrays.scores).any(axis=1)).sum()),
        figures={name: figure(name) for name in names},
        over={name: counted_memes(name, arrays) for name in names},
        baseline={
            # A constant answer ranks nothing, so that a baseline of AUROC or Brier would be an
            # artefact of the code.
            name: None if name in BASELINE_FREE else value_of(metric_of(name, question.labels), always)
            for name in names
        },
        baseline_words=words,
        labels=tuple(_label_figures(arrays, label, place, figure) for place, label in enumerate(question.labels)),
        by_order=_by_order(judged, arrays, question, names),
    )


def question_of(results: Results) -> Question:
    """The question that a run asked. Raises BadRequest if the run held trials."""
    question = results.question
    if question is None:
        raise BadRequest(f"{results.name} asked no question of a card: its verdicts are scored by protocols.")
    return question


def arrays_of(results: Results) -> tuple[tuple[Judged, ...], TaskArrays]:
    """Memes with a gold label, and their answers as arrays. Raises BadRequest if no meme has one."""
    question = question_of(results)
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
        gold=_flags(gold, labels),
        predicted=_flags([a.labels if a else () for a in answers], labels),
        answered=np.array([a is not None for a in answers]),
        scores=np.array(scores, dtype=np.float64),
        votes=_votes_of([one.meme for one in judged], question),
    )


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


def metrics_of(question: Question, *, scored: bool, votes: bool) -> tuple[str, ...]:
    """Names of the metrics of a question: the card's, the official one first, then the usual ones of its kind.

    Raises:
        BadRequest: The card names an unknown metric.
    """
    require_metrics(question.task, question.labels, question.official, *question.metrics)
    usual = MULTI if question.multi else (*SINGLE, *(("mmae",) if question.kind == "ordinal" else ()))
    # The card's own metrics come before the usual ones, since the first is the one that authors rank by.
    named = (*((question.official,) if question.official else ()), *question.metrics)
    also = (*(SCORED if scored else ()), *(("agreement-ceiling",) if votes else ()))
    # A usual metric that the card names too is computed once, at its earlier position.
    return tuple(dict.fromkeys((*named, *usual, *also)))


def resampled(
    metrics: Sequence[Metric],
    arrays: TaskArrays,
    groups: NDArray[np.int64] | None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Floats]:
    """Values of metrics over the same resamples, each of shape (resamples,), NaN if undefined."""
    rng, n = np.random.default_rng(seed), len(arrays.answered)
    # At least one resample at a time, even if a single one exceeds the bound.
    step = max(1, _AT_ONCE // n)
    parts: list[list[Floats]] = [[] for _ in metrics]
    for start in range(0, resamples, step):
        weights = resampling.draw_weights(groups, n, min(step, resamples - start), rng)
        for part, metric in zip(parts, metrics, strict=True):
            part.append(metric(arrays, weights))
    return [np.concatenate(part) for part in parts]


def baseline_of(question: Question, arrays: TaskArrays) -> tuple[TaskArrays, str]:
    """The baseline's constant answers, and their description."""
    if question.multi:
        return arrays.replaced(np.zeros_like(arrays.predicted)), "always none"
    most = int(arrays.gold.sum(axis=0).argmax())
    # Ties go to the first, as in `argmax`: the card's order decides, not the order of the memes.
    always = np.zeros_like(arrays.predicted)
    always[:, most] = True
    return arrays.replaced(always), f"always {question.labels[most]}"


def _with_interval(name: str, value: float, over: Floats, *, arrays: TaskArrays, n: int) -> Figure:
    """A figure with its percentiles, or the exact interval of a share of ``n`` draws if all resamples agree."""
    kind = name.partition(":")[0]
    # It does not depend on the answers, and annotators may all agree.
    if kind == "agreement-ceiling":
        return Figure(value, *resampling.interval(over))
    if kind in ("mmae", "mmae-strict"):
        return error_figure(value, over, n=n, largest=len(arrays.labels) - 1)
    if kind in OF_SCORES or not n:
        return edge_figure(value, over, n)
    # All answers are right, yet the mean is below 1: scales the interval of a share of 1.
    if kind in _OVER_LABELS and value and _all_right(arrays, name.partition(":")[2]):
        return error_figure(value, over, n=n, largest=value)
    return share_figure(value, over, n)


def _all_right(arrays: TaskArrays, label: str) -> bool:
    """True if all answers are right, about this label or, if it is empty, about all labels."""
    if not label:
        return bool(right_answers(arrays).all())
    place = arrays.labels.index(label)
    return bool((arrays.answered & (arrays.gold[:, place] == arrays.predicted[:, place])).all())


def _draws_of(arrays: TaskArrays, groups: NDArray[np.int64] | None) -> dict[str, int]:
    """Number of independent draws behind each figure, by name; the empty name is for figures over all memes."""
    scored = ~np.isnan(arrays.scores)
    found = {
        "": draws_among(np.ones_like(arrays.answered), groups),
        "mmae": draws_among(arrays.answered, groups),
        "brier": draws_among(np.asarray(scored.all(axis=1)), groups),
    }

    def rarer(yes: NDArray[np.bool_], no: NDArray[np.bool_]) -> int:
        """Draws of the rarer of yes and no, which limit the area under a curve."""
        return min(draws_among(yes, groups), draws_among(no, groups))

    for place, label in enumerate(arrays.labels):
        gold, there = arrays.gold[:, place], scored[:, place]
        of, to = (draws_among(flags, groups) for flags in (gold, arrays.predicted[:, place]))
        least = rarer(gold & there, ~gold & there)
        found |= {f"precision:{label}": to, f"recall:{label}": of, f"f1:{label}": of or to, f"auroc:{label}": least}
        found[f"auroc-strict:{label}"] = rarer(gold, ~gold)
    for kind, there in (("auroc", scored), ("auroc-strict", np.ones_like(scored))):
        found[kind] = min(found[f"{kind}:{label}"] for label in arrays.labels)
        some_yes, some_no = ((flags & there).any(axis=1) for flags in (arrays.gold, ~arrays.gold))
        found[f"micro-{kind}"] = rarer(np.asarray(some_yes), np.asarray(some_no))
    return found


_LABEL_KINDS = ("precision", "recall", "f1", "binary-accuracy", "binary-macro-f1", "auroc", "auroc-strict")


def _label_figures(arrays: TaskArrays, label: str, place: int, figure: Callable[[str], Figure | None]) -> LabelFigures:
    gold = arrays.gold[:, place]
    # A single label's baseline always answers no, whatever the baseline of the whole task is.
    never = arrays.replaced(np.zeros_like(arrays.predicted))
    values: dict[str, Figure | None] = {kind: figure(f"{kind}:{label}") for kind in _LABEL_KINDS}

    def baseline(kind: str) -> float:
        found = value_of(metric_of(f"{kind}:{label}", arrays.labels), never)
        assert found is not None, "shares of all memes have a value"
        return found

    f1, accuracy, macro_f1 = (values[kind] for kind in ("f1", "binary-accuracy", "binary-macro-f1"))
    assert f1 is not None and accuracy is not None and macro_f1 is not None, "shares of all memes have a value"
    return LabelFigures(
        label=label,
        gold=int(gold.sum()),
        said=int(arrays.predicted[:, place].sum()),
        prevalence=float(gold.mean()),
        precision=values["precision"],
        recall=values["recall"],
        f1=f1,
        accuracy=accuracy,
        macro_f1=macro_f1,
        auroc=values["auroc"],
        auroc_strict=values["auroc-strict"],
        baseline_accuracy=baseline("binary-accuracy"),
        baseline_macro_f1=baseline("binary-macro-f1"),
    )


def _by_order(
    judged: Sequence[Judged], arrays: TaskArrays, question: Question, names: Sequence[str]
) -> tuple[Mapping[str, float | None], ...]:
    """Metrics of the answers to each order of the options; a meme without an answer has none for any order."""
    turns = len(question.orders)
    if turns == 1:
        return ()
    answers = [one.prediction.said.get(question.task) for one in judged]
    found = []
    for turn in range(turns):
        predicted = _flags(
            [a.rotations[turn] if a and turn < len(a.rotations) else () for a in answers], question.labels
        )
        # Probabilities were averaged over the orders and belong to none of them.
        in_order = replace(arrays, predicted=predicted, scores=np.full(arrays.scores.shape, np.nan))
        found.append(
            {name: value_of(metric_of(name, question.labels), in_order) for name in names if name not in BASELINE_FREE}
        )
    return tuple(found)


def _flags(sets: Sequence[frozenset[str] | tuple[str, ...]], labels: Sequence[str]) -> NDArray[np.bool_]:
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
