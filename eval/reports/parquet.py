"""A run's predictions as Parquet, one row per meme."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from court.errors import BadRequest, NotLoaded
from eval.runs.results import Results
from eval.scores.prediction_file import SCORE_COLUMN
from eval.solvers.question import gold_of


def write_parquet(results: Results, target: Path) -> int:
    """Writes gold labels and predictions, and returns the number of rows. Texts and pictures are not exported.

    Columns: ``id``, ``split``, ``language``, ``group``, ``source_label``, ``gold_PROTOCOL`` (null if the protocol drops
    the meme), ``outcome``, ``score``, ``level``, ``vote``, ``needs_review``, ``reason``, ``trial``, ``calls``,
    ``tokens_in``, ``tokens_out``, ``seconds``. Runs that asked a question have, instead of ``gold_PROTOCOL``,
    ``gold_TASK`` and ``said_TASK``, lists of labels or null, and ``score:LABEL``, the probability of each label or
    null.

    Raises:
        BadRequest: The file exists already.
        NotLoaded: pyarrow is not installed.
        OSError: The file can't be written.
    """
    if target.exists():
        raise BadRequest(f"{target} is there already. Name another file, or remove it.", reason="FILE_EXISTS")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        # A missing dependency of pyarrow is a different fault, which the advice below would hide.
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotLoaded(
            "What writes Parquet is not installed. Install it with: pip install 'memecourt[export]'",
            reason="PARQUET_MISSING",
        ) from None
    text, count, number, flag, labels = pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string())
    question, memes = results.question, [one.meme for one in results.judged]
    predictions = [one.prediction for one in results.judged]
    # Types are declared, not inferred, so that a column has the same type in every run, even if it is empty.
    columns: list[tuple[str, Any, Sequence[object]]] = [
        (name, text, memes) for name in ("id", "split", "language", "group", "source_label")
    ]
    columns += [(name, text, predictions) for name in ("outcome", "reason", "trial")]
    columns += [("score", number, predictions), ("level", count, predictions), ("vote", number, predictions)]
    columns += [("needs_review", flag, predictions)]
    costs = [one.cost for one in predictions]
    columns += [(name, count, costs) for name in ("calls", "tokens_in", "tokens_out")] + [("seconds", number, costs)]
    filled = [(name, kind, [getattr(row, name) for row in rows]) for name, kind, rows in columns]
    if question is None:
        filled += [(f"gold_{one}", flag, [meme.gold(one) for meme in memes]) for one in results.protocols]
    else:
        task = question.task
        gold, answers = [gold_of(meme, task) for meme in memes], [one.said.get(task) for one in predictions]
        filled += [
            (f"gold_{task}", labels, [None if one is None else question.in_order(one) for one in gold]),
            (f"said_{task}", labels, [one and one.labels for one in answers]),
            *(
                (f"{SCORE_COLUMN}{name}", number, [one and one.scores.get(name) for one in answers])
                for name in question.labels
            ),
        ]
    about = {"format": "memecourt-predictions/1", "dataset": results.dataset, "split": results.split}
    schema = pa.schema([(name, kind) for name, kind, _ in filled], metadata=about)
    table = pa.table({name: values for name, _, values in filled}, schema=schema)
    pq.write_table(table, target, compression="zstd")
    return len(memes)
