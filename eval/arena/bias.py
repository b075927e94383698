"""Bias of judges: self-preference, and how much the reference and the panel stabilise rankings.

Each judge judges the same battles in the same order under each setting. Its ranking uses counted win rates, which exist
whatever the table looks like.

Contrasts of two settings are paired: memes are resampled for both at once. Ratings are Bradley-Terry ratings with a
quarter of a tied battle added to each pair of models, as one judge has too few battles for every model to lose one.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.arena.agreement import joint_scores
from eval.arena.events import Event, Judged
from eval.arena.ranking.battles import Floats, battles, win_rates, wins, wins_by
from eval.arena.ranking.bootstrap import LEAST_MEMES, draw_memes, tails
from eval.arena.ranking.bradley_terry import finite_ratings
from eval.arena.words import OVERALL, SETTING_WORDS, Setting
from eval.reports.sections import Section
from eval.scores.measure import Figure, figure

Battle = tuple[str, int, str, str, str]
"""Meme, task, the two answers as they were shown, and the judge."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Difference between a target's ratings by one judge under two settings."""

    judge: str
    target: str
    own_family: bool
    """True if judge and target have the same maker, or are the same model."""
    points: Figure
    memes: int

    @property
    def sure(self) -> bool:
        """True if the interval excludes 0 and there are enough memes."""
        return self.memes >= LEAST_MEMES and (self.points.low > 0 or self.points.high < 0)


@dataclass(frozen=True, slots=True)
class SettingContrast:
    """Comparison of two settings, over the battles that were judged under both."""

    one: Setting
    other: Setting
    battles: int
    shifts: tuple[Shift, ...]
    own_family: Figure | None
    """Mean shift of targets of a judge's own family minus that of all others, with its interval; None if no judge has
    both."""
    spread: float
    other_spread: float
    wider: Figure
    """Difference between the two spreads: above 0, ``one`` separates targets more."""


def contrasts(
    events: Sequence[Event], models: Sequence[str], families: Mapping[str, str], *, resamples: int, seed: int
) -> tuple[SettingContrast, ...]:
    """Compares every setting of the bias study with the fused guideline or, without it, the first that was run."""
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
    judged: Sequence[Battle],
    *,
    memes: Sequence[str],
    models: Sequence[str],
    weights: Floats,
) -> Floats:
    """Returns ratings by one judge, for each row of weights of the memes."""
    n = len(models)
    table = battles(models, [(one[2], one[3], scores[one], one[0]) for one in judged])
    number = {meme: number for number, meme in enumerate(memes)}
    unit = np.array([number[one[0]] for one in judged], dtype=np.int64)
    won = wins_by(table, unit, len(memes)).reshape(len(memes), n * n)
    return finite_ratings((weights @ won).reshape(-1, n, n))


def _own(judge: str, model: str, families: Mapping[str, str]) -> bool:
    family = families.get(judge, "")
    # An unknown family matches nothing: two models without one are not related.
    return judge == model or bool(family and family == families.get(model, ""))


def _figure(values: Floats, ends: tuple[float, float]) -> Figure:
    low, high = np.percentile(values[1:], ends)
    return Figure(float(values[0]), float(low), float(high))


def contrast_section(contrast: SettingContrast, models: Sequence[str]) -> Section:
    """Builds the table of a contrast, with targets as rows and judges as columns."""
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


