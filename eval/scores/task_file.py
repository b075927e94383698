"""Answers of any system to a question of a data set's card, read from a file and scored like runs of classify.

The file formats are those of :mod:`eval.scores.scored_file`. Answers are in the column ``label``, in a column per label
(``yes`` or ``no``, for tasks that allow several labels), in ``said_TASK`` as written by ``memecourt-eval export
--parquet``, or in the predictions of our own Inspect logs. Cells are mapped to labels by the same rules as gold labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.datasets.card import CardTask, TaskKind
from eval.datasets.items import JudgedMeme
from eval.datasets.label_rules import GoldRule, compile_task
from eval.datasets.verbs import BadCell, Expression, Join, Record
from eval.scores.prediction_rows import prediction_rows
from eval.scores.scored_file import NO_ANSWER, LineFault, ScoredFile, collect_predictions, read_score
from eval.solvers.prediction import Outcome, Prediction, TaskAnswer

_PARTED_BY = ";"
"""Separator between labels in a text cell."""
SCORE_COLUMN = "score:"
"""Prefix of the column with a label's probability."""
_ANSWER = "label"


def read_answers(path: Path, memes: Sequence[JudgedMeme], task: CardTask, *, scorer: str = "") -> ScoredFile:
    """Reads the answers in ``path`` for ``memes``.

    Args:
        memes: Memes of the split that have a gold label of the task, in its order.

    Raises:
        BadRequest: The file can't be read, or a row is invalid: an unknown or duplicate id, or a cell that is neither
            a label nor a probability.
        NotLoaded: The library that reads a file of this kind is not installed.
    """
    rules = _AnswerRules.of(task)
    read = collect_predictions(path, memes, prediction_rows(path, scorer, columns=("id",)), rules.prediction)
    used = {"id", _ANSWER, rules.said, "said", *rules.columns, *rules.scores}
    return read.scored(memes, used)


@dataclass(frozen=True, slots=True)
class _AnswerRules:
    """Rules that turn a row into an answer, whichever columns it has.

    Attributes:
        by_label: Rules for a column per label; None if the task allows only one label.
        said: Name of the column of whole answers in our Parquet files.
    """

    task: CardTask
    whole: GoldRule
    by_label: GoldRule | None
    columns: frozenset[str]
    scores: Mapping[str, str]
    said: str

    @classmethod
    def of(cls, task: CardTask) -> _AnswerRules:
        # Column names are read in lower case.
        named = {label: label.lower() for label in task.labels}
        # Accepts the labels' own names, too, if the data set's files use other values for them.
        raw = {} if task.columns else dict(task.map)
        # With the labels' names added, the reader of labels no longer accepts true for 1.
        if raw.keys() == {"0", "1"}:
            raw |= {"true": raw["1"], "false": raw["0"]}
        whole = task.model_copy(
            update={
                "of": Expression(column=_ANSWER),
                "columns": {},
                "map": {**raw, **{label: label for label in task.labels}},
                "missing": "none",
                "votes": None,
            }
        )
        # The rules of gold labels with our own columns: a yes there is a yes here.
        multi = task.kind is TaskKind.MULTI
        each = task.model_copy(
            update={
                "of": None,
                "columns": {label: Expression(column=column) for label, column in named.items()},
                "map": task.map if task.columns else {},
                "missing": "none",
                "votes": None,
            }
        )
        return cls(
            task=task,
            whole=compile_task(whole, _no_join),
            by_label=compile_task(each, _no_join) if multi else None,
            columns=frozenset(named.values()) if multi else frozenset(),
            scores={f"{SCORE_COLUMN}{column}": label for label, column in named.items()},
            said=f"said_{task.id}".lower(),
        )

    def prediction(self, id_: str, record: Mapping[str, Any]) -> Prediction:
        """The prediction of a row. Raises LineFault."""
        try:
            labels, scores = self._answer(record)
        except BadCell as bad:
            raise LineFault(str(bad)) from None
        if labels is None:
            return Prediction(meme=id_, outcome=Outcome.FAILED, reason=NO_ANSWER)
        # In the card's order, so that the same answer is always written the same way.
        ordered = tuple(label for label in self.task.labels if label in labels)
        return Prediction(
            meme=id_, outcome=Outcome.ANSWERED, said={self.task.id: TaskAnswer(labels=ordered, scores=scores)}
        )

    def _answer(self, record: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, float]]:
        if "said" in record:
            # In our own logs: the answer for this task, or none.
            answer = record["said"].get(self.task.id) if isinstance(record["said"], Mapping) else None
            if answer is None:
                raise LineFault(f"its prediction is of another task than {self.task.id}")
            try:
                found = TaskAnswer.model_validate(answer)
            except ValidationError:
                raise LineFault("its prediction is none that this version writes") from None
            return self._labels(list(found.labels)), found.scores
        if self.said in record:
            return self._labels(record[self.said]), self._scores(record)
        scores = self._scores(record)
        if _ANSWER in record:
            return self._labels(record[_ANSWER]), scores
        if self.by_label is not None:
            if absent := sorted(self.columns - record.keys()):
                raise LineFault(f"it has neither a label nor the columns {', '.join(absent)}")
            return self.by_label(dict(record)).labels, scores
        raise LineFault("it has no label; leave it empty where there is no answer")

    @property
    def _multi(self) -> bool:
        return self.task.kind is TaskKind.MULTI

    def _labels(self, cell: Any) -> tuple[str, ...] | None:
        if self._multi:
            if isinstance(cell, str) and cell.strip():
                cell = [part.strip() for part in cell.split(_PARTED_BY) if part.strip()]
        elif isinstance(cell, list):
            # Our Parquet files have a list for every kind of task.
            if len(cell) != 1:
                raise LineFault(f"it has {len(cell)} labels, and a meme has one of {self.task.id}")
            cell = cell[0]
        return self.whole({_ANSWER: cell}).labels

    def _scores(self, record: Mapping[str, Any]) -> dict[str, float]:
        read = {label: read_score(record.get(column)) for column, label in self.scores.items()}
        found = {label: score for label, score in read.items() if score is not None}
        # A label without a probability would rank last or first merely because it is missing.
        if found and len(found) < len(read):
            missing = ", ".join(label for label in read if label not in found)
            raise LineFault(f"it has a probability of some labels and none of {missing}")
        return found


def _no_join(_: Join) -> Callable[[Record], Record]:
    raise AssertionError("rules of answers name columns alone")
