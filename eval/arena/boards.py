"""Ratings in one dimension, and their uncertainty."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.arena.agreement import Vote, battle_key, joint_scores, noise_in
from eval.arena.events import Answered, Event, Forfeited, Judged
from eval.arena.folder import ArenaManifest
from eval.arena.ranking.battles import Battles, Floats, NotRanked, among, battles, expected, groups, win_rates, wins
from eval.arena.ranking.bootstrap import Spread, spread, spread_of_elo, spread_styled
from eval.arena.ranking.bradley_terry import NoMaximum, elo, elo_of_orders, ratings, styled
from eval.arena.words import OVERALL

STYLES = ("length", "headings", "lists", "bold")
"""Covariates of style: differences, as a share of both answers' sum (Chatbot Arena's style control)."""
_ORDERS = 100
"""Orders of the same battles that Elo ratings are looked at in."""
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
    group: int | None
    """Number of its group, 1 for the best: models are rated within groups. None if verdicts are noise."""
    rating: Estimate | None
    """Bradley-Terry rating within its group; None if it is alone there."""
    first: int | None
    """Best place in its group that the resamples allow; None without intervals."""
    last: int | None
    win_rate: float | None
    elo: Estimate | None
    """Elo rating after the last battle, in the order of :func:`table_of`; None if verdicts are noise."""
    elo_orders: float
    """Standard deviation of its Elo rating over other orders of the same battles."""
    styled: Estimate | None
    """Rating with style controlled for; overall only, None if it could not be computed."""
    against_anchor: float | None
    """Win probability against the anchor by its rating; None without an anchor or ratings in its group."""
    battles: int


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a difference in style, in rating points per standard deviation."""

    name: str
    points: Estimate


@dataclass(frozen=True, slots=True)
class Board:
    """Ratings of all models in one dimension."""

    dimension: str
    rows: tuple[BoardRow, ...]
    battles: int
    tied: float
    not_ranked: str
    """Reason why there are no ratings; empty if there are. If verdicts are noise, rows are sorted by name."""
    grouped: str
    """Reason why ratings hold only within groups; empty if all models can be rated together, or none."""
    without: int
    resamples: int
    effects: tuple[Effect, ...]
    no_style: str
    against: dict[tuple[str, str], float]

    @property
    def on_one_scale(self) -> bool:
        """True if all ratings can be compared with each other."""
        return len({row.group for row in self.rows if row.rating is not None}) == 1


def on_one_scale(boards: Sequence[Board]) -> tuple[tuple[str, ...], ...]:
    """Models in parts whose ratings can stand in one column for each board, in the order of the first board.

    Ratings of separately rated groups have no common zero. A model without a rating fits into any part.
    """
    group_of = [{row.model: row.group for row in board.rows if row.rating is not None} for board in boards]
    # Models of a part, and the group that each board's ratings of the part are of.
    parts: list[tuple[list[str], dict[int, int | None]]] = []
    for row in boards[0].rows:
        own = {number: of[row.model] for number, of in enumerate(group_of) if row.model in of}
        fits = (part for part in parts if all(part[1].get(number, group) == group for number, group in own.items()))
        if (part := next(fits, None)) is None:
            parts.append(part := ([], {}))
        part[0].append(row.model)
        part[1].update(own)
    return tuple(tuple(models) for models, _ in parts)


@dataclass(frozen=True, slots=True)
class _RatedGroup:
    """Models that are rated against each other."""

    number: int
    members: tuple[int, ...]
    anchor: int | None
    """Index of the anchor among the members; None if it is not one of them."""
    ratings: Floats | None
    spread: Spread | None


