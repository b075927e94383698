"""Export of an arena's boards: one Every Eval Ever record per model, and one Parquet table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from court.errors import BadRequest
from eval.arena.boards import Board, BoardRow, Estimate
from eval.arena.leaderboard import Leaderboard
from eval.reports.every_eval_ever import Metric, Publisher, Record, record_of
from eval.reports.parquet import write_rows
from eval.scores.metrics import Figure

_SCALE = (0.0, 4000.0)
"""Ends of the scale of ratings that a record must name: they have none. They are moved where a rating lies beyond."""
_STEP = 1000.0
"""Points by which they are moved, so that records of similar arenas name the same ends."""


def records_of_arena(board: Leaderboard, publisher: Publisher) -> Iterator[Record]:
    """Yields a record for each model: rating and win rate by criterion, of the boards that could be ranked.

    Raises:
        BadRequest: The arena is not finished.
    """
    manifest = board.manifest
    if manifest.finished is None:
        raise BadRequest(f"{manifest.name} is not finished: only such results are for others to rely on.")
    for name in manifest.settings.targets:
        anchor = manifest.models[manifest.settings.anchor].model if manifest.settings.anchor else None
        metrics = [metric for one in board.boards for metric in _metrics(one, _row(one, name), anchor=anchor)]
        if not metrics:
            continue  # it has no battle
        yield record_of(
            metrics,
            publisher,
            benchmark=f"memecourt-arena-{manifest.dataset}",
            data={"dataset_name": f"{manifest.dataset}/{manifest.split}"},
            model=manifest.models[name].model,
            developer=manifest.models[name].family,
            source=manifest.name,
            at=manifest.created,
            details={
                "judges": ", ".join(manifest.models[one].model for one in manifest.settings.judges),
                "controller": manifest.models[manifest.settings.controller].model,
                "levels": str(manifest.settings.levels),
                "vote": manifest.settings.vote,
                "guideline": manifest.settings.guideline,
                "commit": manifest.commit,
                "command": manifest.command,
            },
        )


def write_boards(board: Leaderboard, target: Path) -> int:
    """Writes a row for each criterion and model; returns the number of rows. Raises as ``write_rows``.

    Columns: ``criterion``, ``model``, ``called``, ``family``, ``battles``, ``win_rate``, ``rating``, ``rating_low``,
    ``rating_high``, ``elo``, ``not_ranked`` (why there is no rating, empty if there is one).
    """
    models = board.manifest.models
    rows = [
        {
            "criterion": one.dimension,
            "model": row.model,
            "called": models[row.model].model,
            "family": models[row.model].family,
            "battles": row.battles,
            "win_rate": row.win_rate,
            "rating": row.rating.value if row.rating else None,
            "rating_low": row.rating.low if row.rating else None,
            "rating_high": row.rating.high if row.rating else None,
            "elo": row.elo.value if row.elo else None,
            "not_ranked": one.not_ranked or (one.grouped if row.rating is None else ""),
        }
        for one in board.boards
        for row in one.rows
    ]
    types: dict[str, type] = {
        **dict.fromkeys(("criterion", "model", "called", "family", "not_ranked"), str),
        **dict.fromkeys(("win_rate", "rating", "rating_low", "rating_high", "elo"), float),
        "battles": int,
    }
    about = {"format": "memecourt-arena/1", "arena": board.manifest.name}
    return write_rows(rows, types, target, about=about)


def _row(board: Board, name: str) -> BoardRow:
    return next(row for row in board.rows if row.model == name)


def _metrics(board: Board, row: BoardRow, *, anchor: str | None) -> Iterator[Metric]:
    if row.win_rate is not None:
        words = "Share of its battles that the model won, ties half."
        yield Metric(f"{board.dimension}: win rate", words, row.win_rate, row.battles)
    # Ratings of different groups are not comparable, which a record of one model can't express.
    if row.rating is not None and not board.grouped:
        low, high = _scale(board)
        fixed = f"{anchor} is at 1000" if anchor else "all models average 1000"
        yield Metric(
            f"{board.dimension}: rating",
            f"Bradley-Terry rating; 400 points are odds of ten to one, and {fixed}.",
            _figure(row.rating),
            row.battles,
            low=low,
            high=high,
        )


def _scale(board: Board) -> tuple[float, float]:
    """Returns bounds between which all ratings of a board and their intervals lie."""
    values = [
        value
        for row in board.rows
        if row.rating is not None
        for value in (row.rating.value, row.rating.low, row.rating.high)
        if value is not None
    ]
    return (
        min(_SCALE[0], *(_STEP * math.floor(value / _STEP) for value in values)),
        max(_SCALE[1], *(_STEP * math.ceil(value / _STEP) for value in values)),
    )


def _figure(estimate: Estimate) -> Figure | float:
    if estimate.low is None or estimate.high is None:
        return estimate.value
    return Figure(estimate.value, estimate.low, estimate.high)
