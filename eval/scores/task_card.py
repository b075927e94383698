"""Figures of a run that asked a question: the authors' metrics with intervals, figures per label, and the baseline.

Intervals are 95 %, by percentile bootstrap over memes; if the card names groups (templates, sources), whole groups are
drawn, since memes of one group are not independent (Field & Welsh 2007). The baseline is a constant answer: the most
frequent label, or no label at all if a meme may have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from court.errors import BadRequest
from eval.runs.results import Judged, Results
from eval.scores.measure import (
    BASELINE_FREE,
    METRICS,
    RESAMPLES,
    Figure,
    TaskArrays,
    counted_memes,
    measure,
    metric_of,
    strict_name,
    value_of,
)
from eval.scores.metrics import answers_of, label_flags, question_of
from eval.solvers.question import Question

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


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """Figures of one label."""

    label: str
    gold: int
    said: int
    """Number of memes that were given the label."""
    prevalence: float
    precision: Figure | None
    """Share of hits among the memes that were given the label; None if there are none."""
    recall: Figure | None
    """Share of hits among the memes that have the label; None if there are none."""
    f1: Figure
    """Harmonic mean of both; 0 if the label is neither present nor predicted."""
    accuracy: Figure
    """Share of the memes on which the label was correctly given or denied."""
    macro_f1: Figure
    """Mean of the F1 of yes and of no."""
    auroc: Figure | None
    """Area under the ROC curve of the label's probabilities, over the memes with some; None without them."""
    auroc_strict: Figure | None
    """The same over all memes: one without a probability is ranked wrongly against every other."""
    baseline_accuracy: float
    """Accuracy of always answering no."""
    baseline_macro_f1: float
    """Macro-F1 of always answering no."""


@dataclass(frozen=True, slots=True)
class TaskCard:
    """All figures of one set of answers."""

    question: Question
    n: int
    groups: int
    """Number of groups that the bootstrap drew; 0 if it drew memes."""
    unanswered: int
    """Number of memes without an answer, which count as wrong."""
    failed: int
    """Number of these that failed instead of being left open."""
    scored: int
    figures: Mapping[str, Figure | None]
    """Figures by metric, the official one first; None if undefined."""
    over: Mapping[str, int]
    """Number of memes behind each figure: fewer than ``n`` for metrics of probabilities and of steps if memes have
    none. Their strict forms are over all."""
    baseline: Mapping[str, float | None]
    baseline_words: str
    labels: tuple[LabelFigures, ...]
    """Figures of each label, in the card's order."""
    by_order: tuple[Mapping[str, float | None], ...]
    """Values of the metrics for each order of the options, if the question was asked with several."""

    @property
    def official(self) -> str:
        """Metric that the data set's authors rank by; the first one if the card names none."""
        return self.question.official or next(iter(self.figures))


def task_card(results: Results, *, resamples: int = RESAMPLES, seed: int = 0) -> TaskCard:
    """Scores the answers of a run.

    Raises BadRequest: The run asked no question, no meme of it has a gold label, or a metric of the card is unknown.
    """
    question = question_of(results)
    answers = answers_of(results)
    judged, arrays, groups = answers.judged, answers.arrays, answers.groups
    # Which metrics apply depends on the answers too: only some runs have probabilities, only some data
    # sets have several annotators.
    usual = metrics_of(question, scored=bool((~np.isnan(arrays.scores)).any()), votes=arrays.votes is not None)
    # Next to a metric over some memes stands its form over all.
    names = tuple(dict.fromkeys(form for name in usual for form in (name, strict_name(name))))
    per_label = [f"{kind}:{label}" for label in question.labels for kind in _LABEL_KINDS]
    found = measure(arrays, (*names, *per_label), groups, resamples=resamples, seed=seed)
    always, words = baseline_of(question, arrays)
    return TaskCard(
        question=question,
        n=len(judged),
        groups=0 if groups is None else int(groups.max()) + 1,
        unanswered=int((~arrays.answered).sum()),
        # Left open and failed both count as wrong; they are told apart because only a failure may be
        # cured by trying again.
        failed=sum(one.prediction.outcome == "FAILED" for one in judged),
        scored=int((~np.isnan(arrays.scores).any(axis=1)).sum()),
        figures={name: found[name] for name in names},
        over={name: counted_memes(name, arrays) for name in names},
        baseline={
            # A constant answer ranks nothing, so that a baseline of AUROC or Brier would be an
            # artefact of the code.
            name: None if name in BASELINE_FREE else value_of(metric_of(name, question.labels), always)
            for name in names
        },
        baseline_words=words,
        labels=tuple(_label_figures(arrays, label, place, found) for place, label in enumerate(question.labels)),
        by_order=_by_order(judged, arrays, question, names),
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

    Raises BadRequest: The card names an unknown metric.
    """
    require_metrics(question.task, question.labels, question.official, *question.metrics)
    usual = MULTI if question.multi else (*SINGLE, *(("mmae",) if question.kind == "ordinal" else ()))
    # The card's own metrics come before the usual ones, since the first is the one that authors rank by.
    named = (*((question.official,) if question.official else ()), *question.metrics)
    also = (*(SCORED if scored else ()), *(("agreement-ceiling",) if votes else ()))
    # A usual metric that the card names too is computed once, at its earlier position.
    return tuple(dict.fromkeys((*named, *usual, *also)))


def baseline_of(question: Question, arrays: TaskArrays) -> tuple[TaskArrays, str]:
    """The baseline's constant answers, and their description."""
    if question.multi:
        return arrays.replaced(np.zeros_like(arrays.predicted)), "always none"
    most = int(arrays.gold.sum(axis=0).argmax())
    # Ties go to the first, as in `argmax`: the card's order decides, not the order of the memes.
    always = np.zeros_like(arrays.predicted)
    always[:, most] = True
    return arrays.replaced(always), f"always {question.labels[most]}"


_LABEL_KINDS = ("precision", "recall", "f1", "binary-accuracy", "binary-macro-f1", "auroc", "auroc-strict")


def _label_figures(arrays: TaskArrays, label: str, place: int, found: Mapping[str, Figure | None]) -> LabelFigures:
    gold = arrays.gold[:, place]
    # A single label's baseline always answers no, whatever the baseline of the whole task is.
    never = arrays.replaced(np.zeros_like(arrays.predicted))
    values: dict[str, Figure | None] = {kind: found[f"{kind}:{label}"] for kind in _LABEL_KINDS}

    def baseline(kind: str) -> float:
        value = value_of(metric_of(f"{kind}:{label}", arrays.labels), never)
        assert value is not None, "shares of all memes have a value"
        return value

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
        predicted = label_flags(
            [a.rotations[turn] if a and turn < len(a.rotations) else () for a in answers], question.labels
        )
        # Probabilities were averaged over the orders and belong to none of them.
        in_order = replace(arrays, predicted=predicted, scores=np.full(arrays.scores.shape, np.nan))
        found.append(
            {name: value_of(metric_of(name, question.labels), in_order) for name in names if name not in BASELINE_FREE}
        )
    return tuple(found)
