"""Contrasts of two settings of the bias study: shifts of ratings, separately for judges' own families, and spreads.

Every judge judges the same battles in the same order under each setting, so differences are paired: memes are resampled
for both at once. Ratings are Bradley-Terry ratings with a quarter of a tied battle added to each pair of models, as one
judge has too few battles for every model to lose one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.arena.events import Event, Judged
from eval.arena.ranking.battles import MIDDLE, SCALE, Floats
from eval.arena.ranking.bootstrap import LEAST_MEMES, draw_memes, tails
from eval.arena.ranking.bradley_terry import fit, quarter_ties
from eval.arena.words import OVERALL, SETTING_WORDS, Setting
from eval.reports.sections import Section
from eval.scores.bootstrap import Figure
from eval.scores.tables import figure

Battle = tuple[str, int, str, str, str]
"""Meme, task, the two answers as they were shown, and the judge."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference between a target's ratings by one judge under two settings.

    Attributes:
        own_family: True if judge and target have the same maker, or are the same model.
        points: Difference between the ratings, with its interval over memes.
    """

    judge: str
    target: str
    own_family: bool
    ratings: tuple[float, float]
    points: Figure
    memes: int

    @property
    def sure(self) -> bool:
        """True if the interval excludes 0 and there are enough memes."""
        return self.memes >= LEAST_MEMES and (self.points.low > 0 or self.points.high < 0)


@dataclass(frozen=True, slots=True)
class SettingContrast:
    """Comparison of two settings, over the battles that were judged under both.

    Attributes:
        own_family: Mean shift of targets of a judge's own family minus that of all others, with its interval; None if
            no judge has both.
        spread: Standard deviation of ratings under ``one``, mean over judges.
        other_spread: Standard deviation of ratings under ``other``, mean over judges.
        wider: Difference between the two spreads: above 0, ``one`` separates targets more.
    """

    one: Setting
    other: Setting
    battles: int
    shifts: tuple[Shift, ...]
    own_family: Figure | None
    spread: float
    other_spread: float
    wider: Figure


def contrasts(
    events: Sequence[Event], models: Sequence[str], families: Mapping[str, str], *, resamples: int, seed: int
) -> tuple[SettingContrast, ...]:
    """Compares every setting of the bias study with the fused guideline or, without it, the first that was run.

    Args:
        families: Maker of each model; empty if unknown.
    """
    scores: dict[Setting, dict[Battle, float]] = {}
    for event in events:
        if isinstance(event, Judged) and event.study == "bias":
            battle = (event.meme, event.task, event.a, event.b, event.judge)
            scores.setdefault(event.setting, {})[battle] = event.verdicts[OVERALL].score
    # In the order of Setting: the others are compared with the first one, which is the fused guideline if it was used.
    compared = [setting for setting in Setting if setting in scores]
    found = []
    for one in compared[1:]:
        # A judgement that failed under one setting is dropped under both, or the differences would not be paired.
        common = sorted(scores[one].keys() & scores[compared[0]].keys())
        if common:
            both = (scores[one], scores[compared[0]])
            found.append(
                _contrast((one, compared[0]), both, common, models=models, families=families, draw=(resamples, seed))
            )
    return tuple(found)


def _contrast(
    settings: tuple[Setting, Setting],
    scores: tuple[Mapping[Battle, float], Mapping[Battle, float]],
    battles: Sequence[Battle],
    *,
    models: Sequence[str],
    families: Mapping[str, str],
    draw: tuple[int, int],
) -> SettingContrast:
    # Memes are drawn by index, which must not depend on the order of a set.
    memes = sorted({battle[0] for battle in battles})
    judges = list(dict.fromkeys(sorted(battle[4] for battle in battles)))
    # One draw for both settings and all judges makes the differences paired.
    drawn = draw_memes(len(memes), *draw)
    weights = np.concatenate([np.ones((1, len(memes))), drawn]).astype(np.float64)  # the actual memes first
    # float of shape (settings, judges, 1 + resamples, models)
    rated = np.stack(
        [
            np.stack(
                [
                    _ratings(found, [b for b in battles if b[4] == judge], memes=memes, models=models, weights=weights)
                    for judge in judges
                ]
            )
            for found in scores
        ]
    )
    moved = rated[0] - rated[1]
    ends = tails(len(memes))
    own = np.array([[_own(judge, model, families) for model in models] for judge in judges])
    shifts = [
        Shift(
            judge=judge,
            target=model,
            own_family=bool(own[j, t]),
            ratings=(float(rated[0, j, 0, t]), float(rated[1, j, 0, t])),
            points=_figure(moved[j, :, t], ends),
            memes=len(memes),
        )
        for (j, judge), (t, model) in itertools.product(enumerate(judges), enumerate(models))
    ]
    # A judge whose targets are all of its own family, or none, contributes no difference.
    mixed = [j for j in range(len(judges)) if own[j].any() and not own[j].all()]
    lifts = [moved[j][:, own[j]].mean(axis=1) - moved[j][:, ~own[j]].mean(axis=1) for j in mixed]
    # Spread per judge first, then the mean: averaging ratings first would cancel out judges who disagree.
    spreads = rated.std(axis=3).mean(axis=1)  # (settings, 1 + resamples)
    return SettingContrast(
        one=settings[0],
        other=settings[1],
        battles=len(battles),
        shifts=tuple(shifts),
        own_family=_figure(np.mean(lifts, axis=0), ends) if lifts else None,
        spread=float(spreads[0, 0]),
        other_spread=float(spreads[1, 0]),
        wider=_figure(spreads[0] - spreads[1], ends),
    )


def _ratings(
    scores: Mapping[Battle, float],
    battles: Sequence[Battle],
    *,
    memes: Sequence[str],
    models: Sequence[str],
    weights: Floats,
) -> Floats:
    """Returns ratings by one judge, for each row of weights of the memes."""
    n = len(models)
    place = {model: number for number, model in enumerate(models)}
    meme_of = {meme: number for number, meme in enumerate(memes)}
    won = np.zeros((len(memes), n, n))
    for battle in battles:
        meme, _, a, b, _ = battle
        won[meme_of[meme], place[a], place[b]] += scores[battle]
        won[meme_of[meme], place[b], place[a]] += 1 - scores[battle]
    tables = (weights @ won.reshape(len(memes), n * n)).reshape(-1, n, n) + quarter_ties(n)
    return np.asarray(MIDDLE + SCALE * fit(tables))


def _own(judge: str, model: str, families: Mapping[str, str]) -> bool:
    family = families.get(judge, "")
    # An unknown family matches nothing: two models without one are not related.
    return judge == model or bool(family and family == families.get(model, ""))


def _figure(values: Floats, ends: tuple[float, float]) -> Figure:
    low, high = np.percentile(values[1:], ends)
    return Figure(float(values[0]), float(low), float(high))


def contrast_sections(found: Sequence[SettingContrast], models: Sequence[str]) -> list[Section]:
    """Builds a table for each contrast, with targets as rows and judges as columns."""
    return [_section(one, models) for one in found]


def _section(contrast: SettingContrast, models: Sequence[str]) -> Section:
    one, other = SETTING_WORDS[contrast.one], SETTING_WORDS[contrast.other]
    judges = list(dict.fromkeys(shift.judge for shift in contrast.shifts))
    shifts = {(shift.judge, shift.target): shift for shift in contrast.shifts}
    rows = [(model, *(_cell(shifts[judge, model]) for judge in judges)) for model in models]
    sure = [shift for shift in contrast.shifts if shift.sure]
    notes = [
        f"Points that a target's rating is higher by a judge's verdicts with {one} than with {other}, over the same "
        f"{contrast.battles:,} judgements in the same order; 95 % intervals by bootstrap over memes. * the interval "
        f"does not hold 0, over {LEAST_MEMES} memes or more; ° of the judge's own family. Each interval is by itself: "
        "of twenty, one misses by chance.",
        f"Ratings are spread by {contrast.spread:.0f} points with {one} and {contrast.other_spread:.0f} with {other} "
        f"(standard deviation, mean over judges): {figure(contrast.wider, '+.0f')}.",
    ]
    if contrast.own_family is not None:
        notes.append(f"The judges' own families gain {figure(contrast.own_family, '+.0f')} more than the others.")
    if sure:
        notes.append("Surely moved: " + "; ".join(f"{shift.target} by {shift.judge}" for shift in sure) + ".")
    title = f"Ratings with {one}, less those with {other}"
    return Section(f"contrast-{contrast.one}", title, (("target", *judges), *rows), tuple(notes))


def _cell(shift: Shift) -> str:
    return figure(shift.points, "+.0f") + "*" * shift.sure + "°" * shift.own_family
