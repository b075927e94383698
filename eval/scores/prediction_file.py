"""Predictions of any system, read from a file, so that they are scored by the same rules as the court's.

A file is CSV with a header, JSON lines, Parquet, or an Inspect AI log (:mod:`eval.scores.prediction_rows`). ``id`` and
``label`` are required; ``score`` (a probability of harm) is optional. A file with any invalid content is
rejected as a whole, with each fault reported by line, row or sample: otherwise half a file would be scored as if the
other half had been left blank.

Answers to a question of a data set's card are mapped to labels by the same rules as gold labels.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import mannwhitneyu

from court.errors import BadRequest
from eval.datasets.card import CardTask, TaskKind
from eval.datasets.card_rows import compile_task
from eval.datasets.items import JudgedMeme, Level, Outcome, Prediction, Protocol, TaskAnswer
from eval.datasets.record_files import parsed_rows
from eval.datasets.verbs import Expression, Join
from eval.runs.results import Judged, Results, not_judged
from eval.scores.prediction_rows import prediction_rows
from retrieval.library.cells import BadCell, Record, is_missing, label_of, plain_word
from retrieval.library.readers import LABEL_WORDS

_FEWEST_SCORES = 3
"""Scores of rows with a label, and of rows without it, that are needed to compare them with the labels."""
_CONTRADICTS = 0.1
"""AUROC of scores against the same file's labels below which they contradict these."""
_SHOWN = 60
"""Characters of an id that a message shows: if columns are mixed up, it must not quote a meme's text."""

NO_ANSWER = "NO_ANSWER"
"""Reason of a prediction whose label is empty."""

_LABELS: Mapping[str, tuple[Outcome, Level | None]] = {
    **{word: (Outcome.HARMFUL if harmful else Outcome.NOT_HARMFUL, None) for word, harmful in LABEL_WORDS.items()},
    "somewhat harmful": (Outcome.HARMFUL, Level.SOMEWHAT_HARMFUL),
    "very harmful": (Outcome.HARMFUL, Level.VERY_HARMFUL),
    "undecided": (Outcome.UNDECIDED, None),
    "": (Outcome.FAILED, None),
}

_PARTED_BY = ";"
"""Separator between labels in a text cell."""
SCORE_COLUMN = "score:"
"""Prefix of the column with a label's probability."""
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """Content of a file of predictions."""

    predictions: tuple[Prediction, ...]
    """Prediction of each meme of the split, in its order; FAILED with reason NOT_JUDGED if missing."""
    missing: tuple[str, ...]
    """Ids of memes without a prediction in the file."""
    unused: tuple[str, ...]
    """Names of columns that were not read."""
    notes: tuple[str, ...]
    """Sentences on the file: the scorer of a log, and scores that contradict the labels."""

    def results(
        self, memes: Sequence[JudgedMeme], *, name: str, dataset: str, split: str, protocols: tuple[Protocol, ...]
    ) -> Results:
        """Joins the predictions with the gold labels of ``memes``, the memes that the file was read for."""
        judged = tuple(Judged(meme, prediction) for meme, prediction in zip(memes, self.predictions, strict=True))
        return Results(name=name, dataset=dataset, split=split, protocols=protocols, judged=judged)


def read_predictions(path: Path, memes: Sequence[JudgedMeme], *, scorer: str = "") -> ScoredFile:
    """Reads the predictions in ``path`` for ``memes``.

    Raises:
        BadRequest: The file can't be read, or a row is invalid: an unknown or duplicate id, an unknown label, or a
            malformed score.
        NotLoaded: The library that reads a file of this kind is not installed.
    """
    words, levelled = _words_of(memes), any(meme.level is not None for meme in memes)

    def predict(id_: str, record: Mapping[str, Any]) -> Prediction:
        label = record[_LABEL]
        if not is_missing(label) and plain_word(label) is None:
            raise BadCell("the label is neither a word nor a whole number")
        if (word := label_of(label, words) or "") not in words:
            raise BadCell(
                "the label is none that is known (harmful, not_harmful, 1, 0, true, false, undecided, empty for no "
                "answer, or the data set's own words)"
            )
        outcome, level = words[word]
        return Prediction(
            meme=id_,
            outcome=outcome,
            score=read_score(record.get("score")),
            # In a data set without levels, there is nothing to score a level against.
            level=level if levelled else None,
            reason=NO_ANSWER if outcome is Outcome.FAILED else "",
        )

    read = _read(path, memes, scorer, predict, used={"score"})
    return replace(read, predictions=_with_benign_levels(read.predictions, path))