def ndcg(ratings: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Computes how well a ranking preserves a reference ranking, weighted towards the top; 1 for the same order.

    As MemeArena defines it: of P models, the one at place p of the reference has relevance P − p; a ranking's gain is
    the sum of relevance / log2(p + 1) over its own places p, and is divided by the reference's gain. Tied models share
    their places: each counts with the mean relevance, which is the expectation over random orders of them.
    """
    # Imported here: a report without a bias study does not need them, and both are slow to import.
    from scipy.stats import rankdata
    from sklearn.metrics import ndcg_score

    # Relevance ends at 0, so the reference's last model adds nothing wherever it is ranked.
    relevance = rankdata(list(reference.values())) - 1
    # A single model has relevance 0, so there is no gain to lose.
    return float(ndcg_score([relevance], [[ratings[one] for one in reference]])) if relevance.any() else 1.0


def chance_ndcg(reference: Mapping[str, float]) -> float:
    """Computes the mean NDCG of a ranking in random order: a figure below it is worse than chance."""
    return ndcg(dict.fromkeys(reference, 0.0), reference)


def kendall(ratings: Mapping[str, float], reference: Mapping[str, float]) -> float | None:
    """Computes Kendall's τ-b of two rankings of the same models; None if either ties all models."""
    from scipy.stats import kendalltau

    models = list(reference)
    value = kendalltau([ratings[model] for model in models], [reference[model] for model in models]).statistic
    # scipy gives NaN for a constant ranking.
    return None if np.isnan(value) else float(value)


@dataclass(frozen=True, slots=True)
class OwnCase:
    """A judge's verdicts on its own answers, compared with those of the rest of the panel."""

    judge: str
    own: float
    others: float
    """Its win rate in the same battles according to judges that do not take part in them."""
    lift: float
    low: float | None
    """Lower end of the 95 % interval of the difference, by bootstrap over memes; None if there are too few memes."""
    high: float | None

    @property
    def favours_itself(self) -> bool:
        """True if the interval lies above 0."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """One judge's ranking compared with that of the rest of the panel, both without their judges' own cases."""

    judge: str
    ndcg: float
    tau: float | None
    """Kendall's τ-b of the two rankings; None if either ties all models."""
    chance: float
    """Mean NDCG of a random order with the same reference."""
    joint: float
    """NDCG with the ranking by the joint vote of all judges, itself included, as reference, as in MemeArena."""
    joint_tau: float | None
    joint_chance: float


@dataclass(frozen=True, slots=True)
class UnderSetting:
    """The panel under one setting."""

    setting: Setting
    battles: int
    judges: tuple[JudgeAgreement, ...]
    ndcg: float | None
    """Mean over judges, as the others; None if no judge can be compared."""
    tau: float | None
    chance: float | None
    joint: float | None
    """Mean NDCG with the joint vote as reference."""
    joint_tau: float | None
    own_cases: tuple[OwnCase, ...]
    own_lift: float | None


@dataclass(frozen=True, slots=True)
class PanelSize:
    """Closeness of panels of one size to the whole panel."""

    size: int
    panels: int
    ndcg: float
    tau: float | None
    chance: float


@dataclass(frozen=True, slots=True)
class BiasReport:
    """Result of the bias study."""

    settings: tuple[UnderSetting, ...]
    sizes: tuple[PanelSize, ...]
    """Results by panel size, under the arena's own setting or, failing that, the first that was run."""
    sized_by: Setting


def bias_report(
    events: Sequence[Event], models: Sequence[str], judges: Sequence[str], *, resamples: int, seed: int
) -> BiasReport | None:
    """Reports the bias study; None if it was not run."""
    of_study = [event for event in events if isinstance(event, Judged) and event.study == "bias"]
    settings = []
    for setting in Setting:
        judged = {
            judge: found
            # In panel order, without judges that have no judgement under this setting.
            for judge in judges
            if (found := [event for event in of_study if event.setting is setting and event.judge == judge])
        }
        if judged:
            settings.append(_under(setting, judged, models=models, resamples=resamples, seed=seed))
    if not settings:
        return None
    # All settings cover the same battles, so any would do; the first in the order of Setting is the arena's own
    # where that was run.
    sized_by = settings[0].setting
    by_judge = {
        judge: [event for event in of_study if event.setting is sized_by and event.judge == judge] for judge in judges
    }
    return BiasReport(tuple(settings), _sizes(by_judge, models), sized_by)


def _under(
    setting: Setting, judged: Mapping[str, Sequence[Judged]], models: Sequence[str], resamples: int, seed: int
) -> UnderSetting:
    agreements, cases = [], []
    everything = [event for found in judged.values() for event in found]
    # Computed once, over all judges: it is the same reference for each of them.
    # The joint vote of all judges counts once per battle.
    rows = [(key.one, key.other, score, key.meme) for key, score in joint_scores(everything, OVERALL).items()]
    joint = _counted(rows, models)
    for judge, own in judged.items():
        # A judge's verdicts on its own answers are no yardstick for other judges.
        others = [
            event
            for other, found in judged.items()
            for event in found
            if other != judge and other not in (event.a, event.b)
        ]
        # A panel of one has nothing to be compared with; its battles still count in `battles`.
        if not others:
            continue
        # What a judge makes of its own answers shows in its lift; its ranking is that of the other models.
        impartial = [event for event in own if judge not in (event.a, event.b)]
        # Models that only one side judged are in neither ranking: NDCG and tau compare the same models.
        here, there = _common(_rates(impartial, models), _rates(others, models))
        # As MemeArena has it: with own cases. The judge's battles are part of the joint vote, so its models are too.
        ratings = _rates(own, models)
        # One model is no ranking: a judge of two models, one of them itself, has nothing but its own cases.
        if len(here) > 1:
            whole = {model: joint[model] for model in ratings}
            agreements.append(JudgeAgreement(judge, *_closeness(here, there), *_closeness(ratings, whole)))
        case = _own_case(judge, own, others=others, resamples=resamples, seed=seed)
        if case is not None:
            cases.append(case)
    return UnderSetting(
        setting=setting,
        battles=len(everything),
        judges=tuple(agreements),
        ndcg=_mean(each.ndcg for each in agreements),
        tau=_mean(each.tau for each in agreements),
        chance=_mean(each.chance for each in agreements),
        joint=_mean(each.joint for each in agreements),
        joint_tau=_mean(each.joint_tau for each in agreements),
        own_cases=tuple(cases),
        own_lift=_mean(case.lift for case in cases),
    )


def _common(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns two rankings of the models that both have."""
    return {m: rate for m, rate in one.items() if m in other}, {m: other[m] for m in one if m in other}


def _closeness(ratings: Mapping[str, float], reference: Mapping[str, float]) -> tuple[float, float | None, float]:
    """Returns NDCG, Kendall's τ-b, and the NDCG of a random order."""
    return ndcg(ratings, reference), kendall(ratings, reference), chance_ndcg(reference)


def _mean(values: Iterable[float | None]) -> Any:
    """Returns the mean of the values that there are; None without any."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _rates(events: Sequence[Judged], models: Sequence[str]) -> dict[str, float]:
    """Returns the counted win rates of the models that have a battle."""
    return _counted([(event.a, event.b, event.verdicts[OVERALL].score, event.meme) for event in events], models)


def _counted(rows: Sequence[tuple[str, str, float, str]], models: Sequence[str]) -> dict[str, float]:
    rates = win_rates(wins(battles(models, rows)))
    # NaN means a model without a battle: it has no rate, which is not the same as a rate of 0.
    return {model: float(rate) for model, rate in zip(models, rates, strict=True) if not np.isnan(rate)}


def _own_case(judge: str, own: Sequence[Judged], others: Sequence[Judged], resamples: int, seed: int) -> OwnCase | None:
    """Compares the judge's verdicts on its own answers with the other judges' verdicts on the same battles."""

    def by_battle(events: Sequence[Judged]) -> dict[tuple[object, ...], list[Judged]]:
        found: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
        for event in events:
            if judge in (event.a, event.b):
                # Sorted, so that the same two answers are one battle in either order.
                found[event.meme, event.task, *sorted((event.a, event.b))].append(event)
        return found

    here, there = by_battle(own), by_battle(others)
    # Only battles that both sides judged: otherwise easier battles on one side would distort the lift.
    mine, theirs = ([event for key in here.keys() & there.keys() for event in found[key]] for found in (here, there))
    if not mine:
        return None
    # Sorted, so that the draws don't depend on the order in which battles arrived.
    memes = {meme: place for place, meme in enumerate(sorted({event.meme for event in mine}))}
    # Per meme: sum of scores and number of battles, by its own judgement and by the others'.
    sums = np.zeros((len(memes), 4))
    for events, column in ((mine, 0), (theirs, 2)):
        for event in events:
            score = event.verdicts[OVERALL].score
            # A score is that of the answer shown first; the judge's own answer may be either one.
            sums[memes[event.meme], column] += score if event.a == judge else 1 - score
            sums[memes[event.meme], column + 1] += 1

    def lift(total: Floats) -> Floats:
        return np.asarray(total[..., 0] / total[..., 1] - total[..., 2] / total[..., 3])

    total = sums.sum(axis=0)
    low = high = None
    # With fewer memes, a judge would too often be accused by chance.
    if len(memes) >= LEAST_MEMES:
        drawn = draw_memes(len(memes), resamples, seed) @ sums
        # A resample may leave out all battles of one side.
        with np.errstate(invalid="ignore"):
            lifts = lift(drawn)
        # The tails allow for few memes: see `tails`.
        low, high = (float(end) for end in np.percentile(lifts[~np.isnan(lifts)], tails(len(memes))))
    return OwnCase(
        judge=judge,
        own=float(total[0] / total[1]),
        others=float(total[2] / total[3]),
        lift=float(lift(total)),
        low=low,
        high=high,
    )


def _sizes(by_judge: Mapping[str, Sequence[Judged]], models: Sequence[str]) -> tuple[PanelSize, ...]:
    judges = [judge for judge, found in by_judge.items() if found]
    whole = _rates([event for judge in judges for event in by_judge[judge]], models)
    sizes = []
    for size in range(1, len(judges) + 1):
        panels = list(itertools.combinations(judges, size))
        # A small panel may not have judged every model.
        found = [
            _closeness(*_common(_rates([event for judge in panel for event in by_judge[judge]], models), whole))
            for panel in panels
        ]
        ndcgs, taus, chances = map(_mean, zip(*found, strict=True))
        sizes.append(PanelSize(size=size, panels=len(panels), ndcg=ndcgs, tau=taus, chance=chances))
    return tuple(sizes)
