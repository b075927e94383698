"""Export of an arena's boards as one Parquet table."""

from __future__ import annotations

from pathlib import Path

from eval.arena.leaderboard import Leaderboard
from eval.reports.parquet import write_rows


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
