"""Gold labels of a task that are likely wrong, found label by label with confident learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from court.errors import BadRequest
from eval.runs.results import Results
from eval.scores.label_noise import TOO_FEW, LabelNoise, find_label_noise
from eval.scores.task_card import arrays_of, question_of


@dataclass(frozen=True, slots=True)
class TaskNoise:
    """Labels of a task that are likely wrong.

    Attributes:
        by_label: Label noise by label, where having the label takes the place of being harmful.
        too_few: Labels that too few memes have, or lack, for a result.
    """

    task: str
    by_label: Mapping[str, LabelNoise]
    too_few: tuple[str, ...]


def find_task_noise(read: Sequence[Results]) -> TaskNoise:
    """Lists gold labels that are likely wrong, by the mean of the runs' probabilities of each label.

    Args:
        read: Runs that asked the same question of the same split.

    Raises:
        BadRequest: The runs disagree on a gold label, none has probabilities, or no label has enough memes.
        NotLoaded: cleanlab is not installed.
    """
    question = question_of(read[0])
    gold: dict[str, tuple[bool, ...]] = {}
    scores: dict[str, list[np.ndarray]] = {}
    for results in read:
        judged, arrays = arrays_of(results)
        for one, has, probabilities in zip(judged, arrays.gold.tolist(), arrays.scores, strict=True):
            # With two versions of gold, noise in one could not be distinguished from a change between them.
            if gold.setdefault(one.meme.id, tuple(has)) != tuple(has):
                raise BadRequest(f"The runs disagree on the gold label of {one.meme.id}.", reason="GOLD_DIFFERS")
            # With probabilities of only some labels, the mean would be over different runs for each label.
            if not np.isnan(probabilities).any():
                scores.setdefault(one.meme.id, []).append(probabilities)
    if not scores:
        raise BadRequest(
            f"No answer of these runs has probabilities of the labels of {question.task}: ask for them with --odds, or "
            "take the vote of labelled memes.",
            reason="NO_SCORES",
        )
    # The mean over runs, so that a mistake of a single system seldom makes a label look wrong.
    mean = {id_: np.mean(each, axis=0) for id_, each in scores.items()}
    found, too_few = {}, []
    for place, label in enumerate(question.labels):
        memes = [(id_, has[place], float(mean[id_][place]) if id_ in mean else None) for id_, has in gold.items()]
        # One rare label must not prevent the others from being checked.
        try:
            found[label] = find_label_noise(memes)
        except BadRequest as error:
            if error.reason != TOO_FEW:
                raise
            too_few.append(label)
    if not found:
        raise BadRequest(
            f"No label of {question.task} has enough memes with and without it to list label noise.", reason=TOO_FEW
        )
    return TaskNoise(question.task, found, tuple(too_few))
