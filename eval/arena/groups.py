"""Boards by group: by language, rounds, data set, or a tag of the questions.

A permutation test comes before calling a model weak in one group. The
likelihood ratio compares Bradley-Terry models with separate ratings in each group and with the same ratings in all.
Its null distribution comes from permuting the group labels (Good 2005, chapter 3): between whole memes, as battles
over one meme are not independent, and among the tasks of a meme if these are in several groups. To find which models
differ in which group, the difference between a model's ratings there and elsewhere is divided by its own spread over
the permutations. P-values are adjusted for all of these together by the largest statistic of each permutation, step
by step (Westfall & Young 1993, algorithm 2.8), which controls the family-wise error as Holm's method does and needs
far fewer permutations.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

import numpy as np

from court.errors import BadRequest
from eval.arena.boards import BoardRow, board_of, table_of
from eval.arena.events import Answered, DifficultyRated, Event, Judged, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.ranking.battles import SCALE, Battles, Floats, Ints, wins_by
from eval.arena.ranking.bootstrap import draw_memes, tails
from eval.arena.ranking.bradley_terry import fit, likelihood, quarter_ties
from eval.arena.words import OVERALL
from eval.reports.sections import Section
from eval.scores.measure import figure, holm

DEALS = 999
# Floats in memory at once: 64 MiB.
_AT_ONCE = 1 << 23


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Difference between a model's rating in a group and in all other groups together."""

    model: str
    group: str
    points: float
    """Difference between the two ratings, with a quarter of a tied battle added to each pair."""
    low: float
    """Lower end of its 95 % interval, by bootstrap over memes."""
    high: float
    p: float
    """Probability of so large a difference under permuted groups, adjusted for all models and groups."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """Result of the test."""

    statistic: float
    """Twice the logarithm of the likelihood ratio."""
    p: float
    """Share of permutations, the actual labels included, with a statistic at least as large."""
    differences: tuple[GroupDifference, ...]
    """Difference of each model in each group; with two groups, only in the first, as they mirror each other."""
    deals: int


def interaction(
    table: Battles,
    unit: Ints,
    group: Ints,
    names: Sequence[str],
    *,
    deals: int = DEALS,
    resamples: int = 500,
    seed: int = 0,
) -> Interaction:
    """Tests whether groups of tasks rank models differently.

    Args:
        unit: Task number of each battle, int of shape (battles,); tasks of different memes have different numbers.
        group: Group of each task, int of shape (tasks,), in [0, groups).

    Raises ValueError: There are fewer than two groups.
    """
    if len(names) < 2:
        raise ValueError("a test of groups needs two of them")
    n, tasks, groups = len(table.models), len(group), len(names)
    won = wins_by(table, unit, tasks).reshape(tasks, n * n)
    meme = np.zeros(tasks, dtype=np.int64)
    meme[unit] = table.meme
    rng = np.random.default_rng(seed)
    labels = np.stack([group, *(_dealt(group, meme, rng) for _ in range(deals))])  # (deals + 1, tasks)
    statistics, differences = _statistics(won, labels, groups, n)
    observed = statistics[0]
    # The tolerance makes a permutation that is lower only by rounding count as equal.
    p = float(np.mean(statistics >= observed - 1e-9 * max(1.0, abs(observed))))
    shown = 1 if groups == 2 else groups
    cells = differences[:, :shown].reshape(len(labels), shown * n)
    # Permutations only, without the actual labels in the first row. A constant cell gets a z of 0 instead of a
    # division by 0.
    spread = cells[1:].std(axis=0)
    z = np.abs(cells) / np.where(spread > 0, spread, np.inf)
    adjusted = step_down(z[0], z[1:])
    low, high = _intervals(won, group, meme, groups, resamples=resamples, seed=seed)
    return Interaction(
        statistic=float(observed),
        p=p,
        differences=tuple(
            GroupDifference(
                model=table.models[place],
                group=names[which],
                points=float(differences[0, which, place]),
                low=float(low[which, place]),
                high=float(high[which, place]),
                p=float(adjusted[which * n + place]),
            )
            for which in range(shown)
            for place in range(n)
        ),
        deals=deals,
    )


def step_down(observed: Floats, drawn: Floats) -> Floats:
    """Returns p-values of many statistics, adjusted by the step-down maximum over each draw.

    Args:
        observed: float of shape (statistics,); larger is less likely by chance.
        drawn: float of shape (draws, statistics), under the null hypothesis.
    """
    order = np.argsort(-observed, kind="stable")
    # Maximum over a statistic and all with smaller observed values: larger ones are decided already.
    largest = np.maximum.accumulate(drawn[:, order[::-1]], axis=1)[:, ::-1]
    # The actual data count as one more draw.
    p = (1 + (largest >= observed[order] - 1e-9).sum(axis=0)) / (1 + len(drawn))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(p)
    return np.asarray(adjusted)


def _dealt(group: Ints, meme: Ints, rng: np.random.Generator) -> Ints:
    """Permutes labels: a meme's labels go, in random order, to a meme with equally many tasks."""
    order = np.argsort(meme, kind="stable")
    starts = np.flatnonzero(np.r_[True, meme[order][1:] != meme[order][:-1]])
    sizes = np.diff(np.r_[starts, len(meme)])
    dealt = np.empty_like(group)
    # Only memes with equally many tasks swap labels, or a permutation would change how many tasks a label has.
    for size in np.unique(sizes):
        places = order[starts[sizes == size][:, None] + np.arange(size)]  # (memes of this size, tasks)
        dealt[places] = rng.permuted(group[places][rng.permutation(len(places))], axis=1)
    return dealt


