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
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import judged_in
from eval.arena.boards import BoardRow, board_of, table_of
from eval.arena.events import Answered, DifficultyRated, Event, Judged, TaskFormulated
from eval.arena.folder import ArenaManifest
from eval.arena.ranking.battles import SCALE, Battles, Floats, Ints, wins_by
from eval.arena.ranking.bootstrap import draw_memes, tails
from eval.arena.ranking.bradley_terry import fit, likelihood, quarter_ties
from eval.arena.words import OVERALL, Row
from eval.reports.sections import Section
from eval.scores.measure import Figure, figure, holm

DEALS = 999


def interaction(
    table: Battles,
    unit: Ints,
    group: Ints,
    names: Sequence[str],
    *,
    deals: int = DEALS,
    resamples: int = 500,
    seed: int = 0,
) -> Row:
    """Tests whether groups of tasks rank models differently.

    Args:
        unit: Task number of each battle, int of shape (battles,); tasks of different memes have different numbers.
        group: Group of each task, int of shape (tasks,), in [0, groups).

    Returns:
        ``statistic``, twice the logarithm of the likelihood ratio; ``p``, the share of permutations, the actual labels
        included, with a statistic at least as large; and ``differences``, for each model and group the ``points`` that
        its rating there is above that in all other groups, and the ``p`` of so large a difference under permuted
        groups, adjusted for all models and groups. Of two groups, only the first: they mirror each other.

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
    likelihoods, differences = _by_group(won, labels, np.ones((1, tasks)), groups)
    # The same in every permutation, which moves tasks between groups but never out of all of them.
    everything = won.sum(axis=0).reshape(n, n) + quarter_ties(n)
    statistics = 2 * (likelihoods - likelihood(everything, fit(everything)))
    observed = float(statistics[0])
    # The tolerance makes a permutation that is lower only by rounding count as equal.
    p = float(np.mean(statistics >= observed - 1e-9 * max(1.0, abs(observed))))
    shown = 1 if groups == 2 else groups
    cells = differences[:, :shown].reshape(len(labels), shown * n)
    # Permutations only, without the actual labels in the first row. A constant cell gets a z of 0 instead of a
    # division by 0.
    spread = cells[1:].std(axis=0)
    z = np.abs(cells) / np.where(spread > 0, spread, np.inf)
    adjusted = step_down(z[0], z[1:])
    # All tasks of a meme get its weight, as memes are what is resampled.
    place = np.unique(meme, return_inverse=True)[1]
    memes = int(place.max()) + 1
    _, resampled = _by_group(won, group[None], draw_memes(memes, resamples, seed)[:, place], groups)
    ends = np.percentile(resampled, tails(memes), axis=0)  # (2, groups, models)
    return {
        "statistic": observed,
        "p": p,
        "differences": [
            {
                "model": model,
                "group": names[which],
                "points": Figure(*map(float, (differences[0, which, place], *ends[:, which, place]))),
                "p": float(adjusted[which * n + place]),
            }
            for which in range(shown)
            for place, model in enumerate(table.models)
        ],
        "deals": deals,
    }


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


def _by_group(won: Floats, labels: Ints, weights: Floats | Ints, groups: int) -> tuple[Floats, Floats]:
    """Rates models in each group of tasks, and in all others together.

    Args:
        labels: Group of each task, int of shape (draws, tasks), or (1, tasks) for the same in all draws.
        weights: Number of times that each task counts, likewise.

    Returns:
        Logarithm of the groups' likelihood, float of shape (draws,); differences in points, (draws, groups, models).
    """
    n = int(np.sqrt(won.shape[1]))
    # The same in every permutation, so that the test keeps its level.
    prior = quarter_ties(n)
    labels, weights = np.broadcast_arrays(labels, weights)
    # For each draw of a batch, the membership of all tasks and the tables of all groups are in memory at once: 64 MiB.
    step = max(1, (1 << 23) // (groups * (len(won) + n * n)))
    likelihoods, differences = [], []
    for begin in range(0, len(labels), step):
        part = slice(begin, begin + step)
        member = (labels[part, None] == np.arange(groups)[:, None]) * weights[part, None].astype(np.float64)
        tables = (member.reshape(-1, len(won)) @ won).reshape(-1, groups, n, n)
        others = tables.sum(axis=1, keepdims=True) - tables
        own = fit(tables + prior)
        likelihoods.append(likelihood(tables + prior, own).sum(axis=1))
        differences.append(SCALE * (own - fit(others + prior)))
    return np.concatenate(likelihoods), np.concatenate(differences)


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


def boards_by(
    manifest: ArenaManifest, events: Sequence[Event], keys: Iterable[str], *, deals: int = DEALS
) -> list[Row]:
    """Ranks models in each group of tasks.

    Returns for each key its ``groups``, with models from the best to the worst, and the reason if they are
    ``not_rated``; and the ``test`` for different rankings in the groups with enough questions, None if fewer than two
    have enough, with its ``p`` adjusted for all keys together. Differences are ``shown`` if it is significant.

    Raises BadRequest: A key gives no task a group.
    """
    # A repeated key is tested once: a duplicate test would make the correction stricter.
    found = [_boards(manifest, events, key, deals) for key in dict.fromkeys(keys)]
    tested = [one for one in found if one["test"]]
    # Corrected over all keys, not for each alone: among enough groupings, one differs by chance.
    for one, p in zip(tested, holm([one["test"]["p"] for one in tested]), strict=True):
        one |= {"p": p, "shown": p < LEVEL}
    return found


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
        if isinstance(event, TaskFormulated):
            meme, rounds = memes[event.meme], len(event.rounds)
            named = {
                "dataset": meme.dataset or manifest.dataset,
                "label": meme.source_label,
                "gold": "harmful" if meme.harmful else "not harmful",
                "language": event.language,
                "rounds": str(rounds) if rounds < _MOST_ROUNDS else f"{_MOST_ROUNDS}+",
                "relevance": str(event.relevance or ""),
                # A tag of the questions takes precedence over a property of the same name.
                **event.tags,
            }
            # An empty name is not a group; such tasks count as ungrouped.
            if name := named.get(key):
                groups[event.meme, event.task] = _difficulty(name) if key == "difficulty" else name
    return groups


def _difficulty(value: str) -> str:
    """Names the half of the 0 to 10 scale that a number is in; returns other values unchanged."""
    try:
        score = float(value)
    except ValueError:
        return value
    return "hard (6 and more)" if score >= HARD else "easy (below 6)"


def _boards(manifest: ArenaManifest, events: Sequence[Event], key: str, deals: int) -> Row:
    found: Row = {"key": key, "groups": [], "ungrouped": 0, "test": None, "p": None, "shown": False}
    parts: dict[str, list[Event]] = defaultdict(list)
    if key == EACH_ROUND:
        for judged in judged_in(events, "rounds"):
            # Each round is ranked as if it were an arena.
            parts[str(judged.round)].append(judged.model_copy(update={"study": "arena"}))
        if not parts:
            raise BadRequest("No round was judged by itself: set round_verdicts in [arena].", reason="GROUPS_MISSING")
        answered = [event for event in events if isinstance(event, Answered)]
        return found | {
            "groups": [_group(manifest, number, [*answered, *parts[number]]) for number in sorted(parts, key=int)]
        }
    group_of = groups_of(manifest, events, key)
    # Only tasks with a battle that ranks: others would make groups without any figure.
    fought = {(e.meme, e.task) for e in judged_in(events)}
    if not group_of.keys() & fought:
        tags = sorted({tag for e in events if isinstance(e, TaskFormulated) for tag in e.tags})
        raise BadRequest(
            f"No question of this arena has a group by {key!r}. There are: {', '.join((*BUILT_IN, *tags))}; other "
            "groups are tags of questions (--tasks).",
            reason="GROUPS_MISSING",
        )
    for event in events:
        # Answers are included, as each battle's style is looked up in them.
        if isinstance(event, Judged | Answered) and (event.meme, event.task) in group_of:
            parts[group_of[event.meme, event.task]].append(event)
    groups = [_group(manifest, name, part) for name, part in sorted(parts.items()) if judged_in(part)]
    # Groups that are too small for ratings are also left out of the test.
    names = [group["name"] for group in groups if group["tasks"] >= LEAST_TASKS]
    if len(names) > 1:
        table, _, tasks = table_of(manifest, [event for name in names for event in parts[name]], OVERALL)
        # The test permutes tasks, not battles: battles about one task are not independent.
        numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
        unit = np.array([numbers[task] for task in tasks], dtype=np.int64)
        labels = np.array([names.index(group_of[task]) for task in numbers], dtype=np.int64)
        found["test"] = interaction(table, unit, labels, names, deals=deals, seed=manifest.seed)
    return found | {"groups": groups, "ungrouped": len(fought - group_of.keys())}


def _group(manifest: ArenaManifest, name: str, events: Sequence[Event]) -> Row:
    tasks = {(e.meme, e.task) for e in judged_in(events)}
    board = board_of(manifest, events, OVERALL)
    why = board.not_ranked
    if len(tasks) < LEAST_TASKS:
        # Takes precedence over the board's reason, which may vanish with more questions.
        why = f"{len(tasks)} questions are too few for ratings: {LEAST_TASKS} are wanted."
    return {
        "name": name,
        "tasks": len(tasks),
        "memes": len({meme for meme, _ in tasks}),
        "battles": board.battles,
        "not_rated": why,
        "models": [replace(row, rating=None) if why else row for row in board.rows],
    }


def group_section(by: Row, models: Sequence[str]) -> Section:
    """Builds the table of a key, with models as rows and groups as columns."""
    columns = [{row.model: _cell(row) for row in group["models"]} for group in by["groups"]]
    header = ("model", *(f"{group['name']} ({group['tasks']:,})" for group in by["groups"]))
    notes = [
        "Ratings with 95 % intervals, each group by its own battles, with the anchor or mean of the whole board; "
        "shares are battles won. In brackets: questions.",
        *_test_words(by),
        *(f"{group['name']}: {group['not_rated']}" for group in by["groups"] if group["not_rated"]),
    ]
    if by["ungrouped"]:
        notes.append(f"{by['ungrouped']:,} questions belong to no group.")
    rows = ((model, *(cells[model] for cells in columns)) for model in models)
    return Section(f"by-{by['key']}", f"By {by['key']}", (header, *rows), tuple(notes))


def _test_words(by: Row) -> list[str]:
    if by["key"] == EACH_ROUND:
        return ["Judges compared the answers of one round, beside the questions up to it."]
    if not by["test"]:
        return ["Fewer than two groups have questions enough to be compared."]
    p = f"p = {by['p']:.3f}, likelihood ratio, {by['test']['deals']:,} random deals of groups over memes"
    if not by["shown"]:
        return [f"That models rank differently in these groups is not shown ({p}): nobody is weaker in one of them."]
    sure = [one for one in by["test"]["differences"] if one["p"] < LEVEL]
    words = [
        f"{one['model']} is {'stronger' if one['points'].value > 0 else 'weaker'} in {one['group']} than elsewhere: "
        f"{one['points'].value:+.0f} points [{one['points'].low:+.0f}, {one['points'].high:+.0f}], p = {one['p']:.3f}."
        for one in sorted(sure, key=lambda one: one["points"].value)
    ]
    return [
        f"Models rank differently in these groups ({p}).",
        *(words or ["Which of them do is not shown: no difference is sure by itself."]),
    ]


def _cell(row: BoardRow) -> str:
    if row.rating is not None or row.win_rate is None:
        return figure(row.rating, ".0f")
    return f"{100 * row.win_rate:.0f} %"
