"""Repeats of an arena with other seeds: mean and spread of ratings, and which places hold in every repeat."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eval.arena.leaderboard import Leaderboard
from eval.arena.run import Ask
from eval.arena.words import OVERALL
from eval.reports.repeats import Repeats, over_repeats, repeats_section
from eval.reports.sections import Section
from eval.session.directory import CALLS
from eval.session.sampled import repeats_of


def arena_repeats(ask: Ask, count: int) -> tuple[Ask, ...]:
    """Plans repeats of an arena, with one shared call cache: identical calls at temperature 0 are made once.

    Raises BadRequest: The folder contains something else.
    """
    return tuple(
        replace(one, name=f"{ask.name}, repeat {number}", calls=ask.calls or ask.out / CALLS)
        for number, one in enumerate(repeats_of(ask, count, "an arena"), 1)
    )


def repeated_board(boards: Sequence[Leaderboard]) -> Repeats:
    """Combines the overall boards of repeats, in the order of mean rating, or of win rate without a common scale.

    Raises BadRequest: There are fewer than two, or they are of different models or memes.
    """
    overall = [board.board(OVERALL) for board in boards]
    # Ratings of separate groups have no common zero, so a mean over repeats would mix scales.
    rated = [board.on_one_scale and all(row.rating is not None for row in board.rows) for board in overall]
    manifests = [board.manifest for board in boards]
    repeats = over_repeats(
        manifests,
        [
            {
                row.model: {
                    "rating": row.rating.value if comparable and row.rating else None,
                    "win_rate": row.win_rate,
                }
                for row in board.rows
            }
            for board, comparable in zip(overall, rated, strict=True)
        ],
        [{name: getattr(one, name) for name in ("settings", "models", "memes")} for one in manifests],
    )
    by = ordered_by(repeats)
    # Models without a figure come last; ties are sorted by name.
    ordered = sorted(repeats.rows, key=lambda model: (-(repeats.rows[model][by].mean or 0.0), model))
    return replace(repeats, rows={model: repeats.rows[model] for model in ordered})


def ordered_by(repeats: Repeats) -> str:
    """Returns ``rating`` if all repeats rate all models together, ``win_rate`` otherwise."""
    rated = all(value is not None for row in repeats.rows.values() for value in row["rating"].values)
    return "rating" if rated else "win_rate"


def times_ahead(repeats: Repeats) -> Mapping[str, int]:
    """Counts the repeats in which each model is ahead of the next one."""
    by, found = ordered_by(repeats), {}
    for one, other in itertools.pairwise(repeats.rows):
        pairs = zip(repeats.rows[one][by].values, repeats.rows[other][by].values, strict=True)
        found[one] = sum(a is not None and b is not None and a > b for a, b in pairs)
    return found


def repeat_section(repeats: Repeats) -> Section:
    """Builds a table of means, spreads and places."""
    count, ahead = len(repeats.seeds), times_ahead(repeats)
    unsure = [f"{one} ahead of {other}" for one, other in itertools.pairwise(repeats.rows) if ahead[one] != count]
    notes = [
        "“Ahead” counts the repeats in which a model is ahead of the next.",
        "Every place holds in all repeats." if not unsure else f"Not in all repeats: {'; '.join(unsure)}.",
    ]
    if ordered_by(repeats) != "rating":
        notes.append(
            "In some repeat not all models can be rated together, so that they stand in the order of the battles won."
        )
    columns = {"rating": ("rating", ".0f", 1.0), "win_rate": ("won, %", ".1f", 100.0)}
    cells = {model: f"{times} of {count}" for model, times in ahead.items()}
    return repeats_section(repeats, "model", columns, notes=notes, last=("ahead", cells))
