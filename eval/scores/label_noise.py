"""Labels that are likely wrong, found by confident learning.

Northcutt, Jiang & Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels", as implemented in the
package ``cleanlab``: the number of memes of one label that are confidently given the other estimates how many labels
are wrong, and that many labels with the least support are listed. The list also contains mistakes of the system
itself: it is for people to review, and never a correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from court.errors import BadRequest, NotLoaded
from eval.datasets.items import Protocol
from eval.runs.results import Results
from eval.scores.metrics import HARM, answers_of

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


def find_task_noise(
    read: Sequence[Results], protocol: Protocol | None = None
) -> tuple[dict[str, LabelNoise], list[str]]:
    """Lists gold labels that are likely wrong, by the mean of the runs' probabilities of each label.

    Args:
        protocol: Protocol of verdicts, whose one label is "harmful"; None for answers to a question.

    Returns:
        Label noise by label, where having the label takes the place of being harmful; and labels of too few memes.

    Raises:
        BadRequest: The runs disagree on a gold label, none has probabilities, or no label has enough memes.
        NotLoaded: cleanlab is not installed.
    """
    answers = [answers_of(results, protocol) for results in read]
    gold: dict[str, list[bool]] = {}
    scores: dict[str, list[np.ndarray]] = {}
    for each in answers:
        for one, has, probabilities in zip(each.judged, each.arrays.gold.tolist(), each.arrays.scores, strict=True):
            # With two versions of gold, noise in one could not be distinguished from a change between them.
            if gold.setdefault(one.meme.id, has) != has:
                raise BadRequest(f"The runs disagree on the gold label of {one.meme.id}.", reason="GOLD_DIFFERS")
            # With probabilities of only some labels, the mean would be over different runs for each label.
            if not np.isnan(probabilities).any():
                scores.setdefault(one.meme.id, []).append(probabilities)
    task = answers[0].task
    if protocol is None and not scores:
        raise BadRequest(
            f"No answer of these runs has probabilities of the labels of {task}: ask for them with --odds, or take the "
            "vote of labelled memes.",
            reason="NO_SCORES",
        )
    # The mean over runs, so that a mistake of a single system seldom makes a label look wrong.
    mean = {id_: np.mean(each, axis=0).tolist() for id_, each in scores.items()}
    places = dict(enumerate(answers[0].arrays.labels)) if protocol is None else {HARM.index("harmful"): "harmful"}
    found, too_few = {}, []
    for place, label in places.items():
        # One rare label must not prevent the others from being checked.
        try:
            found[label] = find_label_noise(
                [(id_, has[place], mean[id_][place] if id_ in mean else None) for id_, has in gold.items()]
            )
        except BadRequest as error:
            if error.reason != TOO_FEW or protocol is not None:
                raise
            too_few.append(label)
    if not found:
        raise BadRequest(
            f"No label of {task} has enough memes with and without it to list label noise.", reason=TOO_FEW
        )
    return found, too_few