def _statistics(won: Floats, labels: Ints, groups: int, n: int) -> tuple[Floats, Floats]:
    """Returns likelihood ratios, float of shape (deals,), and differences in points, (deals, groups, models)."""
    # The same in every permutation, so that the test keeps its level.
    prior = quarter_ties(n)
    everything = won.sum(axis=0).reshape(n, n) + prior
    # The same in every permutation, which moves tasks between groups but never out of all of them.
    together = likelihood(everything[None], fit(everything[None]))[0]
    # For each permutation of a batch, the membership of all tasks and the tables of all groups are in memory at once.
    step = max(1, _AT_ONCE // (groups * (len(won) + n * n)))
    ratios, differences = [], []
    for begin in range(0, len(labels), step):
        part = labels[begin : begin + step]
        member = (part[:, None, :] == np.arange(groups)[None, :, None]).astype(np.float64)
        tables = (member.reshape(-1, member.shape[-1]) @ won).reshape(len(part), groups, n, n)
        others = tables.sum(axis=1, keepdims=True) - tables
        own = fit(tables + prior)
        ratios.append(2 * (likelihood(tables + prior, own).sum(axis=1) - together))
        differences.append(SCALE * (own - fit(others + prior)))
    return np.concatenate(ratios), np.concatenate(differences)


def _intervals(
    won: Floats, group: Ints, meme: Ints, groups: int, *, resamples: int, seed: int
) -> tuple[Floats, Floats]:
    """Returns both ends of the intervals of the differences, each float of shape (groups, models)."""
    n = int(np.sqrt(won.shape[1]))
    prior = quarter_ties(n)
    place = np.unique(meme, return_inverse=True)[1]
    # All tasks of a meme get its weight, as memes are what is resampled.
    drawn = draw_memes(int(place.max()) + 1, resamples, seed)[:, place]  # (resamples, tasks)
    found = []
    for which in range(groups):
        inside = (drawn * (group == which)) @ won
        outside = (drawn * (group != which)) @ won
        found.append(SCALE * (fit(inside.reshape(-1, n, n) + prior) - fit(outside.reshape(-1, n, n) + prior)))
    low, high = np.percentile(np.stack(found, axis=1), tails(int(place.max()) + 1), axis=0)
    return np.asarray(low), np.asarray(high)


EACH_ROUND = "each-round"
"""Key that groups verdicts on single rounds, and not questions."""
BUILT_IN = ("dataset", "label", "gold", "language", "rounds", EACH_ROUND, "relevance", "difficulty")
"""Groups that there are without tags."""
LEAST_TASKS = 30
"""Tasks below which a group has win rates and no ratings."""
LEVEL = 0.05
_MOST_ROUNDS = 6
HARD = 6.0
"""Difficulty from which on a task is hard (ProBench)."""
Task = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupBoard:
    """One group of tasks."""

    name: str
    tasks: int
    memes: int
    battles: int
    not_rated: str
    """Reason why only win rates are shown; empty if there are ratings."""
    models: tuple[BoardRow, ...]
    """From the best to the worst, by rating or win rate; without ratings of too few tasks."""


@dataclass(frozen=True, slots=True)
class BoardsBy:
    """All groups by one key."""

    key: str
    groups: tuple[GroupBoard, ...]
    ungrouped: int
    test: Interaction | None
    """Test for different rankings in the groups with enough questions; None if fewer than two have enough."""
    p: float | None = None
    """P-value of the test, adjusted for all keys together; None without a test."""
    shown: bool = False
    """True if groups rank models differently, to statistical significance."""


def boards_by(
    manifest: ArenaManifest, events: Sequence[Event], keys: Sequence[str], *, deals: int = DEALS
) -> tuple[BoardsBy, ...]:
    """Ranks models in each group of tasks. Raises BadRequest: A key gives no task a group."""
    # A repeated key is tested once: a duplicate test would make the correction stricter.
    found = [_boards(manifest, events, key, deals) for key in dict.fromkeys(keys)]
    tested = [one for one in found if one.test is not None]
    # Corrected over all keys: among enough groupings, one differs by chance.
    adjusted = holm([one.test.p for one in tested if one.test is not None])
    p_of = {one.key: p for one, p in zip(tested, adjusted, strict=True)}
    # Corrected for all keys examined, not for each alone.
    return tuple(replace(one, p=p_of.get(one.key), shown=p_of.get(one.key, 1.0) < LEVEL) for one in found)


def groups_in(root: Path, keys: Sequence[str]) -> tuple[BoardsBy, ...]:
    """Ranks models in each group of tasks of an arena on disk, as :func:`boards_by`; reads nothing without a key."""
    # Reading all events of a large arena takes a while, and most reports have no groups.
    if not keys:
        return ()
    folder = ArenaFolder(root)
    return boards_by(folder.manifest(), folder.events(), keys)


def groups_of(manifest: ArenaManifest, events: Sequence[Event], key: str) -> dict[Task, str]:
    """Returns the group of each task that has one."""
    memes = {meme.id: meme for meme in manifest.memes}
    groups: dict[Task, str] = {}
    if key == "difficulty":
        # The first annotator counts; a tag supplied with the questions takes precedence over any.
        for event in events:
            if isinstance(event, DifficultyRated):
                groups.setdefault((event.meme, event.task), _difficulty(str(event.difficulty)))
    for event in events:
        if not isinstance(event, TaskFormulated):
            continue
        meme = memes.get(event.meme)
        name: str | None
        if key in event.tags:
            # A tag of the questions takes precedence over a property of the same name.
            name = _difficulty(event.tags[key]) if key == "difficulty" else event.tags[key]
        else:
            name = {
                "dataset": (meme.dataset or manifest.dataset) if meme else None,
                "label": meme.source_label if meme else None,
                "gold": None if meme is None else "harmful" if meme.harmful else "not harmful",
                "language": event.language or None,
                "rounds": _rounds(len(event.rounds)),
                "relevance": str(event.relevance) if event.relevance else None,
            }.get(key)
        # An empty name is not a group; such tasks count as ungrouped.
        if name:
            groups[event.meme, event.task] = name
    return groups


def _rounds(count: int) -> str:
    return str(count) if count < _MOST_ROUNDS else f"{_MOST_ROUNDS}+"


def _difficulty(value: str) -> str:
    """Names the half of the 0 to 10 scale that a number is in; returns other values unchanged."""
    try:
        score = float(value)
    except ValueError:
        return value
    return "hard (6 and more)" if score >= HARD else "easy (below 6)"


def _boards(manifest: ArenaManifest, events: Sequence[Event], key: str, deals: int) -> BoardsBy:
    if key == EACH_ROUND:
        return _each_round(manifest, events)
    group_of = groups_of(manifest, events, key)
    # Only tasks with a battle that ranks: others would make groups without any figure.
    fought = {(e.meme, e.task) for e in events if _ranks(e)}
    if not group_of.keys() & fought:
        tags = sorted({tag for e in events if isinstance(e, TaskFormulated) for tag in e.tags})
        raise BadRequest(
            f"No question of this arena has a group by {key!r}. There are: {', '.join((*BUILT_IN, *tags))}; other "
            "groups are tags of questions (--tasks).",
            reason="GROUPS_MISSING",
        )
    parts: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        # Answers are included, as each battle's style is looked up in them.
        if isinstance(event, Judged | Answered) and (event.meme, event.task) in group_of:
            parts[group_of[event.meme, event.task]].append(event)
    groups = tuple(_group(manifest, name, part) for name, part in sorted(parts.items()) if any(map(_ranks, part)))
    # Groups that are too small for ratings are also left out of the test.
    names = [group.name for group in groups if group.tasks >= LEAST_TASKS]
    test = _test(manifest, events, group_of, names=names, deals=deals) if len(names) > 1 else None
    return BoardsBy(key=key, groups=groups, ungrouped=len(fought - group_of.keys()), test=test)


def _each_round(manifest: ArenaManifest, events: Sequence[Event]) -> BoardsBy:
    answered = [event for event in events if isinstance(event, Answered)]
    rounds: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if isinstance(event, Judged) and event.study == "rounds":
            # Each round is ranked as if it were an arena.
            rounds[event.round].append(event.model_copy(update={"study": "arena"}))
    if not rounds:
        raise BadRequest("No round was judged by itself: set round_verdicts in [arena].", reason="GROUPS_MISSING")
    groups = tuple(_group(manifest, str(number), [*answered, *rounds[number]]) for number in sorted(rounds))
    return BoardsBy(key=EACH_ROUND, groups=groups, ungrouped=0, test=None)


def _ranks(event: Event) -> TypeGuard[Judged]:
    # The bias study repeats the same battles under each setting: they would count several times.
    return isinstance(event, Judged) and event.study == "arena"


def _group(manifest: ArenaManifest, name: str, events: Sequence[Event]) -> GroupBoard:
    tasks = {(e.meme, e.task) for e in events if _ranks(e)}
    board = board_of(manifest, events, OVERALL)
    why = board.not_ranked
    if len(tasks) < LEAST_TASKS:
        # Takes precedence over the board's reason, which may vanish with more questions.
        why = f"{len(tasks)} questions are too few for ratings: {LEAST_TASKS} are wanted."
    rows = tuple(replace(row, rating=None) for row in board.rows) if why else board.rows
    memes = len({meme for meme, _ in tasks})
    return GroupBoard(name, len(tasks), memes, board.battles, not_rated=why, models=rows)


def _test(
    manifest: ArenaManifest, events: Sequence[Event], group_of: Mapping[Task, str], names: Sequence[str], deals: int
) -> Interaction:
    # The same filter as for the boards, so that the test covers what they show.
    inside = [e for e in events if isinstance(e, Judged | Answered) and group_of.get((e.meme, e.task)) in names]
    table, _, tasks = table_of(manifest, inside, OVERALL)
    # The test permutes tasks, not battles: battles about one task are not independent.
    numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
    unit = np.array([numbers[task] for task in tasks], dtype=np.int64)
    group = np.array([names.index(group_of[task]) for task in numbers], dtype=np.int64)
    return interaction(table, unit, group, names, deals=deals, seed=manifest.seed)


def group_section(by: BoardsBy, models: Sequence[str]) -> Section:
    """Builds the table of a key, with models as rows and groups as columns."""
    header = ("model", *(f"{group.name} ({group.tasks:,})" for group in by.groups))
    rows = [
        (model, *(_cell(next(row for row in group.models if row.model == model)) for group in by.groups))
        for model in models
    ]
    notes = [
        "Ratings with 95 % intervals, each group by its own battles, with the anchor or mean of the whole board; "
        "shares are battles won. In brackets: questions.",
        *_test_words(by),
        *(f"{group.name}: {group.not_rated}" for group in by.groups if group.not_rated),
    ]
    if by.ungrouped:
        notes.append(f"{by.ungrouped:,} questions belong to no group.")
    return Section(f"by-{by.key}", f"By {by.key}", (header, *rows), tuple(notes))


def _test_words(by: BoardsBy) -> list[str]:
    if by.key == EACH_ROUND:
        return ["Judges compared the answers of one round, beside the questions up to it."]
    if by.test is None or by.p is None:
        return ["Fewer than two groups have questions enough to be compared."]
    p = f"p = {by.p:.3f}, likelihood ratio, {by.test.deals:,} random deals of groups over memes"
    if not by.shown:
        return [f"That models rank differently in these groups is not shown ({p}): nobody is weaker in one of them."]
    sure = [one for one in by.test.differences if one.p < LEVEL]
    words = [
        f"{one.model} is {'stronger' if one.points > 0 else 'weaker'} in {one.group} than elsewhere: {one.points:+.0f} "
        f"points [{one.low:+.0f}, {one.high:+.0f}], p = {one.p:.3f}."
        for one in sorted(sure, key=lambda one: one.points)
    ]
    return [
        f"Models rank differently in these groups ({p}).",
        *(words or ["Which of them do is not shown: no difference is sure by itself."]),
    ]


def _cell(row: BoardRow) -> str:
    if row.rating is not None or row.win_rate is None:
        return figure(row.rating, ".0f")
    return f"{100 * row.win_rate:.0f} %"
