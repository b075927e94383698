"""Ratings in one dimension, and their uncertainty."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from eval.arena.agreement import battle_key, joint_scores, judged_in, noise_in
from eval.arena.events import Answered, Event
from eval.arena.folder import ArenaManifest
from eval.arena.ranking.battles import Battles, Floats, NotRanked, battles, win_rates, wins
from eval.arena.ranking.bootstrap import Spread, spread, spread_of_elo, spread_styled
from eval.arena.ranking.bradley_terry import NoMaximum
from eval.arena.words import OVERALL
from eval.scores.measure import Figure

STYLES = ("words", "headings", "lists", "bold")
"""Counts whose differences, as a share of both answers' sum, are held equal (Chatbot Arena's style control)."""
# Share of resamples on one side of an end of a 95 % interval.
_SURELY = 0.975


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One model in one dimension; a rating has no interval if too many resamples have no finite ratings."""

    model: str
    rating: Figure | float | None
    """Bradley-Terry rating; None if the board has none."""
    first: int | None
    """Best place that the resamples allow; None without intervals."""
    last: int | None
    win_rate: float | None
    elo: Figure | float | None
    """Elo rating after the last battle, in the order of :func:`table_of`; None if verdicts are noise."""
    styled: Figure | float | None
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
    settings, models, seed = manifest.settings, manifest.settings.targets, manifest.seed
    # All figures below come from this table: its order matters for Elo.
    table, covariates, _ = table_of(manifest, events, dimension)
    anchor = models.index(settings.anchor) if settings.anchor else None
    rates = win_rates(wins(table))
    # Noise would still yield ratings with intervals, which would be read as a ranking.
    not_ranked = noise = noise_in(events, dimension)
    rated = elo = style = None
    no_style = ""
    if not noise:
        elo = spread_of_elo(table, k=settings.elo_k, resamples=settings.resamples, seed=seed)
        try:
            rated = spread(table, anchor=anchor, resamples=settings.resamples, seed=seed)
        except NotRanked as error:
            not_ranked = error.message
    if rated and dimension == OVERALL:
        # Fewer than for plain ratings: each is fitted separately instead of all in one batch.
        resamples = min(200, settings.resamples)
        try:
            style = spread_styled(table, covariates, anchor=anchor, resamples=resamples, seed=seed)
        # Style that separates winners from losers perfectly has no finite estimate; the plain ratings remain valid.
        except NoMaximum as error:
            no_style = error.message
    fought = np.bincount(np.concatenate([table.left, table.right]), minlength=len(models))

    none: Sequence[None] = [None] * len(models)
    rating, elo_rating, without_style = (found.figures if found else none for found in (rated, elo, style))

    def row(place: int) -> BoardRow:
        first, last = _places(rated, place)
        return BoardRow(
            model=models[place],
            rating=rating[place],
            first=first,
            last=last,
            win_rate=None if np.isnan(rates[place]) else float(rates[place]),
            elo=elo_rating[place],
            styled=without_style[place],
            battles=int(fought[place]),
        )

    def standing(place: int) -> tuple[float, str]:
        """Sorts models by rating, by win rate if there are no ratings, by name if verdicts are noise."""
        if noise:
            return 0.0, models[place]
        if rated is None:
            # Models without a battle come after those that lost all of theirs.
            return 1.0 if np.isnan(rates[place]) else -rates[place], models[place]
        return -rated.values[place], models[place]

    return Board(
        dimension=dimension,
        rows=tuple(map(row, sorted(range(len(models)), key=standing))),
        battles=len(table),
        tied=float(np.mean(table.score == 0.5)),
        not_ranked=not_ranked,
        without=rated.without if rated else 0,
        no_style=no_style,
    )


def table_of(
    manifest: ArenaManifest, events: Sequence[Event], dimension: str
) -> tuple[Battles, Floats, list[tuple[str, int]]]:
    """Returns the battles of one dimension, and the answers' differences in style.

    Battles run concurrently, and in another order when an arena is resumed. Elo depends on the order, so the seed
    shuffles them here.

    Returns:
        The table; differences of shape (battles, 4), in the order of :data:`STYLES`; and the meme and task number of
        each battle.
    """
    fought = judged_in(events)
    joint = joint_scores(fought, dimension) if manifest.settings.vote == "majority" else None
    # Sorted before the shuffle, which is reproducible only if it starts from the same list. Reasons and calls are left
    # out of the sort key, so that only outcomes matter.
    fought.sort(key=lambda event: event.model_dump_json(exclude={"call", "why", "answer"}))
    random.Random(f"order {manifest.seed}").shuffle(fought)
    rows: list[tuple[str, str, float, str]] = []
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
    # Style is looked up by answer, as a battle's event holds only names.
    counts = attrgetter(*STYLES)
    styles = {(e.meme, e.task, e.target): counts(e.style) for e in events if isinstance(e, Answered)}
    shown = [[styles[*task, name] for name in pair] for task, (*pair, _, _) in zip(tasks, rows, strict=True)]
    a, b = np.array(shown, dtype=np.float64).reshape(len(rows), 2, len(STYLES)).swapaxes(0, 1)
    # Relative to the sum, so that a hundred extra words weigh less among thousands; 0 if both are 0.
    return battles(manifest.settings.targets, rows), (a - b) / np.maximum(a + b, 1.0), tasks


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
