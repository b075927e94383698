"""Labels that are likely wrong, found by confident learning.

Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels", as implemented in the
package ``cleanlab``: the number of memes of one label that are confidently given the other estimates how many labels
are wrong, and that many labels with the least support are listed. The list also contains mistakes of the system
itself: it is for people to review, and never a correction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from court.errors import BadRequest, NotLoaded
from eval.datasets.items import Protocol
from eval.runs.results import Results
from eval.scores.metrics import HARM, Answers, answers_of

FEWEST = 20
"""Fewest memes of each label for reliable confidence thresholds."""
TOO_FEW = "TOO_FEW_TO_SAY"
"""Error reason if there are fewer."""


@dataclass(frozen=True, slots=True)
class NoisyLabel:
    """A label that is likely wrong."""

    id: str
    harmful: bool
    probability: float
    """Probability of harm, from a system that has not seen the label."""

    @property
    def support(self) -> float:
        """Probability of the label itself, in [0, 1]: the lower, the more likely the label is wrong."""
        return self.probability if self.harmful else 1 - self.probability


@dataclass(frozen=True, slots=True)
class LabelNoise:
    """Labels that are likely wrong, and the estimated share of them."""

    n: int
    without: int
    noisy: tuple[NoisyLabel, ...]
    """Labels that are likely wrong, the least supported first."""
    harmful_wrong: float
    """Estimated share of the memes labelled harmful that are not."""
    benign_wrong: float
    """Estimated share of the memes labelled not harmful that are harmful."""


def find_label_noise(memes: Sequence[tuple[str, bool, float | None]]) -> LabelNoise:
    """Lists labels that are likely wrong.

    Args:
        memes: Id, label (True for harmful) and probability of harm (None if there is none). The probability must come
            from a system that has not seen the label: a court whose precedents are from another split, or a vote that
            leaves the meme out.

    Raises:
        BadRequest: Fewer than :data:`FEWEST` memes of a label have a probability.
        NotLoaded: cleanlab is not installed.
    """
    scored = [(id_, harmful, probability) for id_, harmful, probability in memes if probability is not None]
    counts = [sum(harmful is label for _, harmful, _ in scored) for label in (False, True)]
    if min(counts) < FEWEST:
        raise BadRequest(
            f"{counts[1]:,} memes labelled harmful and {counts[0]:,} labelled not harmful have a probability; label "
            f"noise needs {FEWEST} of each.",
            reason=TOO_FEW,
        )
    try:
        from cleanlab.count import estimate_joint
        from cleanlab.filter import find_label_issues
    except ImportError as error:
        raise NotLoaded(
            f"Listing label noise needs {error.name}, which is not installed: pip install 'memecourt[labels]'.",
            reason="CLEANLAB_NOT_INSTALLED",
        ) from None
    labels = np.array([harmful for _, harmful, _ in scored], dtype=np.int64)
    probabilities = np.array([probability for *_, probability in scored], dtype=np.float64)
    both = np.stack([1 - probabilities, probabilities], axis=1)
    # In this process: starting a pool takes longer than processing thousands of rows.
    places = find_label_issues(labels, both, return_indices_ranked_by="self_confidence", n_jobs=1)
    # Given label x estimated label, shares of all memes.
    joint = estimate_joint(labels, both)
    # For each given label, the estimated shares of the true labels.
    benign, harmful = (joint / joint.sum(axis=1, keepdims=True)).tolist()
    return LabelNoise(
        n=len(scored),
        without=len(memes) - len(scored),
        noisy=tuple(NoisyLabel(*scored[int(place)]) for place in places),
        harmful_wrong=float(harmful[0]),
        benign_wrong=float(benign[1]),
    )


@dataclass(frozen=True, slots=True)
class TaskNoise:
    """Labels of a task that are likely wrong."""

    task: str
    by_label: Mapping[str, LabelNoise]
    """Label noise by label, where having the label takes the place of being harmful."""
    too_few: tuple[str, ...] = ()


def find_task_noise(read: Sequence[Results], protocol: Protocol | None = None) -> TaskNoise:
    """Lists gold labels that are likely wrong, by the mean of the runs' probabilities of each label.

    Args:
        protocol: Protocol of verdicts, whose one label is "harmful"; None for answers to a question.

    Raises:
        BadRequest: The runs disagree on a gold label, none has probabilities, or no label has enough memes.
        NotLoaded: cleanlab is not installed.
    """
    answers = [answers_of(results, protocol) for results in read]
    memes_of, task = _by_meme(answers), answers[0].task
    if protocol is not None:
        return TaskNoise(task, {"harmful": find_label_noise(memes_of(HARM.index("harmful")))})
    if all(np.isnan(each.arrays.scores).any(axis=1).all() for each in answers):
        raise BadRequest(
            f"No answer of these runs has probabilities of the labels of {task}: ask for them with --odds, or take the "
            "vote of labelled memes.",
            reason="NO_SCORES",
        )
    found, too_few = {}, []
    for place, label in enumerate(answers[0].arrays.labels):
        # One rare label must not prevent the others from being checked.
        try:
            found[label] = find_label_noise(memes_of(place))
        except BadRequest as error:
            if error.reason != TOO_FEW:
                raise
            too_few.append(label)
    if not found:
        raise BadRequest(
            f"No label of {task} has enough memes with and without it to list label noise.", reason=TOO_FEW
        )
    return TaskNoise(task, found, tuple(too_few))


def _by_meme(read: Sequence[Answers]) -> Callable[[int], list[tuple[str, bool, float | None]]]:
    """Id, gold and mean probability of each meme for the label at a place.

    Raises BadRequest: The runs disagree on a gold label.
    """
    gold: dict[str, list[bool]] = {}
    scores: dict[str, list[np.ndarray]] = {}
    for answers in read:
        rows = zip(answers.judged, answers.arrays.gold.tolist(), answers.arrays.scores, strict=True)
        for one, has, probabilities in rows:
            # With two versions of gold, noise in one could not be distinguished from a change between them.
            if gold.setdefault(one.meme.id, has) != has:
                raise BadRequest(f"The runs disagree on the gold label of {one.meme.id}.", reason="GOLD_DIFFERS")
            # With probabilities of only some labels, the mean would be over different runs for each label.
            if not np.isnan(probabilities).any():
                scores.setdefault(one.meme.id, []).append(probabilities)
    # The mean over runs, so that a mistake of a single system seldom makes a label look wrong.
    mean = {id_: np.mean(each, axis=0) for id_, each in scores.items()}
    return lambda place: [
        (id_, has[place], float(mean[id_][place]) if id_ in mean else None) for id_, has in gold.items()
    ]
