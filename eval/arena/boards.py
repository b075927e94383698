"""Ratings in one dimension, and their uncertainty."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.arena.agreement import battle_key, joint_scores, noise_in
from eval.arena.events import Answered, Event, Judged
from eval.arena.folder import ArenaManifest
from eval.arena.ranking.battles import Battles, Floats, NotRanked, battles, win_rates, wins
from eval.arena.ranking.bootstrap import Spread, spread, spread_of_elo, spread_styled
from eval.arena.ranking.bradley_terry import NoMaximum, elo, ratings, styled
from eval.arena.words import OVERALL

STYLES = ("length", "headings", "lists", "bold")
"""Covariates of style: differences, as a share of both answers' sum (Chatbot Arena's style control)."""
# Fewer than for plain ratings: each is fitted separately instead of all in one batch.
_STYLE_RESAMPLES = 200
# Share of resamples on one side of an end of a 95 % interval.
_SURELY = 0.975


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One model in one dimension."""

    model: str
    rating: Estimate | None
    """Bradley-Terry rating; None if the board has none."""
    first: int | None
    """Best place that the resamples allow; None without intervals."""
    last: int | None
    win_rate: float | None
    elo: Estimate | None
    """Elo rating after the last battle, in the order of :func:`table_of`; None if verdicts are noise."""
    styled: Estimate | None
    """Rating with style controlled for; overall only, None if it could not be computed."""
    battles: int


@dataclass(frozen=True, slots=True)
class Board:
    """Ratings of all models in one dimension."""

    dimension: str
    rows: tuple[BoardRow, ...]
    battles: int
    tied: float
    not_ranked: str
    """Reason why there are no ratings; empty if there are. If verdicts are noise, rows are sorted by name."""
    without: int
    """Number of resamples without finite ratings."""
    no_style: str


def board_of(manifest: ArenaManifest, events: Sequence[Event], dimension: str) -> Board:
    """Rates the models of an arena in one dimension, which must have at least one battle."""
    settings, seed = manifest.settings, manifest.seed
    models = settings.targets
    # All figures below come from this table: its order matters for Elo.
    table, covariates, _ = table_of(manifest, events, dimension)
    anchor = models.index(settings.anchor) if settings.anchor else None
    rates = win_rates(wins(table))
    # Noise would still yield ratings with intervals, which would be read as a ranking.
    not_ranked = noise = noise_in(events, dimension)
    rated: Floats | None = None
    found: Spread | None = None
    if not noise:
        try:
            rated = ratings(table, anchor=anchor)
            found = spread(table, anchor=anchor, resamples=settings.resamples, seed=seed)
        except NotRanked as error:
            not_ranked = error.message
    style: list[Estimate] = []
    no_style = ""
    if dimension == OVERALL and not not_ranked:
        style, no_style = _style(manifest, table, covariates, anchor)
    elo_now = elo(table, k=settings.elo_k)
    elo_spread = spread_of_elo(table, k=settings.elo_k, resamples=settings.resamples, seed=seed)
    fights = np.bincount(table.left, minlength=len(models)) + np.bincount(table.right, minlength=len(models))

    def row(place: int) -> BoardRow:
        first, last = _places(found, place)
        return BoardRow(
            model=models[place],
            rating=None if rated is None else _estimate(rated, found, place),
            first=first,
            last=last,
            win_rate=None if np.isnan(rates[place]) else float(rates[place]),
            elo=None if noise else _estimate(elo_now, elo_spread, place),
            styled=style[place] if style else None,
            battles=int(fights[place]),
        )

    def standing(row: BoardRow) -> tuple[float, str]:
        """Sorts rows by rating, by win rate if there are no ratings, by name if verdicts are noise."""
        if noise:
            return 0.0, row.model
        if row.rating is None:
            # Models without a battle come after those that lost all of theirs.
            return 1.0 if row.win_rate is None else -row.win_rate, row.model
        return -row.rating.value, row.model

    return Board(
        dimension=dimension,
        rows=tuple(sorted(map(row, range(len(models))), key=standing)),
        battles=len(table),
        tied=float(np.mean(table.score == 0.5)),
        not_ranked=not_ranked,
        without=found.without if found else 0,
        no_style=no_style,
    )