def _read(
    path: Path,
    memes: Sequence[JudgedMeme],
    scorer: str,
    predict: Callable[[str, Mapping[str, Any]], Prediction],
    *,
    used: Collection[str],
) -> ScoredFile:
    """One prediction for each meme. Raises BadRequest: A row is invalid, or there is none."""
    unit, records, notes = prediction_rows(path, scorer)
    known = {meme.id for meme in memes}
    seen: dict[str, int] = {}
    columns: dict[str, None] = {}

    def parse(line: int, record: Mapping[str, Any]) -> Prediction:
        columns.update(dict.fromkeys(record))
        id_ = record.get("id")
        # In Python, True is an int and would become the id "True".
        if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
            raise BadCell("it has no id")
        # Ids in JSON may be numbers, while those of the split are strings.
        id_ = str(id_).strip()
        if id_ in seen:
            raise BadCell(f"the id {id_[:_SHOWN]!r} stands in {unit} {seen[id_]} already")
        # Before it is looked up, so that a repeated unknown id is reported as a duplicate.
        seen[id_] = line
        if id_ not in known:
            raise BadCell(f"no meme of the split has the id {id_[:_SHOWN]!r}")
        if _LABEL not in record:
            raise BadCell("it has no label; leave it empty where there is no answer")
        return predict(id_, record)

    found = parsed_rows(path, records, parse, purpose="scored as it is", reason="PREDICTIONS_UNUSABLE", unit=unit)
    predictions = {one.meme: one for one in found}
    return ScoredFile(
        predictions=tuple(predictions.get(meme.id) or not_judged(meme.id) for meme in memes),
        missing=tuple(meme.id for meme in memes if meme.id not in predictions),
        unused=tuple(name for name in columns if name not in ("id", _LABEL, *used)),
        notes=(*notes, *_contradictions(found)),
    )


def _contradictions(predictions: Iterable[Prediction]) -> Iterator[str]:
    """Reports scores that are low where the label is given, and high where it is not, in nearly every row."""
    scores: dict[str, tuple[list[float], list[float]]] = {}
    for one in predictions:
        if one.score is not None and one.outcome.harmful is not None:
            scores.setdefault("harm", ([], []))[one.outcome.harmful].append(one.score)
        for answer in one.said.values():
            for label, score in answer.scores.items():
                scores.setdefault(label, ([], []))[label in answer.labels].append(score)
    for label, (without, having) in scores.items():
        if min(len(without), len(having)) < _FEWEST_SCORES:
            continue
        auroc = float(mannwhitneyu(having, without).statistic) / (len(having) * len(without))
        if auroc < _CONTRADICTS:
            yield (
                f"The scores of {label} contradict the file's own labels: their AUROC against these is {auroc:.3f}. "
                "Are they probabilities of the other label?"
            )


def _with_benign_levels(predictions: tuple[Prediction, ...], path: Path) -> tuple[Prediction, ...]:
    """Adds the level "not harmful" in a file that has levels; a plain "harmful" has no level and is a fault.

    If only some harmful memes had a level, the error in levels would be computed over an arbitrary subset.
    """
    if all(prediction.level is None for prediction in predictions):
        return predictions
    # Somewhat and very harmful differ in their distance from gold: a missing level would hide an error.
    gaps = [one.meme for one in predictions if one.outcome is Outcome.HARMFUL and one.level is None]
    if gaps:
        raise BadRequest(
            f"{path.name} gives levels of some memes, but of {len(gaps):,} others it says harmful and not how much, "
            f"{gaps[0]!r} among them. Give a level (somewhat or very harmful) to all of them, or to none.",
            reason="PREDICTIONS_UNUSABLE",
        )
    benign = {"level": Level.NOT_HARMFUL}
    return tuple(one.model_copy(update=benign) if one.outcome is Outcome.NOT_HARMFUL else one for one in predictions)


