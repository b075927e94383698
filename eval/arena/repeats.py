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
from eval.session.repeats import repeats_of, require_repeats


@dataclass(frozen=True, slots=True)
class RepeatedModel:
    """One model over all repeats."""

    model: str
    rating: RepeatedFigure
    """Overall rating; repeats in which not all models can be rated together have none."""
    win_rate: RepeatedFigure


@dataclass(frozen=True, slots=True)
class AdjacentPlaces:
    """Two models that are adjacent when ranked by mean."""

    ahead: str
    behind: str
    held: int
    repeats: int


@dataclass(frozen=True, slots=True)
class RepeatedBoard:
    """An arena over all repeats."""

    seeds: tuple[int, ...]
    finished: bool
    by_rating: bool
    """True if the order is by mean rating; by mean win rate otherwise."""
    models: tuple[RepeatedModel, ...]
    places: tuple[AdjacentPlaces, ...]


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
        other = board.manifest
        # Seeds are not compared: repeats are meant to differ in them.
        differ = [
            name
            for name, one, two in (
                ("settings", first.settings, other.settings),
                ("models", first.models, other.models),
                ("memes", first.memes, other.memes),
            )
            if one != two
        ]
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
    places = [
        AdjacentPlaces(
            ahead=one.model,
            behind=other.model,
            held=sum(
                a is not None and b is not None and a > b
                for a, b in zip(compared(one).values, compared(other).values, strict=True)
            ),
            repeats=len(boards),
        )
        for one, other in itertools.pairwise(ordered)
    ]
    return RepeatedBoard(
        seeds=tuple(board.manifest.seed for board in boards),
        finished=all(board.manifest.finished is not None for board in boards),
        by_rating=by_rating,
        models=tuple(ordered),
        places=tuple(places),
    )


def repeat_section(board: RepeatedBoard) -> Section:
    """Builds a table of means, spreads and places."""
    header = ("model", "rating", "SD", *(f"repeat {n}" for n in range(1, len(board.seeds) + 1)), "won", "SD", "ahead")
    shares = {place.ahead: f"{place.held} of {place.repeats}" for place in board.places}
    rows = [
        (
            model.model,
            figure(model.rating.mean if board.by_rating else None, ".0f"),
            figure(model.rating.sd if board.by_rating else None, ".1f"),
            *(figure(value, ".0f") for value in model.rating.values),
            _percent(model.win_rate.mean),
            _percent(model.win_rate.sd),
            shares.get(model.model, "–"),
        )
        for model in board.models
    ]
    unsure = [place for place in board.places if place.held < place.repeats]
    notes = [
        "SD is the standard deviation over repeats; “ahead” counts the repeats in which a model is ahead of the next.",
        "Every place holds in all repeats."
        if not unsure
        else "Not in all repeats: " + "; ".join(f"{place.ahead} ahead of {place.behind}" for place in unsure) + ".",
    ]
    if not board.by_rating:
        notes.append(
            "In some repeat not all models can be rated together, so that they stand in the order of the battles won."
        )
    return Section("repeats", "Over all repeats", (header, *rows), tuple(notes))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
