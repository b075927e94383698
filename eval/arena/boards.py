"""Ratings in one dimension, and how sure they are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.arena.events import Answered, Event, Forfeited, Judged
from eval.arena.folder import ArenaManifest
from eval.arena.joint import Vote, battle_key, joint_scores
from eval.arena.noise import noise_in
from eval.arena.ranking.battles import Battles, Floats, NotRanked, among, battles, expected, groups, win_rates, wins
from eval.arena.ranking.bootstrap import Spread, spread, spread_of_elo, spread_styled
from eval.arena.ranking.bradley_terry import NoMaximum, ratings, styled
from eval.arena.ranking.elo import elo, elo_of_orders
from eval.arena.words import OVERALL

STYLES = ("length", "headings", "lists", "bold")
"""Covariates of style: differences, as a share of both answers' sum (Chatbot Arena's style control)."""
_ORDERS = 100
"""Orders of the same battles that Elo ratings are looked at in."""
# Fewer than for plain ratings: each is fitted by itself, and not all in one batch.
_STYLE_RESAMPLES = 200
# The share beyond one end of a 95 % interval.
_SURELY = 0.975


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure.

    Attributes:
        value: The figure.
        low: Lower end of its 95 % interval; None if that has no end that could be computed.
        high: Upper end of the interval.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One model in one dimension.

    Attributes:
        model: Its name.
        group: Number of its group, the best being 1: models are rated within one. None where verdicts are noise.
        rating: Bradley-Terry's within its group; None where it is alone there.
        first: The best place that the resamples leave it within its group; None without intervals.
        last: The worst.
        win_rate: Counted over all its battles; None where it fought none.
        elo: After the last battle, in the order of :func:`table_of`; None where verdicts are noise.
        elo_orders: Standard deviation of its Elo rating over other orders of the same battles.
        styled: Rating with style held equal; overall only, and None where that was not to be had.
        against_anchor: Chance against the anchor by its rating; None without an anchor or ratings in its group.
        battles: Number of battles of the model.
    """

    model: str
    group: int | None
    rating: Estimate | None
    first: int | None
    last: int | None
    win_rate: float | None
    elo: Estimate | None
    elo_orders: float
    styled: Estimate | None
    against_anchor: float | None
    battles: int


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a difference of style, in points for one standard deviation of it."""

    name: str
    points: Estimate


@dataclass(frozen=True, slots=True)
class Board:
    """One dimension.

    Attributes:
        dimension: Which.
        rows: The best first, group by group.
        battles: Number of battles.
        tied: Share of them that were tied.
        not_ranked: Why there are no ratings; empty where there are. Where verdicts are noise, models stand by name.
        grouped: Why ratings hold within groups alone; empty where all models can be rated together, or none.
        without: Resamples without finite ratings, in whichever group has most of them.
        resamples: Number of resamples of the interval.
        effects: Effects of style; overall only.
        no_style: Why style could not be held equal; empty where it could, or was not asked for.
        against: Win rates against each other, by names; where they met.
    """

    dimension: str
    rows: tuple[BoardRow, ...]
    battles: int
    tied: float
    not_ranked: str
    grouped: str
    without: int
    resamples: int
    effects: tuple[Effect, ...]
    no_style: str
    against: dict[tuple[str, str], float]

    @property
    def on_one_scale(self) -> bool:
        """True where all ratings that there are can be set beside each other."""
        return len({row.group for row in self.rows if row.rating is not None}) == 1


@dataclass(frozen=True, slots=True)
class _RatedGroup:
    """Models that are rated among themselves.

    Attributes:
        number: 1 for the best.
        members: Places of the models in the table of all battles.
        anchor: Place of the anchor among the members; None where it is none of them.
        ratings: Their ratings, float of shape (members,); None of one that is alone.
        spread: Spread of the ratings; None likewise.
    """

    number: int
    members: tuple[int, ...]
    anchor: int | None
    ratings: Floats | None
    spread: Spread | None


def board_of(manifest: ArenaManifest, events: Sequence[Event], dimension: str, *, vote: Vote | None = None) -> Board:
    """The ratings of an arena in one dimension; it must have a battle.

    Args:
        manifest: Manifest of the arena.
        events: Its events, or those of some of its memes.
        dimension: Dimension of the verdicts.
        vote: Rule for several judgements of a battle; as the settings say if None.
    """
    settings, seed = manifest.settings, manifest.seed
    models = settings.targets
    # All figures below are of this one table: its order matters for Elo, and its weights for ratings.
    table, covariates = table_of(manifest, events, dimension, vote=vote)
    anchor = models.index(settings.anchor) if settings.anchor else None
    rates, against = win_rates(wins(table))
    not_ranked = noise = noise_in(events, dimension)
    # Ratings of noise would still come out, with intervals, and be read as a ranking.
    rated = () if noise else _rate(table, anchor=anchor, resamples=settings.resamples, seed=seed)
    group_of = {place: group for group in rated for place in group.members}
    grouped = ""
    if len(rated) > 1:
        # Only for its words, which name the groups.
        apart = NotRanked([[models[place] for place in group.members] for group in rated]).message
        # Each model alone in its group: then there is no rating at all, not merely none on one scale.
        if all(group.ratings is None for group in rated):
            not_ranked = apart
        else:
            grouped = apart
    style: list[Estimate] | None = None
    effects: tuple[Effect, ...] = ()
    no_style = ""
    # Style is estimated along with the ratings, over all models at once.
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
        # Places are those within the group, on whose scale the rating is.
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
        """The order of rows: by group and rating, by what was won where nobody has one, by name in noise."""
        if noise:
            return 0, 0.0, row.model
        if not_ranked:
            # Whoever fought no battle comes after those that lost all of theirs.
            return 0, 1.0 if row.win_rate is None else -row.win_rate, row.model
        # Groups are numbered from the best, so a better group goes before any rating: ratings of two
        # groups have no common scale.
        return row.group or 0, -row.rating.value if row.rating else 0.0, row.model

    return Board(
        dimension=dimension,
        rows=tuple(sorted(map(row, range(len(models))), key=standing)),
        battles=len(table),
        # Forfeits are no ties, and count among the battles.
        tied=float(np.mean(table.score == 0.5)),
        not_ranked=not_ranked,
        grouped=grouped,
        # The worst of the groups: one number has to warn of them all.
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
    """Rates the models that can be rated together, the group first that reaches most others by wins."""
    rated = []
    for number, names in enumerate(groups(wins(table), table.models), 1):
        members = tuple(table.models.index(name) for name in names)
        # An anchor in another group fixes nothing here.
        own_anchor = members.index(anchor) if anchor in members else None
        ratings_: Floats | None = None
        found: Spread | None = None
        # A model alone in its group has nobody to be rated against.
        if len(members) > 1:
            own = among(table, members)
            ratings_ = ratings(own, anchor=own_anchor)
            found = spread(own, anchor=own_anchor, resamples=resamples, seed=seed)
        rated.append(_RatedGroup(number, members, anchor=own_anchor, ratings=ratings_, spread=found))
    return tuple(rated)


def table_of(
    manifest: ArenaManifest, events: Sequence[Event], dimension: str, *, vote: Vote | None = None
) -> tuple[Battles, Floats]:
    """The battles of one dimension, forfeits included where the settings say so, and their differences of style.

    Battles are fought side by side, and in another order where an arena was taken up again. Elo depends on it, so that
    the seed draws the order here.

    Args:
        manifest: Manifest of the arena.
        events: Its events, or those of some of its memes.
        dimension: Dimension of the verdicts.
        vote: Rule for several judgements of a battle; as the settings say if None.

    Returns:
        The table, and covariates of shape (battles, 4), in the order of :data:`STYLES`, each scaled to a standard
        deviation of 1.
    """
    table, covariates, _ = table_with_tasks(manifest, events, dimension, vote=vote)
    return table, covariates


def table_with_tasks(
    manifest: ArenaManifest, events: Sequence[Event], dimension: str, *, vote: Vote | None = None
) -> tuple[Battles, Floats, list[tuple[str, int]]]:
    """The battles as :func:`table_of` has them, and the meme and number of the task of each."""
    settings = manifest.settings
    # Style is looked up by answer, as a battle's event has only names.
    style = {(e.meme, e.task, e.target): e.style for e in events if isinstance(e, Answered)}
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    joint = joint_scores(fought, dimension) if (vote or settings.vote) == "majority" else None
    # By the setting alone: whether silence is a defeat is for whoever runs the arena to say.
    lost = [event for event in events if isinstance(event, Forfeited)] if settings.forfeits == "lose" else []
    ordered: list[Judged | Forfeited] = [*fought, *lost]
    # Into an order of their own before the shuffle, which gives the same result only if it starts from the same list.
    # Reasons and calls are left out: what happened decides.
    ordered.sort(key=lambda event: event.model_dump_json(exclude={"call", "why"}))
    random.Random(f"order {manifest.seed}").shuffle(ordered)
    rows: list[tuple[str, str, float, str]] = []
    weights: list[float] = []
    differences: list[list[float]] = []
    tasks: list[tuple[str, int]] = []
    for event in ordered:
        if isinstance(event, Forfeited):
            tasks.append((event.meme, event.task))
            # The winner stands first, and a forfeit has no order of showing to be biased by.
            rows.append((event.winner, event.loser, 1.0, event.meme))
            weights.append(1.0)
            # One of the two has no answer, so there is no style to compare.
            differences.append([0.0] * len(STYLES))
            continue
        verdict = event.verdicts[dimension]
        # A clear win counts more where the settings say so; the joint vote has counted it already, and
        # weighs the same in each battle.
        score, weight = verdict.score, settings.far if verdict.far else 1.0
        if joint is not None:
            key = battle_key(event)
            if key not in joint:
                continue  # the battle stands in the table already
            # The vote stands where the first judgement of its battle stands, and counts once.
            score, weight = joint.pop(key), 1.0
            # The vote is of the pair in order of names, and the row in order of showing.
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
    # A covariate without spread is divided by 1: divided by 0 it would be NaN and break the fit.
    return battles(settings.targets, rows, weights), covariates / np.where(spread_ > 0, spread_, 1.0), tasks


def _share(a: float, b: float) -> float:
    # A share of the sum, so that one hundred words more weigh less among thousands; 0 where both have none.
    return (a - b) / (a + b) if a + b else 0.0


def _style(
    manifest: ArenaManifest, table: Battles, covariates: Floats, anchor: int | None
) -> tuple[list[Estimate] | None, tuple[Effect, ...], str]:
    """Ratings with style held equal and what style is worth, or why there are none."""
    resamples = min(_STYLE_RESAMPLES, manifest.settings.resamples)
    try:
        found = styled(table, covariates, anchor=anchor)
    # Style that separates winners from losers without exception has no finite estimate; the plain
    # ratings stand all the same.
    except (NotRanked, NoMaximum) as error:
        return None, (), error.message
    of_ratings, of_effects = spread_styled(table, covariates, anchor=anchor, resamples=resamples, seed=manifest.seed)
    effects = tuple(
        Effect(name, _estimate(found.effects, of_effects, place))
        for place, name in enumerate(STYLES)
        # A style in which answers never differ has no effect to tell of.
        if covariates[:, place].any()
    )
    return [_estimate(found.ratings, of_ratings, place) for place in range(len(found.ratings))], effects, ""


def _estimate(values: Floats, found: Spread | None, place: int) -> Estimate:
    if found is None or found.low is None or found.high is None:
        return Estimate(float(values[place]), None, None)
    return Estimate(float(values[place]), float(found.low[place]), float(found.high[place]))


def _places(found: Spread | None, place: int) -> tuple[int | None, int | None]:
    """The best and the worst place: who is ahead in 97.5 % of the resamples is surely ahead.

    By resamples and not by whether two intervals overlap: what two ratings have in common, such as the anchor's luck,
    falls out.
    """
    if found is None or found.low is None:
        return None, None
    # Its own column is neither ahead nor behind, so it needs no exception.
    ahead = (found.draws > found.draws[:, place : place + 1]).mean(axis=0)
    behind = (found.draws < found.draws[:, place : place + 1]).mean(axis=0)
    return 1 + int((ahead >= _SURELY).sum()), len(ahead) - int((behind >= _SURELY).sum())