def board_of(manifest: ArenaManifest, events: Sequence[Event], dimension: str, *, vote: Vote | None = None) -> Board:
    """Rates the models of an arena in one dimension, which must have at least one battle."""
    settings, seed = manifest.settings, manifest.seed
    models = settings.targets
    # All figures below come from this table: its order matters for Elo, its weights for ratings.
    table, covariates, _ = table_of(manifest, events, dimension, vote=vote)
    anchor = models.index(settings.anchor) if settings.anchor else None
    rates, against = win_rates(wins(table))
    not_ranked = noise = noise_in(events, dimension)
    # Noise would still yield ratings with intervals, which would be read as a ranking.
    rated = () if noise else _rate(table, anchor=anchor, resamples=settings.resamples, seed=seed)
    group_of = {place: group for group in rated for place in group.members}
    grouped = ""
    if len(rated) > 1:
        # Built only for its message, which names the groups.
        apart = NotRanked([[models[place] for place in group.members] for group in rated]).message
        # If each model is alone in its group, there is no rating at all, not merely no common scale.
        if all(group.ratings is None for group in rated):
            not_ranked = apart
        else:
            grouped = apart
    style: list[Estimate] | None = None
    effects: tuple[Effect, ...] = ()
    no_style = ""
    # Style is estimated together with the ratings, over all models at once.
    if dimension == OVERALL and grouped:
        no_style = "That takes battles by which all models can be rated together."
    elif dimension == OVERALL and not not_ranked:
        style, effects, no_style = _style(manifest, table, covariates, anchor)
    elo_now = elo(table, k=settings.elo_k)
    elo_spread = spread_of_elo(table, k=settings.elo_k, resamples=settings.resamples, seed=seed)
    rng = np.random.default_rng(seed)
    orders = np.stack([rng.permutation(len(table)) for _ in range(_ORDERS)])
    over_orders = elo_of_orders(table, orders, k=settings.elo_k).std(axis=0)
    fights = np.bincount(table.left, minlength=len(models)) + np.bincount(table.right, minlength=len(models))

    def row(place: int) -> BoardRow:
        group = group_of.get(place)
        rating: Estimate | None = None
        first = last = None
        chance: float | None = None
        # Places are counted within the group, which has the scale of the rating.
        if group is not None and group.ratings is not None:
            own = group.members.index(place)
            rating = _estimate(group.ratings, group.spread, own)
            first, last = _places(group.spread, own)
            if group.anchor is not None:
                chance = float(expected(group.ratings[own], group.ratings[group.anchor]))
        return BoardRow(
            model=models[place],
            group=None if group is None else group.number,
            rating=rating,
            first=first,
            last=last,
            win_rate=None if np.isnan(rates[place]) else float(rates[place]),
            elo=None if noise else _estimate(elo_now, elo_spread, place),
            elo_orders=float(over_orders[place]),
            styled=style[place] if style else None,
            against_anchor=chance,
            battles=int(fights[place]),
        )

    def standing(row: BoardRow) -> tuple[int, float, str]:
        """Sorts rows by group and rating, by win rate if there are no ratings, by name if verdicts are noise."""
        if noise:
            return 0, 0.0, row.model
        if not_ranked:
            # Models without a battle come after those that lost all of theirs.
            return 0, 1.0 if row.win_rate is None else -row.win_rate, row.model
        # Group 1 is the best. The group sorts before the rating, as ratings of two groups have no common scale.
        return row.group or 0, -row.rating.value if row.rating else 0.0, row.model

    return Board(
        dimension=dimension,
        rows=tuple(sorted(map(row, range(len(models))), key=standing)),
        battles=len(table),
        # Forfeits are not ties, but count as battles.
        tied=float(np.mean(table.score == 0.5)),
        not_ranked=not_ranked,
        grouped=grouped,
        # The worst group's number, as one number has to warn about all of them.
        without=max((group.spread.without for group in rated if group.spread), default=0),
        resamples=settings.resamples,
        effects=effects,
        no_style=no_style,
        against={
            (models[i], models[j]): float(against[i, j])
            for i, j in itertools.permutations(range(len(models)), 2)
            if not np.isnan(against[i, j])
        },
    )


def _rate(table: Battles, *, anchor: int | None, resamples: int, seed: int) -> tuple[_RatedGroup, ...]:
    """Rates each group of comparable models; the group that reaches most others by wins comes first."""
    rated = []
    for number, names in enumerate(groups(wins(table), table.models), 1):
        members = tuple(table.models.index(name) for name in names)
        # An anchor in another group does not fix this group's scale.
        own_anchor = members.index(anchor) if anchor in members else None
        ratings_: Floats | None = None
        found: Spread | None = None
        # A model alone in its group has nothing to be rated against.
        if len(members) > 1:
            own = among(table, members)
            ratings_ = ratings(own, anchor=own_anchor)
            found = spread(own, anchor=own_anchor, resamples=resamples, seed=seed)
        rated.append(_RatedGroup(number, members, anchor=own_anchor, ratings=ratings_, spread=found))
    return tuple(rated)


