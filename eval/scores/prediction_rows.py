"""Rows of a file of predictions in any supported format: CSV, JSON lines, Parquet, or an Inspect AI log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from court.errors import BadRequest, NotLoaded
from eval.datasets.card import FileKind
from eval.datasets.record_files import kind_of
from eval.scores.meme_rows import table_records
from retrieval.library.tables import Record


class PredictionRows(NamedTuple):
    """Rows of a file."""

    unit: str
    records: Iterator[Record]
    notes: tuple[str, ...] = ()
    """Sentences on the file as a whole."""


def prediction_rows(path: Path, scorer: str = "") -> PredictionRows:
    """Opens a file of predictions.

    Args:
        scorer: Scorer of a log whose answers are the labels; the log's first one if empty.

    Raises:
        BadRequest: The file can't be read, or there is no such scorer.
        NotLoaded: The library that reads such files is not installed.
    """
    if path.suffix.lower() in (".eval", ".json"):
        return _log_rows(path, scorer)
    if scorer:
        raise _no_scorer(f"{path.name} is no log of Inspect AI, so it has no scorer. Leave out --scorer.")
    unit = "row" if kind_of(path) is FileKind.PARQUET else "line"
    return PredictionRows(unit, table_records(path, ("id", "label"), "predictions"))


def _no_scorer(message: str) -> BadRequest:
    return BadRequest(message, reason="PREDICTIONS_UNUSABLE", field="scorer")


def _log_rows(path: Path, scorer: str) -> PredictionRows:
    """Opens a log of Inspect AI, whose samples are numbered from 1 in the order of their ids."""
    try:
        from inspect_ai.log import read_eval_log
    except ModuleNotFoundError as error:
        # A missing dependency of Inspect AI is a different fault, which the advice below would hide.
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise NotLoaded(
            f"{path.name} is read by Inspect AI, which is not installed. Install it with: "
            "pip install 'memecourt[inspect]'",
            reason="INSPECT_MISSING",
        ) from None
    try:
        # These parts make up nearly all of a log.
        log = read_eval_log(str(path), exclude_fields={"events", "attachments", "messages", "store"})
        status, samples = log.status, log.samples or []
    # A damaged archive raises errors from any library that reads its parts: zipfile, zlib, zstandard, ijson, pydantic.
    except Exception as error:
        raise BadRequest(
            f"{path.name} can't be read as a log of Inspect AI ({type(error).__name__}). Predictions with an "
            "object a line go into a file that ends in .jsonl.",
            reason="SOURCE_UNREADABLE",
        ) from None
    # In the order of the log, as the first one is used without --scorer.
    names = list(dict.fromkeys(name for sample in samples for name in sample.scores or ()))
    if scorer and scorer not in names:
        raise _no_scorer(f"{path.name} has no scorer {scorer!r}. It has: {', '.join(names) or 'none'}.")
    by = scorer or next(iter(names), "")
    # Otherwise a scorer that only marks answers right or wrong would make every meme a failure of the system.
    if samples and not any(_answer(sample, by) for sample in samples):
        raise _no_scorer(
            f"{path.name} has no answers{f' by the scorer {by!r}' if by else ', as nothing in it was scored'}: labels "
            f"are read from what a scorer sets as answer. Scorers: {', '.join(names) or 'none'}; name one with "
            "--scorer."
        )
    others = ", ".join(name for name in names if name != by) or "none"
    notes = [f"{path.name}: labels are the answers of the scorer {by}; other scorers: {others}."]
    if status != "success":
        notes.append(f"{path.name}: the log's status is {status}, so that samples may be missing.")
    records = ((number, _record(sample, by)) for number, sample in enumerate(samples, 1))
    return PredictionRows("sample", records, tuple(notes))


def _record(sample: Any, scorer: str) -> dict[str, Any] | str:
    if sample.epoch > 1:
        return f"it is of epoch {sample.epoch}, and a meme has one answer: run it with one epoch"
    # A sample that ended in an error is the system's failure: it counts as wrong and is not rejected.
    if sample.error is None and scorer not in (sample.scores or {}):
        return f"it has no score by {scorer!r}, and no error"
    return {"id": sample.id, "label": "" if sample.error else _answer(sample, scorer)}


def _answer(sample: Any, scorer: str) -> str:
    score = (sample.scores or {}).get(scorer)
    return (score.answer or "").strip() if score is not None else ""
