"""Arenas beside each other.

Two of them may rank the models of both differently, such as under another judge or baseline. Repeats of one with other
seeds give the mean and spread of ratings, and which places hold in every repeat.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import noise_in
from eval.arena.boards import table_of
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.leaderboard import Leaderboard
from eval.arena.ranking.battles import MIDDLE, Battles, Floats, wins_by
from eval.arena.ranking.bootstrap import RESAMPLES, meme_weights
from eval.arena.ranking.bradley_terry import finite_ratings
from eval.arena.run import Ask
from eval.arena.words import OVERALL, Row
from eval.reports.repeats import Repeats, over_repeats, repeats_section
from eval.reports.sections import Section
from eval.scores.measure import Figure, figure, interval
from eval.session.directory import CALLS, differing
from eval.session.sampled import repeats_of

_FEWEST = 3
"""Models below which there is no rank correlation."""


def compare_arenas(a: Path, b: Path, *, resamples: int = RESAMPLES, seed: int = 0) -> Row:
    """Correlates the overall ranks of the models of two arenas.

    Returns ``spearman`` and ``kendall``; the ratings of ``models`` in ``a`` and ``b``, with a mean of 1000 in each; the
    ``settings`` in which the arenas differ; and the number of ``memes``, and of those of ``both``.

    Raises BadRequest: An arena is missing, not finished or not to be ranked, or they have fewer than three models in
    common.
    """
    (one, table, memes), (other, other_table, other_memes) = _read(a), _read(b)
    models = [model for model in table.models if model in other_table.models]
    if len(models) < _FEWEST:
        raise BadRequest(
            f"{a.name} and {b.name} have {len(models)} models in common: ranks need {_FEWEST}.", reason="NOTHING_SHARED"
        )
    numbers = {meme: number for number, meme in enumerate(dict.fromkeys((*memes, *other_memes)))}
    # One draw for both, so that a meme of both arenas is drawn into both. The actual memes come first.
    drawn = meme_weights(len(numbers), resamples, seed)
    ratings = []
    for battles, own in ((table, memes), (other_table, other_memes)):
        n = len(battles.models)
        unit = np.array([numbers[meme] for meme in own], dtype=np.int64)
        won = drawn @ wins_by(battles, unit, len(numbers)).reshape(len(numbers), n * n)
        found = finite_ratings(won.reshape(-1, n, n))[:, [battles.models.index(model) for model in models]]
        ratings.append(MIDDLE + found - found.mean(axis=1, keepdims=True))
    both = np.stack(ratings, axis=1)  # (1 + resamples, arenas, models)
    spearman, kendall = rank_correlation(both), rank_correlation(both, kendall=True)
    # Ratings from counted battles are never all alike, unless every battle of an arena is a tie.
    if spearman is None or kendall is None:
        raise BadRequest(f"All models of {a.name} or {b.name} are rated alike.", reason="NOTHING_SHARED")
    rows: list[Row] = [
        {
            "model": model,
            **{name: Figure(float(of[0]), *interval(of[1:])) for name, of in zip("ab", both[:, :, at].T, strict=True)},
        }
        for at, model in enumerate(models)
    ]
    return {
        "a": one.name,
        "b": other.name,
        "settings": differing(one.settings, other.settings),
        "memes": len(numbers),
        "both": len({*memes} & {*other_memes}),
        "models": sorted(rows, key=lambda row: -row["a"].value),
        "spearman": spearman,
        "kendall": kendall,
    }


def _read(root: Path) -> tuple[ArenaManifest, Battles, list[str]]:
    """Returns an arena's manifest, its battles overall, and the meme of each battle."""
    folder = ArenaFolder(root)
    manifest, events = folder.manifest(), folder.events()
    if manifest.finished is None:
        raise BadRequest(
            f"{root.name} is not finished: the same memecourt-eval arena goes on.", reason="RUN_UNFINISHED"
        )
    if noise := noise_in(events, OVERALL):
        raise BadRequest(f"{root.name}: {noise}", reason="ARENA_EMPTY")
    table, _, tasks = table_of(manifest, events, OVERALL)
    if not tasks:
        raise BadRequest(f"{root.name} has no battle yet that could be ranked.", reason="ARENA_EMPTY")
    return manifest, table, [meme for meme, _ in tasks]