def table_of(
    manifest: ArenaManifest, events: Sequence[Event], dimension: str, *, vote: Vote | None = None
) -> tuple[Battles, Floats, list[tuple[str, int]]]:
    """Returns the battles of one dimension, with forfeits if the settings count them, and their differences in style.

    Battles run concurrently, and in another order when an arena is resumed. Elo depends on the order, so the seed
    shuffles them here.

    Returns:
        The table; covariates of shape (battles, 4), in the order of :data:`STYLES`, each scaled to a standard deviation
        of 1; and the meme and task number of each battle.
    """
    settings = manifest.settings
    # Style is looked up by answer, as a battle's event holds only names.
    style = {(e.meme, e.task, e.target): e.style for e in events if isinstance(e, Answered)}
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    joint = joint_scores(fought, dimension) if (vote or settings.vote) == "majority" else None
    # Only the setting decides: the operator chooses whether a missing answer is a defeat.
    lost = [event for event in events if isinstance(event, Forfeited)] if settings.forfeits == "lose" else []
    ordered: list[Judged | Forfeited] = [*fought, *lost]
    # Sorted before the shuffle, which is reproducible only if it starts from the same list. Reasons and calls are left
    # out of the sort key, so that only outcomes matter.
    ordered.sort(key=lambda event: event.model_dump_json(exclude={"call", "why", "answer"}))
    random.Random(f"order {manifest.seed}").shuffle(ordered)
    rows: list[tuple[str, str, float, str]] = []
    weights: list[float] = []
    differences: list[list[float]] = []
    tasks: list[tuple[str, int]] = []
    for event in ordered:
        if isinstance(event, Forfeited):
            tasks.append((event.meme, event.task))
            # The winner comes first: a forfeit shows no answers, so there is no order to bias it.
            rows.append((event.winner, event.loser, 1.0, event.meme))
            weights.append(1.0)
            # One of the two has no answer, so there is no style to compare.
            differences.append([0.0] * len(STYLES))
            continue
        verdict = event.verdicts[dimension]
        # A clear win may weigh more, by the settings; the joint vote includes that already, and weighs the same in
        # each battle.
        score, weight = verdict.score, settings.far if verdict.far else 1.0
        if joint is not None:
            key = battle_key(event)
            if key not in joint:
                continue  # the battle is in the table already
            # The vote takes the place of its battle's first judgement and counts once.
            score, weight = joint.pop(key), 1.0
            # The vote has the pair in order of names, the row in the order shown.
            score = score if event.a == key.one else 1 - score
        rows.append((event.a, event.b, score, event.meme))
        weights.append(weight)
        tasks.append((event.meme, event.task))
        a, b = (style[event.meme, event.task, name] for name in (event.a, event.b))
        # Both answers are needed: what matters is the difference, not the length as such.
        both = ((a.words, b.words), (a.headings, b.headings), (a.lists, b.lists), (a.bold, b.bold))
        differences.append([_share(x, y) for x, y in both])
    covariates = np.array(differences, dtype=np.float64).reshape(len(rows), len(STYLES))
    spread_ = covariates.std(axis=0)
    # A covariate without spread is divided by 1: dividing by 0 would give NaN and break the fit.
    return battles(settings.targets, rows, weights), covariates / np.where(spread_ > 0, spread_, 1.0), tasks


def _share(a: float, b: float) -> float:
    # Relative to the sum, so that a hundred extra words weigh less among thousands; 0 if both are 0.
    return (a - b) / (a + b) if a + b else 0.0


def _style(
    manifest: ArenaManifest, table: Battles, covariates: Floats, anchor: int | None
) -> tuple[list[Estimate] | None, tuple[Effect, ...], str]:
    """Returns ratings with style controlled for and the effects of style, or the reason why there are none."""
    resamples = min(_STYLE_RESAMPLES, manifest.settings.resamples)
    try:
        found = styled(table, covariates, anchor=anchor)
    # Style that separates winners from losers perfectly has no finite estimate; the plain ratings remain valid.
    except (NotRanked, NoMaximum) as error:
        return None, (), error.message
    of_ratings, of_effects = spread_styled(table, covariates, anchor=anchor, resamples=resamples, seed=manifest.seed)
    effects = tuple(
        Effect(name, _estimate(found.effects, of_effects, place))
        for place, name in enumerate(STYLES)
        # A style in which answers never differ has no effect to report.
        if covariates[:, place].any()
    )
    return [_estimate(found.ratings, of_ratings, place) for place in range(len(found.ratings))], effects, ""


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
