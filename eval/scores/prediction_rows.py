"""Rows of a file of predictions in any supported format: CSV, JSON lines, Parquet, or an Inspect AI log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from court.errors import BadRequest
from eval.datasets.card import FileKind
from eval.datasets.json_lines import parse_object
from eval.datasets.record_files import RecordFile
from eval.scores.inspect_rows import inspect_records
from eval.scores.meme_rows import table_records
from eval.solvers.question import Outcome
from retrieval.library.cells import plain_word
from retrieval.library.tables import Record, read_text

_COLUMNS = ("id", "label")
_MAMI = ("id", "label", "shaming", "stereotype", "objectification", "violence")
_OUTCOME = "outcome"
"""Column that ``memecourt-eval export --parquet`` writes instead of a label."""


class PredictionRows(NamedTuple):
    """Rows of a file."""

    unit: str
    records: Iterator[Record]
    notes: tuple[str, ...] = ()
    """Sentences on the file as a whole."""


def prediction_rows(path: Path, scorer: str = "", *, columns: tuple[str, ...] = _COLUMNS) -> PredictionRows:
    """Opens a file of predictions.

    Args:
        path: The file. Parquet and Inspect AI logs are recognised by their suffix; everything else is text.
        scorer: Scorer of a log; see :func:`eval.scores.inspect_rows.inspect_records`.
        columns: Columns that a table must have; ``label`` may be called ``outcome`` in Parquet.

    Raises:
        BadRequest: The file can't be read, or a scorer is named and the file is not a log.
        NotLoaded: The library that reads such files is not installed.
    """
    if _is_log(path):
        return PredictionRows("sample", *inspect_records(path, scorer))
    if scorer:
        raise BadRequest(
            f"{path.name} is no log of Inspect AI, so it has no scorer. Leave out --scorer.",
            reason="PREDICTIONS_UNUSABLE",
            field="scorer",
        )
    if path.suffix.lower() == ".parquet":
        return PredictionRows("row", _parquet_records(path, columns))
    records = _answers_of_mami(path) or table_records(path, columns, "predictions")
    return PredictionRows("line", ((line, _as_published(record)) for line, record in records))


def _answers_of_mami(path: Path) -> Iterator[Record] | None:
    """Records of an ``answer.txt`` as MAMI's authors score it, without a header; None for any other file."""
    lines = read_text(path, "predictions").split("\n")
    rows = [(number, line.strip().split("\t")) for number, line in enumerate(lines, 1) if line.strip()]
    # The name of a picture, then 0 or 1 for misogynous, and for each of the four kinds in subtask B.
    if not rows or len(rows[0][1]) not in (2, len(_MAMI)) or {plain_word(cell) for cell in rows[0][1][1:]} - {"0", "1"}:
        return None
    width = len(rows[0][1])
    return iter(
        (number, dict(zip(_MAMI, cells, strict=False)) if len(cells) == width else f"the line has {len(cells)} cells")
        for number, cells in rows
    )


def _as_published(record: dict[str, Any] | str) -> dict[str, Any] | str:
    """The record with the probability of a submission to the Hateful Memes challenge as its score."""
    if isinstance(record, str) or "proba" not in record or "score" in record:
        return record
    return {"score" if name == "proba" else name: value for name, value in record.items()}


def _is_log(path: Path) -> bool:
    ending = path.suffix.lower()
    if ending != ".json":
        return ending == ".eval"
    try:
        # Only the beginning is read here; invalid UTF-8 is reported when the whole file is read.
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            first = next((line for line in lines if not line.isspace()), "")
    except OSError:
        return False  # reading it as text reports the error
    # JSON lines or a table may have that suffix too: a log is a single object, indented or not.
    record = parse_object(first)
    return first.lstrip().startswith("{") and (record is None or "eval" in record)


def _parquet_records(path: Path, columns: tuple[str, ...]) -> Iterator[Record]:
    rows = iter(RecordFile(path, FileKind.PARQUET))
    first = next(rows, None)
    if first is None:
        return
    names = [name.lower() for name in first[1]]
    label = "label" if "label" in names or "label" not in columns else _OUTCOME
    needed = {label if name == "label" else name for name in columns}
    # As in a table: of two columns with the same name the last would silently win.
    if not needed <= set(names) or len(set(names)) < len(names):
        yield 1, f"the columns must be {' and '.join(columns)} among others, and none there twice"
        return
    for number, row in itertools.chain([first], rows):
        if isinstance(row, str):
            yield number, row
            continue
        record = {name.lower(): value for name, value in row.items()}
        if label == _OUTCOME:
            outcome = record.pop(_OUTCOME)
            # A failure is not a label: an empty label means that there is no answer.
            record["label"] = "" if outcome == Outcome.FAILED else outcome
        yield number, record