def _words_of(memes: Sequence[JudgedMeme]) -> Mapping[str, tuple[Outcome, Level | None]]:
    """Meaning of label words: ours, and the data set's own unless they coincide with ours."""
    own = {
        word: (Outcome.HARMFUL if meme.harmful else Outcome.NOT_HARMFUL, meme.level)
        for meme in memes
        # Numbers have our meaning: 1 is harmful, and a 2 is more likely a level or a mistake than a label.
        if (word := plain_word(meme.source_label)) and not word.isdecimal()
    }
    # Ours override the data set's words, so that "harmful" always means the same.
    return {**own, **_LABELS}


def read_score(value: Any) -> float | None:
    """The probability in a cell; None if it is empty. Raises BadCell for anything else."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    fault = BadCell("the score is no number from 0 to 1")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise fault
    try:
        # An integer in JSON may be too large for a float (OverflowError).
        score = float(value)
    except (ValueError, OverflowError):
        raise fault from None
    if math.isnan(score) or not 0 <= score <= 1:
        raise fault
    return score


def read_answers(path: Path, memes: Sequence[JudgedMeme], task: CardTask, *, scorer: str = "") -> ScoredFile:
    """Reads the answers in ``path`` for ``memes``.

    Raises:
        BadRequest: The file can't be read, or a row is invalid: an unknown or duplicate id, or a cell that is neither
            a label nor a probability.
        NotLoaded: The library that reads a file of this kind is not installed.
    """
    # Accepts the labels' own names, too, if the data set's files use other values for them.
    raw = {} if task.columns else dict(task.map)
    # With the labels' names added, the reader of labels no longer accepts true for 1.
    if raw.keys() == {"0", "1"}:
        raw |= {"true": raw["1"], "false": raw["0"]}
    # The rules of gold labels, with our own column.
    how = {
        "of": Expression(column=_LABEL),
        "columns": {},
        "map": {**raw, **{label: label for label in task.labels}},
        "missing": "none",
        "votes": None,
    }
    gold_of = compile_task(task.model_copy(update=how), _no_join)
    # Column names are read in lower case.
    columns = {label: f"{SCORE_COLUMN}{label.lower()}" for label in task.labels}

    def predict(id_: str, record: Mapping[str, Any]) -> Prediction:
        read = {label: read_score(record.get(column)) for label, column in columns.items()}
        scores = {label: score for label, score in read.items() if score is not None}
        # A label without a probability would rank last or first merely because it is missing.
        if scores and len(scores) < len(read):
            missing = ", ".join(label for label in read if label not in scores)
            raise BadCell(f"it has a probability of some labels and none of {missing}")
        cell = record[_LABEL]
        if task.kind is TaskKind.MULTI:
            if isinstance(cell, str) and cell.strip():
                cell = [part.strip() for part in cell.split(_PARTED_BY) if part.strip()]
        elif isinstance(cell, list):
            if len(cell) != 1:
                raise BadCell(f"it has {len(cell)} labels, and a meme has one of {task.id}")
            cell = cell[0]
        found = gold_of({_LABEL: cell})
        if found is None or found.labels is None:
            return Prediction(meme=id_, outcome=Outcome.FAILED, reason=NO_ANSWER)
        # In the card's order, so that the same answer is always written the same way.
        ordered = tuple(label for label in task.labels if label in found.labels)
        answer = TaskAnswer(labels=ordered, scores=scores)
        return Prediction(meme=id_, outcome=Outcome.ANSWERED, said={task.id: answer})

    return _read(path, memes, scorer, predict, used=columns.values())


def _no_join(_: Join) -> Callable[[Record], Record]:
    raise AssertionError("rules of answers name columns alone")
