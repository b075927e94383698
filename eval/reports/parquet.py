"""A run's predictions as Parquet, one row per meme."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from court.errors import BadRequest, NotLoaded
from eval.runs.results import Judged, Results
from eval.scores.prediction_file import SCORE_COLUMN
from eval.solvers.question import Question, gold_of


def write_parquet(results: Results, target: Path) -> int:
    """Writes gold labels and predictions, and returns the number of rows. Texts and pictures are not exported.

    Columns: ``id``, ``split``, ``language``, ``group``, ``source_label``, ``gold_PROTOCOL`` (null if the protocol drops
    the meme), ``outcome``, ``score``, ``level``, ``vote``, ``needs_review``, ``reason``, ``trial``, ``calls``,
    ``tokens_in``, ``tokens_out``, ``seconds``. Runs that asked a question have, instead of ``gold_PROTOCOL``,
    ``gold_TASK`` and ``said_TASK``, lists of labels or null, and ``score:LABEL``, the probability of each label or
    null. Raises as :func:`write_rows`.
    """
    question = results.question
    protocols = () if question else results.protocols
    golds = {str(p): {one.meme.id: harmful for harmful, one in results.under(p)} for p in protocols}
    rows: list[dict[str, Any]] = []
    for one in results.judged:
        prediction, cost = one.prediction, one.prediction.cost
        rows.append(
            {
                "id": one.meme.id,
                "split": one.meme.split,
                "language": one.meme.language,
                "group": one.meme.group,
                "source_label": one.meme.source_label,
                **{f"gold_{name}": gold.get(one.meme.id) for name, gold in golds.items()},
                **(_labels(one, question) if question else {}),
                "outcome": str(prediction.outcome),
                "score": prediction.score,
                "level": None if prediction.level is None else int(prediction.level),
                "vote": prediction.vote,
                "needs_review": prediction.needs_review,
                "reason": prediction.reason,
                "trial": prediction.trial,
                "calls": cost.calls,
                "tokens_in": cost.tokens_in,
                "tokens_out": cost.tokens_out,
                "seconds": cost.seconds,
            }
        )
    types: dict[str, type] = {
        **dict.fromkeys(("id", "split", "language", "group", "source_label", "outcome", "reason", "trial"), str),
        **dict.fromkeys(("score", "vote", "seconds"), float),
        **dict.fromkeys(("level", "calls", "tokens_in", "tokens_out"), int),
        **dict.fromkeys(("needs_review", *(f"gold_{name}" for name in golds)), bool),
        **(dict.fromkeys((f"gold_{question.task}", f"said_{question.task}"), list) if question else {}),
        **(dict.fromkeys((f"{SCORE_COLUMN}{label}" for label in question.labels), float) if question else {}),
    }
    about = {"format": "memecourt-predictions/1", "dataset": results.dataset, "split": results.split}
    return write_rows(rows, types, target, about=about)


def _labels(one: Judged, question: Question) -> dict[str, list[str] | float | None]:
    gold, answer = gold_of(one.meme, question.task), one.prediction.said.get(question.task)
    scores = {} if answer is None else answer.scores
    return {
        f"gold_{question.task}": None if gold is None else list(question.in_order(gold)),
        f"said_{question.task}": None if answer is None else list(answer.labels),
        **{f"{SCORE_COLUMN}{label}": scores.get(label) for label in question.labels},
    }


def write_rows(
    rows: Sequence[Mapping[str, Any]], types: Mapping[str, type], target: Path, *, about: Mapping[str, str]
) -> int:
    """Writes rows of plain values, and returns their number.

    Args:
        types: Type of each column, which can't be inferred from an empty column.

    Raises:
        BadRequest: The file exists already.
        NotLoaded: pyarrow is not installed.
        OSError: The file can't be written.
    """
    if target.exists():
        raise BadRequest(f"{target} is there already. Name another file, or remove it.", reason="FILE_EXISTS")
    pa, pq = arrow()
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), list: pa.list_(pa.string())}
    # Declared, not inferred, so that a column has the same type in every run, even if it is empty.
    schema = pa.schema([(name, kinds[kind]) for name, kind in types.items()], metadata=dict(about))
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), target, compression="zstd")
    return len(rows)


def arrow() -> tuple[Any, Any]:
    """The modules ``pyarrow`` and ``pyarrow.parquet``. Raises NotLoaded if they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        # A missing dependency of pyarrow is a different fault, which the advice below would hide.
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotLoaded(
            "What reads and writes Parquet is not installed. Install it with: pip install 'memecourt[export]'",
            reason="PARQUET_MISSING",
        ) from None
    return pa, pq