def rank_correlation(both: Floats, *, kendall: bool = False) -> Figure | None:
    """Computes the correlation of two figures of each model with its interval; None where :func:`correlation` is.

    Args:
        both: The figures over all memes, and then in each resample: float of shape (1 + resamples, 2, models).
    """
    value, *resampled = (correlation(*figures, kendall=kendall) for figures in both)
    if value is None:
        return None
    # A resample in which a figure is missing, or the same for all models, has no correlation.
    return Figure(value, *interval(np.array([one for one in resampled if one is not None])))


def correlation(one: Floats, other: Floats, *, kendall: bool = False) -> float | None:
    """Computes Spearman's ρ or Kendall's τ-b; None for fewer than three models, or if a figure is the same for all."""
    if len(one) < _FEWEST or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    # Imported here: scipy.stats is slow to import.
    from scipy.stats import kendalltau, spearmanr

    value = (kendalltau if kendall else spearmanr)(one, other).statistic
    return None if np.isnan(value) else float(value)


def comparison_section(found: Row) -> Section:
    """Builds a table of models by both ratings, with the rank correlations."""
    rows = [(row["model"], figure(row["a"], ".0f"), figure(row["b"], ".0f")) for row in found["models"]]
    return Section(
        "compared",
        f"{found['a']} against {found['b']}",
        (("model", found["a"], found["b"]), *rows),
        (
            f"Rank correlation over {len(rows)} models: Spearman's ρ {figure(found['spearman'])}, Kendall's τ "
            f"{figure(found['kendall'])}.",
            f"Intervals are 95 %, by bootstrap over {found['memes']:,} memes, {found['both']:,} of them in both "
            "arenas. Ratings are Bradley and Terry's, with a quarter of a tied battle added to each pair, and the mean "
            "of these models is 1000.",
            f"They differ in: {'; '.join(found['settings']) or 'no setting'}.",
        ),
    )


def arena_repeats(ask: Ask, count: int) -> tuple[Ask, ...]:
    """Plans repeats of an arena, with one shared call cache: identical calls at temperature 0 are made once.

    Raises BadRequest: The folder contains something else.
    """
    return tuple(
        replace(one, name=f"{ask.name}, repeat {number}", calls=ask.calls or ask.out / CALLS)
        for number, one in enumerate(repeats_of(ask, count, "an arena"), 1)
    )


def combine_repeats(boards: Sequence[Leaderboard]) -> tuple[Repeats, dict[str, int], Section]:
    """Combines the overall boards of repeats, in the order of mean rating, or of win rate if a repeat has no ratings.

    Returns their figures; the number of repeats in which each model is ahead of the next; and a table of both.

    Raises BadRequest: There are fewer than two, or they are of different models or memes.
    """
    manifests = [board.manifest for board in boards]
    repeats = over_repeats(
        manifests,
        [
            {
                row.model: {
                    "rating": row.rating.value if isinstance(row.rating, Figure) else row.rating,
                    "win_rate": row.win_rate,
                }
                for row in board.overall.rows
            }
            for board in boards
        ],
        [{name: getattr(one, name) for name in ("settings", "models", "memes")} for one in manifests],
    )
    rated = all(value is not None for row in repeats.rows.values() for value in row["rating"].values)
    by = "rating" if rated else "win_rate"
    # Models without a figure come last; ties are sorted by name.
    ordered = sorted(repeats.rows, key=lambda model: (-(repeats.rows[model][by].mean or 0.0), model))
    repeats = replace(repeats, rows={model: repeats.rows[model] for model in ordered})
    count, ahead, unsure = len(boards), {}, []
    for one, other in itertools.pairwise(ordered):
        pairs = zip(repeats.rows[one][by].values, repeats.rows[other][by].values, strict=True)
        ahead[one] = sum(a is not None and b is not None and a > b for a, b in pairs)
        if ahead[one] != count:
            unsure.append(f"{one} ahead of {other}")
    notes = [
        "“Ahead” counts the repeats in which a model is ahead of the next.",
        f"Not in all repeats: {'; '.join(unsure)}." if unsure else "Every place holds in all repeats.",
        *([] if rated else ["Some repeat has no ratings, so that models stand in the order of the battles won."]),
    ]
    columns = {"rating": ("rating", ".0f", 1.0), "win_rate": ("won, %", ".1f", 100.0)}
    last = ("ahead", {model: f"{times} of {count}" for model, times in ahead.items()})
    return repeats, ahead, repeats_section(repeats, "model", columns, notes=notes, last=last)
