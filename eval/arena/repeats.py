"""Repeats of an arena with other seeds: mean and spread of ratings, and which places hold in every repeat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from court.errors import BadRequest
from eval.arena.leaderboard import Leaderboard
from eval.arena.run import Ask
from eval.arena.words import OVERALL
from eval.reports.sections import Section
from eval.scores.means import RepeatedFigure, repeated
from eval.scores.measure import figure
from eval.session.directory import CALLS
from eval.session.sampled import repeats_of, require_repeats


@dataclass(frozen=True, slots=True)
class RepeatedModel:
    """One model over all repeats."""

    model: str
    rating: RepeatedFigure
    """Overall rating; repeats in which not all models can be rated together have none."""
    win_rate: RepeatedFigure
    ahead: int | None = None
    """Number of repeats in which it is ahead of the next model by the mean; None for the last one."""


@dataclass(frozen=True, slots=True)
class RepeatedBoard:
    """An arena over all repeats."""

    seeds: tuple[int, ...]
    finished: bool
    by_rating: bool
    """True if the order is by mean rating; by mean win rate otherwise."""
    models: tuple[RepeatedModel, ...]


def arena_repeats(ask: Ask, count: int) -> tuple[Ask, ...]:
    """Plans repeats of an arena, with one shared call cache: identical calls at temperature 0 are made once.

    Raises BadRequest: The folder contains something else.
    """
    return tuple(
        replace(one, name=f"{ask.name}, repeat {number}", calls=ask.calls or ask.out / CALLS)
        for number, one in enumerate(repeats_of(ask, count, "an arena"), 1)
    )


def repeated_board(boards: Sequence[Leaderboard]) -> RepeatedBoard:
    """Combines the overall boards of repeats.

    Raises BadRequest: There are fewer than two, or they are of different models or memes.
    """
    require_repeats(len(boards))
    first = boards[0].manifest
    for board in boards[1:]:
        # Seeds are not compared: repeats are meant to differ in them.
        names = ("settings", "models", "memes")
        differ = [name for name in names if getattr(first, name) != getattr(board.manifest, name)]
        if differ:
            raise BadRequest(
                f"Repeats are of the same arena; these differ in {', '.join(differ)}.", reason="REPEATS_DIFFER"
            )
    overall = [board.board(OVERALL) for board in boards]
    # Ratings of separate groups have no common zero, so a mean over repeats would mix scales.
    rated = [board.on_one_scale and all(row.rating is not None for row in board.rows) for board in overall]
    rows = [{row.model: row for row in board.rows} for board in overall]
    models = []
    for name in first.settings.targets:
        own = [of_repeat[name] for of_repeat in rows]
        ratings = [
            row.rating.value if comparable and row.rating else None for row, comparable in zip(own, rated, strict=True)
        ]
        models.append(RepeatedModel(name, repeated(ratings), repeated([row.win_rate for row in own])))
    by_rating = all(rated)

    def compared(model: RepeatedModel) -> RepeatedFigure:
        return model.rating if by_rating else model.win_rate

    # Models without a figure come last; ties are sorted by name.
    ordered = sorted(models, key=lambda model: (-(compared(model).mean or 0.0), model.model))
    for place, (one, other) in enumerate(itertools.pairwise(ordered)):
        pairs = zip(compared(one).values, compared(other).values, strict=True)
        ordered[place] = replace(one, ahead=sum(a is not None and b is not None and a > b for a, b in pairs))
    return RepeatedBoard(
        seeds=tuple(board.manifest.seed for board in boards),
        finished=all(board.manifest.finished is not None for board in boards),
        by_rating=by_rating,
        models=tuple(ordered),
    )


def repeat_section(board: RepeatedBoard) -> Section:
    """Builds a table of means, spreads and places."""
    repeats = len(board.seeds)
    header = ("model", "rating", "SD", *(f"repeat {n}" for n in range(1, repeats + 1)), "won", "SD", "ahead")
    rows = [
        (
            model.model,
            figure(model.rating.mean if board.by_rating else None, ".0f"),
            figure(model.rating.sd if board.by_rating else None, ".1f"),
            *(figure(value, ".0f") for value in model.rating.values),
            _percent(model.win_rate.mean),
            _percent(model.win_rate.sd),
            "–" if model.ahead is None else f"{model.ahead} of {repeats}",
        )
        for model in board.models
    ]
    pairs = itertools.pairwise(board.models)
    unsure = [f"{one.model} ahead of {next_.model}" for one, next_ in pairs if one.ahead != repeats]
    notes = [
        "SD is the standard deviation over repeats; “ahead” counts the repeats in which a model is ahead of the next.",
        "Every place holds in all repeats." if not unsure else f"Not in all repeats: {'; '.join(unsure)}.",
    ]
    if not board.by_rating:
        notes.append(
            "In some repeat not all models can be rated together, so that they stand in the order of the battles won."
        )
    return Section("repeats", "Over all repeats", (header, *rows), tuple(notes))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