def table_of(
    manifest: ArenaManifest, events: Sequence[Event], dimension: str
) -> tuple[Battles, Floats, list[tuple[str, int]]]:
    """Returns the battles of one dimension, and their differences in style.

    Battles run concurrently, and in another order when an arena is resumed. Elo depends on the order, so the seed
    shuffles them here.

    Returns:
        The table; covariates of shape (battles, 4), in the order of :data:`STYLES`, each scaled to a standard deviation
        of 1; and the meme and task number of each battle.
    """
    # Style is looked up by answer, as a battle's event holds only names.
    style = {(e.meme, e.task, e.target): e.style for e in events if isinstance(e, Answered)}
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    joint = joint_scores(fought, dimension) if manifest.settings.vote == "majority" else None
    # Sorted before the shuffle, which is reproducible only if it starts from the same list. Reasons and calls are left
    # out of the sort key, so that only outcomes matter.
    fought.sort(key=lambda event: event.model_dump_json(exclude={"call", "why", "answer"}))
    random.Random(f"order {manifest.seed}").shuffle(fought)
    rows: list[tuple[str, str, float, str]] = []
    differences: list[list[float]] = []
    tasks: list[tuple[str, int]] = []
    for event in fought:
        score = event.verdicts[dimension].score
        if joint is not None:
            key = battle_key(event)
            if key not in joint:
                continue  # the battle is in the table already
            # The vote takes the place of its battle's first judgement. It has the pair in order of names, the row in
            # the order shown.
            score = joint.pop(key)
            score = score if event.a == key.one else 1 - score
        rows.append((event.a, event.b, score, event.meme))
        tasks.append((event.meme, event.task))
        a, b = (style[event.meme, event.task, name] for name in (event.a, event.b))
        # Both answers are needed: what matters is the difference, not the length as such.
        both = ((a.words, b.words), (a.headings, b.headings), (a.lists, b.lists), (a.bold, b.bold))
        differences.append([_share(x, y) for x, y in both])
    covariates = np.array(differences, dtype=np.float64).reshape(len(rows), len(STYLES))
    spread_ = covariates.std(axis=0)
    # A covariate without spread is divided by 1: dividing by 0 would give NaN and break the fit.
    return battles(manifest.settings.targets, rows), covariates / np.where(spread_ > 0, spread_, 1.0), tasks


def _share(a: float, b: float) -> float:
    # Relative to the sum, so that a hundred extra words weigh less among thousands; 0 if both are 0.
    return (a - b) / (a + b) if a + b else 0.0


def _style(
    manifest: ArenaManifest, table: Battles, covariates: Floats, anchor: int | None
) -> tuple[list[Estimate], str]:
    """Returns ratings with style controlled for, or the reason why there are none."""
    resamples = min(_STYLE_RESAMPLES, manifest.settings.resamples)
    try:
        found = styled(table, covariates, anchor=anchor)
    # Style that separates winners from losers perfectly has no finite estimate; the plain ratings remain valid.
    except NoMaximum as error:
        return [], error.message
    resampled = spread_styled(table, covariates, anchor=anchor, resamples=resamples, seed=manifest.seed)
    return [_estimate(found, resampled, place) for place in range(len(found))], ""


def _estimate(values: Floats, found: Spread | None, place: int) -> Estimate:
    if found is None or found.low is None or found.high is None:
        return Estimate(float(values[place]), None, None)
    return Estimate(float(values[place]), float(found.low[place]), float(found.high[place]))


def _places(found: Spread | None, place: int) -> tuple[int | None, int | None]:
    """Returns the best and the worst place: a model ahead in 97.5 % of the resamples counts as surely ahead.

    Comparing within resamples, instead of checking whether intervals overlap, cancels what two ratings have in common,
    such as the anchor's luck.
    """
    if found is None or found.low is None:
        return None, None
    # A model is neither ahead of nor behind itself, so its own column needs no exception.
    ahead = (found.draws > found.draws[:, place : place + 1]).mean(axis=0)
    behind = (found.draws < found.draws[:, place : place + 1]).mean(axis=0)
    return 1 + int((ahead >= _SURELY).sum()), len(ahead) - int((behind >= _SURELY).sum())
